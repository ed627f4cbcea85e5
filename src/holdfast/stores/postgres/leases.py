"""The worker's statements: claim, renew, change, recover."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from holdfast.clock import monotonic
from holdfast.lifecycle import TRANSITIONS, Transition, Verb
from holdfast.models import Change, Held, Job, JobId, Recovery, Want, WorkerInfo
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.lanes import Lane, Lanes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime, timedelta

    from holdfast.settings import Names
    from holdfast.stores.postgres.runner import Runner

_DEFAULT_MAX_RECOVERIES = 3
_LOST_REPLY = "claim reply lost"


class PostgresLeases:
    """Leases on one set of tables through one driver. Not shared between event loops."""

    def __init__(self, runner: Runner, names: Names) -> None:
        self._runner = runner
        self._names = names
        self._lanes = Lanes()
        self._doubtful: list[UUID] = []

    async def claim(
        self, wants: Sequence[Want], *, limit: int, worker: str, sweep: bool = False
    ) -> list[Job]:
        if self._doubtful:
            await self._hand_back_doubtful()
        swept = False
        jobs: list[Job] = []
        began = monotonic()
        if sweep or not self._lanes.knows(wants) or self._lanes.overdue():
            await self._sweep(wants)
            swept = True
        else:
            self._lanes.reopen()
        jobs += await self._take(limit, worker)
        if len(jobs) < limit and not swept and self._lanes.may_sweep():
            began = monotonic()
            await self._sweep(wants)
            swept = True
            jobs += await self._take(limit - len(jobs), worker)
        if swept:
            self._lanes.swept(monotonic() - began)
        elif len(jobs) < limit:
            self._lanes.put_off = True
        # Only now: had a later statement failed, the jobs of the earlier ones would be nobody's.
        self._doubtful.clear()
        jobs.sort(key=lambda job: (-job.priority, job.execute_after, job.id))
        return jobs

    async def next_due(self, wants: Sequence[Want]) -> timedelta | None:
        return self._lanes.next_look()

    async def renew(self, held: Sequence[Held]) -> set[Held]:
        owned: set[Held] = set()
        for batch in without_twins(held):
            ids, tokens = [lease.id for lease in batch], [lease.token for lease in batch]
            moved = {row[0] for row in await self._runner.run(Verb.RENEW, ids=ids, tokens=tokens)}
            owned |= {lease for lease in batch if lease.id in moved}
        return owned

    async def change(self, transition: Transition, changes: Sequence[Change]) -> set[Held]:
        by_lease = {change.held: change for change in changes}
        done: set[Held] = set()
        for batch in without_twins(by_lease):
            values = self._change_values(transition, [by_lease[lease] for lease in batch])
            moved = {row[0] for row in await self._runner.run(transition.name, **values)}
            done |= {lease for lease in batch if lease.id in moved}
        return done

    def _change_values(
        self, transition: Transition, changes: Sequence[Change]
    ) -> dict[str, object]:
        values: dict[str, object] = {
            "ids": [change.id for change in changes],
            "tokens": [change.token for change in changes],
            "reasons": [change.reason for change in changes],
            "tracebacks": [rows.traceback(change.traceback) for change in changes],
        }
        if not transition.leaves:
            values |= {
                "delays": [change.delay for change in changes],
                "errors": [change.error for change in changes],
                "max_attempts": [change.max_attempts for change in changes],
                "channel": self._names.channel,
            }
        return values

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
        await self._runner.run("forget_ended")
        target = TRANSITIONS[Verb.RECOVER].target
        return Recovery(
            recovered=tuple(JobId(row[0]) for row in found if row[1] == target),
            retired=tuple(JobId(row[0]) for row in found if row[1] != target),
        )

    async def housekeep(self) -> None:
        await self._runner.run("aggregate")
        await self._runner.run("forget_workers")

    async def report(self, worker: WorkerInfo) -> None:
        await self._runner.run("report", **worker._asdict())

    async def farewell(self, worker: str) -> None:
        await self._runner.run("farewell", id=worker)

    async def _sweep(self, wants: Sequence[Want]) -> None:
        found = await self._runner.run("lanes", entrypoints=[want.entrypoint for want in wants])
        self._lanes.reset(wants, ((row[0], row[1], row[2]) for row in found))

    async def _take(self, limit: int, worker: str) -> list[Job]:
        """Highest priority first; as long as there is room and a lane that may have more."""
        jobs: list[Job] = []
        for priority in self._lanes.priorities():
            while len(jobs) < limit:
                hand = self._lanes.deal(priority, limit - len(jobs))
                if not hand:
                    break
                jobs += await self._take_hand(priority, hand, worker)
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
        async with self._runner.driver.transaction() as tx:
            await tx.fetch(
                "select pg_advisory_xact_lock(hashtextextended($1, 0))",
                [f"holdfast limit {self._names.table()} {name}"],
            )
            inside = self._runner.over(tx)
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
            "shares": [share for _, share in hand],
            "max_attempts": [lane.want.max_attempts for lane, _ in hand],
            "leases": [lane.want.lease for lane, _ in hand],
            "shortest": min(lane.want.lease for lane, _ in hand),
        }
        # Until the reply is here and committed, nobody knows whether the claim happened.
        self._doubtful.append(token)
        found = await runner.run(Verb.CLAIM, **values)
        jobs = [rows.job(row) for row in found]
        keys: dict[str, list[tuple[datetime, JobId]]] = defaultdict(list)
        for job in jobs:
            keys[job.entrypoint].append((job.execute_after, job.id))
        for lane, share in hand:
            lane.took(keys[lane.want.entrypoint], share)
        return jobs

    async def _hand_back_doubtful(self) -> None:
        """Release what claims took whose replies never came."""
        tokens = list(self._doubtful)
        found = await self._runner.run("claimed_under", tokens=tokens)
        changes = [Change(JobId(row[0]), row[1], reason=_LOST_REPLY) for row in found]
        await self.change(TRANSITIONS[Verb.RELEASE], changes)
        await self.forget(tokens)
        del self._doubtful[: len(tokens)]


def without_twins(leases: Iterable[Held]) -> list[list[Held]]:
    """Sorted batches in which no id occurs twice, as the statements need them.

    Sorted also means that all statements lock rows in one order, so that no two can deadlock. A
    worker has two leases on one job only when it lost the first and claimed the job again.
    """
    ordered = sorted(leases)
    batches: list[list[Held]] = []
    while ordered:
        batch = [lease for n, lease in enumerate(ordered) if not n or ordered[n - 1].id != lease.id]
        batches.append(batch)
        ordered = [] if len(batch) == len(ordered) else sorted(set(ordered) - set(batch))
    return batches
