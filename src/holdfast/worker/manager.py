"""The QueueManager: a worker as its application uses it, before, during and after its runs."""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
from typing import TYPE_CHECKING, Any

from holdfast.clock import monotonic
from holdfast.errors import InvalidInput
from holdfast.events import Observers
from holdfast.settings import WorkerSettings
from holdfast.worker.claim import QueueExecutionMode
from holdfast.worker.sources import Sources
from holdfast.worker.status import WorkerStatus
from holdfast.worker.worker import Options, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from holdfast.ports import Store
    from holdfast.task import Entrypoint, Registry
    from holdfast.worker.loop_watchdog import LoopWatchdog
    from holdfast.worker.quarantine import Suspects


class QueueManager:
    """Claims jobs of the registered entrypoints, runs them, and records their outcomes."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        observers: Observers | None = None,
        resources: MutableMapping[Any, Any] | None = None,
        shutdown: asyncio.Event | None = None,
    ) -> None:
        self._sources = Sources(store)
        self._registry = registry
        # Not `or`: both may be empty now and filled before run().
        self._observers = Observers() if observers is None else observers
        self._resources = {} if resources is None else resources
        self.shutdown = shutdown or asyncio.Event()
        """Setting it begins the graceful stop."""
        self.fast_stop = asyncio.Event()
        """Setting it ends the graceful stop at once: running jobs are cancelled and released."""
        self.id = f"{platform.node()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.queries: Any = None
        """The queries of the application around it, for code that has only the manager."""
        self.on_blocked: Callable[[str], None] | None = None
        """Ends the process, from another thread, when its event loop was blocked for too long."""
        self._status = WorkerStatus(self.id)
        self._worker: Worker | None = None
        """The present run, or the last one."""

    @property
    def hurry(self) -> asyncio.Event:
        """The former name of `fast_stop`."""
        return self.fast_stop

    @property
    def entrypoints(self) -> tuple[Entrypoint, ...]:
        """The handlers that it can run."""
        return tuple(self._registry)

    def renew(self, shutdown: asyncio.Event) -> None:
        """Stop when this event is set, from the next run() on, which may be in another loop."""
        self.shutdown = shutdown
        self.fast_stop = asyncio.Event()

    def use(self, sources: Sources, registry: Registry) -> None:
        """Serve these tables with these handlers from the next run() on."""
        self._sources = sources
        self._registry = registry

    @property
    def running(self) -> int:
        """How many handlers run now."""
        return 0 if self._worker is None else self._worker.dispatcher.running

    @property
    def listening(self) -> bool:
        """Whether wake-ups arrive. Without them the worker polls."""
        return self._worker is not None and self._worker.signal.listening

    def look_for_recovered(self) -> None:
        """Jobs of a dead worker are queued, so claim them without waiting for the next sweep."""
        if self._worker is not None:
            self._worker.quarantine.look()

    @property
    def suspects(self) -> Suspects:
        return self._status.suspects

    @property
    def suspects_wait(self) -> bool:
        """Whether a suspect is due that another process should run, by this worker's last scan.
        May be read in any thread."""
        return self._worker is not None and self._worker.quarantine.wants_process

    def treat_suspects(self, suspects: Suspects) -> None:
        """Run suspects, or leave them to another process. `Suspects.only` is set before run()."""
        self._status.suspects = suspects
        if self._worker is not None:
            self._worker.quarantine.treat(suspects)

    @property
    def state(self) -> str:
        return self._status.state

    @property
    def step_failures(self) -> dict[str, int]:
        """Unexpected errors in the worker's own steps, by step. Each was logged."""
        return {} if self._worker is None else dict(self._worker.steps.failures)

    @property
    def blocked(self) -> str | None:
        """Why leases are no longer renewed, while the event loop is blocked for too long."""
        found = None if self._worker is None else self._worker.lease_set.given_up
        return None if found is None else str(found)

    @property
    def watchdog(self) -> LoopWatchdog | None:
        """Watches the event loop of the present run, or of the last one. None before the first."""
        return None if self._worker is None else self._worker.watchdog

    @property
    def seconds_since_claim(self) -> float:
        """Time since the database last answered a claim. Liveness is judged by it."""
        return 0.0 if self._worker is None else monotonic() - self._worker.claimer.ticked

    async def run(
        self,
        settings: WorkerSettings | None = None,
        mode: QueueExecutionMode = QueueExecutionMode.continuous,
    ) -> None:
        """Work until `shutdown` is set, or in drain mode until nothing is claimable."""
        chosen = settings or WorkerSettings()
        rules = self._registry.rules(chosen.heartbeat_timeout)
        if not rules:
            raise InvalidInput(
                "no entrypoint is registered, so there is nothing to run; "
                "register one with @hf.entrypoint(name) before run()"
            )
        await self._sources.verify()
        if policies := self._registry.breakers:
            # It is refused now where its table is missing, and listed before the first job.
            await self._sources.store.breakers.admit(list(policies.values()), 0)
        options = Options(
            chosen, mode, self._resources, self.shutdown, self.fast_stop, self.on_blocked
        )
        self._worker = worker = Worker(
            self._sources, self._registry, rules, self._observers, self._status, options
        )
        try:
            await worker.run()
        except BaseExceptionGroup as group:
            raise _only_error(group) from None
        finally:
            self._status.state = "stopped"
            await worker.close()


def _only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the single error inside nested task groups, or the group if there are several."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
