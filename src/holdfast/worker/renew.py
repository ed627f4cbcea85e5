"""Keeps the leases, from a thread and connection of its own; tells what was lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed, DatabaseError
from holdfast.worker.hand import TRUST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.models import Held, WorkerInfo
    from holdfast.ports import Store
    from holdfast.worker.hand import Hand, Lease
    from holdfast.worker.lag import LagWatch

logger = logging.getLogger("holdfast.worker")

_RETRY = 0.2
_LAST_WORD = 0.3
"""Seconds in which the thread should end when it is told to."""


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
        # Several times in the part of a lease that is not trusted: handlers need some of it to end.
        self._look_every = shortest * (1 - TRUST) / 3
        self._info = info
        self._on_lost = on_lost
        self._on_untrusted = on_untrusted
        self._home = asyncio.get_running_loop()
        self._closing: set[asyncio.Task[None]] = set()
        self._locked = 0

    async def run(self, connect: Callable[[], Store]) -> None:
        """Until cancelled."""
        store = connect()
        watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            while True:
                began = monotonic()
                renewed = await self._renew(store)
                if renewed is None:
                    store = self._replace(store, connect)
                pause = self._interval if renewed else min(_RETRY, self._interval)
                await asyncio.sleep(max(0.0, pause - (monotonic() - began)))
        finally:
            watching.cancel()
            await store.close()

    async def _renew(self, store: Store) -> bool | None:
        """Whether it was possible; None: the database did not answer in time."""
        # Jobs that ended well must not be run again because another blocks the event loop.
        everything = self._hand.standing_still
        leases = [lease for lease in self._hand.snapshot() if everything or lease.to_be_renewed]
        sent = monotonic()
        try:
            # A late reply is as bad as none: the next try is due.
            async with asyncio.timeout(max(self._interval, _RETRY)):
                renewed = await self._renew_all(store, leases, sent)
                await store.leases.report(self._info())
        except (DatabaseError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            logger.warning("%d leases could not be renewed: %s", len(leases), reason)
            return None if isinstance(error, TimeoutError) else False
        return renewed

    async def _renew_all(self, store: Store, leases: Sequence[Lease], sent: float) -> bool:
        """Whether all could be: what one table refuses must not cost the leases on another."""
        by_queue: dict[str, list[Lease]] = defaultdict(list)
        for lease in leases:
            by_queue[lease.held.queue].append(lease)
        locked = 0
        failure: DatabaseError | None = None
        for some in by_queue.values():
            try:
                locked += await self._renew_some(store, some, sent)
            except ConnectionFailed:
                raise
            except DatabaseError as error:
                failure = error
        self._tell_locked(locked)
        if failure is not None:
            raise failure
        return not locked

    async def _renew_some(self, store: Store, leases: Sequence[Lease], sent: float) -> int:
        """How many rows somebody else has locked: those leases are neither renewed nor lost."""
        held = [lease.held for lease in leases]
        locked: set[Held] = set()
        try:
            owned = await store.leases.renew(held)
        except DatabaseError as error:
            if not error.locked or not (locked := await store.leases.locked(held)):
                raise
            owned = await store.leases.renew([each for each in held if each not in locked])
        for lease in leases:
            if lease.held in owned:
                lease.renewed(sent)
            elif lease.held not in locked:
                self._home.call_soon_threadsafe(self._on_lost, lease)
        return len(locked)

    def _tell_locked(self, count: int) -> None:
        """Once, and not at every try."""
        if count and not self._locked:
            logger.warning(
                "%d leases wait to be renewed for transactions that have locked their rows", count
            )
        self._locked = count

    async def _watch(self) -> None:
        """Beside the renewals, since one that hangs must not put this off."""
        while True:
            self._distrust()
            await asyncio.sleep(self._look_every)

    def _distrust(self) -> None:
        for lease in self._hand.snapshot():
            # Once: a handler that is cleaning up is not to be interrupted again and again.
            if not lease.trusted and not lease.cancellation.cancel_called:
                self._home.call_soon_threadsafe(self._on_untrusted, lease)

    def _replace(self, store: Store, connect: Callable[[], Store]) -> Store:
        """A silent connection may stay silent for ever, and takes its time to close."""
        closing = asyncio.get_running_loop().create_task(store.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return connect()


class RenewingThread:
    """Runs a Renewer where a handler that blocks the event loop cannot starve it."""

    def __init__(self, renewer: Renewer, store: Store, lag: LagWatch) -> None:
        self._renewer = renewer
        self._store = store
        self._lag = lag
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
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
            await asyncio.wait([self._ended], timeout=_LAST_WORD)

    def _stop(self) -> None:
        self._stopping = True
        if self._loop is None or self._task is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._task.cancel)
        except RuntimeError:
            # It has ended by itself.
            return

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

        try:
            self._home.call_soon_threadsafe(end)
        except RuntimeError:
            # The worker's event loop was closed without waiting for this thread.
            return

    async def _renew(self) -> None:
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        if self._stopping:
            # Told so before there was a task to cancel.
            return
        watching = self._loop.create_task(self._lag.run())
        try:
            await self._renewer.run(lambda: self._store.fork("renew"))
        finally:
            watching.cancel()
