"""Runs a handler of a table queue: it gets the row, and its failures follow the queue's backoff."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidInput, InvalidRow, RetryRequested
from holdfast.executors.coroutine import AbstractEntrypointExecutor
from holdfast.executors.process import ProcessExecutor
from holdfast.executors.retry import plain
from holdfast.retry import message_of, requested
from holdfast.task import underlying, where

if TYPE_CHECKING:
    from holdfast.models import Context, Job
    from holdfast.table import TableQueue
    from holdfast.task import EntrypointExecutorParameters

Row = Mapping[str, Any]
Reader = Callable[[Row], Any]

_MAPPINGS = ("Any", "dict", "Dict", "Mapping", "MutableMapping", "Row")
"""Names that mean a mapping also where they are imported for type checking only."""


@dataclass(eq=False)
class TableExecutor(AbstractEntrypointExecutor):
    """Reads the row as the handler's first parameter is annotated, and calls it with that.

    A row that the model refuses goes to its case file at once: trying again cannot mend it.
    """

    queue: TableQueue
    limits_time = True

    def __post_init__(self) -> None:
        parameters = self.parameters
        self._read = reader_of(parameters.func)
        if parameters.kind == "process":
            # Made only to refuse a handler that another process cannot find by its name.
            ProcessExecutor(parameters)
        call = partial(_on_row, parameters.func)
        self._inner = plain(dataclasses.replace(parameters, func=call))

    @property
    def capacity(self) -> int:
        return self._inner.capacity

    async def execute(self, job: Job, context: Context) -> None:
        readable = job._replace(row=self._read_row(job))
        try:
            await self._inner.execute(readable, context)
        except Exception as error:
            if requested(error):
                raise
            delay = self.queue.backoff(job.attempts, error)
            raise RetryRequested(delay, message_of(error) or type(error).__name__) from error

    def _read_row(self, job: Job) -> Any:
        try:
            return self._read(job.row or {})
        except Exception as error:
            raise InvalidRow(
                f"row {job.id} of {job.entrypoint!r} does not fit its handler: {message_of(error)}"
            ) from error


def _on_row(func: Callable[..., Any], job: Job, *context: Context) -> Any:
    """At the top level, so that another process finds it."""
    return func(job.row, *context)


def reader_of(func: Callable[..., Any]) -> Reader:
    """The kind of row that the handler takes: a mapping, a dataclass or a Pydantic model."""
    model = _annotation(func)
    if hasattr(model, "model_validate"):
        return lambda row: model.model_validate(dict(row))
    if dataclasses.is_dataclass(model) and isinstance(model, type):
        names = [field.name for field in dataclasses.fields(model) if field.init]
        return lambda row: model(**{name: row[name] for name in names if name in row})
    if not _is_mapping(model):
        raise InvalidInput(
            f"handler {where(func)} takes its row as {model!r}; annotate it as a mapping, "
            f"a dataclass or a Pydantic model"
        )
    return dict


def _is_mapping(model: Any) -> bool:
    kind = typing.get_origin(model) or model
    if kind in (None, Any, inspect.Parameter.empty) or typing.is_typeddict(kind):
        return True
    return isinstance(kind, type) and issubclass(dict, kind)


def _annotation(func: Callable[..., Any]) -> Any:
    """Read the annotation of the first parameter. The others may name types that exist for the type
    checker only."""
    try:
        first = next(iter(inspect.signature(func).parameters.values()))
    except (StopIteration, TypeError, ValueError):
        return None
    if not isinstance(first.annotation, str):
        return first.annotation
    inner = underlying(func)
    try:
        return eval(first.annotation, getattr(inner, "__globals__", {}))  # noqa: S307 - the user's code
    except Exception as error:
        outer = re.match(r"[\w.]*", first.annotation)
        if outer and outer[0].rpartition(".")[2] in _MAPPINGS:
            return None
        raise InvalidInput(
            f"handler {where(func)} takes its row as {first.annotation!r}, which cannot be "
            f"resolved ({error}); define or import it at the top level of the module"
        ) from None


def table_executor(queue: TableQueue) -> Callable[[EntrypointExecutorParameters], TableExecutor]:
    """A factory, as `define` takes it."""
    return lambda parameters: TableExecutor(parameters, queue)
