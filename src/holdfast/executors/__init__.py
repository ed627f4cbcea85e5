"""How handlers are run: on the event loop, in a thread, in a process, or your own way."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import InvalidInput
from holdfast.executors.coroutine import AbstractEntrypointExecutor, EntrypointExecutor
from holdfast.executors.limit import limited
from holdfast.executors.process import ProcessExecutor
from holdfast.executors.retry import DatabaseRetryEntrypointExecutor, plain
from holdfast.executors.thread import ThreadExecutor
from holdfast.models import Executor
from holdfast.retry import RemoteError
from holdfast.task import EntrypointExecutorParameters

__all__ = [
    "AbstractEntrypointExecutor",
    "DatabaseRetryEntrypointExecutor",
    "EntrypointExecutor",
    "EntrypointExecutorParameters",
    "ExecutorFactory",
    "ProcessExecutor",
    "RemoteError",
    "ThreadExecutor",
    "build",
]

ExecutorFactory = Callable[[EntrypointExecutorParameters], Executor]


def build(
    parameters: EntrypointExecutorParameters, factory: ExecutorFactory | None = None
) -> Executor:
    """The executor of a handler: the factory's, or the one of the handler's kind."""
    if factory is None:
        return plain(parameters)
    executor = factory(parameters)
    if not callable(getattr(executor, "execute", None)):
        raise InvalidInput(
            f"executor_factory of {parameters.name!r} returned {executor!r}, which has no "
            f"execute(job, context); return a subclass of AbstractEntrypointExecutor"
        )
    return limited(parameters, executor)
