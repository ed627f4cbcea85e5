"""What is measured, and what the rounds of it come to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Literal

Rounds = Mapping[tuple[str, str], Sequence[float]]
"""The values of every round, by measure and subject."""


@dataclass(frozen=True, slots=True)
class Measure:
    name: str
    unit: str
    title: str
    better: Literal["more", "less"] = "more"


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("enqueue_single", "jobs/s", "enqueue one by one, one connection"),
        Measure("enqueue_bulk", "jobs/s", "bulk enqueue, batches of 1,000"),
        Measure("enqueue_concurrent", "jobs/s", "single enqueues from 200 tasks"),
        Measure("enqueue_producers", "jobs/s", "8 producer processes, a worker listening"),
        Measure("drain_1", "jobs/s", "drain, one worker process, tuned"),
        Measure("drain_2", "jobs/s", "drain, two worker processes, tuned"),
        Measure("drain_defaults", "jobs/s", "drain, every setting at its default"),
        Measure("latency_p50", "ms", "enqueue to handler start, p50", "less"),
        Measure("latency_p99", "ms", "enqueue to handler start, p99", "less"),
        Measure("steady_first", "jobs/s", "steady state, first 10 s"),
        Measure("steady_worst", "jobs/s", "steady state, worst 10 s"),
        Measure("xmin_first", "jobs/s", "open transaction beside it, first 10 s"),
        Measure("xmin_last", "jobs/s", "open transaction beside it, last 10 s"),
        Measure("backlog_10k", "jobs/s", "10,000 waiting"),
        Measure("backlog_1m", "jobs/s", "1,000,000 waiting"),
        Measure("backlog_1m_lanes", "jobs/s", "1,000,000 waiting, 20 tasks of 3 priorities"),
        Measure("clutter", "jobs/s", "drain beside 100,000 deferred and 100,000 held"),
        Measure("work_5ms", "jobs/s", "jobs of 5 ms, 100 slots"),
        Measure("telemetry_on", "jobs/s", "drain with metrics, and traces of 1 %"),
        Measure("idle_statements", "statements/s", "idle worker: statements", "less"),
        Measure("idle_cpu", "%", "idle worker: CPU of one core", "less"),
        Measure("idle_rss", "MB", "idle worker: memory", "less"),
        Measure("busy_rss", "MB", "busy worker: memory", "less"),
        Measure("fleet_transactions", "x", "50 workers: transactions for a job ÷ one", "less"),
        Measure("fleet_p50", "x", "50 workers: enqueue to handler p50 ÷ one", "less"),
        Measure("fleet_p99", "x", "50 workers: enqueue to handler p99 ÷ one", "less"),
        Measure("fleet_idle", "tx/s", "50 idle workers: transactions of each", "less"),
        Measure("fleet_drain", "x", "drain of 200 workers in 8 processes ÷ two workers"),
        Measure("cpu_per_job", "µs", "CPU of worker and PostgreSQL for a job", "less"),
        Measure("wal_per_job", "bytes", "WAL for claim and outcome of a job", "less"),
    )
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of results.json: a measure of a subject over the rounds of one run."""

    measure: str
    subject: str
    median: float
    low: float
    high: float
    unit: str
    rounds: int


def summarise(rounds: Rounds) -> list[Figure]:
    """Median and range of each, in the order of the measures, subjects as they came."""
    order = list(MEASURES)
    keys = sorted((key for key in rounds if rounds[key]), key=lambda key: order.index(key[0]))
    return [
        Figure(
            measure=measure,
            subject=subject,
            median=_short(median(rounds[measure, subject])),
            low=_short(min(rounds[measure, subject])),
            high=_short(max(rounds[measure, subject])),
            unit=MEASURES[measure].unit,
            rounds=len(rounds[measure, subject]),
        )
        for measure, subject in keys
    ]


def percentile(values: Sequence[float], percent: int) -> float:
    """By the nearest values around it; of one value, that value."""
    if len(values) < 2:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def ratio(figure: Figure, figures: Iterable[Figure], to: str = "holdfast") -> float | None:
    """A subject's median as a part of another's; None where the other has none."""
    for other in figures:
        if other.measure == figure.measure and other.subject == to and other.median:
            return figure.median / other.median
    return None


def as_text(figures: Sequence[Figure]) -> str:
    """The contents of results.json."""
    return json.dumps([asdict(figure) for figure in figures], indent=1) + "\n"


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def number(value: float) -> str:
    """As many digits as mean something."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def _short(value: float) -> float:
    return round(value, 1 if value >= 100 else 4)
