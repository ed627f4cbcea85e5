"""The QueueManager: starts the steps of a worker, drains them, stops them."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, InvalidInput, PrivilegeMissing
from holdfast.events import Claimed, Observers, Retired
from holdfast.lifecycle import RETIRE_UNCLAIMABLE
from holdfast.models import (
    LEASE_LOST,
    SHUTDOWN,
    UNTRUSTED,
    Held,
    Job,
    JobId,
    Outcome,
    Released,
    Want,
    WorkerInfo,
)
from holdfast.settings import WorkerSettings
from holdfast.worker.backoff import Backoff
from holdfast.worker.canceled import Cancellations
from holdfast.worker.claim import Claimer, QueueExecutionMode
from holdfast.worker.gate import Gate
from holdfast.worker.hand import TRUST, Hand, Lease
from holdfast.worker.lag import LagWatch
from holdfast.worker.renew import Renewer, RenewingThread
from holdfast.worker.rest import Rest
from holdfast.worker.run import run
from holdfast.worker.runners import Runners
from holdfast.worker.settle import Settler
from holdfast.worker.slots import Slots
from holdfast.worker.solo import Solo
from holdfast.worker.sweep import Housekeeper, Sweeper, Tidier
from holdfast.worker.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.ports import Store
    from holdfast.task import Entrypoint, Registry
    from holdfast.worker.gate import Permit

logger = logging.getLogger("holdfast.worker")

_ROLES = ("claim", "settle", "listen", "housekeep")
"""A connection for each, so that none waits for the statement of another."""

_GRACE = 0.8
"""Seconds for handlers that were told to stop, and for the last outcomes."""

_LAST_WORD = 0.2
"""Seconds for the polite end of a connection."""

_NOT_STARTED = Released("not started")
_TO_RUN_ALONE = Released("waits to run alone")
_NO_SLOT = Released("no slot was free")


class QueueManager:
    """Claims jobs of the registered entrypoints, runs them, and records what became of them."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        observers: Observers | None = None,
        resources: Mapping[Any, Any] | None = None,
        shutdown: asyncio.Event | None = None,
    ) -> None:
        self._store = store
        self._registry = registry
        # Not `or`: both may be empty now and filled before run().
        self._observers = Observers() if observers is None else observers
        self._resources = {} if resources is None else resources
        self.shutdown = shutdown or asyncio.Event()
        """Setting it begins the graceful stop."""
        self.hurry = asyncio.Event()
        """Setting it ends the graceful stop at once: running jobs are handed back."""
        self.id = f"{platform.node()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._settings = WorkerSettings()
        self._state = "starting"
        self._stopped_at: float | None = None
        self._hand: Hand
        self._gate: Gate
        self._claimer: Claimer
        self._settler: Settler
        self._cancellations: Cancellations
        self._solo: Solo
        self._turns: Turns
        self._slots: Slots

    @property
    def entrypoints(self) -> tuple[Entrypoint, ...]:
        """What it can run."""
        return tuple(self._registry)

    def use(self, store: Store, registry: Registry) -> None:
        """Serve this store with these handlers from the next run() on."""
        self._store = store
        self._registry = registry

    @property
    def running(self) -> int:
        """How many handlers run now."""
        if not hasattr(self, "_turns"):
            return 0
        return self._hand.running - len(self._slots) - len(self._turns)

    @property
    def state(self) -> str:
        return self._state

    @property
    def seconds_since_claim(self) -> float:
        """How long ago the database last answered a claim; what liveness is judged by."""
        return monotonic() - self._claimer.ticked if hasattr(self, "_claimer") else 0.0

    async def run(
        self,
        settings: WorkerSettings | None = None,
        mode: QueueExecutionMode = QueueExecutionMode.continuous,
    ) -> None:
        """Work until `shutdown` is set, or in drain mode until nothing is claimable."""
        self._settings = settings or WorkerSettings()
        wants = self._registry.wants(self._settings.heartbeat_timeout)
        if not wants:
            raise InvalidInput(
                "no entrypoint is registered, so there is nothing to run; "
                "register one with @hf.entrypoint(name) before run()"
            )
        await self._store.verify()
        if policies := self._registry.breakers:
            # Refused now, where their table is missing, and listed before the first job.
            await self._store.breakers.admit(list(policies.values()), 0)
        forks = {role: self._store.fork(role) for role in _ROLES}
        try:
            await self._work(forks, wants, mode)
        except BaseExceptionGroup as group:
            raise _only_error(group) from None
        finally:
            self._state = "stopped"
            await self._close(forks.values())

    async def _work(
        self, forks: Mapping[str, Store], wants: Sequence[Want], mode: QueueExecutionMode
    ) -> None:
        self._prepare(forks, wants)
        await self._introduce(forks["settle"])
        async with asyncio.TaskGroup() as lasting:
            renewing = lasting.create_task(self._renew(min(w.lease for w in wants).total_seconds()))
            settling = lasting.create_task(self._settler.run())
            # What ends the claiming, a crash or a cancellation too, ends in the same tidy way.
            patience = timedelta(0)
            try:
                await self._claim(forks, wants, mode)
                patience = self._settings.drain_timeout
            finally:
                self._state = "draining"
                await self._drain(patience)
                if len(self._hand):
                    # A server that is silent would be asked in vain to stop what it was sent.
                    await self._close([forks["settle"]])
                settling.cancel()
                renewing.cancel()
                await asyncio.wait([settling, renewing])
                await self._say_farewell(forks["claim"])

    async def _introduce(self, store: Store) -> None:
        """Be refused now, where this user may not work, and be listed before the first job.

        Over the connection for outcomes: where there is a database, it is open before the first.
        """
        try:
            await store.leases.report(self._info())
        except PrivilegeMissing:
            raise
        except DatabaseError as error:
            # The renewals report as well.
            logger.debug("the worker is not listed yet: %s", error)

    def _prepare(self, forks: Mapping[str, Store], wants: Sequence[Want]) -> None:
        self._hand = hand = Hand()
        runners = Runners(partial(run, self._resources), self._end)
        self._slots = slots = Slots(self._settings, runners.start, self._find_no_slot)
        self._turns = Turns(
            wants, self._settings, slots.begin, self._find_no_turn, hand.changed.set
        )
        self._solo = Solo(hand, self._begin, self._hand_back)
        self._gate = gate = Gate(
            wants,
            self._registry.breakers,
            hand,
            claiming=forks["claim"].breakers,
            settling=forks["settle"].breakers,
        )
        self._claimer = Claimer(
            forks["claim"].leases,
            gate,
            self._settings,
            hand,
            self._solo,
            self._slots,
            self._turns,
            rest=Rest(forks["listen"].wakeups),
            worker=self.id,
            start=self._start,
        )
        self._cancellations = Cancellations(forks["settle"].leases, hand)
        self._settler = Settler(
            forks["settle"].leases,
            hand,
            gate,
            self._observers,
            worker=self.id,
            on_put_off=self._claimer.wake_in,
        )

    async def _claim(
        self, forks: Mapping[str, Store], wants: Sequence[Want], mode: QueueExecutionMode
    ) -> None:
        """Claim, with all that only serves it, until there is nothing more to be claimed."""
        sweeper = Sweeper(forks["claim"].leases, wants, self._settings, self._observers, self.id)
        housekeeper = Housekeeper(forks["housekeep"].leases, self._settings)
        tidier = Tidier(forks["housekeep"].leases, self._hand)
        async with asyncio.TaskGroup() as group:
            others = [
                group.create_task(self._listen(forks["listen"])),
                group.create_task(self._cancellations.run()),
                group.create_task(sweeper.run()),
                group.create_task(housekeeper.run()),
                group.create_task(tidier.run()),
                group.create_task(self._heed_shutdown()),
            ]
            self._state = "running"
            await self._claimer.run(mode)
            for task in others:
                task.cancel()

    def _start(self, jobs: Sequence[Job], sent: float) -> None:
        """Put claimed jobs to work."""
        if jobs and self._observers:
            leased = [job for job in jobs if job.claim_token]
            self._observers.notify(Claimed(self.id, leased, monotonic() - sent))
        leases = []
        # Of one claim all jobs of an entrypoint have the same.
        spans = {job.entrypoint: job.lease for job in jobs if job.lease is not None}
        terms = {name: self._terms(name, span.total_seconds()) for name, span in spans.items()}
        for job in jobs:
            if job.claim_token is None:
                logger.error("job %s has no attempts left and is held", job.id)
                self._observers.notify(Retired(self.id, [job.id], RETIRE_UNCLAIMABLE.reason or ""))
                continue
            entrypoint, permit, seconds = terms[job.entrypoint]
            held = Held(job.id, job.claim_token, job.queue)
            leases.append(Lease(job, held, entrypoint, seconds, sent + seconds * TRUST, permit))
        self._hand.add(leases)
        if self._claimer.stopping:
            self._give_back(leases)
        else:
            self._solo.admit(leases)

    def _terms(self, name: str, seconds: float) -> tuple[Entrypoint, Permit | None, float]:
        entrypoint = self._registry.get(name)
        assert entrypoint is not None  # noqa: S101 - only what is registered is claimed
        return entrypoint, self._gate.permit(name), seconds

    def _begin(self, leases: Sequence[Lease]) -> None:
        self._hand.started(len(leases))
        self._turns.begin(leases)

    def _end(self, lease: Lease, outcome: Outcome) -> None:
        self._settler.put(lease, outcome)
        self._slots.ended()
        self._turns.ended(lease)
        self._hand.finished()

    def _find_no_slot(self, leases: Sequence[Lease]) -> None:
        self._turns.unstarted(leases)
        self._find_no_turn(leases)

    def _find_no_turn(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self._settler.put(lease, _NO_SLOT)
        self._hand.unstarted(len(leases))

    def _hand_back(self, lease: Lease) -> None:
        self._settler.put(lease, _TO_RUN_ALONE)

    def _give_back(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self._settler.put(lease, _NOT_STARTED)

    async def _renew(self, shortest: float) -> None:
        renewer = Renewer(
            self._hand,
            shortest=shortest,
            info=self._info,
            on_lost=self._lost,
            on_untrusted=self._untrusted,
        )
        if self._store.dedicated:
            await RenewingThread(renewer, self._store, LagWatch(self._hand)).run()
        else:
            logger.info(
                "leases are renewed on the worker's event loop and connection: a handler that "
                "blocks the loop for a lease loses it; Holdfast.connect(dsn) has no such limit"
            )
            await renewer.run(lambda: self._store)

    def _lost(self, lease: Lease) -> None:
        if lease in self._hand and lease.settle_by is None:
            logger.info("job %s: lease lost, its handler is told to stop", lease.job.id)
            lease.stop(LEASE_LOST)

    def _untrusted(self, lease: Lease) -> None:
        if lease in self._hand and lease.settle_by is None and not lease.trusted:
            lease.stop(UNTRUSTED)

    def _canceled(self, job_id: JobId) -> None:
        self._cancellations.hear(job_id)

    def _info(self) -> WorkerInfo:
        unset = datetime.now(UTC)
        return WorkerInfo(
            id=self.id,
            host=platform.node(),
            pid=os.getpid(),
            version=version("holdfast"),
            entrypoints=sorted(self._registry.names),
            concurrency=self._settings.concurrency,
            running=self.running,
            state=self._state,
            started_at=unset,
            heartbeat=unset,
        )

    async def _listen(self, store: Store) -> None:
        """Hear of work and cancellations; when the connection breaks, listen again and look."""
        backoff = Backoff()

        def work() -> None:
            self._claimer.listening = True
            backoff.reset()
            self._claimer.wake()

        while True:
            try:
                await store.wakeups.listen(work, self._canceled)
            except DatabaseError as error:
                self._claimer.listening = False
                # It may be asleep until a wake-up that will not come.
                self._claimer.wake()
                await asyncio.sleep(backoff.pause("no wake-ups arrive, polling", error))

    async def _heed_shutdown(self) -> None:
        await self.shutdown.wait()
        self._stopped_at = monotonic()
        self._claimer.stop()

    async def _drain(self, patience: timedelta) -> None:
        """Hand back what has not started, let the rest finish, then tell it to stop."""
        self._give_back(self._solo.take_waiting())
        waiting = [*self._turns.take_waiting(), *self._slots.take_waiting()]
        self._give_back(waiting)
        self._hand.unstarted(len(waiting))
        began = monotonic() if self._stopped_at is None else self._stopped_at
        left = began + patience.total_seconds() - monotonic()
        hurrying = asyncio.get_running_loop().create_task(self._hurry())
        try:
            if not await self._hand.until(
                lambda: not len(self._hand) or self.hurry.is_set(), seconds=left
            ):
                logger.warning("%d jobs still run after %s", self._hand.running, patience)
        finally:
            hurrying.cancel()
            for lease in self._hand.snapshot():
                lease.stop(SHUTDOWN)
        if not await self._hand.until(lambda: not len(self._hand), seconds=_GRACE):
            unsettled = sorted(str(lease.job.id) for lease in self._hand.snapshot())
            logger.error("jobs %s could not be handed back; their leases will run out", unsettled)

    async def _hurry(self) -> None:
        await self.hurry.wait()
        self._hand.changed.set()

    async def _say_farewell(self, store: Store) -> None:
        with suppress(DatabaseError, TimeoutError):
            async with asyncio.timeout(_GRACE):
                # A claim may have been on its way when it was told to stop.
                await store.leases.recall()
                if len(self._hand):
                    return
                await store.leases.forget(self._hand.ended_claims)
                await store.leases.farewell(self.id)

    async def _close(self, forks: Iterable[Store]) -> None:
        async def close(fork: Store) -> None:
            with suppress(DatabaseError, TimeoutError):
                async with asyncio.timeout(_LAST_WORD):
                    await fork.close()

        await asyncio.gather(*(close(fork) for fork in forks if fork is not self._store))


def _only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong, without the wrapping of the task groups where it was one thing."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
