"""The base of all executors, and the executor of `async def` handlers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from holdfast.models import Context, Job
    from holdfast.task import EntrypointExecutorParameters


@dataclass(eq=False)
class AbstractEntrypointExecutor(ABC):
    """Subclass it and name the subclass in `executor_factory` to run handlers your own way."""

    parameters: EntrypointExecutorParameters

    @property
    def capacity(self) -> int:
        """How many jobs run at once in this process, and are claimed for it. 0 means unlimited."""
        return 0

    @property
    def limits_time(self) -> bool:
        """Whether it ends a handler at the entrypoint's timeout by itself."""
        return False

    @property
    def written_retries(self) -> int | None:
        """The number of retries after which it gives up, if one was given."""
        return None

    @abstractmethod
    async def execute(self, job: Job, context: Context) -> None:
        """Run the handler. The job's outcome follows from what this raises."""


@dataclass(eq=False)
class EntrypointExecutor(AbstractEntrypointExecutor):
    """Awaits the handler on the event loop."""

    def __post_init__(self) -> None:
        self._func = self.parameters.func
        self._accepts_context = self.parameters.accepts_context

    def execute(self, job: Job, context: Context) -> Coroutine[Any, Any, None]:
        """Return the handler's own coroutine. One around it would only take time."""
        running: Coroutine[Any, Any, None] = (
            self._func(job, context) if self._accepts_context else self._func(job)
        )
        return running
