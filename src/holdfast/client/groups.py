"""`@hf.task` and `@tasks.task`: they make a task of a function. Also groups of tasks."""

from __future__ import annotations

import inspect
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from holdfast.client.execute import is_async
from holdfast.client.retries import DEFAULT_ATTEMPTS, Retry
from holdfast.client.tasks import (
    AsyncContextTask,
    AsyncTask,
    PlainContextTask,
    PlainTask,
    Task,
    TaskOptions,
)
from holdfast.errors import InvalidTask
from holdfast.task import is_context, underlying

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from holdfast.breaker import BreakerPolicy
    from holdfast.models import Context, OnFailure

P = ParamSpec("P")
R = TypeVar("R")


class TaskDecorator:
    """`@hf.task(…)`, waiting for the function."""

    def __init__(self, add: Callable[[Task[..., Any]], None], options: TaskOptions) -> None:
        self._add = add
        self._options = options

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, func: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextTask[P, R]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, func: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, func: Callable[Concatenate[Context, P], R], /) -> PlainContextTask[P, R]: ...

    @overload
    def __call__(self, func: Callable[P, R], /) -> PlainTask[P, R]: ...

    def __call__(self, func: Callable[..., Any], /) -> Task[..., Any]:
        """Make a task of the function, and register it."""
        return self._make(func, sys._getframe(1).f_locals)

    def _make(self, func: Callable[..., Any], names: Mapping[str, Any]) -> Task[..., Any]:
        if not callable(func) or isinstance(func, Task):
            raise InvalidTask(f"a task is made of a function, got {func!r}")
        kinds: dict[tuple[bool, bool], type[Task[..., Any]]] = {
            (True, False): AsyncTask,
            (False, False): PlainTask,
            (True, True): AsyncContextTask,
            (False, True): PlainContextTask,
        }
        # A class body's or a function's own names, which get_type_hints cannot find.
        task = kinds[is_async(func), takes_context_first(func)](func, self._options, dict(names))
        self._add(task)
        return task


def takes_context_first(func: Callable[..., Any]) -> bool:
    """Whether the first parameter is annotated as the Context."""
    first = next(iter(inspect.signature(func).parameters.values()), None)
    return first is not None and is_context(first.annotation, underlying(func))


class TaskMethods:
    """`task`, for objects that tasks are registered with."""

    def _add_task(self, task: Task[..., Any]) -> None:
        raise NotImplementedError

    @overload
    def task(  # type: ignore[overload-overlap]
        self, func: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextTask[P, R]: ...

    @overload
    def task(  # type: ignore[overload-overlap]
        self, func: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def task(self, func: Callable[Concatenate[Context, P], R], /) -> PlainContextTask[P, R]: ...

    @overload
    def task(self, func: Callable[P, R], /) -> PlainTask[P, R]: ...

    @overload
    def task(
        self,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        retry: int | Retry | None = DEFAULT_ATTEMPTS,
        store_result: bool | timedelta = False,
        on_failure: OnFailure = "hold",
        concurrency_limit: int = 0,
        serialized_dispatch: bool = False,
        retry_timer: timedelta = timedelta(0),
        timeout: timedelta | None = None,
        max_recoveries: int = 3,
        breaker: str | BreakerPolicy | None = None,
    ) -> TaskDecorator: ...

    def task(
        self,
        func: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        retry: int | Retry | None = DEFAULT_ATTEMPTS,
        store_result: bool | timedelta = False,
        on_failure: OnFailure = "hold",
        concurrency_limit: int = 0,
        serialized_dispatch: bool = False,
        retry_timer: timedelta = timedelta(0),
        timeout: timedelta | None = None,
        max_recoveries: int = 3,
        breaker: str | BreakerPolicy | None = None,
    ) -> Task[..., Any] | TaskDecorator:
        """Make a typed task of a function; with or without parentheses.

        It runs up to `retry` times (a number or a Retry), and is then held with its payload.
        `store_result=True` keeps what it returns for a day, a timedelta for that long. The name is
        `module.function` unless given; jobs under one of `aliases` are run by it too. The other
        options are those of `entrypoint`.
        """
        if isinstance(aliases, str):
            raise InvalidTask(f"aliases must be several names, got {aliases!r}; write a tuple")
        options = TaskOptions(
            name=name,
            aliases=tuple(aliases),
            retry=retry,
            store_result=store_result,
            on_failure=on_failure,
            concurrency_limit=concurrency_limit,
            serialized_dispatch=serialized_dispatch,
            retry_timer=retry_timer,
            timeout=timeout,
            max_recoveries=max_recoveries,
            breaker=breaker,
        )
        decorator = TaskDecorator(self._add_task, options)
        return decorator if func is None else decorator._make(func, sys._getframe(1).f_locals)


class TaskGroup(TaskMethods):
    """Tasks without a queue, for a module of their own; `hf.include(tasks)` registers them."""

    def __init__(self) -> None:
        self.tasks: list[Task[..., Any]] = []

    def _add_task(self, task: Task[..., Any]) -> None:
        taken = {name: other for other in self.tasks for name in other.names}
        for name in task.names:
            if name in taken:
                raise InvalidTask(f"task name {name!r} is taken by {taken[name]!r}")
        self.tasks.append(task)
