"""The speeds that Holdfast is built to reach, and whether a run reached them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from bench.measures.drain import PLAIN
from bench.measures.enqueue import WITHOUT_NOTIFY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from bench.record import Record

OURS, LIMIT = "holdfast", "limit"


@dataclass(frozen=True, slots=True)
class Goal:
    what: str
    bound: float
    of: Callable[[Record], Iterable[float]]
    """The figure in each round; nothing where something was not measured."""
    at_most: bool = False

    def reached(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound

    @property
    def asked(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.bound:g}"


def _beside(measure: str, subject: str) -> Callable[[Record], Iterable[float]]:
    return lambda record: _ratios(record.rounds(measure, OURS), record.rounds(measure, subject))


def _within(measure: str, other: str) -> Callable[[Record], Iterable[float]]:
    return lambda record: _ratios(record.rounds(measure, OURS), record.rounds(other, OURS))


def _ratios(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Round by round: what is minutes apart is measured on another machine."""
    return [ours[turn] / theirs[turn] for turn in ours if theirs.get(turn)]


def _beside_best(measure: str) -> Callable[[Record], Iterable[float]]:
    """The best peer is the one with the smallest figure."""

    def found(record: Record) -> Iterable[float]:
        peers = [
            figure
            for figure in record.figures()
            if figure.measure == measure and figure.subject not in (OURS, LIMIT)
        ]
        best = min(peers, key=lambda figure: figure.median, default=None)
        return _beside(measure, best.subject)(record) if best else ()

    return found


def _paired(measure: str, note: str) -> Callable[[Record], Iterable[float]]:
    """Beside what the same step found without the difference."""
    return lambda record: record.ratios(measure, note, OURS)


def _itself(measure: str) -> Callable[[Record], Iterable[float]]:
    return lambda record: record.rounds(measure, OURS).values()


GRAPHILE, PGQUEUER = "graphile-worker", "pgqueuer"
GOALS = (
    Goal("drain ÷ Graphile Worker", 1.5, _beside("drain_1", GRAPHILE)),
    Goal("drain ÷ PgQueuer", 4.0, _beside("drain_1", PGQUEUER)),
    Goal("drain ÷ the raw limit", 0.8, _beside("drain_1", LIMIT)),
    Goal("drain with all defaults ÷ tuned", 0.7, _paired("drain_defaults", PLAIN)),
    Goal("bulk enqueue ÷ Graphile Worker", 1.8, _beside("enqueue_bulk", GRAPHILE)),
    Goal("bulk enqueue ÷ PgQueuer", 2.5, _beside("enqueue_bulk", PGQUEUER)),
    Goal("enqueues of 200 tasks ÷ one by one", 30, _within("enqueue_concurrent", "enqueue_single")),
    Goal("8 producers ÷ without NOTIFY", 0.9, _paired("enqueue_producers", WITHOUT_NOTIFY)),
    Goal("latency p50 ÷ the best peer", 0.7, _beside_best("latency_p50"), at_most=True),
    Goal("latency p99 ÷ the best peer", 1.0, _beside_best("latency_p99"), at_most=True),
    Goal("steady state: worst 10 s ÷ first", 0.85, _within("steady_worst", "steady_first")),
    Goal("open transaction: last 10 s ÷ first", 0.85, _within("xmin_last", "xmin_first")),
    Goal("1,000,000 waiting ÷ 10,000", 0.9, _within("backlog_1m", "backlog_10k")),
    Goal("20 tasks of 3 priorities ÷ one lane", 0.8, _within("backlog_1m_lanes", "backlog_1m")),
    Goal("beside deferred and held jobs ÷ without", 0.95, _paired("clutter", PLAIN)),
    Goal("idle worker: statements a second", 1.0, _itself("idle_statements"), at_most=True),
    Goal("idle worker: % of a core", 0.5, _itself("idle_cpu"), at_most=True),
    Goal("idle worker: MB", 80, _itself("idle_rss"), at_most=True),
    Goal("50 workers: transactions ÷ one", 1.5, _itself("fleet_transactions"), at_most=True),
    Goal("50 workers: p50 ÷ one", 1.3, _itself("fleet_p50"), at_most=True),
    Goal("50 workers: p99 ÷ one", 2.0, _itself("fleet_p99"), at_most=True),
    Goal("50 workers: idle transactions/s of each", 0.2, _itself("fleet_idle"), at_most=True),
    Goal("200 workers: drain ÷ two workers", 0.8, _itself("fleet_drain")),
    Goal("telemetry on ÷ off", 0.9, _paired("telemetry_on", PLAIN)),
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
    """Every goal that the run has figures for, by the median of the rounds."""
    return [Found(goal, median(rounds)) for goal in GOALS if (rounds := list(goal.of(record)))]
