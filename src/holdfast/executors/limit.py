"""Ends a handler that runs too long."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import JobTimeout
from holdfast.executors.coroutine import AbstractEntrypointExecutor

if TYPE_CHECKING:
    from holdfast.models import Context, Job
    from holdfast.task import EntrypointExecutorParameters, Executor


@dataclass(eq=False)
class TimeLimit(AbstractEntrypointExecutor):
    """Cancels what it wraps at the entrypoint's timeout, and says so with a JobTimeout.

    It stands inside whatever retries, so that a timeout is retried like any other failure.
    """

    inner: Executor
    limits_time = True

    @property
    def capacity(self) -> int:
        found: int = getattr(self.inner, "capacity", 0)
        return found

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
        # Whatever a handler that was told to stop did afterwards: return, raise, ask for a retry.
        if scope.expired():
            raise JobTimeout(
                f"entrypoint {self.parameters.name!r} ran longer than its timeout of {timeout}"
            ) from cause


def limited(parameters: EntrypointExecutorParameters, executor: Executor) -> Executor:
    """The executor with the entrypoint's timeout, unless it sees to that itself."""
    if parameters.timeout is None or getattr(executor, "limits_time", False):
        return executor
    return TimeLimit(parameters, executor)
