"""Runs a task: payload -> arguments -> the function -> its result."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidPayload, InvalidTask, RetryRequested
from holdfast.executors import AbstractEntrypointExecutor
from holdfast.executors.retry import plain
from holdfast.models import StoredResult
from holdfast.redact import start_hiding
from holdfast.retry import message_of, requested

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from holdfast.client.codec import Codec
    from holdfast.client.retries import Retry
    from holdfast.models import Context, Job, OnFailure
    from holdfast.task import EntrypointExecutorParameters

MOST_RESULT_BYTES = 1_000_000
"""A larger result is not stored."""


@dataclasses.dataclass(frozen=True, slots=True)
class TaskRules:
    """How a task's jobs are run."""

    retry: Retry
    on_failure: OnFailure
    keep: timedelta | None
    """For how long results are kept. None means that they are not stored."""


class TaskExecutor(AbstractEntrypointExecutor):
    """Runs a task again as its policy says. A payload that does not fit is held at once."""

    limits_time = True

    def __init__(
        self,
        parameters: EntrypointExecutorParameters,
        func: Callable[..., Any],
        codec: Callable[[], Codec],
        rules: TaskRules,
        context_name: str | None,
    ) -> None:
        super().__init__(parameters)
        self._rules = rules
        call = _Call(func, codec, rules.keep, context_name)
        handler = call.run if is_async(func) else call.run_plainly
        self._inner = plain(dataclasses.replace(parameters, func=handler, accepts_context=True))

    @property
    def capacity(self) -> int:
        return self._inner.capacity

    async def execute(self, job: Job, context: Context) -> None:
        retry = self._rules.retry
        try:
            await self._inner.execute(job, context)
        except (InvalidPayload, InvalidTask):
            raise
        except Exception as error:
            if requested(error) or not retry.applies(error):
                raise
            cap = retry.attempts if job.max_attempts is None else job.max_attempts
            if self._rules.on_failure == "delete" and job.attempts + 1 >= cap:
                raise
            reason = message_of(error) or type(error).__name__
            raise RetryRequested(retry.delay(job.attempts, error), reason) from error


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """Calls the function of a task as a handler is called: with the job and its context."""

    func: Callable[..., Any]
    codec: Callable[[], Codec]
    keep: timedelta | None
    context_name: str | None

    async def run(self, job: Job, context: Context) -> None:
        self._finish(await self.func(**self._arguments(job, context)), context)
        if context.uncommitted is not None:
            await context.uncommitted.commit(context.result)

    def run_plainly(self, job: Job, context: Context) -> None:
        value = self.func(**self._arguments(job, context))
        if isinstance(value, Coroutine):
            value.close()
            raise InvalidTask(
                f"the function of task {job.entrypoint!r} returned a coroutine, which nobody "
                "awaits in a thread; make the function, or the decorator around it, `async def`"
            )
        self._finish(value, context)
        if context.uncommitted is not None:
            context.uncommitted.commit_sync(context.result)

    def _arguments(self, job: Job, context: Context) -> dict[str, Any]:
        found = self.codec().decode(job.payload, start_hiding())
        context.stores_result = self.keep is not None
        if self.context_name is not None:
            found[self.context_name] = context
        return found

    def _finish(self, value: Any, context: Context) -> None:
        if self.keep is not None:
            context.result = encoded(self.codec(), value, self.keep)


def is_async(func: Callable[..., Any]) -> bool:
    """Whether it is awaited: an `async def`, behind partials and callable objects too."""
    while isinstance(func, (functools.partial, staticmethod)):
        func = func.func if isinstance(func, functools.partial) else func.__func__
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(
        getattr(func, "__call__", None)  # noqa: B004 - asks what calling it gives
    )


def encoded(codec: Codec, value: Any, keep: timedelta) -> StoredResult:
    """The return value of a task, or why it cannot be stored. The job has succeeded either way."""
    try:
        text = codec.encode_result(value)
    except Exception as error:
        return StoredResult(None, keep, f"the result cannot be stored: {message_of(error)}")
    size = len(text.encode())
    if size > MOST_RESULT_BYTES:
        return StoredResult(
            None,
            keep,
            f"the result has {size} bytes, more than the {MOST_RESULT_BYTES} allowed; "
            f"store it elsewhere and return a pointer",
        )
    return StoredResult(text, keep)
