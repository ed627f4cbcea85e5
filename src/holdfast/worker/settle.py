"""Outcome -> verb, written in batches by the holder of the token."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from contextlib import suppress
from typing import TYPE_CHECKING, assert_never

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed, ConnectionLost, DatabaseError
from holdfast.events import Lost, Observers, Retired, Settled
from holdfast.lifecycle import RETIRE_LAST_RETRY, TRANSITIONS, Transition, Verb
from holdfast.models import (
    Abandoned,
    Change,
    Failed,
    Held,
    Outcome,
    Parked,
    Released,
    Retried,
    Succeeded,
)
from holdfast.worker.backoff import Backoff
from holdfast.worker.hand import Hand, Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import timedelta

    from holdfast.ports import Leases
    from holdfast.worker.gate import Gate

logger = logging.getLogger("holdfast.worker")

_BATCH = 1000
_AGAIN = 0.5
_MANY_CLAIMS = 16
"""Ended ones; fewer are forgotten when there is nothing else to be written."""

_RETRY = TRANSITIONS[Verb.RETRY]
_ASKED_BY: dict[type[Outcome], Transition] = {
    Succeeded: TRANSITIONS[Verb.COMPLETE],
    Retried: _RETRY,
    Failed: TRANSITIONS[Verb.FAIL],
    Parked: TRANSITIONS[Verb.HOLD],
    Released: TRANSITIONS[Verb.RELEASE],
}
"""The transition an outcome asks for. Of an abandoned job there is nothing to write."""

_PASSING = ("40", "53", "55", "57", "58")
"""SQLSTATE classes of a server that is in trouble: conflicts, resources, locks, stops, disks."""

_UNSTORED = "outcome could not be stored"

Ending = tuple[Lease, Outcome]


def _change_of(ending: Ending) -> Change:
    """What is to be written of an outcome."""
    lease, outcome = ending
    match outcome:
        case Succeeded():
            return Change(lease.held)
        case Retried(delay, error, traceback, reason):
            cap = lease.entrypoint.max_attempts
            return Change(lease.held, delay, error, reason, traceback, cap)
        case Failed(error, traceback):
            return Change(lease.held, error=error, traceback=traceback)
        case Parked(error, traceback, reason):
            return Change(lease.held, error=error, reason=reason, traceback=traceback)
        case Released(reason) | Abandoned(reason):
            return Change(lease.held, reason=reason)
        case _:
            assert_never(outcome)


def _passes(error: DatabaseError) -> bool:
    """Whether the same statement may go through later."""
    if isinstance(error, (ConnectionFailed, ConnectionLost)):
        return True
    return (error.sqlstate or "").startswith(_PASSING)


class Settler:
    """Writes outcomes: all that have come while the last write was on its way go together."""

    def __init__(
        self,
        leases: Leases,
        hand: Hand,
        gate: Gate,
        observers: Observers,
        *,
        worker: str,
        on_put_off: Callable[[timedelta], None],
    ) -> None:
        self._leases = leases
        self._hand = hand
        self._gate = gate
        self._observers = observers
        self._worker = worker
        self._on_put_off = on_put_off
        self._pending: deque[Ending] = deque()
        self._aside: list[Ending] = []
        """Outcomes of rows that somebody else has locked, and when they are tried again."""
        self._again_at = 0.0
        self._warned = False
        self._wake = asyncio.Event()
        self._in_doubt = False

    def put(self, lease: Lease, outcome: Outcome) -> None:
        lease.settle_by = monotonic() + lease.seconds
        self._pending.append((lease, outcome))
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled. A write that finds no database waits for it, and goes first then."""
        backoff = Backoff()
        while True:
            await self._woken()
            while batch := self._next():
                self._hand.writing(batch[0][0])
                try:
                    await self._write(batch)
                    self._in_doubt = False
                    self._warned = bool(self._aside)
                    backoff.reset()
                    self._hand.written(failed=False)
                except DatabaseError as error:
                    self._in_doubt = self._in_doubt or isinstance(error, ConnectionLost)
                    self._pending.extendleft(reversed(self._unwritten(batch)))
                    self._hand.written(failed=True)
                    pause = backoff.pause(f"outcomes of {len(batch)} jobs wait", error)
                    await asyncio.sleep(pause)
                await self._gate.tell()

    async def _woken(self) -> None:
        """Until an outcome comes, or those that were set aside are due."""
        pause = max(0.0, self._again_at - monotonic()) if self._aside else None
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()
        self._wake.clear()

    def _next(self) -> list[Ending]:
        if self._aside and monotonic() >= self._again_at:
            self._pending.extend(self._aside)
            self._aside.clear()
        return [self._pending.popleft() for _ in range(min(_BATCH, len(self._pending)))]

    def _unwritten(self, batch: Sequence[Ending]) -> list[Ending]:
        aside = {lease for lease, _ in self._aside}
        return [end for end in batch if end[0] in self._hand and end[0] not in aside]

    async def _write(self, batch: Sequence[Ending]) -> None:
        # One table at a time: what went through there must not be sent again for trouble elsewhere.
        by_statement: dict[tuple[type[Outcome], str], list[Ending]] = defaultdict(list)
        for ending in batch:
            by_statement[type(ending[1]), ending[0].held.queue].append(ending)
        failure: DatabaseError | None = None
        for (kind, _), endings in by_statement.items():
            if kind not in _ASKED_BY:
                self._lost(endings)
                continue
            try:
                await self._change(_ASKED_BY[kind], endings)
            except ConnectionFailed:
                raise
            except DatabaseError as error:
                # What one table has no time for, another may.
                failure = error
        if failure is not None:
            raise failure
        await self._forget()

    async def _forget(self) -> None:
        ended = list(self._hand.ended_claims)
        if self._pending and len(ended) < _MANY_CLAIMS:
            return
        try:
            await self._leases.forget(ended)
        except DatabaseError:
            logger.debug("%d ended claims are left to the sweep", len(ended))
        # Only now: had this been cancelled, the worker's farewell would see to them.
        del self._hand.ended_claims[: len(ended)]

    async def _change(self, transition: Transition, endings: Sequence[Ending]) -> None:
        try:
            moved = await self._move(transition, [_change_of(ending) for ending in endings])
        except DatabaseError as error:
            if error.locked:
                await self._change_unlocked(transition, endings, error)
            elif _passes(error):
                raise
            else:
                await self._change_one_by_one(transition, endings, error)
            return
        if len(moved) == len(endings):
            self._settled(endings)
            return
        found = set(moved)
        self._settled([ending for ending in endings if ending[0].held in found])
        self._lost([ending for ending in endings if ending[0].held not in found])

    async def _change_unlocked(
        self, transition: Transition, endings: Sequence[Ending], error: DatabaseError
    ) -> None:
        """A row that somebody else has locked must not keep the others from being written."""
        locked = await self._leases.locked([lease.held for lease, _ in endings])
        if not locked:
            # It was the table, or the row is free by now.
            raise error
        if not self._warned:
            self._warned = True
            logger.warning(
                "%d outcomes wait for transactions that have locked their rows", len(locked)
            )
        self._aside += [ending for ending in endings if ending[0].held in locked]
        self._again_at = monotonic() + _AGAIN
        free = [ending for ending in endings if ending[0].held not in locked]
        if free:
            await self._change(transition, free)

    async def _move(self, transition: Transition, changes: Sequence[Change]) -> list[Held]:
        moved = await self._leases.change(transition, changes)
        if transition is _RETRY and len(moved) < len(changes):
            found = set(moved)
            rest = [change for change in changes if change.held not in found]
            retired = await self._leases.change(RETIRE_LAST_RETRY, rest)
            self._retired(retired)
            return moved + retired
        return moved

    async def _change_one_by_one(
        self, transition: Transition, endings: Sequence[Ending], error: DatabaseError
    ) -> None:
        """One outcome that the database refuses must not keep the others from being written."""
        if len(endings) > 1:
            for one in endings:
                await self._change(transition, [one])
            return
        [ending] = endings
        job_id = ending[0].job.id
        logger.error("the outcome of job %s was refused: %s", job_id, error)
        bare = _change_of(ending)._replace(error=_UNSTORED, reason=_UNSTORED, traceback=None)
        try:
            moved = await self._move(transition, [bare])
        except DatabaseError as again:
            if _passes(again):
                raise
            # Whoever recovers the job may have better luck; renewing it would hide it for ever.
            logger.exception("job %s is left to its lease", job_id)
            self._lost([ending], lapses=True)
        else:
            (self._settled if moved else self._lost)([ending])

    def _settled(self, endings: Sequence[Ending]) -> None:
        self._hand.drop(lease for lease, _ in endings)
        for _, outcome in endings:
            if isinstance(outcome, Retried):
                self._on_put_off(outcome.delay)
        if endings and self._observers:
            runs = [(lease.job, outcome, lease.seconds_run) for lease, outcome in endings]
            self._observers.notify(Settled(self._worker, runs))

    def _retired(self, leases: Collection[Held]) -> None:
        if leases and self._observers:
            ids = [lease.id for lease in leases]
            self._observers.notify(Retired(self._worker, ids, RETIRE_LAST_RETRY.reason or ""))

    def _lost(self, endings: Sequence[Ending], *, lapses: bool = False) -> None:
        for lease, outcome in endings:
            lease.verdict = None
            self._hand.drop([lease], lapse=lapses)
            if self._in_doubt:
                logger.info("job %s was settled already, or its lease is lost", lease.job.id)
            else:
                logger.info(
                    "job %s: lease lost, %s changed nothing",
                    lease.job.id,
                    type(outcome).__name__.lower(),
                )
            if self._observers:
                self._observers.notify(Lost(self._worker, lease.job, outcome))
