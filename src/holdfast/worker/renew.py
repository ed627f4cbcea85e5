"""Keeps the leases, from a thread and connection of its own; tells what was lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.models import WorkerInfo
    from holdfast.ports import Store
    from holdfast.worker.hand import Hand, Lease

logger = logging.getLogger("holdfast.worker")

_RETRY = 0.2


class Renewer:
    """Renews at a third of the shortest lease and never waits for the worker's event loop.

    `on_lost` and `on_untrusted` are called in the worker's event loop.
    """

    def __init__(
        self,
        hand: Hand,
        *,
        shortest: float,
        info: Callable[[], WorkerInfo],
        on_lost: Callable[[Lease], None],
        on_untrusted: Callable[[Lease], None],
    ) -> None:
        self._hand = hand
        self._interval = shortest / 3
        self._info = info
        self._on_lost = on_lost
        self._on_untrusted = on_untrusted
        self._home = asyncio.get_running_loop()

    async def run(self, store: Store) -> None:
        """Until cancelled."""
        while True:
            began = monotonic()
            renewed = await self._renew(store)
            self._distrust()
            pause = self._interval if renewed else min(_RETRY, self._interval)
            await asyncio.sleep(max(0.0, pause - (monotonic() - began)))

    async def _renew(self, store: Store) -> bool:
        leases = [lease for lease in self._hand.snapshot() if lease.to_be_renewed]
        sent = monotonic()
        try:
            # A late reply is as bad as none: after a third of the lease the next try is due.
            async with asyncio.timeout(max(self._interval, _RETRY)):
                owned = await store.leases.renew([lease.held for lease in leases])
                await store.leases.report(self._info())
        except (DatabaseError, TimeoutError) as error:
            logger.warning("%d leases could not be renewed: %s", len(leases), error)
            return False
        for lease in leases:
            if lease.held in owned:
                lease.renewed(sent)
            else:
                self._home.call_soon_threadsafe(self._on_lost, lease)
        return True

    def _distrust(self) -> None:
        for lease in self._hand.snapshot():
            if not lease.trusted:
                self._home.call_soon_threadsafe(self._on_untrusted, lease)


class RenewingThread:
    """Runs a Renewer where a handler that blocks the event loop cannot starve it."""

    def __init__(self, renewer: Renewer, store: Store) -> None:
        self._renewer = renewer
        self._store = store
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = threading.Event()
        self._home = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._home.create_future()
        self._thread = threading.Thread(target=self._main, name="holdfast-renew", daemon=True)

    async def run(self) -> None:
        """Until cancelled; an error in the thread is raised here."""
        self._thread.start()
        try:
            await asyncio.shield(self._ended)
        finally:
            self._stop()

    def _stop(self) -> None:
        self._started.wait(1)
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                return
        self._thread.join(2)

    def _main(self) -> None:
        try:
            asyncio.run(self._renew())
        except BaseException as error:
            self._tell(error)
        else:
            self._tell(None)

    def _tell(self, error: BaseException | None) -> None:
        def end() -> None:
            if self._ended.done():
                return
            if error is None or isinstance(error, asyncio.CancelledError):
                self._ended.set_result(None)
            else:
                self._ended.set_exception(error)

        if not self._home.is_closed():
            self._home.call_soon_threadsafe(end)

    async def _renew(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._started.set()
        store = self._store.fork("renew")
        try:
            await self._renewer.run(store)
        except asyncio.CancelledError:
            return
        finally:
            await store.close()
