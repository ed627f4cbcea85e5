"""Retries of a task whose handler raised."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta

from holdfast.checks import faults, integer_fault
from holdfast.errors import InvalidTask
from holdfast.retry import LONGEST_DELAY, leaves
from holdfast.table import Backoff, exponential
from holdfast.task import MAX_COUNT

DEFAULT_ATTEMPTS = 5

Errors = tuple[type[BaseException], ...]


def _default_backoff() -> Backoff:
    return exponential(timedelta(seconds=2), timedelta(minutes=10))


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how late a task is run again.

    `attempts` counts runs: 5 means the first run and up to four more. `on` names the exceptions
    that are retried, `give_up_on` those that are not. What is not retried is held at once.
    """

    attempts: int = DEFAULT_ATTEMPTS
    backoff: Backoff = field(default_factory=_default_backoff)
    """`exponential(…)`, `linear(…)`, or your own: (attempts so far, error) -> timedelta."""
    jitter: bool = True
    """Wait between half the delay and all of it: jobs that failed together do not come together."""
    on: type[BaseException] | Errors = (Exception,)
    give_up_on: type[BaseException] | Errors = ()

    def __post_init__(self) -> None:
        for name in ("on", "give_up_on"):
            value = getattr(self, name)
            object.__setattr__(self, name, value if isinstance(value, tuple) else (value,))
        if found := self._faults():
            raise InvalidTask("Retry: " + "; ".join(found))

    def _faults(self) -> list[str]:
        found = faults(integer_fault("attempts", self.attempts, 1, MAX_COUNT - 1))
        if not callable(self.backoff):
            found.append(f"backoff must be a function such as exponential(), got {self.backoff!r}")
        for name in ("on", "give_up_on"):
            for kind in getattr(self, name):
                if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                    found.append(f"{name} must hold exception classes, got {kind!r}")
        return found

    def applies(self, error: BaseException) -> bool:
        """Return whether to run a task again that raised this error while attempts are left.

        A group, as an asyncio.TaskGroup raises it, goes by the exceptions in it.
        """
        found = [error, *leaves(error)]
        gives_up = any(isinstance(each, self.give_up_on) for each in found)
        return not gives_up and any(isinstance(each, self.on) for each in found)

    def delay(self, attempts: int, error: BaseException) -> timedelta:
        """Return the time to wait after this number of attempts."""
        delay = self.backoff(attempts, error)
        if not isinstance(delay, timedelta):
            raise InvalidTask(f"the backoff of a Retry must return a timedelta, got {delay!r}")
        if self.jitter:
            delay = delay * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
        return min(max(delay, timedelta(0)), LONGEST_DELAY)


def retry_of(given: int | Retry | None) -> Retry:
    """The policy behind `retry=`: a number of attempts, a policy, or None for a single run."""
    if isinstance(given, Retry):
        return given
    return Retry(attempts=1 if given is None else given)
