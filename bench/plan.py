"""How much is measured: the sizes of a full run and of a quick one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Sizes:
    """Counts of jobs, and for each the seconds after which a slow subject is stopped."""

    single: int = 5_000
    bulk: int = 100_000
    concurrent: int = 40_000
    produced: int = 1_000
    enqueue_seconds: float = 8.0
    drain: int = 50_000
    drain_seconds: float = 20.0
    nap: int = 50_000
    nap_seconds: float = 12.0
    probes: int = 400
    lying: int = 100_000
    few: int = 10_000
    few_times: int = 5
    many: int = 1_000_000
    window_seconds: float = 8.0
    fill_seconds: float = 600.0
    steady_seconds: float = 180.0
    steady_waiting: int = 2_000
    idle_seconds: float = 20.0

    def scaled(self, scale: float) -> Sizes:
        """For trying things out: every count and stretch of time smaller."""
        kept = {"few_times", "fill_seconds", "steady_waiting"}
        changed = {
            field.name: type(getattr(self, field.name))(max(1, getattr(self, field.name) * scale))
            for field in fields(self)
            if field.name not in kept
        }
        return replace(self, **changed)


FULL = Sizes()
QUICK = Sizes(
    single=2_000,
    bulk=60_000,
    concurrent=20_000,
    produced=400,
    enqueue_seconds=2.5,
    drain_seconds=6.0,
    nap=20_000,
    nap_seconds=3.0,
    probes=120,
    few_times=3,
    idle_seconds=5.0,
)

QUICK_MEASURES = frozenset(
    {
        *("enqueue_single", "enqueue_bulk", "enqueue_concurrent", "enqueue_producers"),
        *("drain_1", "drain_2", "drain_defaults", "latency_p50", "latency_p99", "backlog_10k"),
        *("work_5ms", "telemetry_on", "idle_statements", "idle_cpu", "idle_rss", "busy_rss"),
        *("cpu_per_job", "wal_per_job"),
    }
)
"""What fits into five minutes; the steady states and the large backlogs do not."""
