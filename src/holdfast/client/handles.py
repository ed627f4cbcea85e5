"""The handles that `enqueue` returns: a job, how it ended, and its result."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.clock import monotonic
from holdfast.errors import (
    InvalidInput,
    JobCanceled,
    JobDeleted,
    JobFailed,
    JobHeld,
    ResultError,
    ResultMissing,
    TracebackRecord,
)
from holdfast.lifecycle import Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from holdfast.client.client import Client
    from holdfast.client.tasks import Task
    from holdfast.models import JobId, Progress

R = TypeVar("R")

_NO_RESULT: dict[Status, type[ResultError]] = {
    Status.EXCEPTION: JobFailed,
    Status.FAILED: JobHeld,
    Status.CANCELED: JobCanceled,
    Status.DELETED: JobDeleted,
}


class JobHandle(Generic[R]):
    """One job of a task."""

    def __init__(self, job_id: JobId, task: Task[..., Any], client: Client) -> None:
        self.id = job_id
        self.task = task
        self._client = client

    def __repr__(self) -> str:
        return f"<job {self.id} of {self.task.name!r}>"

    async def status(self) -> Status | None:
        """Where the job is, or how it ended; None when its id is unknown or was pruned."""
        return (await self._client.queries.find_statuses([self.id])).get(self.id)

    async def wait(self, timeout: float | timedelta | None = None) -> Status | None:
        """Wait until the job has ended or is held; its status then.

        None when its id is unknown, was pruned, or its enqueue has not been committed yet.
        TimeoutError after `timeout` seconds.
        """
        async with _within(timeout, repr(self)):
            return await self._client.ended(self.id)

    async def result(self, timeout: float | timedelta | None = None) -> R:
        """Wait for what the function returned.

        A job that ends without success raises JobFailed, JobHeld, JobCanceled or JobDeleted, with
        its traceback record. ResultMissing says why there is no result where the job succeeded.
        """
        if not self.task.stores_result:
            raise ResultMissing(
                self.id,
                f"task {self.task.name!r} stores no results; register it with store_result=True",
            )
        async with _within(timeout, repr(self)):
            status = await self._client.ended(self.id)
            if status not in (Status.SUCCESSFUL, None):
                raise await self._no_result(status)
            return await self._stored(status)

    async def _stored(self, status: Status | None) -> R:
        stored = await self._client.result_of(self.id)
        # The log may be pruned before the result expires.
        if stored is None and status is None:
            raise ResultMissing(
                self.id, f"job {self.id} is unknown: it was pruned, or was never committed"
            )
        if stored is None:
            raise ResultMissing(
                self.id, f"job {self.id} succeeded, but its result has expired or was never stored"
            )
        if stored.value is None:
            raise ResultMissing(self.id, f"job {self.id} succeeded, but {stored.error}")
        try:
            value: R = self.task.codec().decode_result(stored.value)
        except ValueError as error:
            raise ResultMissing(
                self.id, f"the result of job {self.id} does not fit {self.task!r}: {error}"
            ) from None
        return value

    async def _no_result(self, status: Status) -> ResultError:
        words = "is held" if status is Status.FAILED else f"ended as {status}"
        record = await self._client.record_of(self.id)
        said = ""
        if record is not None:
            said = f": {record.exception_type}: {record.exception_message}"
        return _NO_RESULT[status](
            self.id, f"job {self.id} of task {self.task.name!r} {words}{said}", record
        )

    async def error(self) -> TracebackRecord | None:
        """The last error of this job, with its traceback. None where there is none."""
        return await self._client.record_of(self.id)

    async def cancel(self, *, actor: str | None = None, reason: str | None = None) -> bool:
        """Cancel the job, whether it waits, runs or is held. False when it had ended."""
        moved = await self._client.queries.mark_job_as_cancelled(
            [self.id], actor=actor, reason=reason
        )
        return self.id in moved

    async def progress(self) -> Progress | None:
        """The progress that the handler last reported. None when it reported none."""
        return (await self._client.queries.find_progress([self.id])).get(self.id)


async def wait_for(
    handles: Iterable[JobHandle[Any]], timeout: float | timedelta | None = None
) -> list[Status | None]:
    """Wait until all of these jobs have ended or are held; their statuses, in the given order."""
    waited = _checked(handles)
    async with _within(timeout, f"at least one of {len(waited)} jobs"):
        return await asyncio.gather(*(handle.wait() for handle in waited))


async def as_completed(
    handles: Iterable[JobHandle[R]], timeout: float | timedelta | None = None
) -> AsyncIterator[JobHandle[R]]:
    """The handles, each as soon as its job has ended or is held."""
    waits = {asyncio.ensure_future(handle.wait()): handle for handle in _checked(handles)}
    seconds = _seconds(timeout)
    deadline = math.inf if seconds is None else monotonic() + seconds
    try:
        while waits:
            left = None if seconds is None else max(0.0, deadline - monotonic())
            done, _ = await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise TimeoutError(f"{len(waits)} jobs have not ended within {seconds:g} s")
            for wait in done:
                handle = waits.pop(wait)
                wait.result()
                yield handle
    finally:
        for wait in waits:
            wait.cancel()


@asynccontextmanager
async def _within(timeout: float | timedelta | None, what: str) -> AsyncIterator[None]:
    """Raise a TimeoutError that names the jobs that have not ended."""
    seconds = _seconds(timeout)
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(f"{what} has not ended within {seconds:g} s") from None


def _checked(handles: Iterable[JobHandle[R]]) -> list[JobHandle[R]]:
    found = list(handles)
    for handle in found:
        if not isinstance(handle, JobHandle):
            raise InvalidInput(
                f"expected handles of jobs, got {handle!r}; hf.handle(job_id, task) makes one"
            )
    return found


def _seconds(timeout: float | timedelta | None) -> float | None:
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise InvalidInput(f"timeout must be a timedelta or seconds, got {timeout!r}")
    return timeout
