"""Runs a handler of a table queue: it gets the row, and its failures follow the queue's backoff."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidRow, RetryRequested
from holdfast.executors.coroutine import AbstractEntrypointExecutor
from holdfast.executors.retry import plain
from holdfast.retry import message_of
from holdfast.task import underlying

if TYPE_CHECKING:
    from holdfast.models import Context, Job
    from holdfast.table import TableQueue
    from holdfast.task import EntrypointExecutorParameters

Row = Mapping[str, Any]
Reader = Callable[[Row], Any]


@dataclass(eq=False)
class TableExecutor(AbstractEntrypointExecutor):
    """Reads the row as the handler's first parameter is annotated, and calls it with that.

    A row that the model refuses goes to its case file at once: trying again cannot mend it.
    """

    queue: TableQueue
    limits_time = True

    def __post_init__(self) -> None:
        func, read = self.parameters.func, reader_of(self.parameters.func)

        async def call(job: Job, *context: Context) -> None:
            await func(_read(read, job), *context)

        def call_plainly(job: Job, *context: Context) -> None:
            func(_read(read, job), *context)

        wrapped = call if self.parameters.kind == "async" else call_plainly
        self._inner = plain(dataclasses.replace(self.parameters, func=wrapped))

    async def execute(self, job: Job, context: Context) -> None:
        try:
            await self._inner.execute(job, context)
        except (RetryRequested, InvalidRow):
            raise
        except Exception as error:
            delay = self.queue.backoff(job.attempts, error)
            raise RetryRequested(delay, message_of(error) or type(error).__name__) from error


def _read(read: Reader, job: Job) -> Any:
    try:
        return read(job.row or {})
    except Exception as error:
        raise InvalidRow(
            f"row {job.id!r} of {job.entrypoint!r} does not fit its handler: {message_of(error)}"
        ) from error


def reader_of(func: Callable[..., Any]) -> Reader:
    """How the handler wants its row: a mapping, a dataclass or a Pydantic model."""
    model = _annotation(func)
    if hasattr(model, "model_validate"):
        return lambda row: model.model_validate(dict(row))
    if dataclasses.is_dataclass(model) and isinstance(model, type):
        names = [field.name for field in dataclasses.fields(model) if field.init]
        return lambda row: model(**{name: row[name] for name in names if name in row})
    return dict


def _annotation(func: Callable[..., Any]) -> Any:
    inner = underlying(func)
    try:
        first = next(iter(inspect.signature(func).parameters))
        return typing.get_type_hints(inner).get(first)
    except (StopIteration, NameError, TypeError, ValueError):
        return None


def table_executor(queue: TableQueue) -> Callable[[EntrypointExecutorParameters], TableExecutor]:
    """A factory, as `define` takes it."""
    return lambda parameters: TableExecutor(parameters, queue)
