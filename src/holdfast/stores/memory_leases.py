"""The worker's side of the memory store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from holdfast.lifecycle import (
    ACTIVE,
    RETIRE_STALE,
    RETIRE_UNCLAIMABLE,
    TRANSITIONS,
    Guard,
    Transition,
    Verb,
)
from holdfast.models import Change, Held, Job, JobId, Recovery, Want, WorkerInfo
from holdfast.stores.memory_state import CLAIM, GUARDS, Asked, State, given_out

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from datetime import datetime

RENEW = TRANSITIONS[Verb.RENEW]
RECOVER = TRANSITIONS[Verb.RECOVER]

_MAX_RECOVERIES = 3
"""For a row without a cap of its own, of an entrypoint that the sweeping worker does not know."""


@dataclass(slots=True)
class _Lane:
    """The due rows of one entrypoint and priority, in order."""

    want: Want
    rows: list[Job]

    def take(self, number: int) -> list[Job]:
        taken, self.rows = self.rows[:number], self.rows[number:]
        return taken


def _claim_order(row: Job) -> tuple[int, datetime, JobId]:
    return -row.priority, row.execute_after, row.id


class MemoryLeases:
    """The Leases facet."""

    def __init__(
        self,
        state: State,
        workers: dict[str, WorkerInfo],
        count: Callable[[], Awaitable[object]],
    ) -> None:
        self._state = state
        self._workers = workers
        self._count = count
        self._turn = 0

    async def claim(
        self, wants: Sequence[Want], *, limit: int, worker: str, sweep: bool = False
    ) -> list[Job]:
        asked = Asked(self._state.now(), token=uuid4(), worker=worker)
        by_priority = self._lanes(wants, asked.now)
        claimed: list[Job] = []
        for priority in sorted(by_priority, reverse=True):
            lanes = by_priority[priority]
            # Turns take turns: with one slot free no lane may always be the first.
            self._turn += 1
            start = self._turn % len(lanes)
            lanes = lanes[start:] + lanes[:start]
            while lanes and len(claimed) < limit:
                lanes, taken = self._take_turns(lanes, limit - len(claimed), asked)
                claimed += taken
        return [given_out(row) for row in sorted(claimed, key=_claim_order)]

    async def next_due(self, wants: Sequence[Want]) -> timedelta | None:
        now = self._state.now()
        wanted = {want.entrypoint for want in wants}
        return min(
            (
                row.execute_after - now
                for row in self._state.rows.values()
                if row.status in CLAIM.sources
                and row.entrypoint in wanted
                and row.execute_after > now
            ),
            default=None,
        )

    async def renew(self, held: Sequence[Held]) -> set[Held]:
        now = self._state.now()
        return {
            lease
            for lease in held
            for row in self._state.found([lease.id])
            if self._state.apply(RENEW, row, Asked(now, token=lease.token))
        }

    async def change(self, transition: Transition, changes: Sequence[Change]) -> list[Held]:
        now = self._state.now()
        moved: dict[Held, Job] = {}
        for change in changes:
            asked = Asked(
                now,
                token=change.held.token,
                delay=change.delay,
                error=change.error,
                reason=change.reason,
                traceback=change.traceback,
                max_attempts=change.max_attempts,
            )
            for row in self._state.found([change.held.id]):
                if after := self._state.apply(transition, row, asked):
                    moved[change.held] = after
        self._state.announce(moved.values(), now)
        return list(moved)

    async def locked(self, held: Sequence[Held]) -> set[Held]:
        """A change is over before anybody else can come."""
        return set()

    async def recall(self) -> None:
        """No reply is ever lost."""

    async def forget(self, tokens: Sequence[UUID]) -> None:
        """There is no bookkeeping: the rows themselves say who holds them."""

    async def recover(
        self, wants: Sequence[Want], *, limit: int = 1000, worker: str | None = None
    ) -> Recovery:
        now = self._state.now()
        caps = {want.entrypoint: want.max_recoveries for want in wants}
        recovered: list[Job] = []
        retired: list[Job] = []
        for row in list(islice(self._stale(now, worker), limit)):
            asked = Asked(
                now,
                max_recoveries=caps.get(row.entrypoint, _MAX_RECOVERIES),
                worker_is_dead=worker is not None,
            )
            if after := self._state.apply(RECOVER, row, asked):
                recovered.append(after)
            elif after := self._state.apply(RETIRE_STALE, row, asked):
                retired.append(after)
        self._state.announce(recovered, now)
        return Recovery(tuple(row.id for row in recovered), tuple(row.id for row in retired))

    async def housekeep(self) -> None:
        await self._count()
        hour_ago = self._state.now() - timedelta(hours=1)
        for worker in [info for info in self._workers.values() if info.heartbeat < hour_ago]:
            del self._workers[worker.id]

    async def tidy(self) -> None:
        """Nothing is left behind."""

    async def report(self, worker: WorkerInfo) -> None:
        now = self._state.now()
        first = self._workers.get(worker.id, worker._replace(started_at=now))
        self._workers[worker.id] = first._replace(
            entrypoints=list(worker.entrypoints),
            concurrency=worker.concurrency,
            running=worker.running,
            state=worker.state,
            heartbeat=now,
        )

    async def farewell(self, worker: str) -> None:
        self._workers.pop(worker, None)

    def _lanes(self, wants: Sequence[Want], now: datetime) -> dict[int, list[_Lane]]:
        """By priority: a lane for each entrypoint that has active rows there."""
        active: dict[str, list[Job]] = {want.entrypoint: [] for want in wants}
        for row in self._state.rows.values():
            if row.entrypoint in active and row.status in ACTIVE:
                active[row.entrypoint].append(row)
        lanes: dict[int, list[_Lane]] = {}
        for want in wants:
            here: dict[int, list[Job]] = {row.priority: [] for row in active[want.entrypoint]}
            for row in sorted(active[want.entrypoint], key=_claim_order):
                if row.status in CLAIM.sources and row.execute_after <= now:
                    here[row.priority].append(row)
            for priority, due in here.items():
                lanes.setdefault(priority, []).append(_Lane(want, due))
        return lanes

    def _take_turns(
        self, lanes: list[_Lane], slots: int, asked: Asked
    ) -> tuple[list[_Lane], list[Job]]:
        """Give each lane its share; the lanes that used all of theirs may have another round."""
        share, rest = divmod(slots, len(lanes))
        full: list[_Lane] = []
        taken: list[Job] = []
        for place, lane in enumerate(lanes):
            quota = share + (place < rest)
            rows = lane.take(lane.want.fit(min(quota, self._room(lane.want, quota))))
            lane.want.took(len(rows))
            for row in rows:
                after = self._claim_or_retire(row, lane.want, asked)
                taken += [after] if after else []
            if len(rows) == quota:
                full.append(lane)
        return full, taken

    def _room(self, want: Want, quota: int) -> int:
        """How many more of the quota may run at once; a lease counts until somebody ends it."""
        if not want.concurrency_limit:
            return quota
        running = sum(
            row.entrypoint == want.entrypoint and row.claim_token is not None
            for row in self._state.rows.values()
        )
        return max(0, want.concurrency_limit - running)

    def _claim_or_retire(self, row: Job, want: Want, asked: Asked) -> Job | None:
        asked = replace(asked, lease=want.lease, max_attempts=want.max_attempts)
        claimed = self._state.apply(CLAIM, row, asked)
        return claimed or self._state.apply(RETIRE_UNCLAIMABLE, row, asked)

    def _stale(self, now: datetime, worker: str | None) -> Iterable[Job]:
        asked = Asked(now, worker_is_dead=worker is not None)
        is_stale = GUARDS[Guard.STALE]
        return (
            row
            for row in self._state.rows.values()
            if row.status in RECOVER.sources
            and worker in (None, row.claimed_by)
            and is_stale(self._state, row, asked)
        )
