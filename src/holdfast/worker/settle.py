"""Settles jobs: outcomes are written in batches by the holder of the token, then published."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed, ConnectionLost, DatabaseError
from holdfast.models import SHUTDOWN, Failed, Held, Outcome, Released, Succeeded
from holdfast.repeated import RepeatedLog
from holdfast.worker.backoff import Backoff
from holdfast.worker.write import UNSTORED, Ending, committed, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.worker.breaker_gate import BreakerGate
    from holdfast.worker.leases import Lease, LeaseSet
    from holdfast.worker.publish import Publisher
    from holdfast.worker.sources import Sources

logger = logging.getLogger("holdfast.worker")

_BATCH = 1000
_LOCKED_RETRY_SECONDS = 0.5
"""Outcomes whose rows are locked are tried again this often."""

_MANY_CLAIMS = 16
"""The bookkeeping of fewer ended claims is deleted when there is nothing else to be written."""


class Settler:
    """Writes outcomes. All that arrive during one write go together in the next."""

    def __init__(
        self,
        sources: Sources,
        lease_set: LeaseSet,
        gate: BreakerGate | None,
        publisher: Publisher,
    ) -> None:
        self._sources = sources
        self._lease_set = lease_set
        self._gate = gate
        self._publisher = publisher
        self._pending: deque[Ending] = deque()
        self._locked: list[Ending] = []
        """Outcomes of rows that other transactions have locked."""
        self._retry_locked_at = 0.0
        self._log = RepeatedLog(logger)
        self._wake = asyncio.Event()
        self._in_doubt = False
        """A connection was lost, so outcomes may have been written without a reply."""
        self._writing: list[Ending] = []
        """The batch that is on its way."""
        self._one_by_one = 0
        """Endings to be written alone, because a batch with them raised an unexpected error."""
        self._suspect: Lease | None = None
        """The last lease whose outcome alone raised one."""
        self.rounds = 0
        """How many statements have written outcomes."""

    def put(self, lease: Lease, outcome: Outcome) -> None:
        """Have an outcome written with the next batch."""
        lease.settle_by = monotonic() + lease.seconds
        self._pending.append((lease, outcome))
        self._wake.set()

    @property
    def endings(self) -> list[Ending]:
        """Everything that is to be written. Another thread may ask while the loop is blocked."""
        return [*self._writing, *self._pending, *self._locked]

    async def run(self) -> None:
        """Write until cancelled. A batch that finds no database waits for it, and goes first
        then."""
        backoff = Backoff()
        if self._pending:
            # An unexpected error left the rest of its batch here.
            self._wake.set()
        while True:
            await self._woken()
            while batch := self._next():
                pause = await self._try(batch, backoff)
                if pause:
                    await asyncio.sleep(pause)
                if self._gate is not None and self._lease_set.unreported:
                    await self._gate.report()

    async def _try(self, batch: list[Ending], backoff: Backoff) -> float:
        """Write a batch. Return the seconds to wait before the next one."""
        self._writing = batch
        self._lease_set.writing(batch[0][0])
        failed, pause = True, 0.0
        try:
            await self._write(batch)
            failed = self._in_doubt = False
            if backoff.tries:
                backoff.reset()
        except DatabaseError as error:
            self._in_doubt = self._in_doubt or isinstance(error, ConnectionLost)
            pause = backoff.pause(f"outcomes of {len(batch)} jobs wait", error)
        except Exception:
            self._isolate(batch)
            raise
        finally:
            self._writing = []
            unwritten = self._unwritten(batch) if failed else []
            self._pending.extendleft(reversed(unwritten))
            # If nothing is left to be written, no later success would clear the failure.
            self._lease_set.written(failed=bool(unwritten))
        return pause

    def _isolate(self, batch: list[Ending]) -> None:
        """After an unexpected error write each outcome alone. Hold the job that raises it twice."""
        if len(batch) > 1:
            self._one_by_one = len(batch)
            return
        [(lease, outcome)] = batch
        if lease is self._suspect and not isinstance(outcome, Released):
            batch[0] = lease, Held(UNSTORED, None, UNSTORED)
        self._suspect = lease

    async def flush(self) -> None:
        """Write the rest, once, after `run` has ended."""
        self._pending = deque(map(_spared, self._pending))
        while batch := self._next():
            await self._write(batch)

    async def _woken(self) -> None:
        """Wait for an outcome, or until those of locked rows are due."""
        if not self._locked:
            await self._wake.wait()
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._retry_locked_at - monotonic())):
                    await self._wake.wait()
        self._wake.clear()

    def _next(self) -> list[Ending]:
        if self._locked and monotonic() >= self._retry_locked_at:
            self._pending.extend(self._locked)
            self._locked.clear()
        size = _BATCH
        if self._one_by_one:
            self._one_by_one -= 1
            size = 1
        return [self._pending.popleft() for _ in range(min(size, len(self._pending)))]

    def _unwritten(self, batch: Sequence[Ending]) -> list[Ending]:
        locked = {lease for lease, _ in self._locked}
        return [end for end in batch if end[0] in self._lease_set and end[0] not in locked]

    async def _write(self, batch: Sequence[Ending]) -> None:
        # One statement a table. Outcomes that one table has accepted must not be sent again because
        # of an error in another.
        by_statement: dict[tuple[type[Outcome], str, bool], list[Ending]] = defaultdict(list)
        for ending in batch:
            lease, outcome = ending
            stores = isinstance(outcome, Succeeded) and outcome.result is not None
            if lease.committed:
                self.rounds += not lease.retired
                self._publisher.publish(committed(ending), in_doubt=self._in_doubt)
            else:
                by_statement[type(outcome), lease.source, stores].append(ending)
        failure: DatabaseError | None = None
        for (kind, source, _), endings in by_statement.items():
            try:
                await self._settle(source, kind, endings)
            except ConnectionFailed:
                raise
            except DatabaseError as error:
                # Another table may still accept its outcomes.
                failure = error
        if failure is not None:
            raise failure
        await self._delete_ended_claims()

    async def _settle(self, source: str, kind: type[Outcome], endings: Sequence[Ending]) -> None:
        """Write outcomes of one kind to one table, and publish each."""
        async for written in write(self._sources.leases[source], kind, endings):
            if written.locked:
                self._set_aside(written.locked)
            self.rounds += bool(written.moved)
            self._publisher.publish(written, in_doubt=self._in_doubt)

    def _set_aside(self, locked: Sequence[Ending]) -> None:
        """Keep outcomes of locked rows apart, so that they do not hold up the others."""
        self._log.warning("%d outcomes wait for transactions that lock their rows", len(locked))
        self._locked += locked
        self._retry_locked_at = monotonic() + _LOCKED_RETRY_SECONDS

    async def _delete_ended_claims(self) -> None:
        ended = list(self._lease_set.ended_claims)
        if not ended or (self._pending and len(ended) < _MANY_CLAIMS):
            return
        try:
            await self._sources.claims.delete_claims(ended)
        except DatabaseError:
            logger.debug("%d ended claims are left to the sweep", len(ended))
        # Clear only after the statement succeeded. After a cancellation the end of the worker
        # deletes them.
        del self._lease_set.ended_claims[: len(ended)]


def _spared(ending: Ending) -> Ending:
    """A handler that was cancelled with the whole event loop has not failed."""
    lease, outcome = ending
    record = outcome.traceback if isinstance(outcome, (Failed, Held)) else None
    if record is not None and record.exception_type == asyncio.CancelledError.__name__:
        return lease, Released(SHUTDOWN)
    return ending
