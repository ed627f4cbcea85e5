"""The speeds that Holdfast is built to reach, and whether a run reached them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from bench.measures.drain import PLAIN
from bench.measures.enqueue import WITHOUT_NOTIFY

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.record import Record

Medians = dict[tuple[str, str], float]
"""By measure and subject."""
OURS, LIMIT = "holdfast", "limit"


@dataclass(frozen=True, slots=True)
class Goal:
    what: str
    bound: float
    of: Callable[[Medians], float]
    """The figure; KeyError where something was not measured."""
    at_most: bool = False

    def reached(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound

    @property
    def asked(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.bound:g}"


def _beside(measure: str, subject: str) -> Callable[[Medians], float]:
    return lambda medians: medians[measure, OURS] / medians[measure, subject]


def _within(measure: str, other: str) -> Callable[[Medians], float]:
    return lambda medians: medians[measure, OURS] / medians[other, OURS]


def _beside_best(measure: str) -> Callable[[Medians], float]:
    """The best peer is the one with the smallest figure."""

    def found(medians: Medians) -> float:
        peers = [
            value
            for (name, subject), value in medians.items()
            if name == measure and subject not in (OURS, LIMIT)
        ]
        if not peers:
            raise KeyError(measure)
        return medians[measure, OURS] / min(peers)

    return found


def _paired(measure: str) -> Callable[[Medians], float]:
    """Beside what the same step found without the difference."""
    return lambda medians: medians[_pair(measure), OURS]


def _pair(measure: str) -> str:
    return f"{measure} ÷ without"


def _itself(measure: str) -> Callable[[Medians], float]:
    return lambda medians: medians[measure, OURS]


_PAIRS = {
    "drain_defaults": PLAIN,
    "enqueue_producers": WITHOUT_NOTIFY,
    "clutter": PLAIN,
    "telemetry_on": PLAIN,
}
"""What is compared step by step, and under which name a step notes the other figure."""

GRAPHILE, PGQUEUER = "graphile-worker", "pgqueuer"
GOALS = (
    Goal("drain ÷ Graphile Worker", 1.5, _beside("drain_1", GRAPHILE)),
    Goal("drain ÷ PgQueuer", 4.0, _beside("drain_1", PGQUEUER)),
    Goal("drain ÷ the raw limit", 0.8, _beside("drain_1", LIMIT)),
    Goal("drain with all defaults ÷ tuned", 0.9, _paired("drain_defaults")),
    Goal("bulk enqueue ÷ Graphile Worker", 1.8, _beside("enqueue_bulk", GRAPHILE)),
    Goal("bulk enqueue ÷ PgQueuer", 2.5, _beside("enqueue_bulk", PGQUEUER)),
    Goal("enqueues of 200 tasks ÷ one by one", 30, _within("enqueue_concurrent", "enqueue_single")),
    Goal("8 producers ÷ without NOTIFY", 0.9, _paired("enqueue_producers")),
    Goal("latency p50 ÷ the best peer", 0.7, _beside_best("latency_p50"), at_most=True),
    Goal("latency p99 ÷ the best peer", 1.0, _beside_best("latency_p99"), at_most=True),
    Goal("steady state: worst 10 s ÷ first", 0.85, _within("steady_worst", "steady_first")),
    Goal("open transaction: last 10 s ÷ first", 0.85, _within("xmin_last", "xmin_first")),
    Goal("1,000,000 waiting ÷ 10,000", 0.9, _within("backlog_1m", "backlog_10k")),
    Goal("20 tasks of 3 priorities ÷ one lane", 0.8, _within("backlog_1m_lanes", "backlog_1m")),
    Goal("beside deferred and held jobs ÷ without", 0.95, _paired("clutter")),
    Goal("idle worker: statements a second", 1.0, _itself("idle_statements"), at_most=True),
    Goal("idle worker: % of a core", 0.5, _itself("idle_cpu"), at_most=True),
    Goal("idle worker: MB", 80, _itself("idle_rss"), at_most=True),
    Goal("telemetry on ÷ off", 0.9, _paired("telemetry_on")),
)


@dataclass(frozen=True, slots=True)
class Found:
    """A goal with the figure of a run."""

    goal: Goal
    value: float

    @property
    def reached(self) -> bool:
        return self.goal.reached(self.value)


def judge(record: Record) -> list[Found]:
    """Every goal that the run has figures for."""
    medians = {(one.measure, one.subject): one.median for one in record.figures()}
    medians |= {
        (_pair(measure), OURS): median(ratios)
        for measure, note in _PAIRS.items()
        if (ratios := list(record.ratios(measure, note, OURS)))
    }
    found = []
    for goal in GOALS:
        try:
            found.append(Found(goal, goal.of(medians)))
        except (KeyError, ZeroDivisionError):
            continue
    return found
