"""Turns any failure of a handler into another run, later and later."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.checks import faults, integer_fault
from holdfast.errors import InvalidInput, RetryRequested
from holdfast.executors.coroutine import AbstractEntrypointExecutor, EntrypointExecutor
from holdfast.executors.limit import limited
from holdfast.executors.process import ProcessExecutor
from holdfast.executors.thread import ThreadExecutor
from holdfast.retry import message_of, requested
from holdfast.task import MAX_COUNT, DefaultCap

if TYPE_CHECKING:
    from holdfast.models import Context, Executor, Job
    from holdfast.task import EntrypointExecutorParameters, Kind

_PLAIN: dict[Kind, type[AbstractEntrypointExecutor]] = {
    "async": EntrypointExecutor,
    "thread": ThreadExecutor,
    "process": ProcessExecutor,
}
_MICROSECOND = timedelta(microseconds=1)


def plain(parameters: EntrypointExecutorParameters) -> Executor:
    """The executor that runs a handler of this kind, under its timeout, and does nothing else."""
    return limited(parameters, _PLAIN[parameters.kind](parameters))


@dataclass(eq=False)
class DatabaseRetryEntrypointExecutor(AbstractEntrypointExecutor):
    """Has a job whose handler raised queued again, after a delay that grows with its attempts.

    `max_attempts` counts retries: 5 means up to six runs, and what the sixth raises is final. A
    written number wins over a default, here and on the entrypoint. Two written numbers that differ
    are refused.
    """

    max_attempts: int = DefaultCap(5)
    initial_delay: timedelta = timedelta(seconds=1)
    max_delay: timedelta = timedelta(minutes=5)
    backoff_multiplier: float = 2.0
    jitter: bool = False
    """Wait a random part of the delay, so that jobs that failed together do not come together."""
    inner: Executor | None = None
    """Runs the handler. None means the executor of its kind."""
    limits_time = True

    def __post_init__(self) -> None:
        if found := self._faults():
            raise InvalidInput("DatabaseRetryEntrypointExecutor: " + "; ".join(found))
        self._retries = self._agreed_retries()
        self._inner = limited(self.parameters, self.inner) if self.inner else plain(self.parameters)

    @property
    def capacity(self) -> int:
        return self._inner.capacity

    @property
    def written_retries(self) -> int | None:
        """The number of retries, if one was given."""
        return None if isinstance(self.max_attempts, DefaultCap) else self.max_attempts

    async def execute(self, job: Job, context: Context) -> None:
        try:
            await self._inner.execute(job, context)
        except Exception as error:
            if requested(error) or job.attempts >= self._retries:
                raise
            reason = message_of(error) or type(error).__name__
            raise RetryRequested(self._pause(job.attempts), reason) from error

    def delay(self, attempt: int) -> timedelta:
        """min(initial_delay * backoff_multiplier ** attempt, max_delay), for any attempt."""
        if not self.initial_delay or not self.max_delay:
            return timedelta(0)
        steps = math.log(self.max_delay / self.initial_delay)
        if attempt * math.log(self.backoff_multiplier) > steps:
            return self.max_delay
        factor = self.backoff_multiplier**attempt
        if self.initial_delay.total_seconds() * factor >= self.max_delay.total_seconds():
            return self.max_delay
        return min(self.initial_delay * factor, self.max_delay)

    def _pause(self, attempt: int) -> timedelta:
        delay = self.delay(attempt)
        if not self.jitter:
            return delay
        return secrets.randbelow(delay // _MICROSECOND + 1) * _MICROSECOND

    def _agreed_retries(self) -> int:
        cap = self.parameters.max_attempts
        if cap is None or isinstance(cap, DefaultCap) or cap == self.max_attempts:
            return self.max_attempts
        if isinstance(self.max_attempts, DefaultCap):
            return cap
        raise InvalidInput(
            f"entrypoint {self.parameters.name!r}: entrypoint(max_attempts={cap}) and "
            f"DatabaseRetryEntrypointExecutor(max_attempts={self.max_attempts}) disagree; "
            f"leave one of them out"
        )

    def _faults(self) -> list[str]:
        multiplier = self.backoff_multiplier
        found = faults(integer_fault("max_attempts", self.max_attempts, 0, MAX_COUNT - 1))
        for what, value in (("initial_delay", self.initial_delay), ("max_delay", self.max_delay)):
            if not isinstance(value, timedelta) or value < timedelta(0):
                found.append(f"{what} must be a timedelta of zero or more, got {value!r}")
        if (
            isinstance(multiplier, bool)
            or not isinstance(multiplier, int | float)
            or not 1 <= multiplier < math.inf
        ):
            found.append(f"backoff_multiplier must be a finite number from 1, got {multiplier!r}")
        return found
