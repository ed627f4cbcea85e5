"""Two sessions stepped by hand through every race that a lease can run into."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.clock import ManualClock
from holdfast.lifecycle import LIFECYCLE, TRANSITIONS, Guard, Status, Verb
from holdfast.models import Change, Held, Job, JobId, NewJob, Requeued, Want
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from holdfast.stores.postgres.store import PostgresStore
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from holdfast.lifecycle import Transition
    from tests.servers import Database

LEASE = timedelta(seconds=30)
WANT = Want("mail", lease=LEASE)
PATIENCE = 10.0

COMPLETE, RETRY, HOLD = (TRANSITIONS[verb] for verb in (Verb.COMPLETE, Verb.RETRY, Verb.HOLD))
CANCEL, DELETE = TRANSITIONS[Verb.CANCEL], TRANSITIONS[Verb.DELETE]
OWNED = [row for row in LIFECYCLE if Guard.OWNED in row.guards and row.verb is not Verb.RENEW]


@dataclass(frozen=True)
class Session:
    """One connection and the store over it."""

    connection: Any
    store: PostgresStore

    @property
    def pid(self) -> int:
        return int(self.connection.get_server_pid())

    async def claim(self, limit: int = 100, worker: str = "worker", want: Want = WANT) -> list[Job]:
        return await self.store.leases.claim([want], limit=limit, worker=worker, sweep=True)

    async def change(self, transition: Transition, *jobs: Job) -> set[Held]:
        return await self.store.leases.change(transition, [change_of(job) for job in jobs])

    async def remove(self, transition: Transition, *jobs: Job) -> set[JobId]:
        ids = [job.id for job in jobs]
        return await self.store.jobs.remove(transition, ids, actor=None, reason=None)

    async def requeue(self, *ids: JobId) -> dict[JobId, Requeued]:
        return await self.store.jobs.requeue(ids, actor=None, reason=None)


@dataclass(frozen=True)
class Stage:
    """Two sessions that race, a third that looks on, and the clock of all three."""

    a: Session
    b: Session
    observer: Any
    clock: ManualClock

    async def enqueue(
        self, number: int = 1, entrypoint: str = "mail", key: str | None = None
    ) -> None:
        jobs = [NewJob(entrypoint, dedupe_key=key) for _ in range(number)]
        await self.a.store.jobs.insert(jobs, "raise")

    async def queue(self) -> list[Job]:
        return await tables.queue(self.observer)

    async def log_of(self, job: Job) -> list[Status]:
        return [entry.status for entry in await tables.log(self.observer) if entry.job_id == job.id]

    async def begin(self, work: Coroutine[Any, Any, Any], session: Session) -> asyncio.Task[Any]:
        """Start something in a session and return when it waits for another's lock."""
        task = asyncio.create_task(work)
        async with asyncio.timeout(PATIENCE):
            while not await self._waits(session.pid):
                assert not task.done(), f"nothing was waited for: {task.result()!r}"
        return task

    async def _waits(self, pid: int) -> bool:
        kind = await self.observer.fetchval(
            "select wait_event_type from pg_stat_activity where pid = $1", pid
        )
        return bool(kind == "Lock")


def change_of(job: Job) -> Change:
    assert job.claim_token is not None
    return Change(job.id, job.claim_token, error="stale", reason="stale", max_attempts=25)


def held(*jobs: Job) -> set[Held]:
    return {Held(job.id, job.claim_token) for job in jobs if job.claim_token}


@pytest.fixture
async def stage(pg: Database) -> AsyncIterator[Stage]:
    clock = ManualClock()
    async with (
        tables.installed(pg.dsn, clock) as (first, a),
        tables.session(pg.dsn) as second,
        tables.session(pg.dsn) as observer,
    ):
        b = PostgresStore(AsyncpgDriver(second), tables.NAMES, clock=clock)
        yield Stage(Session(first, a), Session(second, b), observer, clock)


async def claimed_again(stage: Stage) -> tuple[Job, Job]:
    """A job whose first lease went stale and whose second one is live."""
    await stage.enqueue()
    [first] = await stage.a.claim(worker="first")
    stage.clock.advance(LEASE)
    recovery = await stage.b.store.leases.recover([WANT])
    assert recovery.recovered == (first.id,)
    [second] = await stage.b.claim(worker="second")
    assert (second.id, second.recoveries) == (first.id, 1)
    return first, second


@pytest.mark.parametrize("transition", OWNED, ids=lambda transition: transition.name)
async def test_a_stale_outcome_changes_nothing_in_any_table(
    stage: Stage, transition: Transition
) -> None:
    first, second = await claimed_again(stage)
    before = await tables.dump(stage.observer)
    assert await stage.a.change(transition, first) == set()
    assert await tables.dump(stage.observer) == before
    assert await stage.b.change(COMPLETE, second) == held(second)


async def test_a_stale_heartbeat_changes_nothing_in_any_table(stage: Stage) -> None:
    first, second = await claimed_again(stage)
    before = await tables.dump(stage.observer)
    assert await stage.a.store.leases.renew(list(held(first))) == set()
    assert await tables.dump(stage.observer) == before
    assert await stage.b.store.leases.renew(list(held(second))) == held(second)


@pytest.mark.parametrize("transition", OWNED, ids=lambda transition: transition.name)
async def test_an_outcome_of_a_job_that_was_cancelled_meanwhile_changes_nothing(
    stage: Stage, transition: Transition
) -> None:
    await stage.enqueue()
    [job] = await stage.a.claim()
    assert await stage.b.remove(CANCEL, job) == {job.id}
    before = await tables.dump(stage.observer)
    assert await stage.a.change(transition, job) == set()
    assert await stage.a.store.leases.renew(list(held(job))) == set()
    assert await tables.dump(stage.observer) == before


@pytest.mark.parametrize("transition", OWNED, ids=lambda transition: transition.name)
async def test_an_outcome_that_waited_while_the_lease_was_lost_changes_nothing(
    stage: Stage, transition: Transition
) -> None:
    """The token is judged under the row's lock, not when the statement began."""
    await stage.enqueue()
    [job] = await stage.a.claim(worker="first")
    stage.clock.advance(LEASE)
    async with stage.b.connection.transaction():
        await stage.b.store.leases.recover([WANT])
        [again] = await stage.b.claim(worker="second")
        late = await stage.begin(stage.a.change(transition, job), stage.a)
    before = await tables.dump(stage.observer)
    assert await late == set()
    assert await tables.dump(stage.observer) == before
    assert await stage.b.change(COMPLETE, again) == held(again)


async def test_a_heartbeat_that_waited_while_the_lease_was_lost_changes_nothing(
    stage: Stage,
) -> None:
    await stage.enqueue()
    [job] = await stage.a.claim(worker="first")
    stage.clock.advance(LEASE)
    async with stage.b.connection.transaction():
        await stage.b.store.leases.recover([WANT])
        await stage.b.claim(worker="second")
        late = await stage.begin(stage.a.store.leases.renew(list(held(job))), stage.a)
    before = await tables.dump(stage.observer)
    assert await late == set()
    assert await tables.dump(stage.observer) == before


async def test_a_heartbeat_on_its_way_does_not_keep_an_outcome_from_being_written(
    stage: Stage,
) -> None:
    await stage.enqueue()
    [job] = await stage.a.claim()
    stage.clock.advance(timedelta(seconds=1))
    async with stage.b.connection.transaction():
        assert await stage.b.store.leases.renew(list(held(job))) == held(job)
        outcome = await stage.begin(stage.a.change(COMPLETE, job), stage.a)
    assert await outcome == held(job)
    assert await stage.log_of(job) == [Status.SUCCESSFUL]
    assert await stage.queue() == []


@pytest.mark.parametrize("transition", [RETRY, HOLD], ids=["retry", "hold"])
async def test_a_heartbeat_on_its_way_does_not_keep_a_job_from_going_back(
    stage: Stage, transition: Transition
) -> None:
    await stage.enqueue()
    [job] = await stage.a.claim()
    stage.clock.advance(timedelta(seconds=1))
    async with stage.b.connection.transaction():
        assert await stage.b.store.leases.renew(list(held(job))) == held(job)
        outcome = await stage.begin(stage.a.change(transition, job), stage.a)
    assert await outcome == held(job)
    [row] = await stage.queue()
    assert (row.status, row.heartbeat) == (transition.target, None)


async def test_a_heartbeat_that_waited_for_the_outcome_finds_the_lease_gone(stage: Stage) -> None:
    await stage.enqueue()
    [job] = await stage.a.claim()
    async with stage.a.connection.transaction():
        assert await stage.a.change(COMPLETE, job) == held(job)
        renewal = await stage.begin(stage.b.store.leases.renew(list(held(job))), stage.b)
    assert await renewal == set()


async def test_a_sweep_passes_over_a_job_whose_outcome_is_being_written(stage: Stage) -> None:
    await stage.enqueue(2)
    done, dead = await stage.a.claim()
    stage.clock.advance(LEASE)
    async with stage.a.connection.transaction():
        assert await stage.a.change(COMPLETE, done) == held(done)
        recovery = await stage.b.store.leases.recover([WANT])
    assert recovery.recovered == (dead.id,)
    assert await stage.log_of(done) == [Status.SUCCESSFUL]


async def test_a_sweep_passes_over_a_job_whose_heartbeat_is_being_written(stage: Stage) -> None:
    await stage.enqueue()
    [job] = await stage.a.claim()
    stage.clock.advance(LEASE)
    async with stage.a.connection.transaction():
        assert await stage.a.store.leases.renew(list(held(job))) == held(job)
        assert (await stage.b.store.leases.recover([WANT])).recovered == ()
    assert (await stage.b.store.leases.recover([WANT])).recovered == ()
    assert await stage.a.change(COMPLETE, job) == held(job)


async def test_two_sweeps_at_once_recover_each_job_once(stage: Stage) -> None:
    await stage.enqueue(6)
    jobs = await stage.a.claim()
    stage.clock.advance(LEASE)
    async with stage.a.connection.transaction():
        mine = await stage.a.store.leases.recover([WANT], limit=4)
        other = await stage.b.store.leases.recover([WANT])
    assert len(mine.recovered) == 4
    assert sorted(mine.recovered + other.recovered) == [job.id for job in jobs]
    assert {job.recoveries for job in await stage.queue()} == {1}
    assert len(await tables.log(stage.observer)) == 6


async def test_a_cancellation_that_waited_for_the_outcome_finds_nothing_to_cancel(
    stage: Stage,
) -> None:
    await stage.enqueue()
    [job] = await stage.a.claim()
    async with stage.a.connection.transaction():
        await stage.a.change(COMPLETE, job)
        cancelling = await stage.begin(stage.b.remove(CANCEL, job), stage.b)
    assert await cancelling == set()
    assert await stage.log_of(job) == [Status.SUCCESSFUL]


async def test_an_outcome_that_waited_for_a_cancellation_is_not_written(stage: Stage) -> None:
    await stage.enqueue()
    [job] = await stage.a.claim()
    async with stage.b.connection.transaction():
        await stage.b.remove(CANCEL, job)
        outcome = await stage.begin(stage.a.change(COMPLETE, job), stage.a)
    assert await outcome == set()
    assert await stage.log_of(job) == [Status.CANCELED]


async def test_a_deletion_that_waited_for_a_claim_lets_the_job_run(stage: Stage) -> None:
    await stage.enqueue()
    [job] = await stage.queue()
    async with stage.a.connection.transaction():
        [claimed] = await stage.a.claim()
        deleting = await stage.begin(stage.b.remove(DELETE, job), stage.b)
    assert await deleting == set()
    assert await stage.a.change(COMPLETE, claimed) == held(claimed)


async def test_a_cancellation_that_waited_for_a_claim_cancels_the_claimed_job(
    stage: Stage,
) -> None:
    await stage.enqueue()
    [job] = await stage.queue()
    async with stage.a.connection.transaction():
        [claimed] = await stage.a.claim()
        cancelling = await stage.begin(stage.b.remove(CANCEL, job), stage.b)
    assert await cancelling == {job.id}
    assert await stage.a.change(COMPLETE, claimed) == set()
    assert await stage.log_of(job) == [Status.CANCELED]


async def test_a_claim_passes_over_a_job_that_is_being_cancelled(stage: Stage) -> None:
    await stage.enqueue(2)
    doomed, other = await stage.queue()
    async with stage.a.connection.transaction():
        await stage.a.remove(CANCEL, doomed)
        assert [job.id for job in await stage.b.claim()] == [other.id]
    assert await stage.b.claim() == []


async def test_two_claims_at_once_share_the_jobs_and_none_waits(stage: Stage) -> None:
    await stage.enqueue(10)
    async with stage.a.connection.transaction():
        mine = await stage.a.claim(limit=4)
        others = await stage.b.claim(limit=100)
    assert [len(mine), len(others)] == [4, 6]
    assert {job.id for job in mine}.isdisjoint(job.id for job in others)
    assert {job.claim_token for job in mine}.isdisjoint(job.claim_token for job in others)


async def test_a_claim_that_was_rolled_back_leaves_its_jobs_to_others(stage: Stage) -> None:
    await stage.enqueue(3)
    transaction = stage.a.connection.transaction()
    await transaction.start()
    [lost] = await stage.a.claim(limit=1)
    await transaction.rollback()
    assert len(await stage.b.claim()) == 3
    assert await stage.a.change(COMPLETE, lost) == set()
