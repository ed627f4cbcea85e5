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
from holdfast.lifecycle import CLAIM_RECOVERED, CLAIM_SUSPECT, TRANSITIONS, Transition, Verb
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
from holdfast.pauses import LATE_SECONDS, RELEASED_BY_PAUSE, VIEW_SECONDS
from holdfast.repeated import RepeatedLog
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.claim_places import (
    CLAIM_IN_FLEET,
    LANES_IN_FLEET,
    ClaimPlaces,
)
from holdfast.stores.postgres.fleet import FleetTimeouts, UnservedNames
from holdfast.stores.postgres.holders import holders
from holdfast.stores.postgres.job_transaction import HandlerConnections, PostgresJobTransaction
from holdfast.stores.postgres.lanes import LANE_COLUMNS, Lane, Lanes
from holdfast.stores.postgres.pauses import PauseView
from holdfast.stores.postgres.render import WITH_RESULT
from holdfast.stores.postgres.restore import ClaimRestorer
from holdfast.stores.postgres.rollup import StatisticsRollup
from holdfast.stores.postgres.upkeep import LogRetention
from holdfast.stores.postgres.vacuum import Vacuum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.settings import Names
    from holdfast.stores.postgres.drivers.base import Driver
    from holdfast.stores.postgres.runner import Runner

logger = logging.getLogger("holdfast.worker")

_CLAIM = TRANSITIONS[Verb.CLAIM]
_DEFAULT_MAX_RECOVERIES = 3
_LOST_REPLY = "claim reply lost"

_LONG_WAIT_SECONDS = 1.0
"""After this time without the lock of a limit the log names the session that holds it."""

_VIEW = timedelta(seconds=VIEW_SECONDS)
"""While something is paused the next claim comes after this, to see whether it still is."""

_MILLISECOND = timedelta(milliseconds=1)

_DELETE_BATCH = 1000

L = TypeVar("L", LeaseKey, Change, ProgressNote)
_ID = attrgetter("id")
KEY_ID = attrgetter("key.id")
_TOKEN = attrgetter("token")
_ENTRYPOINT = attrgetter("entrypoint")
_PRIORITY = attrgetter("priority")
_IN_LANE = attrgetter("execute_after", "id")


class PostgresLeases:
    """Leases on one set of tables through one driver. Not shared between event loops."""

    def __init__(
        self, runner: Runner, names: Names, handlers: HandlerConnections | None = None
    ) -> None:
        self._runner = runner
        self.handlers = handlers or HandlerConnections(runner.driver, names.table())
        self._names = names
        self._pauses = PauseView(runner)
        self._lanes = Lanes(self._pauses)
        self._places = ClaimPlaces()
        self._rollup = StatisticsRollup()
        self._vacuum = Vacuum(names)
        self._restorer = ClaimRestorer()
        self._retention = LogRetention()
        self._doubtful: list[UUID] = []
        self._unreadable: list[Change] = []
        """Rows of the current claim that Python cannot represent. A failed claim discards them."""
        self._contended = False
        """The lock of a limit could not be had in time."""
        self._timeouts = FleetTimeouts()
        self._unserved = UnservedNames()
        self._waiting_since: dict[str, float] = {}
        """Since when the limit of an entrypoint has been locked by other sessions."""
        self._log = RepeatedLog(logger)

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
        if self._doubtful:
            await self._release_doubtful()
        self._contended = False
        self._places.begin(limit, fleet, idle=idle)
        self._unreadable.clear()
        if sweep or not self._lanes.knows(rules):
            self._lanes.reset(rules)
        scanned = self._lanes.scan_due()
        if scanned:
            await self._scan()
        else:
            await self._pauses.renew()
            self._lanes.reopen()
        jobs = await self._take(self._lanes, _CLAIM, limit, worker)
        # Jobs that were found start at once. The scan follows with the next claim.
        if not jobs and not scanned and not self._places.refused:
            await self._scan()
            scanned = True
            jobs = await self._take(self._lanes, _CLAIM, limit, worker)
        self._places.end(full=len(jobs) >= limit)
        if self._places.refused:
            return await self._claimed(jobs)
        more = not scanned or self._lanes.unfinished or bool(self._lanes.priorities())
        self._lanes.put_off = self._contended or (len(jobs) < limit and more)
        return await self._claimed(jobs)

    async def claim_recovered(
        self, rules: Sequence[ClaimRule], *, limit: int, worker: str, suspects: bool
    ) -> list[Job]:
        await self.recall()
        self._unreadable.clear()
        # These jobs are few and claimed seldom, so no floors are remembered.
        lanes = Lanes(self._pauses)
        lanes.reset(rules)
        await self._pauses.renew()
        found = await self._runner.run("lanes:recovered", **lanes.question())
        lanes.answer((*row[:LANE_COLUMNS],) for row in found)
        claim = CLAIM_SUSPECT if suspects else CLAIM_RECOVERED
        return await self._claimed(await self._take(lanes, claim, limit, worker))

    @property
    def suspect_group(self) -> int:
        return 1

    async def recovered_waiting(self, rules: Sequence[ClaimRule]) -> RecoveredWaiting:
        found = await self._runner.run(
            "recovered_waiting",
            entrypoints=[rule.entrypoint for rule in rules],
            caps=[rule.max_recoveries for rule in rules],
        )
        kinds = {row[0]: row for row in found}
        due = {suspect: row[1] for suspect, row in kinds.items()}
        return RecoveredWaiting(
            recovered=due.get(False),
            suspects=due.get(True),
            suspects_leased=kinds[True][2] if True in kinds else 0,
            workers=max((row[3] for row in found), default=0),
        )

    async def _claimed(self, jobs: list[Job]) -> list[Job]:
        """Return the jobs of a claim, in order, once all its statements have been answered."""
        if self._unreadable:
            await self._hold_unreadable()
        if jobs and monotonic() - self._pauses.seen_at >= LATE_SECONDS:
            jobs = await self._without_paused(jobs)
        # Clear only after every statement succeeded. Otherwise jobs claimed earlier would have no
        # owner.
        statements = len(self._doubtful)
        self._doubtful.clear()
        if statements > 1:
            jobs.sort(key=_IN_LANE)
            jobs.sort(key=_PRIORITY, reverse=True)
        return jobs

    async def next_due(self, rules: Sequence[ClaimRule]) -> timedelta | None:
        if self._places.refused:
            return timedelta(seconds=self._places.pause)
        due = self._lanes.next_scan()
        if not self._pauses.paused:
            return due
        return _VIEW if due is None else min(due, _VIEW)

    async def renew(self, held: Sequence[LeaseKey]) -> set[LeaseKey]:
        owned: set[LeaseKey] = set()
        for batch in without_twins(held):
            [[moved]] = await self._runner.run(Verb.RENEW, **_owned(batch))
            owned.update(_moved(batch, moved))
        return owned

    async def change(self, transition: Transition, changes: Sequence[Change]) -> list[LeaseKey]:
        done: list[LeaseKey] = []
        for batch in without_twins(changes, KEY_ID):
            held = [change.key for change in batch]
            values = _owned(held) | self._change_values(transition, batch)
            name = transition.name
            if batch[0].result is not None:
                name = WITH_RESULT
                values |= self._result_values(batch)
            [[moved]] = await self._runner.run(name, **values)
            done += held if len(moved) == len(held) else _moved(held, moved)
        return done

    def _change_values(
        self, transition: Transition, changes: Sequence[Change]
    ) -> dict[str, object]:
        values: dict[str, object] = {
            "reasons": rows.column([change.reason for change in changes]),
            "tracebacks": None,
            "fingerprints": None,
        }
        if any([change.error or change.traceback for change in changes]):
            values |= {
                "tracebacks": rows.column([rows.traceback(change.traceback) for change in changes]),
                "fingerprints": rows.column([change.fingerprint for change in changes]),
            }
        if not transition.leaves:
            values |= {
                "delays": rows.column([change.delay for change in changes]),
                "errors": rows.column([change.error for change in changes]),
                "max_attempts": rows.column([change.max_attempts for change in changes]),
                "channel": self._names.channel,
            }
        return values

    def begin(self, target: object) -> PostgresJobTransaction:
        def over(driver: Driver) -> PostgresLeases:
            return PostgresLeases(self._runner.over(driver), self._names, self.handlers)

        return PostgresJobTransaction(self.handlers, target, over)

    def _result_values(self, changes: Sequence[Change]) -> dict[str, object]:
        results = [change.result for change in changes if change.result is not None]
        assert len(results) == len(changes)  # noqa: S101 - the settler never mixes the two
        return {
            "results": rows.column([result.value for result in results]),
            "result_errors": rows.column([result.error for result in results]),
            "keeps": [result.keep for result in results],
            "channel": self._names.results_channel,
        }

    async def note_progress(self, notes: Sequence[ProgressNote]) -> list[LeaseKey]:
        done: list[LeaseKey] = []
        for batch in without_twins(notes, KEY_ID):
            held = [note.key for note in batch]
            [[moved]] = await self._runner.run(
                "note_progress",
                **_owned(held),
                fractions=[note.progress.fraction for note in batch],
                messages=rows.column([note.progress.message for note in batch]),
            )
            done += _moved(held, moved)
        return done

    async def payloads(self, held: Sequence[LeaseKey]) -> dict[LeaseKey, bytes | None]:
        found: dict[LeaseKey, bytes | None] = {}
        for batch in without_twins(held):
            read = {row[0]: row[1] for row in await self._runner.run("payloads", **_owned(batch))}
            found |= {lease: read[lease.id] for lease in batch if lease.id in read}
        return found

    async def locked(self, held: Sequence[LeaseKey]) -> set[LeaseKey]:
        ids = sorted({lease.id for lease in held})
        found = {row[0] for row in await self._runner.run("locked", ids=ids)}
        return {lease for lease in held if lease.id in found}

    async def recall(self) -> None:
        if self._doubtful:
            await self._release_doubtful()

    async def delete_claims(self, tokens: Sequence[UUID]) -> None:
        if tokens:
            await self._runner.run("delete_claims", tokens=list(tokens))

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
        if duty is not None and not duty.held:
            return Recovery()
        # A judgement that was delayed on its way by an outage must not count as one of today.
        if duty is None or duty.now is None:
            [[asked]] = await self._runner.run("now")
        else:
            asked = duty.now + timedelta(seconds=monotonic() - duty.sent)
        found = await self._runner.run(
            Verb.RECOVER,
            asked=asked,
            holder=None if duty is None else duty.token,
            **_owned(_newest(held)),
            contact=contact,
            lived=lived,
            worker=worker,
            limit=limit,
            entrypoints=[rule.entrypoint for rule in rules],
            caps=[rule.max_recoveries for rule in rules],
            default_cap=_DEFAULT_MAX_RECOVERIES,
            channel=self._names.channel,
        )
        back, ended = [row for row in found if not row[1]], [row for row in found if row[1]]
        # Their entrypoints may have had no lane when pauses were read with the lanes.
        self._pauses.expire()
        self._lanes.expect((row[2], row[3], row[4]) for row in back)
        return Recovery(
            recovered=tuple(JobId(row[0]) for row in back),
            retired=tuple(JobId(row[0]) for row in ended),
            excused=tuple(JobId(row[0]) for row in found if row[5]),
            recovered_by_queue=Counter(row[2] for row in back),
            retired_by_queue=Counter(row[2] for row in ended),
        )

    @property
    def shared(self) -> bool:
        return True

    async def housekeep(self, duty: Duty | None = None) -> None:
        if duty is not None and not duty.held:
            return
        holder = None if duty is None else duty.token
        more = True
        while more:
            _, more = await self._rollup.count_batch(self._runner, holder)
        await self._retention.run(self._runner, holder)
        await self._restorer.run(self._runner, holder)
        await self._runner.run("delete_ended_claims", holder=holder)
        await self._runner.run("delete_silent_workers", holder=holder)
        workers = [WorkerInfo(*row) for row in await self._runner.run("workers")]
        self._timeouts.check(workers)
        self._unserved.check(workers, [name for (name,) in await self._runner.run("queued_names")])
        await self._runner.run("delete_enqueues", holder=holder)
        await self._delete_old("delete_results", holder)
        await self._delete_old("delete_progress", holder)

    async def _delete_old(self, statement: str, holder: UUID | None) -> None:
        """In small batches, so that no statement takes long."""
        deleted = _DELETE_BATCH
        while deleted == _DELETE_BATCH:
            [[deleted]] = await self._runner.run(statement, limit=_DELETE_BATCH, holder=holder)

    async def vacuum(self) -> None:
        await self._vacuum.run(self._runner)

    async def _scan(self) -> None:
        asked_at = monotonic()
        question = self._lanes.question()
        if self._places.taken:
            found = await self._runner.run(LANES_IN_FLEET, **question, **self._place())
            if found and found[-1][0] is None:
                self._places.refuse()
                return
        else:
            found = await self._runner.run("lanes", **question)
        self._lanes.answer((*row[:LANE_COLUMNS],) for row in found)
        self._pauses.scanned(asked_at, ((row[0], row[LANE_COLUMNS]) for row in found))

    def _place(self) -> dict[str, object]:
        return self._places.ask(self._names.channel, self._lanes.entrypoints)

    async def _without_paused(self, jobs: list[Job]) -> list[Job]:
        """Release jobs that were paused while a late reply was on its way."""
        await self._pauses.renew()
        late = {job.id for job in jobs if self._pauses.covers(job.entrypoint)}
        changes = [
            Change(LeaseKey(job.id, job.claim_token), reason=RELEASED_BY_PAUSE)
            for job in jobs
            if job.id in late and job.claim_token
        ]
        if changes:
            await self.change(TRANSITIONS[Verb.RELEASE], changes)
        return [job for job in jobs if job.id not in late]

    async def _take(self, lanes: Lanes, claim: Transition, limit: int, worker: str) -> list[Job]:
        """Claim, highest priority first, while `limit` allows and a lane may have more."""
        jobs: list[Job] = []
        began = monotonic()
        for priority in lanes.priorities():
            while len(jobs) < limit and not self._places.refused:
                shares = lanes.deal(priority, limit - len(jobs))
                if not shares:
                    break
                jobs += await self._claim_shares(claim, priority, shares, worker)
                if jobs and _aging(jobs[0], monotonic() - began):
                    return jobs
        return jobs

    async def _claim_shares(
        self, claim: Transition, priority: int, shares: Sequence[tuple[Lane, int]], worker: str
    ) -> list[Job]:
        free = [(lane, share) for lane, share in shares if not lane.rule.concurrency_limit]
        jobs = await self._lease(self._runner, claim, priority, free, worker) if free else []
        for lane, share in shares:
            if lane.rule.concurrency_limit:
                jobs += await self._take_limited(claim, priority, lane, share, worker)
        return jobs

    async def _take_limited(
        self, claim: Transition, priority: int, lane: Lane, share: int, worker: str
    ) -> list[Job]:
        """Count and claim under the entrypoint's lock, so that the limit is never exceeded."""
        name, asked = lane.rule.entrypoint, monotonic()
        # Jobs that this claim has taken already are not renewed yet, so it must not wait for long.
        wait = f"{max(1, lane.rule.lease // _MILLISECOND // 20)}ms"
        try:
            async with self._runner.driver.transaction() as tx:
                inside = self._runner.over(tx)
                await _lock_limit(inside, name, wait)
                self._waiting_since.pop(name, None)
                return await self._take_room(inside, claim, priority, lane, share, worker)
        except DatabaseError as error:
            if not error.locked:
                raise
        lane.dry = self._contended = True
        since = self._waiting_since.setdefault(name, asked)
        if monotonic() - since >= _LONG_WAIT_SECONDS:
            await self._report_holder(name, monotonic() - since)
        return []

    async def _report_holder(self, name: str, seconds: float) -> None:
        holder = await holders(self._runner.run("limit_holder", entrypoint=name))
        self._log.warning(
            "no job of %r could be claimed for %.1f s: its limit is locked by %s",
            name,
            seconds,
            holder,
        )

    async def _take_room(
        self,
        inside: Runner,
        claim: Transition,
        priority: int,
        lane: Lane,
        share: int,
        worker: str,
    ) -> list[Job]:
        name = lane.rule.entrypoint
        most = lane.rule.concurrency_limit
        [[running, _]] = await inside.run("running", entrypoint=name, most=most)
        room = min(share, most - running)
        if room <= 0:
            lane.dry = True
            return []
        jobs = await self._lease(inside, claim, priority, [(lane, room)], worker, limited=name)
        lane.dry = lane.dry or room < share
        return jobs

    async def _lease(
        self,
        runner: Runner,
        claim: Transition,
        priority: int,
        shares: Sequence[tuple[Lane, int]],
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
            **_lane_values(shares),
        }
        # Until the reply is here and committed, it is unknown whether the claim happened.
        self._doubtful.append(token)
        if claim is not _CLAIM:
            values["max_recoveries"] = [lane.rule.max_recoveries for lane, _ in shares]
        name = claim.name
        if claim is _CLAIM and self._places.taken and limited is None:
            name = CLAIM_IN_FLEET
            values |= self._place()
        found = await runner.run(name, **values)
        if found and found[-1][0] is None:
            self._places.refuse()
            self._doubtful.remove(token)
            return []
        terms = {lane.rule.entrypoint: lane.rule.lease for lane, _ in shares}
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
        for lane, share in shares:
            lane.took(last.get(lane.rule.entrypoint), taken[lane.rule.entrypoint], share)
        return jobs

    def _readable(
        self, found: Sequence[rows.Row], token: UUID, read: Callable[[rows.Row], Job]
    ) -> list[Job]:
        """Return the rows that Python can represent. The others are held once the claim is over."""
        jobs: list[Job] = []
        for row in found:
            try:
                jobs.append(read(row))
            except UnreadableReply as error:
                held = LeaseKey(JobId(row[0]), token)
                self._unreadable.append(Change(held, error=str(error), reason="unreadable"))
        return jobs

    async def _hold_unreadable(self) -> None:
        for change in self._unreadable:
            logger.error("job %s is held: %s", change.key.id, change.error)
        await self.change(TRANSITIONS[Verb.HOLD], self._unreadable)
        self._unreadable.clear()

    async def _release_doubtful(self) -> None:
        """Release the jobs of claims whose replies never came."""
        tokens = list(self._doubtful)
        found = await self._runner.run("claimed_under", tokens=tokens)
        changes = [Change(LeaseKey(JobId(row[0]), row[1]), reason=_LOST_REPLY) for row in found]
        await self.change(TRANSITIONS[Verb.RELEASE], changes)
        # Not those that were not found: they may commit only now, and the sweep needs them then.
        await self.delete_claims(list({change.key.token for change in changes}))
        del self._doubtful[: len(tokens)]


def _lane_values(shares: Sequence[tuple[Lane, int]]) -> dict[str, object]:
    """The lanes of a claim, a column each, and how many jobs it may take of each lane."""
    return {
        "entrypoints": [lane.rule.entrypoint for lane, _ in shares],
        "floors": [lane.floor for lane, _ in shares],
        "floor_ids": [lane.floor_id for lane, _ in shares],
        "ceilings": [lane.ceiling for lane, _ in shares],
        "shares": [share for _, share in shares],
        "max_attempts": [lane.rule.max_attempts for lane, _ in shares],
        "leases": [lane.rule.lease for lane, _ in shares],
        "shortest": min(lane.rule.lease for lane, _ in shares),
    }


async def _lock_limit(inside: Runner, entrypoint: str, wait: str) -> None:
    locked = await inside.run("limit_lock", entrypoint=entrypoint, wait=wait)
    if not locked:
        await inside.run("limit_add", entrypoint=entrypoint)
        locked = await inside.run("limit_lock", entrypoint=entrypoint, wait=wait)
    _check_isolation(entrypoint, locked[0][0])


def _check_isolation(entrypoint: str, found: str) -> None:
    """Refuse a caller's transaction whose snapshot is older than the lock."""
    if found != "read committed":
        raise DatabaseError(
            f"a job of {entrypoint!r}, which has a limit, cannot be claimed in a transaction of "
            f"the isolation level {found}: it counts in an old snapshot; begin the transaction "
            "with isolation level read committed, or give the worker a connection outside any"
        )


def _aging(job: Job, seconds: float) -> bool:
    """Jobs are not renewed before their claim is over, so it must not take long."""
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


def _newest(held: Sequence[LeaseKey]) -> list[LeaseKey]:
    """One lease of each job, sorted by id: of two the newer, which is the one that may be owned."""
    newest = {lease.id: lease for lease in held}
    return [newest[job_id] for job_id in sorted(newest)]


def _owned(batch: Sequence[LeaseKey]) -> dict[str, object]:
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


def _moved(batch: Sequence[LeaseKey], ids: Sequence[int]) -> Sequence[LeaseKey]:
    if len(ids) == len(batch):
        return batch
    found = set(ids)
    return [lease for lease in batch if lease.id in found]
