"""The measures in the order they are taken; one run may yield several of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.measures import backlog, drain, enqueue, idle, latency, steady

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from bench.contestants import Contestant
    from bench.stage import Stage


@dataclass(frozen=True, slots=True)
class Family:
    """A way to measure, what it yields, and whose it is."""

    run: Callable[[Stage, Contestant], dict[str, float]]
    gives: tuple[str, ...]
    only: frozenset[str] = frozenset()
    fills: str | None = None
    """The key of a large template that nobody needs afterwards."""

    def suits(self, subject: Contestant, asked: Collection[str]) -> bool:
        if self.only and subject.name not in self.only:
            return False
        return bool(set(self.gives) & set(asked) - subject.skips)


_COSTS = ("drain_1", "busy_rss", "cpu_per_job", "wal_per_job")
_IDLE = ("idle_statements", "idle_cpu", "idle_rss")

FAMILIES = (
    Family(enqueue.single, ("enqueue_single",)),
    Family(enqueue.bulk, ("enqueue_bulk",)),
    Family(enqueue.concurrent, ("enqueue_concurrent",)),
    Family(enqueue.producers, ("enqueue_producers",)),
    Family(drain.one, _COSTS),
    Family(drain.two, ("drain_2",)),
    Family(drain.defaults, ("drain_defaults",)),
    Family(drain.telemetry, ("telemetry_on",), frozenset({"holdfast"})),
    Family(latency.latency, ("latency_p50", "latency_p99")),
    Family(backlog.few, ("backlog_10k",)),
    Family(drain.work_5ms, ("work_5ms",), fills="naps"),
    Family(drain.clutter, ("clutter",), fills="clutter"),
    Family(backlog.many, ("backlog_1m",), fills="million"),
    Family(backlog.lanes, ("backlog_1m_lanes",), fills="lanes"),
    Family(idle.idle, _IDLE),
    Family(steady.free, ("steady_first", "steady_worst")),
    Family(steady.held, ("xmin_first", "xmin_last")),
)
