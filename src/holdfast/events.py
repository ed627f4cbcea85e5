"""The events of a worker. Instrumentation subscribes here and stays out of the work."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from holdfast.repeated import RepeatedLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.models import Executor, Job, JobId, Outcome

logger = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True)
class Claimed:
    worker: str
    jobs: Sequence[Job]
    seconds: float = 0.0
    """How long the database took to find them."""


Run = tuple["Job", "Outcome", float]
"""A job, its outcome, and how many seconds its handler ran. A plain tuple, because there is one for
each job and nothing is made faster."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcomes that were written together are in the database."""

    worker: str
    runs: Sequence[Run]


@dataclass(frozen=True, slots=True)
class Lost:
    """The outcome changed nothing, because another worker holds the lease."""

    worker: str
    job: Job
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Recovered:
    """Jobs of dead workers are queued again."""

    worker: str
    ids: Sequence[JobId]
    queues: Mapping[str, int]
    """The number of jobs by entrypoint."""


@dataclass(frozen=True, slots=True)
class Retired:
    """Jobs are held because a cap was reached. Their runs are in no `Settled`."""

    worker: str
    ids: Sequence[JobId]
    reason: str
    queues: Mapping[str, int]
    """The number of jobs by entrypoint."""
    runs: Sequence[Run] = ()
    """The runs that reached the cap, if this worker ran them."""


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step of the worker raised an unexpected error. It is restarted, and its jobs are kept."""

    worker: str
    step: str
    error: BaseException


Event = Claimed | Settled | Lost | Recovered | Retired | StepFailed


class Observer(Protocol):
    def notify(self, event: Event) -> None: ...


class Telemetry(Observer, Protocol):
    """An observer that also puts jobs into traces."""

    def carry(self) -> Mapping[str, str]:
        """Headers for a job that is enqueued now."""
        ...

    def traced(self, executor: Executor, worker: str) -> Executor: ...

    def gauge(
        self,
        depths: Iterable[tuple[str, str, int]],
        oldest: Mapping[str, float],
        breakers: Mapping[str, str],
    ) -> None:
        """The values of the gauges until the next look: (queue, status, count), ages, states."""
        ...


class Observers:
    """Notifies every subscriber. One that raises is logged and does not disturb the work."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = list(observers)
        self._log = RepeatedLog(logger)

    def __bool__(self) -> bool:
        return bool(self._observers)

    def subscribe(self, observer: Observer) -> None:
        self._observers.append(observer)

    def notify(self, event: Event) -> None:
        for observer in self._observers:
            try:
                observer.notify(event)
            except Exception:
                # One that fails on every event must not fill the log with its traceback.
                name = type(event).__name__
                self._log.error("observer %r failed on %s", observer, name, exc_info=True)
