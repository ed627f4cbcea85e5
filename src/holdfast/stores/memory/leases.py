"""The worker's side of the memory store."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from holdfast.errors import CarrierError
from holdfast.lifecycle import (
    ACTIVE,
    CLAIM_RECOVERED,
    CLAIM_SUSPECT,
    RECOVER_OUTAGE,
    RETIRE_STALE,
    RETIRE_UNCLAIMABLE,
    TRANSITIONS,
    Guard,
    Transition,
    Verb,
)
from holdfast.models import (
    Change,
    ClaimRule,
    Duty,
    Job,
    JobId,
    LeaseKey,
    ProgressNote,
    RecoveredWaiting,
    Recovery,
    WorkerInfo,
)
from holdfast.stores.memory.results import LEASED, delete_old
from holdfast.stores.memory.state import CLAIM, GUARDS, Asked, State, given_out
from holdfast.stores.memory.transaction import InMemoryTransaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from datetime import datetime

RENEW = TRANSITIONS[Verb.RENEW]
RECOVER = TRANSITIONS[Verb.RECOVER]

_MAX_RECOVERIES = 3
"""For a row without a cap of its own, of an entrypoint that the sweeping worker does not know."""

_KINDS = (Guard.NEVER_RECOVERED, Guard.RECOVERED, Guard.RECOVERY_LEFT, Guard.RECOVERY_SPENT)
"""Guards that tell apart which of the due rows a claim is about."""

_ALIVE = timedelta(minutes=1)
"""A worker that reported within this time counts as alive."""


@dataclass(slots=True)
class _Lane:
    """The due rows of one entrypoint and priority, in order."""

    rule: ClaimRule
    rows: list[Job]

    def take(self, number: int) -> list[Job]:
        taken, self.rows = self.rows[:number], self.rows[number:]
        return taken


def _claim_order(row: Job) -> tuple[int, datetime, JobId]:
    return -row.priority, row.execute_after, row.id


class MemoryJobTransaction:
    """A handler's transaction in memory: it gives what `.on()` takes."""

    synchronous = None

    def __init__(self, state: State, leases: MemoryLeases) -> None:
        self._state = state
        self._leases = leases
        self._transaction = InMemoryTransaction(state)
        self._ending: tuple[Transition, Sequence[Change]] | None = None

    async def open(self) -> InMemoryTransaction:
        return self._transaction

    async def change(self, transition: Transition, changes: Sequence[Change]) -> list[LeaseKey]:
        owned = [change.key for change in changes if self._owns(transition, change)]
        self._ending = (transition, changes) if owned else None
        return owned

    def _owns(self, transition: Transition, change: Change) -> bool:
        asked = Asked(self._state.now(), token=change.key.token, max_attempts=change.max_attempts)
        rows = self._state.found([change.key.id])
        return any(self._state.allows(transition, row, asked) for row in rows)

    async def commit(self) -> None:
        # No call awaits, so nothing runs between the check above and this.
        await self._transaction.commit()
        if self._ending is not None:
            await self._leases.change(*self._ending)

    async def rollback(self) -> None:
        await self._transaction.rollback()


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
        self,
        rules: Sequence[ClaimRule],
        *,
        limit: int,
        worker: str,
        sweep: bool = False,
        fleet: int = 1,
        idle: bool = False,
    ) -> list[Job]:
        return self._claim(CLAIM, rules, limit, worker)

    async def claim_recovered(
        self, rules: Sequence[ClaimRule], *, limit: int, worker: str, suspects: bool
    ) -> list[Job]:
        return self._claim(CLAIM_SUSPECT if suspects else CLAIM_RECOVERED, rules, limit, worker)

    @property
    def suspect_group(self) -> int:
        return 1

    async def recovered_waiting(self, rules: Sequence[ClaimRule]) -> RecoveredWaiting:
        now = self._state.now()
        unpaused = self._state.unpaused(rules)
        caps = {rule.entrypoint: rule.max_recoveries for rule in unpaused}
        dues: dict[bool, list[timedelta]] = {True: [], False: []}
        leased = 0
        for row in self._state.rows.values():
            if row.status not in ACTIVE or not row.recoveries or row.entrypoint not in caps:
                continue
            asked = Asked(now, max_recoveries=caps[row.entrypoint])
            suspect = GUARDS[Guard.RECOVERY_SPENT](self._state, row, asked)
            if row.status in CLAIM.sources:
                dues[suspect].append(max(row.execute_after - now, timedelta(0)))
            else:
                leased += suspect
        alive = [info for info in self._workers.values() if now - info.heartbeat <= _ALIVE]
        return RecoveredWaiting(
            recovered=min(dues[False], default=None),
            suspects=min(dues[True], default=None),
            suspects_leased=leased,
            workers=len(alive),
        )

    def _claim(
        self, transition: Transition, rules: Sequence[ClaimRule], limit: int, worker: str
    ) -> list[Job]:
        asked = Asked(self._state.now(), token=uuid4(), worker=worker)
        rules = self._state.unpaused(rules)
        by_priority = self._lanes(transition, rules, asked.now)
        claimed: list[Job] = []
        for priority in sorted(by_priority, reverse=True):
            lanes = by_priority[priority]
            # A rotation, because with one slot free no lane may always be the first.
            self._turn += 1
            start = self._turn % len(lanes)
            lanes = lanes[start:] + lanes[:start]
            while lanes and len(claimed) < limit:
                lanes, taken = self._take_turns(transition, lanes, limit - len(claimed), asked)
                claimed += taken
        return [given_out(row) for row in sorted(claimed, key=_claim_order)]

    async def next_due(self, rules: Sequence[ClaimRule]) -> timedelta | None:
        now = self._state.now()
        wanted = {rule.entrypoint for rule in rules}
        over = [each.until - now for each in self._state.paused() if each.until is not None]
        due = [
            row.execute_after - now
            for row in self._state.rows.values()
            if row.status in CLAIM.sources and row.entrypoint in wanted and row.execute_after > now
        ]
        return min([*over, *due], default=None)

    async def renew(self, held: Sequence[LeaseKey]) -> set[LeaseKey]:
        now = self._state.now()
        return {
            lease
            for lease in held
            for row in self._state.found([lease.id])
            if self._state.apply(RENEW, row, Asked(now, token=lease.token))
        }

    async def change(self, transition: Transition, changes: Sequence[Change]) -> list[LeaseKey]:
        now = self._state.now()
        moved: dict[LeaseKey, Job] = {}
        for change in changes:
            asked = Asked(
                now,
                token=change.key.token,
                delay=change.delay,
                error=change.error,
                reason=change.reason,
                traceback=change.traceback,
                max_attempts=change.max_attempts,
            )
            for row in self._state.found([change.key.id]):
                if after := self._state.apply(transition, row, asked):
                    moved[change.key] = after
                    if change.result is not None:
                        self._state.store_result(row.id, change.result, now)
        self._state.announce(moved.values(), now)
        return list(moved)

    def begin(self, target: object) -> MemoryJobTransaction:
        if target is not None:
            raise CarrierError(
                "the in-memory store has no database; call ctx.transaction() without an argument, "
                "or test with PostgreSQL"
            )
        return MemoryJobTransaction(self._state, self)

    async def note_progress(self, notes: Sequence[ProgressNote]) -> list[LeaseKey]:
        now = self._state.now()
        owned: list[LeaseKey] = []
        for note in notes:
            asked = Asked(now, token=note.key.token)
            for row in self._state.found([note.key.id]):
                if row.status in LEASED and GUARDS[Guard.OWNED](self._state, row, asked):
                    self._state.progress[row.id] = replace(note.progress, updated=now)
                    owned.append(note.key)
        return owned

    async def payloads(self, held: Sequence[LeaseKey]) -> dict[LeaseKey, bytes | None]:
        now = self._state.now()
        return {
            lease: row.payload
            for lease in held
            for row in self._state.found([lease.id])
            if row.status in LEASED
            and GUARDS[Guard.OWNED](self._state, row, Asked(now, token=lease.token))
        }

    async def locked(self, held: Sequence[LeaseKey]) -> set[LeaseKey]:
        """A change is over before any other call can begin."""
        return set()

    async def recall(self) -> None:
        """No reply is ever lost."""

    async def delete_claims(self, tokens: Sequence[UUID]) -> None:
        """There is no bookkeeping: the rows themselves say who holds them."""

    async def recover(
        self,
        rules: Sequence[ClaimRule],
        *,
        limit: int = 1000,
        worker: str | None = None,
        held: Sequence[LeaseKey] = (),
        contact: timedelta | None = None,
        lived: timedelta | None = None,
        duty: Duty | None = None,
    ) -> Recovery:
        now = self._state.now()
        caps = {rule.entrypoint: rule.max_recoveries for rule in rules}
        since = None if contact is None else now - contact
        asked = Asked(now, worker_is_dead=worker is not None, since=since)
        kept = {(lease.id, lease.token) for lease in held}
        stale = (row for row in self._stale(asked, worker) if (row.id, row.claim_token) not in kept)
        recovered: list[Job] = []
        retired: list[Job] = []
        excused: list[Job] = []
        for row in list(islice(stale, limit)):
            asked = replace(asked, max_recoveries=caps.get(row.entrypoint, _MAX_RECOVERIES))
            if after := self._state.apply(RECOVER_OUTAGE, row, asked):
                recovered.append(after)
                excused.append(after)
            elif after := self._state.apply(RECOVER, row, asked):
                recovered.append(after)
            elif after := self._state.apply(RETIRE_STALE, row, asked):
                retired.append(after)
        self._state.announce(recovered, now)
        return Recovery(
            tuple(row.id for row in recovered),
            tuple(row.id for row in retired),
            tuple(row.id for row in excused),
            Counter(row.entrypoint for row in recovered),
            Counter(row.entrypoint for row in retired),
        )

    @property
    def shared(self) -> bool:
        return True

    async def housekeep(self, duty: Duty | None = None) -> None:
        await self._count()
        hour_ago = self._state.now() - timedelta(hours=1)
        for worker in [info for info in self._workers.values() if info.heartbeat < hour_ago]:
            del self._workers[worker.id]
        delete_old(self._state)

    async def vacuum(self) -> None:
        """Nothing is left behind."""

    def _lanes(
        self, transition: Transition, rules: Sequence[ClaimRule], now: datetime
    ) -> dict[int, list[_Lane]]:
        """By priority: a lane for each entrypoint that has active rows there."""
        kinds = [guard for guard in transition.guards if guard in _KINDS]
        active: dict[str, list[Job]] = {rule.entrypoint: [] for rule in rules}
        for row in self._state.rows.values():
            if row.entrypoint in active and row.status in ACTIVE:
                active[row.entrypoint].append(row)
        lanes: dict[int, list[_Lane]] = {}
        for rule in rules:
            here: dict[int, list[Job]] = {row.priority: [] for row in active[rule.entrypoint]}
            asked = Asked(now, max_recoveries=rule.max_recoveries)
            for row in sorted(active[rule.entrypoint], key=_claim_order):
                is_due = row.status in transition.sources and row.execute_after <= now
                if is_due and all(GUARDS[guard](self._state, row, asked) for guard in kinds):
                    here[row.priority].append(row)
            for priority, due in here.items():
                lanes.setdefault(priority, []).append(_Lane(rule, due))
        return lanes

    def _take_turns(
        self, transition: Transition, lanes: list[_Lane], slots: int, asked: Asked
    ) -> tuple[list[_Lane], list[Job]]:
        """Give each lane its share; the lanes that used all of theirs may have another round."""
        share, rest = divmod(slots, len(lanes))
        full: list[_Lane] = []
        taken: list[Job] = []
        for place, lane in enumerate(lanes):
            quota = share + (place < rest)
            rows = lane.take(lane.rule.fit(min(quota, self._room(lane.rule, quota))))
            lane.rule.took(len(rows))
            for row in rows:
                after = self._claim_or_retire(transition, row, lane.rule, asked)
                taken += [after] if after else []
            if len(rows) == quota:
                full.append(lane)
        return full, taken

    def _room(self, rule: ClaimRule, quota: int) -> int:
        """How many more of the quota may run at once; a lease counts until it is ended."""
        if not rule.concurrency_limit:
            return quota
        running = sum(
            row.entrypoint == rule.entrypoint and row.claim_token is not None
            for row in self._state.rows.values()
        )
        return max(0, rule.concurrency_limit - running)

    def _claim_or_retire(
        self, transition: Transition, row: Job, rule: ClaimRule, asked: Asked
    ) -> Job | None:
        asked = replace(
            asked,
            lease=rule.lease,
            max_attempts=rule.max_attempts,
            max_recoveries=rule.max_recoveries,
        )
        claimed = self._state.apply(transition, row, asked)
        return claimed or self._state.apply(RETIRE_UNCLAIMABLE, row, asked)

    def _stale(self, asked: Asked, worker: str | None) -> Iterable[Job]:
        is_stale = GUARDS[Guard.STALE]
        return (
            row
            for row in self._state.rows.values()
            if row.status in RECOVER.sources
            and worker in (None, row.claimed_by)
            and is_stale(self._state, row, asked)
        )
