"""How much is measured: the sizes of a full run and of a quick one, and what slow subjects get."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Pace:
    """Roughly what a subject does in a second on two cores.

    It foretells how long a run takes, and a slow subject gets fewer jobs by it.
    """

    single: float = 900
    concurrent: float = 1_000
    bulk: float = 30_000
    drain: float = 25_000
    defaults: float = 20_000
    fail: float = 5_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """Counts of jobs, and for each the seconds after which a slow subject is stopped."""

    single: int = 3_000
    bulk: int = 100_000
    concurrent: int = 100_000
    produced: int = 1_500
    enqueue_seconds: float = 3.0
    drain: int = 50_000
    drain_seconds: float = 8.0
    nap: int = 40_000
    nap_seconds: float = 5.0
    probes: int = 200
    lying: int = 100_000
    beside: int = 150_000
    few: int = 10_000
    few_times: int = 4
    many: int = 1_000_000
    window_seconds: float = 8.0
    fill_seconds: float = 150.0
    steady_seconds: float = 180.0
    steady_waiting: int = 2_000
    idle_seconds: float = 10.0
    fleet: int = 100_000

    def scaled(self, scale: float) -> Sizes:
        """For trying things out: every count and stretch of time smaller."""
        kept = {"few_times", "fill_seconds", "steady_waiting"}
        changed = {
            field.name: type(getattr(self, field.name))(max(1, getattr(self, field.name) * scale))
            for field in fields(self)
            if field.name not in kept
        }
        return replace(self, **changed)

    def of(self, pace: Pace) -> Sizes:
        """For a subject of that pace: no more jobs than it works off in the time."""
        return replace(
            self,
            drain=_at_most(self.drain, pace.drain * self.drain_seconds),
            beside=_at_most(self.beside, pace.drain * self.drain_seconds),
            nap=_at_most(self.nap, pace.drain * self.nap_seconds),
        )


def _at_most(count: int, most: float) -> int:
    return min(count, max(1, int(most)))


FULL = Sizes()
QUICK = Sizes(
    single=2_000,
    bulk=60_000,
    concurrent=40_000,
    produced=500,
    enqueue_seconds=1.5,
    drain_seconds=6.0,
    nap=20_000,
    nap_seconds=3.0,
    probes=70,
    idle_seconds=4.0,
)
