"""The worker's statements: claim, renew, change, recover."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import timedelta
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID, uuid4

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, UnreadableReply
from holdfast.lifecycle import TRANSITIONS, Transition, Verb
from holdfast.models import Change, Held, Job, JobId, Recovery, Want, WorkerInfo
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.counting import Counting
from holdfast.stores.postgres.lanes import Lane, Lanes
from holdfast.stores.postgres.vacuuming import Vacuuming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.settings import Names
    from holdfast.stores.postgres.runner import Runner

logger = logging.getLogger("holdfast.worker")

_DEFAULT_MAX_RECOVERIES = 3
_LOST_REPLY = "claim reply lost"

_LOCK = """
select set_config('lock_timeout', $2, true),
       set_config('idle_in_transaction_session_timeout', '5s', true),
       pg_advisory_xact_lock(hashtextextended($1, 0))
"""
"""A worker that is frozen while it has the lock loses it, and who waits goes on without it."""

_MILLISECOND = timedelta(milliseconds=1)

L = TypeVar("L", Held, Change)
_ID = attrgetter("id")
HELD_ID = attrgetter("held.id")
_TOKEN = attrgetter("token")
_ENTRYPOINT = attrgetter("entrypoint")
_PRIORITY = attrgetter("priority")
_IN_LANE = attrgetter("execute_after", "id")


class PostgresLeases:
    """Leases on one set of tables through one driver. Not shared between event loops."""

    def __init__(self, runner: Runner, names: Names) -> None:
        self._runner = runner
        self._names = names
        self._lanes = Lanes()
        self._counting = Counting()
        self._vacuuming = Vacuuming(names)
        self._doubtful: list[UUID] = []
        self._unreadable: list[Change] = []
        """Of the claim that is being made; a claim that fails begins again without."""
        self._contended = False
        """The lock of a limit could not be had in time."""

    async def claim(
        self, wants: Sequence[Want], *, limit: int, worker: str, sweep: bool = False
    ) -> list[Job]:
        await self.recall()
        self._contended = False
        self._unreadable.clear()
        if sweep or not self._lanes.knows(wants):
            self._lanes.forget(wants)
        looked = self._lanes.look_due()
        if looked:
            await self._look()
        else:
            self._lanes.reopen()
        jobs = await self._take(limit, worker)
        # What was found begins at once: the look around comes right after, with the next claim.
        if not jobs and not looked:
            await self._look()
            looked = True
            jobs = await self._take(limit, worker)
        more = not looked or self._lanes.unfinished or bool(self._lanes.priorities())
        self._lanes.put_off = self._contended or (len(jobs) < limit and more)
        if self._unreadable:
            await self._hold_unreadable()
        # Only now: had a later statement failed, the jobs of the earlier ones would be nobody's.
        statements = len(self._doubtful)
        self._doubtful.clear()
        if statements > 1:
            jobs.sort(key=_IN_LANE)
            jobs.sort(key=_PRIORITY, reverse=True)
        return jobs

    async def next_due(self, wants: Sequence[Want]) -> timedelta | None:
        return self._lanes.next_look()

    async def renew(self, held: Sequence[Held]) -> set[Held]:
        owned: set[Held] = set()
        for batch in without_twins(held):
            [[moved]] = await self._runner.run(Verb.RENEW, **_owned(batch))
            owned.update(_moved(batch, moved))
        return owned

    async def change(self, transition: Transition, changes: Sequence[Change]) -> list[Held]:
        done: list[Held] = []
        for batch in without_twins(changes, HELD_ID):
            held = [change.held for change in batch]
            values = _owned(held) | self._change_values(transition, batch)
            [[moved]] = await self._runner.run(transition.name, **values)
            done += _moved(held, moved)
        return done

    def _change_values(
        self, transition: Transition, changes: Sequence[Change]
    ) -> dict[str, object]:
        values: dict[str, object] = {
            "reasons": rows.column([change.reason for change in changes]),
            "tracebacks": rows.column([rows.traceback(change.traceback) for change in changes]),
        }
        if not transition.leaves:
            values |= {
                "delays": rows.column([change.delay for change in changes]),
                "errors": rows.column([change.error for change in changes]),
                "max_attempts": rows.column([change.max_attempts for change in changes]),
                "channel": self._names.channel,
            }
        return values

    async def locked(self, held: Sequence[Held]) -> set[Held]:
        ids = sorted({lease.id for lease in held})
        found = {row[0] for row in await self._runner.run("locked", ids=ids)}
        return {lease for lease in held if lease.id in found}

    async def recall(self) -> None:
        if self._doubtful:
            await self._hand_back_doubtful()

    async def forget(self, tokens: Sequence[UUID]) -> None:
        if tokens:
            await self._runner.run("forget", tokens=list(tokens))

    async def recover(
        self, wants: Sequence[Want], *, limit: int = 1000, worker: str | None = None
    ) -> Recovery:
        found = await self._runner.run(
            Verb.RECOVER,
            worker=worker,
            limit=limit,
            entrypoints=[want.entrypoint for want in wants],
            caps=[want.max_recoveries for want in wants],
            default_cap=_DEFAULT_MAX_RECOVERIES,
            channel=self._names.channel,
        )
        back = [row for row in found if not row[1]]
        self._lanes.expect((row[2], row[3], row[4]) for row in back)
        return Recovery(
            recovered=tuple(JobId(row[0]) for row in back),
            retired=tuple(JobId(row[0]) for row in found if row[1]),
        )

    async def housekeep(self) -> None:
        more = True
        while more:
            _, more = await self._counting.bite(self._runner)
        await self._runner.run("forget_ended")
        await self._runner.run("forget_workers")
        await self._runner.run("forget_enqueues")

    async def tidy(self) -> None:
        await self._vacuuming.run(self._runner)

    async def report(self, worker: WorkerInfo) -> None:
        await self._runner.run("report", **worker._asdict())

    async def farewell(self, worker: str) -> None:
        await self._runner.run("farewell", id=worker)

    async def _look(self) -> None:
        found = await self._runner.run("lanes", **self._lanes.question())
        self._lanes.answer((*row,) for row in found)

    async def _take(self, limit: int, worker: str) -> list[Job]:
        """Highest priority first; as long as there is room and a lane that may have more."""
        jobs: list[Job] = []
        began = monotonic()
        for priority in self._lanes.priorities():
            while len(jobs) < limit:
                hand = self._lanes.deal(priority, limit - len(jobs))
                if not hand:
                    break
                jobs += await self._take_hand(priority, hand, worker)
                if jobs and _aging(jobs[0], monotonic() - began):
                    return jobs
        return jobs

    async def _take_hand(
        self, priority: int, hand: Sequence[tuple[Lane, int]], worker: str
    ) -> list[Job]:
        free = [(lane, share) for lane, share in hand if not lane.want.concurrency_limit]
        jobs = await self._lease(self._runner, priority, free, worker) if free else []
        for lane, share in hand:
            if lane.want.concurrency_limit:
                jobs += await self._take_limited(priority, lane, share, worker)
        return jobs

    async def _take_limited(self, priority: int, lane: Lane, share: int, worker: str) -> list[Job]:
        """Count and claim under the entrypoint's lock, so that the limit is never exceeded."""
        name = lane.want.entrypoint
        lock = f"holdfast limit {self._names.table()} {name}"
        # What this claim has taken already is not renewed yet, so it must not wait for long.
        wait = f"{max(1, lane.want.lease // _MILLISECOND // 20)}ms"
        try:
            async with self._runner.driver.transaction() as tx:
                await tx.fetch(_LOCK, [lock, wait])
                return await self._take_room(self._runner.over(tx), priority, lane, share, worker)
        except DatabaseError as error:
            if not error.locked:
                raise
            lane.dry = self._contended = True
            return []

    async def _take_room(
        self, inside: Runner, priority: int, lane: Lane, share: int, worker: str
    ) -> list[Job]:
        name = lane.want.entrypoint
        [[running]] = await inside.run("running", entrypoint=name)
        room = min(share, lane.want.concurrency_limit - running)
        if room <= 0:
            lane.dry = True
            return []
        jobs = await self._lease(inside, priority, [(lane, room)], worker, limited=name)
        lane.dry = lane.dry or room < share
        return jobs

    async def _lease(
        self,
        runner: Runner,
        priority: int,
        hand: Sequence[tuple[Lane, int]],
        worker: str,
        limited: str | None = None,
    ) -> list[Job]:
        token = uuid4()
        values: dict[str, object] = {
            # A forgotten claim under a limit could let one more run, so that one is fsynced.
            "relaxed": limited is None,
            "limited": limited,
            "token": token,
            "worker": worker,
            "priority": priority,
            "entrypoints": [lane.want.entrypoint for lane, _ in hand],
            "floors": [lane.floor for lane, _ in hand],
            "floor_ids": [lane.floor_id for lane, _ in hand],
            "ceilings": [lane.ceiling for lane, _ in hand],
            "shares": [share for _, share in hand],
            "max_attempts": [lane.want.max_attempts for lane, _ in hand],
            "leases": [lane.want.lease for lane, _ in hand],
            "shortest": min(lane.want.lease for lane, _ in hand),
        }
        # Until the reply is here and committed, nobody knows whether the claim happened.
        self._doubtful.append(token)
        found = await runner.run(Verb.CLAIM, **values)
        terms = {lane.want.entrypoint: lane.want.lease for lane, _ in hand}
        instants = rows.Instants()
        try:
            jobs = [rows.claimed(row, token, worker, terms, instants) for row in found]
        except UnreadableReply:
            read = partial(
                rows.claimed, token=token, worker=worker, leases=terms, instants=instants
            )
            jobs = self._readable(found, token, read)
        jobs.sort(key=_IN_LANE)
        last = {job.entrypoint: job for job in jobs}
        taken = Counter(map(_ENTRYPOINT, jobs))
        for lane, share in hand:
            lane.took(last.get(lane.want.entrypoint), taken[lane.want.entrypoint], share)
        return jobs

    def _readable(
        self, found: Sequence[rows.Row], token: UUID, read: Callable[[rows.Row], Job]
    ) -> list[Job]:
        """All but those that Python has no room for: these are held once the claim is over."""
        jobs: list[Job] = []
        for row in found:
            try:
                jobs.append(read(row))
            except UnreadableReply as error:
                held = Held(JobId(row[0]), token)
                self._unreadable.append(Change(held, error=str(error), reason="unreadable"))
        return jobs

    async def _hold_unreadable(self) -> None:
        for change in self._unreadable:
            logger.error("job %s is held: %s", change.held.id, change.error)
        await self.change(TRANSITIONS[Verb.HOLD], self._unreadable)
        self._unreadable.clear()

    async def _hand_back_doubtful(self) -> None:
        """Release what claims took whose replies never came."""
        tokens = list(self._doubtful)
        found = await self._runner.run("claimed_under", tokens=tokens)
        changes = [Change(Held(JobId(row[0]), row[1]), reason=_LOST_REPLY) for row in found]
        await self.change(TRANSITIONS[Verb.RELEASE], changes)
        # Not those that were not found: they may commit only now, and the sweep needs them then.
        await self.forget(list({change.held.token for change in changes}))
        del self._doubtful[: len(tokens)]


def _aging(job: Job, seconds: float) -> bool:
    """What is claimed is not renewed before the claim is over, so it must not take long."""
    return job.lease is not None and seconds > job.lease.total_seconds() / 5


def without_twins(leases: Iterable[L], id_of: Callable[[L], JobId] = _ID) -> list[list[L]]:
    """Batches sorted by id in which no id occurs twice, as the statements need them.

    A worker has two leases on one job only when it lost the first and claimed the job again.
    """
    rest = sorted(leases, key=id_of)
    batches: list[list[L]] = []
    while len(set(map(id_of, rest))) < len(rest):
        first = {id_of(lease): lease for lease in reversed(rest)}
        batches.append([lease for lease in rest if first[id_of(lease)] is lease])
        rest = [lease for lease in rest if first[id_of(lease)] is not lease]
    if rest:
        batches.append(rest)
    return batches


def _owned(batch: Sequence[Held]) -> dict[str, object]:
    """The leases of a batch: its ids, and for each the place of its token among the few claims."""
    places: dict[UUID, int] = {}
    owners: list[str] = []
    # Neighbours mostly are of one claim, whose token is slow to hash.
    for token, some in groupby(map(_TOKEN, batch)):
        place = places.setdefault(token, len(places) + 1)
        owners += [str(place)] * len(list(some))
    return {
        "held_ids": rows.integers(map(_ID, batch)),
        "owners": f"{{{','.join(owners)}}}",
        "tokens": list(places),
    }


def _moved(batch: Sequence[Held], ids: Sequence[int]) -> Sequence[Held]:
    if len(ids) == len(batch):
        return batch
    found = set(ids)
    return [lease for lease in batch if lease.id in found]
