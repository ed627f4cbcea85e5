"""The QueueManager: starts the steps of a worker, drains them, stops them."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, InvalidInput
from holdfast.events import Claimed, Observers, Retired
from holdfast.lifecycle import RETIRE_UNCLAIMABLE
from holdfast.models import (
    CANCELED,
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
from holdfast.worker.claim import Claimer, QueueExecutionMode
from holdfast.worker.hand import TRUST, Hand, Lease
from holdfast.worker.renew import Renewer, RenewingThread
from holdfast.worker.run import run
from holdfast.worker.settle import Settler
from holdfast.worker.solo import Solo, on_last_chance
from holdfast.worker.sweep import Sweeper

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.ports import Store
    from holdfast.task import Entrypoint, Registry

logger = logging.getLogger("holdfast.worker")

_GRACE = 0.8
"""Seconds for handlers that were told to stop, and for the last outcomes."""

_NOT_STARTED = Released("not started")


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
        self._hand: Hand
        self._claimer: Claimer
        self._settler: Settler
        self._solo: Solo

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
        return self._hand.running if hasattr(self, "_hand") else 0

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
        forks = {role: self._store.fork(role) for role in ("claim", "settle", "listen")}
        try:
            await self._work(forks, wants, mode)
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        finally:
            self._state = "stopped"
            for fork in forks.values():
                if fork is not self._store:
                    with suppress(DatabaseError):
                        await fork.close()

    async def _work(
        self, forks: Mapping[str, Store], wants: Sequence[Want], mode: QueueExecutionMode
    ) -> None:
        self._hand = hand = Hand()
        self._settler = Settler(forks["settle"].leases, hand, self._observers, self.id)
        self._solo = Solo(hand, self._begin)
        self._claimer = Claimer(
            forks["claim"].leases,
            wants,
            self._settings,
            hand,
            worker=self.id,
            start=self._start,
            before=lambda: self._solo.run(lambda: self._claimer.stopping),
        )
        sweeper = Sweeper(forks["claim"].leases, wants, self._settings, self._observers, self.id)
        async with asyncio.TaskGroup() as group:
            renewing = group.create_task(self._renew(min(w.lease for w in wants).total_seconds()))
            settling = group.create_task(self._settler.run())
            others = [
                group.create_task(self._listen(forks["listen"])),
                group.create_task(sweeper.run()),
                group.create_task(self._heed_shutdown()),
            ]
            self._state = "running"
            await self._claimer.run(mode)
            self._state = "draining"
            for task in others[:2]:
                task.cancel()
            await self._drain()
            others[2].cancel()
            settling.cancel()
            await self._say_farewell(forks["claim"])
            renewing.cancel()

    def _start(self, jobs: Sequence[Job], sent: float) -> None:
        """Put claimed jobs to work; those on their last chance wait for their turn alone."""
        if jobs and self._observers:
            self._observers.notify(Claimed(self.id, [job for job in jobs if job.claim_token]))
        for job in jobs:
            if job.claim_token is None:
                logger.error("job %d has no attempts left and is held", job.id)
                self._observers.notify(Retired(self.id, [job.id], RETIRE_UNCLAIMABLE.reason or ""))
                continue
            entrypoint = self._registry.get(job.entrypoint)
            assert entrypoint is not None  # noqa: S101 - only what is registered is claimed
            seconds = job.lease.total_seconds() if job.lease else 0.0
            lease = Lease(
                job, Held(job.id, job.claim_token, job.queue), entrypoint, seconds, sent + seconds * TRUST
            )
            self._hand.add(lease)
            if on_last_chance(job, entrypoint):
                self._solo.add(lease)
            else:
                self._begin(lease)

    def _begin(self, lease: Lease) -> None:
        self._hand.started()
        lease.task = asyncio.get_running_loop().create_task(run(lease, self._resources))
        lease.task.add_done_callback(partial(self._end, lease))

    def _end(self, lease: Lease, task: asyncio.Task[Outcome]) -> None:
        # A task that was cancelled before its first step never came to run().
        outcome = _NOT_STARTED if task.cancelled() else task.result()
        self._settler.put(lease, outcome)
        self._hand.finished()

    async def _renew(self, shortest: float) -> None:
        renewer = Renewer(
            self._hand,
            shortest=shortest,
            info=self._info,
            on_lost=self._lost,
            on_untrusted=self._untrusted,
        )
        if self._store.dedicated:
            await RenewingThread(renewer, self._store).run()
        else:
            logger.info(
                "leases are renewed on the worker's event loop and connection: a handler that "
                "blocks the loop for a lease loses it; Holdfast.connect(dsn) has no such limit"
            )
            await renewer.run(self._store)

    def _lost(self, lease: Lease) -> None:
        if lease in self._hand and lease.settle_by is None:
            logger.info("job %d: lease lost, its handler is told to stop", lease.job.id)
            lease.stop(LEASE_LOST)

    def _untrusted(self, lease: Lease) -> None:
        if lease in self._hand and lease.settle_by is None and not lease.trusted:
            lease.stop(UNTRUSTED)

    def _canceled(self, job_id: JobId) -> None:
        for lease in self._hand.snapshot():
            if lease.job.id == job_id:
                lease.stop(CANCELED)

    def _info(self) -> WorkerInfo:
        unset = datetime.now(UTC)
        return WorkerInfo(
            id=self.id,
            host=platform.node(),
            pid=os.getpid(),
            version=version("holdfast"),
            entrypoints=sorted(self._registry.names),
            concurrency=self._settings.concurrency,
            running=self._hand.running,
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
                await backoff.pause("no wake-ups arrive, polling", error)

    async def _heed_shutdown(self) -> None:
        await self.shutdown.wait()
        self._claimer.stop()

    async def _drain(self) -> None:
        """Hand back what has not started, let the rest finish, then tell it to stop."""
        for lease in self._solo.take_waiting():
            self._settler.put(lease, _NOT_STARTED)
        hurrying = asyncio.get_running_loop().create_task(self._hurry())
        patience = self._settings.drain_timeout.total_seconds()
        if not await self._hand.until(
            lambda: not len(self._hand) or self.hurry.is_set(), seconds=patience
        ):
            logger.warning("%d jobs still run after %s", self._hand.running, patience)
        hurrying.cancel()
        for lease in self._hand.snapshot():
            lease.stop(SHUTDOWN)
        if not await self._hand.until(lambda: not len(self._hand), seconds=_GRACE):
            left = sorted(lease.job.id for lease in self._hand.snapshot())
            logger.error("jobs %s could not be handed back; their leases will run out", left)

    async def _hurry(self) -> None:
        await self.hurry.wait()
        self._hand.changed.set()

    async def _say_farewell(self, store: Store) -> None:
        with suppress(DatabaseError, TimeoutError):
            async with asyncio.timeout(_GRACE):
                await store.leases.forget(self._hand.take_ended_claims())
                await store.leases.farewell(self.id)
