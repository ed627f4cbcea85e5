"""Ends leases that the usual steps cannot: those without a handler, and those of a worker that
ends."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError
from holdfast.events import Observers
from holdfast.lifecycle import TRANSITIONS, Verb
from holdfast.models import NOT_STARTED, SHUTDOWN, Change, Released
from holdfast.worker.leases import LeaseSet, by_source
from holdfast.worker.publish import Publisher
from holdfast.worker.settle import Settler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.models import Outcome
    from holdfast.worker.dispatcher import Dispatcher
    from holdfast.worker.leases import Lease
    from holdfast.worker.loop_watchdog import Blocked, LoopWatchdog
    from holdfast.worker.sources import Sources
    from holdfast.worker.steps import Steps
    from holdfast.worker.task_pool import TaskPool
    from holdfast.worker.write import Ending

logger = logging.getLogger("holdfast.worker")

_BLOCKED_SECONDS = 3.0
"""For the writes of a worker whose event loop is blocked for too long."""

_LOOK_SECONDS = 0.02
_REST_SECONDS = 0.8
"""For outcomes that an ended settler left unwritten, and again for the rest."""

_NOT_STARTED = Released(NOT_STARTED)
_BESIDE = Released("the event loop was blocked by another job")
_SHUTDOWN = Released(SHUTDOWN)
_UNATTENDED = Released("no handler")


class Rescue:
    """Releases what the usual steps of one worker cannot."""

    def __init__(
        self,
        lease_set: LeaseSet,
        settler: Settler,
        dispatcher: Dispatcher,
        task_pool: TaskPool,
        steps: Steps,
        *,
        interval: float,
        end_process: Callable[[str], None] | None,
    ) -> None:
        self._lease_set = lease_set
        self._settler = settler
        self._dispatcher = dispatcher
        self._task_pool = task_pool
        self._steps = steps
        self._interval = interval
        """Seconds."""
        self._end_process = end_process
        self.rounds = 0
        self.over = False
        """The worker has ended by itself. What it could not release is left to expire."""
        self._home = asyncio.get_running_loop()

    async def run(self) -> None:
        """Look for leases without a handler as often as leases are renewed, until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            self.release_unattended()
            self.rounds += 1

    def release_unattended(self) -> None:
        """Release leases that would be renewed for ever: no handler, and no outcome either."""
        settling = {lease for lease, _ in self._settler.endings}
        if not (lost := self._lease_set.unattended(settling | self._dispatcher.unstarted)):
            return
        logger.error(
            "jobs %s are leased but neither wait, run nor are settled; they are released, and this "
            "is a bug of Holdfast: please report it",
            sorted(str(lease.job.id) for lease in lost),
        )
        for lease in lost:
            self._settler.put(lease, _UNATTENDED)
        self._dispatcher.recount(len(self._task_pool))

    async def give_up(self, sources: Sources, blocked: Blocked) -> None:
        """Called in the renewing thread: nothing is renewed while the event loop is blocked."""
        self._lease_set.given_up = blocked
        if self._end_process is not None:
            # If the loop answers again after all, this comes before any handler continues.
            self._home.call_soon_threadsafe(self._end_process, str(blocked))
        held, endings = self._lease_set.snapshot(), self._settler.endings
        ending = self._end_process is not None
        try:
            async with asyncio.timeout(_BLOCKED_SECONDS):
                # Without a culprit any of them may be the one, and is left to be recovered.
                rest = _BESIDE if ending and blocked.lease else None
                settled = await settle_elsewhere(sources, held, endings, blocked.lease, rest)
        except Exception as error:
            self._steps.failed("rescue", error)
        else:
            self._home.call_soon_threadsafe(self._lease_set.drop, settled)
        if self._end_process is not None:
            self._end_process(str(blocked))
        self._home.call_soon_threadsafe(self._resume)

    async def until_released(self, watchdog: LoopWatchdog, seconds: float) -> None:
        """Called in the renewing thread. Wait until the worker has released all, has tried to, or
        has no event loop any more."""
        deadline = monotonic() + seconds
        while len(self._lease_set):
            if self.over or watchdog.gone or monotonic() >= deadline:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def release_all(self, sources: Sources) -> None:
        """Called in the renewing thread when the worker's event loop has ended before the worker.

        No handler runs any more on that loop, and nothing else would end the leases.
        """
        held, endings = self._lease_set.snapshot(), self._settler.endings
        if self.over or not held:
            return
        logger.error(
            "the event loop was ended in the middle of %d jobs, which are released now; let the "
            "program end by hf.shutdown.set()",
            len(held),
        )
        try:
            async with asyncio.timeout(_BLOCKED_SECONDS):
                await settle_elsewhere(sources, held, endings, None, _SHUTDOWN)
        except (DatabaseError, TimeoutError) as error:
            logger.error("they wait until their leases expire: %s", str(error) or "no answer")

    def _resume(self) -> None:
        self._lease_set.given_up = None

    async def release_rest(self, sources: Sources) -> None:
        """Write and release the rest when the settler has ended before its time."""
        try:
            async with asyncio.timeout(_REST_SECONDS):
                await self._settler.flush()
        except Exception as error:
            self._steps.failed("settle", error)
        rest = [lease for lease in self._lease_set.snapshot() if lease.task is None]
        with suppress(DatabaseError, TimeoutError):
            async with asyncio.timeout(_REST_SECONDS):
                for source, some in by_source(rest).items():
                    changes = [Change(lease.key, reason=SHUTDOWN) for lease in some]
                    await sources.leases[source].change(TRANSITIONS[Verb.RELEASE], changes)
                self._lease_set.drop(rest)


async def settle_elsewhere(
    sources: Sources,
    held: Sequence[Lease],
    endings: Sequence[Ending],
    culprit: Lease | None,
    rest: Outcome | None,
) -> list[Lease]:
    """Write known outcomes and release jobs that have not started. Return the leases settled.

    `rest` is the outcome of jobs that have started, except for the culprit. None means that they
    are left. Called in the renewing thread, whose connection this uses.
    """
    outcomes: dict[Lease, Outcome] = dict(endings)
    for lease in held:
        if lease in outcomes or lease is culprit:
            continue
        if _never_starts(lease):
            outcomes[lease] = _NOT_STARTED
        elif rest is not None:
            outcomes[lease] = rest
    # All leases of a claim, or its bookkeeping would be deleted under those that remain.
    copy = LeaseSet()
    copy.add(held)
    settler = Settler(sources, copy, None, Publisher(copy, Observers(), worker=""))
    for lease, outcome in outcomes.items():
        settler.put(lease, outcome)
    await settler.flush()
    return [lease for lease in outcomes if lease not in copy]


def _never_starts(lease: Lease) -> bool:
    """Keep a job from starting. False when it has started.

    `run` notes the start before it looks for the reason, so that one of the two sees the other.
    """
    if lease.began:
        return False
    lease.cancellation.cancel(NOT_STARTED)
    return not lease.began
