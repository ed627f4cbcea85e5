"""One run of a worker: its parts are made and connected here, started, drained and stopped."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, PrivilegeMissing
from holdfast.models import SHUTDOWN
from holdfast.worker.breaker_gate import BreakerGate
from holdfast.worker.canceled import Cancellations
from holdfast.worker.claim import Claimer, QueueExecutionMode
from holdfast.worker.dispatcher import Dispatcher
from holdfast.worker.leases import LeaseSet
from holdfast.worker.listen import Listener
from holdfast.worker.loop_watchdog import LoopWatchdog
from holdfast.worker.payloads import PayloadFetcher
from holdfast.worker.progress import ProgressWriter
from holdfast.worker.publish import Publisher
from holdfast.worker.quarantine import Quarantine, Suspects
from holdfast.worker.renew import Renewer, RenewingThread
from holdfast.worker.rescue import Rescue
from holdfast.worker.settle import Settler
from holdfast.worker.status import Reporter
from holdfast.worker.steps import Steps
from holdfast.worker.suspect_turn import SuspectTurn
from holdfast.worker.sweep import CleanUp, Housekeeper, Sweeper
from holdfast.worker.task_pool import TaskPool
from holdfast.worker.upkeep import Lookout, UpkeepDuty
from holdfast.worker.wakeup_policy import WakeupPolicy
from holdfast.worker.work_signal import WorkSignal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, MutableMapping, Sequence

    from holdfast.events import Observers
    from holdfast.models import ClaimRule
    from holdfast.ports import Upkeep
    from holdfast.settings import WorkerSettings
    from holdfast.task import Registry
    from holdfast.worker.sources import Sources
    from holdfast.worker.status import WorkerStatus

logger = logging.getLogger("holdfast.worker")

_CANCEL_SECONDS = 0.8
"""Handlers that were cancelled at the end of a drain have this long to end and to be settled."""

_SIGN_OFF_SECONDS = 0.8
_CLOSE_SECONDS = 0.2
"""A connection that does not close politely in this time is left to the server."""


class Connections(NamedTuple):
    """A connection for each purpose, so that none waits for the statement of another."""

    claim: Sources
    settle: Sources
    listen: Sources
    housekeep: Sources

    @classmethod
    def of(cls, sources: Sources) -> Connections:
        return cls(*map(sources.fork, cls._fields))


class Options(NamedTuple):
    """The arguments of a run."""

    settings: WorkerSettings
    mode: QueueExecutionMode
    resources: MutableMapping[Any, Any]
    shutdown: asyncio.Event
    fast_stop: asyncio.Event
    on_blocked: Callable[[str], None] | None


class Worker:
    """All parts of one run."""

    def __init__(
        self,
        sources: Sources,
        registry: Registry,
        rules: Sequence[ClaimRule],
        observers: Observers,
        status: WorkerStatus,
        options: Options,
    ) -> None:
        settings, worker = options.settings, status.worker
        self._sources = sources
        self._options = options
        self._status = status
        self._connections = connections = Connections.of(sources)
        self._stopped_at: float | None = None
        self._shortest = min(rule.lease for rule in rules)
        self.steps = Steps(observers, worker)
        self.lease_set = lease_set = LeaseSet(_longest_gap(self._shortest, settings))
        self.signal = WorkSignal(lease_set, settings.dequeue_timeout)
        self.gate = BreakerGate(
            rules,
            registry.breakers,
            lease_set,
            claiming=connections.claim.store.breakers,
            settling=connections.settle.store.breakers,
        )
        publisher = Publisher(lease_set, observers, worker=worker, signal=self.signal)
        self.settler = Settler(connections.settle, lease_set, self.gate, publisher)
        self.dispatcher = Dispatcher(
            registry, rules, settings, lease_set, self.settler, observers, worker=worker
        )
        self._progress = ProgressWriter(connections.settle)
        # Not in the way of outcomes. Claims that wait for payloads would only ask for more.
        self._payloads = PayloadFetcher(connections.claim)
        self.task_pool = TaskPool(
            self.dispatcher,
            self.settler,
            connections.settle,
            self._progress,
            self._payloads,
            options.resources,
        )
        self.quarantine = Quarantine(lease_set, suspects=status.suspects)
        self.duty = UpkeepDuty(self._upkeep_of(connections.housekeep), lease_set, settings, worker)
        self._make_claiming(rules, observers)
        self._make_renewing(registry)

    def _upkeep_of(self, sources: Sources) -> Upkeep | None:
        """A store without a place for reports has no place for duties either."""
        return None if self._sources.reports is None else sources.store.upkeep

    def _make_claiming(self, rules: Sequence[ClaimRule], observers: Observers) -> None:
        """Make the parts that find work."""
        connections, settings = self._connections, self._options.settings
        worker = self._status.worker
        self.claimer = Claimer(
            connections.claim.claims,
            rules,
            self.gate,
            settings,
            self.lease_set,
            self.dispatcher,
            self.quarantine,
            SuspectTurn(self._upkeep_of(connections.claim), worker, self._shortest),
            self.duty,
            wakeup_policy=WakeupPolicy(connections.listen.store.wakeups),
            signal=self.signal,
            worker=worker,
        )
        self._cancellations = Cancellations(connections.settle, self.lease_set)
        self._listener = Listener(
            connections.listen.store.wakeups,
            self.signal,
            self._cancellations,
            self.quarantine,
            worker=worker,
        )
        self._sweeper = Sweeper(
            connections.claim,
            rules,
            settings,
            self.lease_set,
            observers,
            worker,
            self.quarantine,
            self.duty,
        )

    def _make_renewing(self, registry: Registry) -> None:
        """Make the parts that keep leases, and end those that nothing else ends."""
        self.watchdog = LoopWatchdog(self.lease_set, self._options.settings.max_loop_block)
        self._rescue = Rescue(
            self.lease_set,
            self.settler,
            self.dispatcher,
            self.task_pool,
            self.steps,
            interval=self._shortest.total_seconds() / 3,
            end_process=self._options.on_blocked,
        )
        self._reporter = Reporter(
            self._status,
            registry.names,
            self._options.settings,
            self.dispatcher,
            registry.breakers,
        )
        self._renewer = Renewer(
            self.lease_set,
            shortest=self._shortest.total_seconds(),
            reporter=self._reporter,
            duty=self.duty,
            steps=self.steps,
        )

    async def run(self) -> None:
        """Work until stopped, or in drain mode until nothing is claimable."""
        await self._introduce()
        keep, settler, pool = self.steps.keep, self.settler, self.task_pool
        progress, payloads = self._progress, self._payloads
        async with asyncio.TaskGroup() as lasting:
            renewing = lasting.create_task(self._renew())
            settling = lasting.create_task(
                keep("settle", settler.run, lambda: settler.rounds, vital=True)
            )
            others = [
                lasting.create_task(keep("dispatch", pool.run, lambda: pool.rounds, vital=True)),
                lasting.create_task(
                    keep("payloads", payloads.run, lambda: payloads.rounds, vital=True)
                ),
                lasting.create_task(keep("progress", progress.run, lambda: progress.rounds)),
                lasting.create_task(keep("rescue", self._rescue.run, lambda: self._rescue.rounds)),
            ]
            # The end of the claiming, also by a crash or a cancellation, is followed by the drain.
            patience = timedelta(0)
            try:
                await self._claim()
                patience = self._options.settings.drain_timeout
            finally:
                self._status.state = "draining"
                # Other workers need not wait until the last job has ended. The group may be over
                # already.
                releasing = asyncio.get_running_loop().create_task(self.duty.release())
                await self._drain(patience, settling)
                if len(self.lease_set) and settling.done():
                    await self._rescue.release_rest(self._connections.claim)
                if len(self.lease_set):
                    await self._leave_unsettled()
                ending = [settling, renewing, releasing, *others]
                for task in ending:
                    task.cancel()
                await asyncio.wait(ending)
                await self._sign_off()

    async def close(self) -> None:
        """Close the connections."""
        self._rescue.over = True
        await _close(fork for fork in self._connections if fork is not self._sources)

    async def _introduce(self) -> None:
        """Report before the first job. Raise PrivilegeMissing where this user may not work.

        The connection for outcomes is used: where there is a database, it is open before the first
        outcome.
        """
        reports = self._connections.settle.reports
        try:
            if reports is not None:
                await reports.report(self._reporter.report())
        except PrivilegeMissing:
            raise
        except DatabaseError as error:
            # The renewals report as well.
            logger.debug("the worker is not listed yet: %s", error)

    async def _claim(self) -> None:
        """Claim, with the steps that only serve it, until nothing more is to be claimed."""
        connections, keep, claimer = self._connections, self.steps.keep, self.claimer
        sweeper, cancellations, listener = self._sweeper, self._cancellations, self._listener
        settings, duty = self._options.settings, self.duty
        housekeeper = Housekeeper(connections.housekeep.claims, settings, duty)
        lookout = Lookout(
            connections.housekeep.store.upkeep,
            connections.listen.store.wakeups,
            duty,
            settings.poll_interval,
        )
        clean_up = CleanUp(connections.housekeep.claims, self.dispatcher)
        async with asyncio.TaskGroup() as group:
            others = [
                group.create_task(keep("listen", listener.run, lambda: listener.rounds)),
                group.create_task(keep("cancel", cancellations.run, lambda: cancellations.rounds)),
                group.create_task(keep("upkeep", duty.run, lambda: duty.rounds)),
                group.create_task(keep("lookout", lookout.run, lambda: lookout.rounds)),
                group.create_task(keep("sweep", sweeper.run, lambda: sweeper.rounds)),
                group.create_task(keep("housekeep", housekeeper.run, lambda: housekeeper.rounds)),
                group.create_task(keep("clean_up", clean_up.run, lambda: clean_up.rounds)),
                group.create_task(self._stop_on_shutdown()),
            ]
            self._status.state = "running"
            await keep("claim", self._claim_by_mode, lambda: claimer.rounds, vital=True)
            for task in others:
                task.cancel()

    async def _claim_by_mode(self) -> None:
        if self._status.suspects is Suspects.only:
            await self.claimer.run_suspects()
        else:
            await self.claimer.run(self._options.mode)

    async def _renew(self) -> None:
        if self._sources.dedicated:
            thread = RenewingThread(
                self._renewer, self._sources, self.watchdog, self.steps, self._rescue
            )
            await thread.run()
        else:
            logger.info(
                "leases are renewed on the worker's event loop and connection: a handler that "
                "blocks the loop for a lease loses it; Holdfast.connect(dsn) has no such limit"
            )
            await self._renewer.keep(lambda: self._sources.fork("renew"))

    async def _stop_on_shutdown(self) -> None:
        await self._options.shutdown.wait()
        self._stopped_at = monotonic()
        self.claimer.stop()

    async def _drain(self, patience: timedelta, settling: asyncio.Task[None]) -> None:
        """Release what has not started, let the rest finish, then cancel it."""
        lease_set, fast_stop = self.lease_set, self._options.fast_stop
        self.dispatcher.release_waiting()
        began = monotonic() if self._stopped_at is None else self._stopped_at
        left = began + patience.total_seconds() - monotonic()
        waking = asyncio.get_running_loop().create_task(self._wake_on_fast_stop())
        try:
            if not await lease_set.until(
                lambda: not len(lease_set) or fast_stop.is_set(), seconds=left
            ):
                logger.warning("%d jobs still run after %s", self.dispatcher.running, patience)
        finally:
            waking.cancel()
            for lease in lease_set.snapshot():
                lease.stop(SHUTDOWN)
        # A settler that has ended settles nothing. The rest is released afterwards.
        await lease_set.until(
            lambda: (
                not len(lease_set)
                or (settling.done() and not len(self.task_pool) and not self.dispatcher.starting)
            ),
            seconds=_CANCEL_SECONDS,
        )

    async def _wake_on_fast_stop(self) -> None:
        await self._options.fast_stop.wait()
        self.lease_set.changed.set()

    async def _leave_unsettled(self) -> None:
        unsettled = sorted(str(lease.job.id) for lease in self.lease_set.snapshot())
        logger.error("jobs %s could not be released; their leases will expire", unsettled)
        # A server that is silent would not answer a request to cancel its statements either.
        await _close([self._connections.settle])

    async def _sign_off(self) -> None:
        claims, reports = self._connections.claim.claims, self._connections.claim.reports
        with suppress(DatabaseError, TimeoutError):
            async with asyncio.timeout(_SIGN_OFF_SECONDS):
                # A claim may have been on its way at the stop.
                await claims.recall()
                if len(self.lease_set):
                    return
                await claims.delete_claims(self.lease_set.ended_claims)
                if reports is not None:
                    await reports.sign_off(self._status.worker)


def _longest_gap(lease: timedelta, settings: WorkerSettings) -> float:
    """Seconds without an answer that are no outage yet.

    Live holders renew within a third of a lease, so half of one does them no harm. A worker that
    holds nothing reaches the database only by its sweeps.
    """
    return max(lease / 2, settings.sweep_interval * 1.5).total_seconds()


async def _close(forks: Iterable[Sources]) -> None:
    async def close(fork: Sources) -> None:
        with suppress(DatabaseError, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await fork.close()

    await asyncio.gather(*(close(fork) for fork in forks))
