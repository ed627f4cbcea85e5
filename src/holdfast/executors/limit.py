"""Ends a handler that runs too long."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import JobTimeout
from holdfast.executors.coroutine import AbstractEntrypointExecutor

if TYPE_CHECKING:
    from holdfast.models import Context, Executor, Job
    from holdfast.task import EntrypointExecutorParameters


@dataclass(eq=False)
class TimeLimit(AbstractEntrypointExecutor):
    """Cancels what it wraps at the entrypoint's timeout, and says so with a JobTimeout.

    It stands inside whatever retries, so that a timeout is retried like any other failure.
    """

    inner: Executor
    limits_time = True

    @property
    def written_retries(self) -> int | None:
        return self.inner.written_retries

    @property
    def capacity(self) -> int:
        return self.inner.capacity

    async def execute(self, job: Job, context: Context) -> None:
        timeout = self.parameters.timeout
        scope = asyncio.timeout(timeout.total_seconds() if timeout else None)
        cause: BaseException | None = None
        try:
            async with scope:
                await self.inner.execute(job, context)
        except BaseException as error:
            if not scope.expired():
                raise
            cause = error
        # A handler that was asked to stop may return, raise or ask for a retry. None of it counts.
        if scope.expired():
            raise JobTimeout(
                f"entrypoint {self.parameters.name!r} ran longer than its timeout of {timeout}"
            ) from cause


class Adopted:
    """An executor of a user's own that is no AbstractEntrypointExecutor: it may lack the rest."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.capacity: int = getattr(inner, "capacity", 0)
        self.limits_time: bool = getattr(inner, "limits_time", False)
        self.written_retries: int | None = getattr(inner, "written_retries", None)

    async def execute(self, job: Job, context: Context) -> None:
        await self.inner.execute(job, context)


def limited(parameters: EntrypointExecutorParameters, executor: Executor) -> Executor:
    """Return the executor under the entrypoint's timeout, unless it applies the timeout itself."""
    whole = executor if isinstance(executor, AbstractEntrypointExecutor) else Adopted(executor)
    if parameters.timeout is None or whole.limits_time:
        return whole
    return TimeLimit(parameters, whole)
