"""Decides what may start now: slots, claiming ahead, and the one count of what runs here.

Every lease between its claim and its handler is in this object. A claim adds a batch, the task pool
takes the next lease, and says when it is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.clock import monotonic
from holdfast.events import Claimed, Retired
from holdfast.lifecycle import RETIRE_UNCLAIMABLE
from holdfast.models import NOT_STARTED, Released
from holdfast.worker.entrypoint_slots import EntrypointSlots
from holdfast.worker.leases import leases_of
from holdfast.worker.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from holdfast.events import Observers
    from holdfast.models import ClaimRule
    from holdfast.settings import WorkerSettings
    from holdfast.task import Registry
    from holdfast.worker.batch import ClaimedBatch
    from holdfast.worker.leases import Lease, LeaseSet
    from holdfast.worker.settle import Settler

logger = logging.getLogger("holdfast.worker")

_FOREVER_SECONDS = 3600.0

SLOT_WAIT_SECONDS = 0.25
"""A job that waits longer than this for a slot is released."""

_STALL_SECONDS = 0.05
"""A timer that is later than this was held up by a blocked event loop or a busy machine."""

_NOT_STARTED = Released(NOT_STARTED)
_NO_SLOT = Released("no slot was free")


class Dispatcher:
    """The slots of one worker, and the leases that wait for them."""

    def __init__(
        self,
        registry: Registry,
        rules: Sequence[ClaimRule],
        settings: WorkerSettings,
        lease_set: LeaseSet,
        settler: Settler,
        observers: Observers,
        *,
        worker: str,
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._lease_set = lease_set
        self._settler = settler
        self._observers = observers
        self._worker = worker
        self.slots = Slots(settings)
        self.entrypoints: EntrypointSlots | None = None
        """None where no entrypoint has a bound."""
        if any(rule.capacity is not None for rule in rules):
            self.entrypoints = EntrypointSlots(rules, settings)
        self._arrived: deque[ClaimedBatch] = deque()
        """Claimed while their leases have yet to be made: the next claim goes first."""
        self._ready: deque[Lease] = deque()
        """These have their slots."""
        self._startable = asyncio.Event()
        self._late_timer: asyncio.TimerHandle | None = None
        self._active = 0
        """Leases that wait, are ready or run."""
        self.closed = False
        """Nothing more starts. What a claim on its way returns is released."""
        self.ended = 0
        """How many jobs have ended here so far."""
        self._answered_at, self._ended_before = monotonic(), 0
        """The time of the last claim's answer, and how many jobs had ended by then."""

    @property
    def running(self) -> int:
        """How many handlers run, or are about to."""
        waiting = len(self.slots) + len(self.entrypoints or ())
        return self._active - waiting

    @property
    def full_entrypoints(self) -> list[str]:
        """Those whose own slots are all in use."""
        return [] if self.entrypoints is None else self.entrypoints.names_full

    @property
    def unstarted(self) -> set[Lease]:
        """The leases that have not been taken by the task pool."""
        waiting = [] if self.entrypoints is None else self.entrypoints.waiting
        return {*self._ready, *self.slots.waiting, *waiting}

    @property
    def arrived(self) -> bool:
        """Whether a batch was claimed whose leases have yet to be made."""
        return bool(self._arrived)

    @property
    def starting(self) -> int:
        """How many leases are about to start."""
        return len(self._ready)

    @property
    def room(self) -> int:
        """How many jobs a claim may ask for. Outcomes that are not written also take room."""
        most = self._settings.concurrency + self.slots.ahead
        room = min(most - self._active, 2 * most - len(self._lease_set))
        return room - sum([len(batch.jobs) for batch in self._arrived])

    @property
    def at_once(self) -> int:
        """How many jobs may be claimed now. 0 means that `capacity` waits for a better moment."""
        room = min(self.room, self._settings.batch_size)
        idle = not (self._active or self._arrived)
        ready = room > 0 and (idle or room == self._settings.batch_size)
        return room if ready and not (self.closed or self._lease_set.blocked) else 0

    async def capacity(self) -> int:
        """Wait until a claim may be sent. Return how many jobs it may ask for, 0 at a stop."""
        # Handlers that are about to end do so now, so that one claim fills their slots.
        await asyncio.sleep(0)
        while not await self._lease_set.until(self._claimable, seconds=_FOREVER_SECONDS):
            pass
        return 0 if self.closed else min(self._settings.batch_size, self.room)

    def _claimable(self) -> bool:
        return self.closed or (not self._lease_set.blocked and self.room > 0)

    def offer(self) -> None:
        """Set the capacity of the bounded entrypoints in the rules of the next claim."""
        if self.entrypoints is not None:
            self.entrypoints.offer(job for batch in self._arrived for job in batch.jobs)

    def expect(self, claim_seconds: float, *, steady: bool, came_short: bool) -> None:
        """Claim ahead as many jobs as end while a claim takes `claim_seconds`, if nothing else
        limits them.

        They are counted from answer to answer. Jobs that end at once are over before the next claim
        is sent, so during that claim none would end.
        """
        now = monotonic()
        share = claim_seconds / max(now - self._answered_at, claim_seconds)
        if came_short or not steady:
            self.slots.expect_none()
        else:
            self.slots.expect((self.ended - self._ended_before) * share)
        if self.entrypoints is not None:
            self.entrypoints.expect(share, steady=steady)
        self._answered_at, self._ended_before = now, self.ended

    def arrive(self, batch: ClaimedBatch) -> None:
        """Take over a batch. Its leases are made when the task pool asks for them."""
        self._arrived.append(batch)
        self._startable.set()

    def add(self, batch: ClaimedBatch) -> list[Lease]:
        """Take over a batch and return its leases."""
        self._open_arrived()
        return self._open(batch)

    async def startable(self) -> int:
        """Wait until leases may start. Return how many."""
        while True:
            self._startable.clear()
            while self._arrived:
                self._open(self._arrived.popleft())
            if self._ready:
                return len(self._ready)
            await self._startable.wait()

    def next(self) -> Lease | None:
        """Return the lease to start now."""
        return self._ready.popleft() if self._ready else None

    def done(self, lease: Lease) -> None:
        """Free the slots of a lease whose handler has ended."""
        self._active -= 1
        self.ended += 1
        if (following := self.slots.leave()) is not None:
            self._ready.append(following)
            self._startable.set()
        if self.entrypoints is not None:
            self._leave_entrypoint(lease, self.entrypoints)
        self._lease_set.changed.set()

    def close(self) -> None:
        """Start nothing more that has no slot, and release what waits for one."""
        self.closed = True
        self._lease_set.changed.set()

    def release_waiting(self) -> None:
        """Release what waits for a slot, and claims that have just arrived."""
        self.closed = True
        self._open_arrived()
        if self._late_timer is not None:
            self._late_timer.cancel()
            self._late_timer = None
        waiting = [] if self.entrypoints is None else self.entrypoints.take_waiting()
        self._release([*waiting, *self.slots.take_waiting()], _NOT_STARTED)

    def recount(self, handlers: int) -> None:
        """Correct the counts after an unexpected error: this many handlers run."""
        busy = handlers + len(self._ready)
        self.slots.recount(busy)
        self._active = busy + len(self.slots) + len(self.entrypoints or ())
        self._lease_set.changed.set()

    def _open_arrived(self) -> None:
        while self._arrived:
            self._open(self._arrived.popleft())

    def _open(self, batch: ClaimedBatch) -> list[Lease]:
        """Make the leases of a batch, and start them or have them wait."""
        self._publish(batch)
        leases = leases_of(batch, self._registry)
        self._lease_set.add(leases)
        if self.closed:
            self._settle(leases, _NOT_STARTED)
        elif leases:
            self._active += len(leases)
            self._begin(leases)
        else:
            # The worker may be empty now, and a waiter for that must be notified.
            self._lease_set.changed.set()
        return leases

    def _publish(self, batch: ClaimedBatch) -> None:
        leased = [job for job in batch.jobs if job.claim_token]
        if batch.jobs and self._observers:
            self._observers.notify(Claimed(self._worker, leased, batch.seconds))
        if len(leased) == len(batch.jobs):
            return
        reason = RETIRE_UNCLAIMABLE.reason or ""
        for job in batch.jobs:
            if not job.claim_token:
                logger.error("job %s has no attempts left and is held", job.id)
                queues = {job.entrypoint: 1}
                self._observers.notify(Retired(self._worker, [job.id], reason, queues))

    def _begin(self, leases: Sequence[Lease]) -> None:
        until = monotonic() + SLOT_WAIT_SECONDS
        admitted = leases
        if self.entrypoints is not None:
            admitted = self.entrypoints.add(leases, until)
        ready = self.slots.add(admitted, until)
        self._ready.extend(ready)
        if len(ready) < len(leases):
            self._watch_late()
        self._startable.set()

    def _leave_entrypoint(self, lease: Lease, entrypoints: EntrypointSlots) -> None:
        """A thread that cannot be stopped keeps the slot of its entrypoint until it ends."""
        name, thread = lease.entrypoint.name, lease.cancellation.runs_on
        if thread is None:
            self._continue(entrypoints.leave(name, ran=True))
            return
        loop = asyncio.get_running_loop()

        def ended(_: Future[Any]) -> None:
            # By then the worker may have stopped, and its event loop with it.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: self._continue(entrypoints.leave(name, ran=True)))

        thread.add_done_callback(ended)

    def _continue(self, admitted: Sequence[Lease]) -> None:
        """Start leases that have got a slot of their entrypoint, or have them wait for another."""
        if admitted:
            self._ready.extend(self.slots.add(admitted, monotonic() + SLOT_WAIT_SECONDS))
            self._watch_late()
            self._startable.set()
        self._lease_set.changed.set()

    def _watch_late(self) -> None:
        """Make sure that a timer runs while leases wait for slots."""
        if self._late_timer is not None:
            return
        due = [self.slots.late_at]
        if self.entrypoints is not None:
            due.append(self.entrypoints.late_at)
        if first := min((at for at in due if at is not None), default=None):
            loop = asyncio.get_running_loop()
            self._late_timer = loop.call_later(first - monotonic(), self._release_late, first)

    def _release_late(self, due: float, *, excused: bool = False) -> None:
        """Release leases that have waited too long, unless handlers had no time to end before."""
        self._late_timer = None
        now = monotonic()
        if now - due > _STALL_SECONDS and not excused:
            again = partial(self._release_late, now + SLOT_WAIT_SECONDS, excused=True)
            loop = asyncio.get_running_loop()
            self._late_timer = loop.call_later(SLOT_WAIT_SECONDS, again)
            return
        late = self.slots.take_late(now)
        if self.entrypoints is not None:
            without_entrypoint = self.entrypoints.take_late(now)
            for lease in late:
                # It had a slot of its entrypoint.
                self._continue(self.entrypoints.leave(lease.entrypoint.name, ran=False))
            late += without_entrypoint
        self._release(late, _NO_SLOT)
        self._watch_late()

    def _release(self, leases: Sequence[Lease], outcome: Released) -> None:
        self._active -= len(leases)
        self._settle(leases, outcome)
        self._lease_set.changed.set()

    def _settle(self, leases: Sequence[Lease], outcome: Released) -> None:
        for lease in leases:
            self._settler.put(lease, outcome)
