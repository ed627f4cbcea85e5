"""Renews the leases, from a thread and a connection of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed, DatabaseError
from holdfast.repeated import RepeatedLog
from holdfast.worker.at_exit import at_exit
from holdfast.worker.leases import TRUST, by_source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from holdfast.models import LeaseKey
    from holdfast.ports import Leases
    from holdfast.worker.leases import Lease, LeaseSet
    from holdfast.worker.loop_watchdog import Blocked, LoopWatchdog
    from holdfast.worker.rescue import Rescue
    from holdfast.worker.sources import Sources
    from holdfast.worker.status import Reporter
    from holdfast.worker.steps import Steps
    from holdfast.worker.upkeep import UpkeepDuty

logger = logging.getLogger("holdfast.worker")

_RETRY_SECONDS = 0.2
_RELEASE_SECONDS = 2.0
"""A renewing thread that was stopped waits this long for its worker to release its jobs."""

_THREAD_END_SECONDS = 0.3
"""A stopping worker waits this long for the renewing thread to end."""


class Renewer:
    """Renews at a third of the shortest lease and never waits for the worker's event loop."""

    def __init__(
        self,
        lease_set: LeaseSet,
        *,
        shortest: float,
        reporter: Reporter,
        duty: UpkeepDuty,
        steps: Steps,
    ) -> None:
        self._lease_set = lease_set
        self._interval = shortest / 3
        # Several times in the part of a lease that is not trusted: handlers need some of it to end.
        self._check_seconds = shortest * (1 - TRUST) / 3
        self._reporter = reporter
        self._duty = duty
        self._steps = steps
        self._home = asyncio.get_running_loop()
        self._closing: set[asyncio.Task[None]] = set()
        self._log = RepeatedLog(logger)
        self.rounds = 0
        """How many renewals have succeeded."""

    async def keep(self, connect: Callable[[], Sources], home: Sources | None = None) -> None:
        """Renew until cancelled. After an unexpected error go on while the leases are trusted.

        With `home`, sources of the worker's event loop, a connection is opened only while there are
        leases: an idle worker reports through `home`.
        """
        # Beside the renewals, since one that hangs or fails must not put this off.
        watching = asyncio.get_running_loop().create_task(
            self._steps.keep("distrust", self._watch, lambda: self.rounds)
        )
        try:
            await self._steps.keep(
                "renew",
                lambda: self.run(connect, home),
                lambda: self.rounds,
                vital=True,
                longest=min(_RETRY_SECONDS, self._interval),
                patience=3 * self._interval * TRUST,
            )
        finally:
            watching.cancel()

    async def run(self, connect: Callable[[], Sources], home: Sources | None = None) -> None:
        """Renew until cancelled."""
        sources: Sources | None = None
        try:
            while True:
                began = monotonic()
                leases = self._due()
                if sources is not None and home is not None and not leases:
                    self._close(sources)
                    sources = None
                elif sources is None and (leases or home is None):
                    sources = connect()
                renewed = await self._renew(sources, home, leases)
                if renewed is None and sources is not None:
                    self._close(sources)
                    sources = None
                pause = self._interval if renewed else min(_RETRY_SECONDS, self._interval)
                await asyncio.sleep(max(0.0, pause - (monotonic() - began)))
        finally:
            if sources is not None:
                await sources.close()

    def _due(self) -> list[Lease]:
        # Jobs that have ended must not run again because another one blocks the event loop.
        everything = self._lease_set.loop_blocked
        return [lease for lease in self._lease_set.snapshot() if everything or lease.to_be_renewed]

    async def _renew(
        self, sources: Sources | None, home: Sources | None, leases: Sequence[Lease]
    ) -> bool | None:
        """Renew the leases. Return False on a database error, None on a timeout."""
        sent = monotonic()
        try:
            # The next renewal is due by then.
            async with asyncio.timeout(max(self._interval, _RETRY_SECONDS)):
                try:
                    renewed = await self._renew_on(sources, home, leases, sent)
                except ConnectionFailed as error:
                    if sources is None or home is None or not (error.full or error.no_descriptor):
                        raise
                    # There is no further connection to be had, but this worker has one.
                    renewed = await self._renew_on(None, home, leases, sent)
        except (DatabaseError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            self._log.warning("%d leases could not be renewed: %s", len(leases), reason)
            return None if isinstance(error, TimeoutError) else False
        return renewed

    async def _renew_on(
        self, sources: Sources | None, home: Sources | None, leases: Sequence[Lease], sent: float
    ) -> bool:
        """Renew and report through `sources`, or through the worker's event loop without one."""

        async def renew(through: Sources) -> bool:
            renewed = await self._renew_all(through, leases, sent)
            self.rounds += 1
            await self._report(through)
            return renewed

        if sources is not None:
            return await renew(sources)
        assert home is not None  # noqa: S101 - without it there is always a connection
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(renew(home), self._home))

    async def _report(self, through: Sources) -> None:
        """Report that this worker is alive. The leases do not depend on it."""
        try:
            if through.reports is None:
                return
            vacant = await through.reports.report(self._reporter.report())
            self._lease_set.contact.made()
            if vacant:
                self._home.call_soon_threadsafe(self._duty.vacant)
        except DatabaseError:
            raise
        except Exception as error:
            self._steps.failed("heartbeat", error)

    async def _renew_all(self, through: Sources, leases: Sequence[Lease], sent: float) -> bool:
        """Return whether all were renewed. An error on one table does not keep the others back."""
        locked = 0
        failure: DatabaseError | None = None
        for source, some in by_source(leases).items():
            try:
                locked += await self._renew_some(through.leases[source], some, sent)
            except ConnectionFailed:
                raise
            except DatabaseError as error:
                failure = error
        if locked:
            self._log.warning(
                "%d leases cannot be renewed while other transactions lock their rows", locked
            )
        if failure is not None:
            raise failure
        return not locked

    async def _renew_some(self, table: Leases, leases: Sequence[Lease], sent: float) -> int:
        """Return how many rows other transactions have locked. Their leases are not lost."""
        held = [lease.key for lease in leases]
        locked: set[LeaseKey] = set()
        try:
            owned = await table.renew(held)
        except DatabaseError as error:
            if not error.locked or not (locked := await table.locked(held)):
                raise
            owned = await table.renew([each for each in held if each not in locked])
        self._lease_set.contact.made()
        for lease in leases:
            if lease.key in owned:
                lease.renewed(sent)
            elif lease.key not in locked:
                self._home.call_soon_threadsafe(self._lease_set.lose, lease)
        return len(locked)

    async def _watch(self) -> None:
        """Stop the handlers of leases that are trusted no longer."""
        while True:
            self._distrust()
            await asyncio.sleep(self._check_seconds)

    def _distrust(self) -> None:
        for lease in self._lease_set.snapshot():
            # Only once: a handler that is cleaning up must not be interrupted again.
            if not lease.trusted and not lease.cancellation.cancel_called:
                self._home.call_soon_threadsafe(self._lease_set.distrust, lease)

    def _close(self, sources: Sources) -> None:
        """Close without waiting: a connection that timed out may take long to close."""
        closing = asyncio.get_running_loop().create_task(sources.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


class RenewingThread:
    """Runs a Renewer where a handler that blocks the event loop cannot starve it."""

    def __init__(
        self,
        renewer: Renewer,
        sources: Sources,
        watchdog: LoopWatchdog,
        steps: Steps,
        rescue: Rescue,
    ) -> None:
        self._renewer = renewer
        self._sources = sources
        self._watchdog = watchdog
        self._steps = steps
        self._rescue = rescue
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = self._abandoned = False
        self._home = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._home.create_future()
        self._thread = threading.Thread(target=self._main, name="holdfast-renew", daemon=True)

    async def run(self) -> None:
        """Renew until cancelled. An error in the thread is raised here."""
        self._thread.start()
        at_exit.add(self)
        try:
            await asyncio.shield(self._ended)
        finally:
            self._stop()
            await asyncio.wait([self._ended], timeout=_THREAD_END_SECONDS)

    def begin_release(self) -> None:
        """Release what is leased, if the event loop was ended before its worker."""
        self._abandoned = self._watchdog.abandon()

    def join(self, seconds: float) -> None:
        """Wait for that."""
        if self._abandoned:
            self._thread.join(seconds)

    def _stop(self) -> None:
        self._stopping = True
        if self._loop is None or self._task is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._task.cancel)
        except RuntimeError:
            # The thread has ended by itself.
            return

    def _main(self) -> None:
        try:
            asyncio.run(self._renew())
        except BaseException as error:
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
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
            # The stop came before there was a task to cancel.
            return
        try:
            await self._renew_until_gone()
        except asyncio.CancelledError:
            # The tasks of a loop that ends are cancelled together: the worker's own steps may still
            # release its jobs, and may be interrupted in that.
            await self._rescue.until_released(self._watchdog, _RELEASE_SECONDS)
        if self._watchdog.gone:
            async with self._connected() as sources:
                await self._rescue.release_all(sources)

    async def _renew_until_gone(self) -> None:
        while not self._watchdog.gone:
            if blocked := await self._renew_until_blocked():
                async with self._connected() as sources:
                    await self._rescue.give_up(sources, blocked)
                    await self._watchdog.until_answered()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Sources]:
        sources = self._connect()
        try:
            yield sources
        finally:
            await sources.close()

    def _connect(self) -> Sources:
        return self._sources.fork("renew")

    async def _renew_until_blocked(self) -> Blocked | None:
        loop = asyncio.get_running_loop()
        watching = loop.create_task(self._watch())
        renewing = loop.create_task(self._renewer.keep(self._connect, self._sources))
        try:
            await asyncio.wait((watching, renewing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            renewing.cancel()
            await asyncio.wait((watching, renewing))
        if not renewing.cancelled():
            renewing.result()
        return watching.result()

    async def _watch(self) -> Blocked | None:
        found: list[Blocked | None] = []

        async def watch() -> None:
            found.append(await self._watchdog.run())

        await self._steps.keep("watchdog", watch, lambda: len(found))
        return found[0]
