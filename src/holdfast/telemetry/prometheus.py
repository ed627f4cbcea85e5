"""Counts a worker's events as samples that can be summed over workers and read by Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, assert_never

from holdfast.events import Claimed, Event, Lost, Recovered, Retired, Settled, StepFailed
from holdfast.models import Abandoned, Failed, Held, Released, Retried, Succeeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from holdfast.events import Run
    from holdfast.models import Job, Outcome

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0)
"""Upper bounds of the duration histogram, in seconds: jobs last milliseconds or an hour."""

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One value of one series."""

    name: str
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: all series of one name."""

    name: str
    kind: str
    help: str
    shared: bool = False
    """Every worker reports the same value of the database, so it must not be summed."""

    @property
    def cumulative(self) -> bool:
        """Counts stay when their worker is gone."""
        return self.kind != "gauge"


_CLAIMED, _LOST = "holdfast_jobs_claimed_total", "holdfast_jobs_lost_total"
_BY_OUTCOME: dict[type[Outcome], str] = {
    Succeeded: "holdfast_jobs_succeeded_total",
    Retried: "holdfast_jobs_retried_total",
    Failed: "holdfast_jobs_failed_total",
    Held: "holdfast_jobs_held_total",
    Released: "holdfast_jobs_released_total",
    Abandoned: _LOST,
}
_RECOVERED, _RETIRED = "holdfast_jobs_recovered_total", "holdfast_jobs_retired_total"
_STEP_ERRORS = "holdfast_worker_errors_total"
_DURATION, _WAIT = "holdfast_job_duration_seconds", "holdfast_job_wait_seconds"
_DEPTH, _OLDEST = "holdfast_queue_depth", "holdfast_queue_oldest_age_seconds"
_BREAKER = "holdfast_breaker_state"
WORKERS = "holdfast_workers"
_BREAKER_STATES = {"closed": 0, "half_open": 1, "open": 2}

FAMILIES = (
    Family(WORKERS, "gauge", "Worker processes that answer."),
    Family("holdfast_running", "gauge", "Handlers that run now."),
    Family(_CLAIMED, "counter", "Jobs leased to a worker."),
    Family("holdfast_jobs_succeeded_total", "counter", "Jobs whose handler returned."),
    Family("holdfast_jobs_retried_total", "counter", "Runs that asked for another one."),
    Family("holdfast_jobs_failed_total", "counter", "Jobs that ended with an exception."),
    Family("holdfast_jobs_held_total", "counter", "Jobs held after a failure."),
    Family("holdfast_jobs_released_total", "counter", "Jobs released, as on shutdown."),
    Family(_LOST, "counter", "Outcomes that changed nothing: the lease was lost."),
    Family(_RECOVERED, "counter", "Jobs taken back from dead workers."),
    Family(_RETIRED, "counter", "Jobs held because no attempt or recovery was left."),
    Family(_STEP_ERRORS, "counter", "Unexpected errors in the worker's own steps."),
    Family(_DURATION, "histogram", "How long handlers ran, whatever the outcome."),
    Family(_WAIT, "histogram", "Time between being due and being claimed."),
    Family(_DEPTH, "gauge", "Jobs in the queue table.", shared=True),
    Family(_OLDEST, "gauge", "How long the first due job has waited.", shared=True),
    Family(_BREAKER, "gauge", "0 closed, 1 half open, 2 open.", shared=True),
)
_SHARED = {family.name for family in FAMILIES if family.shared}
_PER_ENTRYPOINT = (_CLAIMED, *_BY_OUTCOME.values(), _RECOVERED)


class Metrics:
    """An observer that counts. Labels are entrypoints and reasons of ours, so they are bounded.

    It is notified in the worker's event loop and may be read from another thread.
    """

    def __init__(self, entrypoints: Iterable[str], running: Callable[[], int]) -> None:
        self._running = running
        # A series that begins at zero shows its first increase as one.
        self._counts: Counter[tuple[str, Labels]] = Counter(
            {(name, _of(each)): 0 for each in entrypoints for name in _PER_ENTRYPOINT}
        )
        self._times: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
        self._gauges: list[Sample] = []

    def notify(self, event: Event) -> None:
        match event:
            case Claimed(_, jobs):
                self._claim(jobs)
            case Settled(_, runs):
                self._settle(runs)
            case Lost(_, job):
                self._counts[_LOST, _of(job.entrypoint)] += 1
            case Recovered(queues=queues):
                self._add(_RECOVERED, queues)
            case Retired(reason=reason, queues=queues, runs=runs):
                self._add(_RETIRED, queues, ("reason", reason))
                self._settle(runs)
            case StepFailed(_, step):
                self._counts[_STEP_ERRORS, (("step", step),)] += 1
            case _:
                assert_never(event)

    def _add(self, name: str, queues: Mapping[str, int], *labels: tuple[str, str]) -> None:
        for entrypoint, count in queues.items():
            self._counts[name, (*_of(entrypoint), *labels)] += count

    def _claim(self, jobs: Sequence[Job]) -> None:
        self._add(_CLAIMED, Counter(job.entrypoint for job in jobs))
        for job in jobs:
            if job.claimed_at is not None:
                waited = (job.claimed_at - job.execute_after).total_seconds()
                self._time(_WAIT, job.entrypoint, max(0.0, waited))

    def _settle(self, runs: Sequence[Run]) -> None:
        counts = Counter((_BY_OUTCOME[type(outcome)], job.entrypoint) for job, outcome, _ in runs)
        for (name, entrypoint), count in counts.items():
            self._counts[name, _of(entrypoint)] += count
        for job, _, seconds in runs:
            self._time(_DURATION, job.entrypoint, seconds)

    def _time(self, name: str, entrypoint: str, seconds: float) -> None:
        times = self._times.get((name, entrypoint))
        if times is None:
            times = self._times[name, entrypoint] = ([0] * (len(BUCKETS) + 1), [0.0])
        buckets, total = times
        buckets[bisect_left(BUCKETS, seconds)] += 1
        total[0] += seconds

    def gauge(
        self,
        depths: Iterable[tuple[str, str, int]],
        oldest: Mapping[str, float],
        breakers: Mapping[str, str],
    ) -> None:
        """The gauges of the queue, until the next look."""
        self._gauges = [
            *(Sample(_DEPTH, (*_of(name), ("status", word)), n) for name, word, n in depths),
            *(Sample(_OLDEST, _of(name), age) for name, age in oldest.items()),
            *(
                Sample(_BREAKER, (("breaker", name),), _BREAKER_STATES.get(state, 2))
                for name, state in breakers.items()
            ),
        ]

    def samples(self) -> list[Sample]:
        samples = [
            Sample(WORKERS, (), 1),
            Sample("holdfast_running", (), self._running()),
        ]
        samples += [Sample(*series, count) for series, count in dict(self._counts).items()]
        for (name, entrypoint), (buckets, total) in dict(self._times).items():
            samples += _histogram(name, entrypoint, list(buckets), total[0])
        return samples + self._gauges


def _of(entrypoint: str) -> Labels:
    return (("entrypoint", entrypoint),)


def _histogram(
    name: str, entrypoint: str, buckets: Sequence[int], total: float
) -> Iterator[Sample]:
    seen = 0
    for bound, count in zip([*map(repr, BUCKETS), "+Inf"], buckets, strict=True):
        seen += count
        yield Sample(f"{name}_bucket", (*_of(entrypoint), ("le", bound)), seen)
    yield Sample(f"{name}_sum", _of(entrypoint), total)
    yield Sample(f"{name}_count", _of(entrypoint), seen)


def merge(parts: Iterable[Iterable[Sample]]) -> list[Sample]:
    """Sum the families of several workers. Of shared values the largest counts."""
    sums: dict[tuple[str, Labels], float] = {}
    for name, labels, value in (sample for part in parts for sample in part):
        before = sums.get((name, labels), 0)
        sums[name, labels] = max(before, value) if name in _SHARED else before + value
    return [Sample(name, labels, value) for (name, labels), value in sums.items()]


def cumulative(samples: Iterable[Sample]) -> list[Sample]:
    """Return the counts that remain of a worker that has ended."""
    gauges = {family.name for family in FAMILIES if not family.cumulative}
    return [sample for sample in samples if sample.name not in gauges]


def render(samples: Iterable[Sample]) -> str:
    """The text format, version 0.0.4."""
    by_family: dict[str, list[Sample]] = {}
    for sample in samples:
        by_family.setdefault(_family_of(sample.name), []).append(sample)
    lines: list[str] = []
    for family in FAMILIES:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += map(_line, by_family.get(family.name, ()))
    return "\n".join(lines) + "\n"


def _family_of(name: str) -> str:
    for family in (_DURATION, _WAIT):
        if name.startswith(family):
            return family
    return name


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escape(value)}"' for name, value in sample.labels)
    value = int(sample.value) if sample.value == int(sample.value) else sample.value
    return f"{sample.name}{{{labels}}} {value}" if labels else f"{sample.name} {value}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
