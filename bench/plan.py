"""What a run does: which measures in which order, whose, how often, and how long it will take.

Within a group all measures are taken in a first round, then all in a second, and each round begins
with another subject. So a slow minute of the machine belongs neither to one subject nor to one
measure, and a run that is stopped has a figure for everything it came to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.measures import backlog, drain, enqueue, fleet, idle, latency, steady
from bench.sizes import Pace, Sizes

if TYPE_CHECKING:
    from bench.contestants import Contestant
    from bench.stage import Stage

Seconds = Callable[[Sizes, Pace], float]

# A database is copied, processes start and stop.
_AROUND = 1.2
_PRODUCERS_AROUND = 3.5
_CHECKS = 0.3
_FEW_BETWEEN = 0.2
_COPY_MANY = 4.0
_VACUUM_MANY = 6.0
# Large backlogs and minutes at full speed are for those that are measured against each other.
_FAST = frozenset({"holdfast", "limit", "pgqueuer", "graphile-worker", "pg-boss"})

# Those that a goal compares.
_COMPARED = frozenset({"holdfast", "limit", "pgqueuer", "graphile-worker"})
_OURS = frozenset({"holdfast", "limit"})

# What is over in a second, and is measured against a figure.
_OFTEN = 7
_SOMETIMES = 5


@dataclass(frozen=True, slots=True)
class Family:
    """A way to measure: what it yields, whose it is, how often it is done and how long it takes."""

    run: Callable[[Stage, Contestant], dict[str, float]]
    gives: tuple[str, ...]
    lasts: Seconds
    fills: str | None = None
    """The key of the template that its databases are copied from."""
    rounds: int = 3
    fewer: int = 3
    """Rounds of those that are not `closely` looked at."""
    closely: frozenset[str] = _COMPARED
    only: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.gives[0]

    def rounds_of(self, subject: Contestant) -> int:
        asked = self.rounds if subject.name in self.closely else min(self.rounds, self.fewer)
        return min(asked, subject.most_rounds or asked)

    def suits(self, subject: Contestant, asked: Collection[str]) -> bool:
        if self.only and subject.name not in self.only:
            return False
        return bool(set(self.gives) & set(asked) - subject.skips)


def _timed(sizes: Sizes, count: float, speed: float) -> float:
    return min(count / speed, sizes.enqueue_seconds)


def _drained(sizes: Sizes, count: float, speed: float) -> float:
    return min(count / speed, sizes.drain_seconds) + _CHECKS


def _drain_1(sizes: Sizes, pace: Pace) -> float:
    return _drained(sizes, sizes.drain, pace.drain)


def _fill_clutter(sizes: Sizes, pace: Pace) -> float:
    enqueued = (2 * sizes.lying + sizes.beside) / pace.bulk
    return 3 * _AROUND + enqueued + sizes.lying / pace.fail + sizes.beside / pace.drain


def _clutter(sizes: Sizes, pace: Pace) -> float:
    return _drained(sizes, sizes.beside, pace.drain) + sizes.beside / pace.bulk


def _fill_many(sizes: Sizes, pace: Pace) -> float:
    return _AROUND + sizes.many / 1e6 * _VACUUM_MANY + sizes.many / pace.bulk


def _backlog(sizes: Sizes, pace: Pace) -> float:
    window = min(backlog.SETTLING + sizes.window_seconds, sizes.many * 3 / 8 / pace.drain)
    return sizes.many / 1e6 * _COPY_MANY + window + _CHECKS


def _few(sizes: Sizes, pace: Pace) -> float:
    once = sizes.few / pace.bulk + sizes.few / pace.drain + _FEW_BETWEEN
    return (sizes.few_times + 0.5) * once


def _steady(sizes: Sizes, _pace: Pace) -> float:
    return sizes.steady_seconds + _CHECKS


def _fleet(sizes: Sizes, _: Pace) -> float:
    once = 20.0 + sizes.idle_seconds + 0.09 * sizes.probes + 3 * fleet.REPORTED_SECONDS
    return len(fleet.SIZES) * once


def _shared_backlog(sizes: Sizes, pace: Pace) -> float:
    return 2 * (sizes.fleet / pace.drain + sizes.fleet / pace.bulk) + 20.0


FILLS: dict[str, Seconds] = {
    drain.WAITING: lambda sizes, pace: _AROUND + sizes.drain / pace.bulk,
    drain.NAPS: lambda sizes, pace: _AROUND + sizes.nap / pace.bulk,
    drain.CLUTTER: _fill_clutter,
    backlog.MILLION: _fill_many,
    backlog.LANES: _fill_many,
}
"""How long it takes to fill a template, once for a subject."""

SHORT = (
    Family(
        enqueue.single,
        ("enqueue_single",),
        lambda sizes, pace: _timed(sizes, sizes.single, pace.single),
        rounds=_SOMETIMES,
    ),
    Family(
        enqueue.bulk,
        ("enqueue_bulk",),
        lambda sizes, pace: _timed(sizes, sizes.bulk, pace.bulk),
        rounds=_OFTEN,
    ),
    Family(
        enqueue.concurrent,
        ("enqueue_concurrent",),
        lambda sizes, pace: _timed(sizes, sizes.concurrent, pace.concurrent),
        rounds=_SOMETIMES,
    ),
    Family(
        enqueue.producers,
        ("enqueue_producers",),
        lambda sizes, _: _PRODUCERS_AROUND + sizes.enqueue_seconds,
        rounds=_SOMETIMES,
    ),
    Family(
        drain.one,
        ("drain_1", "busy_rss", "cpu_per_job", "wal_per_job"),
        _drain_1,
        fills=drain.WAITING,
        rounds=_OFTEN,
    ),
    Family(drain.two, ("drain_2",), _drain_1, fills=drain.WAITING),
    Family(
        drain.defaults,
        ("drain_defaults",),
        lambda sizes, pace: _drained(sizes, sizes.drain, pace.defaults),
        fills=drain.WAITING,
    ),
    Family(
        drain.clutter,
        ("clutter",),
        _clutter,
        fills=drain.CLUTTER,
        rounds=_OFTEN,
        only=_FAST,
    ),
    Family(
        drain.telemetry,
        ("telemetry_on",),
        lambda sizes, pace: 4 * _drain_1(sizes, pace),
        fills=drain.WAITING,
        rounds=_OFTEN,
        only=frozenset({"holdfast"}),
    ),
    Family(
        drain.work_5ms,
        ("work_5ms",),
        lambda sizes, _: sizes.nap_seconds + _CHECKS,
        fills=drain.NAPS,
    ),
    Family(
        latency.latency,
        ("latency_p50", "latency_p99"),
        lambda sizes, _: sizes.probes * 0.025 + _CHECKS,
        rounds=_OFTEN,
    ),
    Family(
        idle.idle,
        ("idle_statements", "idle_cpu", "idle_rss"),
        lambda sizes, _: sizes.idle_seconds + idle.SETTLING,
    ),
)
BACKLOG = (
    Family(backlog.few, ("backlog_10k",), _few, only=_FAST),
    Family(
        backlog.many,
        ("backlog_1m",),
        _backlog,
        fills=backlog.MILLION,
        only=_FAST,
    ),
    Family(
        backlog.lanes,
        ("backlog_1m_lanes",),
        _backlog,
        fills=backlog.LANES,
        only=_FAST,
    ),
)
LASTING = (
    Family(
        steady.free,
        ("steady_first", "steady_worst"),
        _steady,
        fewer=1,
        closely=_OURS,
        only=_FAST,
    ),
    Family(steady.held, ("xmin_first", "xmin_last"), _steady, fewer=1, closely=_OURS, only=_FAST),
)
FLEET = (
    Family(
        fleet.fleet,
        (fleet.FAMILY, "fleet_p50", "fleet_p99", "fleet_idle"),
        _fleet,
        rounds=1,
        closely=_OURS,
        only=frozenset({"holdfast", "pgqueuer", "procrastinate"}),
    ),
    Family(
        fleet.shared_backlog,
        ("fleet_drain",),
        _shared_backlog,
        only=frozenset({"holdfast"}),
    ),
)
GROUPS = (SHORT, BACKLOG, LASTING, FLEET)

QUICK_MEASURES = frozenset(measure for family in SHORT for measure in family.gives) - {
    "clutter",
    "drain_2",
}
QUICK_ROUNDS = 3
"""What fits into five minutes."""


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement of one subject."""

    family: Family
    turn: int
    subject: Contestant

    @property
    def key(self) -> tuple[str, int, str]:
        return self.family.name, self.turn, self.subject.name


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is asked to do."""

    asked: Sequence[str]
    subjects: Sequence[Contestant]
    sizes: Sizes
    rounds: int | None = None
    """For every measure; unless told, as often as its family says."""
    done: Collection[tuple[str, int, str]] = field(default_factory=set)
    """Keys of steps that an earlier run has taken."""

    def steps(self) -> list[Step]:
        return [step for step in self.all() if step.key not in self.done]

    def all(self) -> Iterator[Step]:
        """With those that an earlier run has taken."""
        for group in GROUPS:
            for turn in range(self.rounds or max(family.rounds for family in group)):
                for family in group:
                    yield from self._turn(family, turn)

    def _turn(self, family: Family, turn: int) -> Iterator[Step]:
        suited = [
            one
            for one in self.subjects
            if family.suits(one, self.asked) and turn < (self.rounds or family.rounds_of(one))
        ]
        start = turn % len(suited) if suited else 0
        for subject in (*suited[start:], *suited[:start]):
            yield Step(family, turn, subject)

    def seconds(self, steps: Sequence[Step]) -> list[float]:
        """How long each step will take; a template is filled by the first that needs it."""
        filled = set()
        estimates = []
        for step in steps:
            pace = step.subject.pace
            sizes = self.sizes.of(pace)
            estimate = _AROUND + step.family.lasts(sizes, pace)
            template = step.family.fills, step.subject.tables
            if step.family.fills and template not in filled:
                estimate += FILLS[step.family.fills](sizes, pace)
            filled.add(template)
            estimates.append(estimate)
        return estimates


def unneeded(step: Step, later: Sequence[Step]) -> str | None:
    """The key of the template that no later step needs."""
    key = step.family.fills
    return None if any(other.family.fills == key for other in later) else key
