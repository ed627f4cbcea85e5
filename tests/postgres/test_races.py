"""Two sessions stepped by hand through every race that a lease can run into."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import DuplicateJobError
from holdfast.lifecycle import FINAL, LIFECYCLE, TRANSITIONS, Guard, Status, Verb
from holdfast.models import ClaimRule, Job, Moved, NewJob, OnConflict, Requeued
from tests.postgres import tables
from tests.postgres.stage import LEASE, RULE, held, stage_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence

    from holdfast.lifecycle import Transition
    from holdfast.models import Change, JobId, LeaseKey
    from tests.postgres.stage import Stage
    from tests.servers import Database

COMPLETE, RETRY, HOLD = (TRANSITIONS[verb] for verb in (Verb.COMPLETE, Verb.RETRY, Verb.HOLD))
CANCEL, DELETE = TRANSITIONS[Verb.CANCEL], TRANSITIONS[Verb.DELETE]
OWNED_AND_STAYING = [HOLD, RETRY, TRANSITIONS[Verb.RELEASE]]
OWNED = [row for row in LIFECYCLE if Guard.OWNED in row.guards and row.verb is not Verb.RENEW]


@pytest.fixture
async def stage(pg: Database) -> AsyncIterator[Stage]:
    async with stage_on(pg.dsn) as here:
        yield here


async def claimed_again(stage: Stage) -> tuple[Job, Job]:
    """A job whose first lease went stale and whose second one is live."""
    await stage.enqueue()
    [first] = await stage.a.claim(worker="first")
    stage.clock.advance(LEASE)
    recovery = await stage.b.store.leases.recover([RULE])
    assert recovery.recovered == (first.id,)
    [second] = await stage.b.claim_recovered(worker="second")
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
    assert await stage.b.change(transition, second) == held(second)


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
        await stage.b.store.leases.recover([RULE])
        [again] = await stage.b.claim_recovered(worker="second")
        late = await stage.begin(stage.a.change(transition, job), stage.a)
    before = await tables.dump(stage.observer)
    assert await late == set()
    assert await tables.dump(stage.observer) == before
    assert await stage.b.change(transition, again) == held(again)


async def test_a_heartbeat_that_waited_while_the_lease_was_lost_changes_nothing(
    stage: Stage,
) -> None:
    await stage.enqueue()
    [job] = await stage.a.claim(worker="first")
    stage.clock.advance(LEASE)
    async with stage.b.connection.transaction():
        await stage.b.store.leases.recover([RULE])
        await stage.b.claim_recovered(worker="second")
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
        recovery = await stage.b.store.leases.recover([RULE])
    assert recovery.recovered == (dead.id,)
    assert await stage.log_of(done) == [Status.SUCCESSFUL]


async def test_a_sweep_passes_over_a_job_whose_heartbeat_is_being_written(stage: Stage) -> None:
    await stage.enqueue()
    [job] = await stage.a.claim()
    stage.clock.advance(LEASE)
    async with stage.a.connection.transaction():
        assert await stage.a.store.leases.renew(list(held(job))) == held(job)
        assert (await stage.b.store.leases.recover([RULE])).recovered == ()
    assert (await stage.b.store.leases.recover([RULE])).recovered == ()
    assert await stage.a.change(COMPLETE, job) == held(job)


async def test_two_sweeps_at_once_recover_each_job_once(stage: Stage) -> None:
    await stage.enqueue(6)
    jobs = await stage.a.claim()
    stage.clock.advance(LEASE)
    async with stage.a.connection.transaction():
        mine = await stage.a.store.leases.recover([RULE], limit=4)
        other = await stage.b.store.leases.recover([RULE])
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


async def test_a_claim_that_commits_while_it_is_looked_for_is_left_to_the_sweep(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reply was lost; to forget it now would hide its jobs for ever."""
    await stage.enqueue()
    leases, slow = stage.a.store.leases, stage.b.connection.transaction()
    await slow.start()
    [job] = await stage.b.claim()
    assert job.claim_token is not None
    leases._doubtful.append(job.claim_token)
    change = leases.change

    async def commit_first(transition: Transition, changes: Sequence[Change]) -> list[LeaseKey]:
        assert changes == []
        await slow.commit()
        return await change(transition, changes)

    monkeypatch.setattr(leases, "change", commit_first)
    await leases.recall()
    stage.clock.advance(LEASE)
    assert (await leases.recover([RULE])).recovered == (job.id,)


LIMITED = ClaimRule("mail", lease=LEASE, concurrency_limit=2)


async def test_two_limited_claims_at_once_never_exceed_the_limit(stage: Stage) -> None:
    await stage.enqueue(5)
    async with stage.a.connection.transaction():
        mine = await stage.a.claim(rule=LIMITED)
        late = await stage.begin(stage.b.claim(rule=LIMITED), stage.b)
    assert len(mine) == 2
    assert await late == []
    await stage.a.change(COMPLETE, mine[0])
    assert len(await stage.b.claim(rule=LIMITED)) == 1


async def test_a_limited_claim_that_was_rolled_back_counts_for_nothing(stage: Stage) -> None:
    await stage.enqueue(5)
    transaction = stage.a.connection.transaction()
    await transaction.start()
    assert len(await stage.a.claim(rule=LIMITED)) == 2
    late = await stage.begin(stage.b.claim(rule=LIMITED), stage.b)
    await transaction.rollback()
    assert len(await late) == 2


async def test_a_claim_goes_on_without_a_limit_that_another_transaction_has_locked(
    stage: Stage,
) -> None:
    """Such as a worker that froze; what was claimed before must not grow old meanwhile."""
    limited = ClaimRule("mail", lease=timedelta(seconds=1), concurrency_limit=2)
    await stage.enqueue(3)
    await stage.enqueue(1, "free")
    async with stage.a.connection.transaction():
        assert len(await stage.a.claim(limit=1, rule=limited)) == 1
        rules = [limited, ClaimRule("free", lease=timedelta(seconds=1))]
        claimed = await stage.b.store.leases.claim(rules, limit=9, worker="b", sweep=True)
        assert [job.entrypoint for job in claimed] == ["free"]
        # The rest is worth another look soon.
        assert await stage.b.store.leases.next_due(rules) is not None
    later = await stage.b.store.leases.claim(rules, limit=9, worker="b", sweep=True)
    assert [job.entrypoint for job in later] == ["mail"]


async def test_a_limit_counts_a_lease_until_its_end_is_committed(stage: Stage) -> None:
    await stage.enqueue(3)
    running = await stage.a.claim(rule=LIMITED)
    async with stage.a.connection.transaction():
        await stage.a.change(COMPLETE, *running)
        assert await stage.b.claim(rule=LIMITED) == []
    assert len(await stage.b.claim(rule=LIMITED)) == 1


async def held_with_key(stage: Stage, key: str) -> Job:
    await stage.enqueue(key=key)
    [job] = await stage.a.claim()
    await stage.a.change(HOLD, job)
    return job


async def test_a_requeue_that_meets_an_enqueue_of_its_key_looks_again(stage: Stage) -> None:
    job = await held_with_key(stage, "k")
    async with stage.a.connection.transaction():
        await stage.enqueue(key="k")
        requeueing = await stage.begin(stage.b.requeue(job.id), stage.b)
    assert await requeueing == {job.id: Requeued.KEY_TAKEN}
    assert await stage.log_of(job) == [Status.FAILED]


async def test_a_requeue_goes_through_when_the_enqueue_of_its_key_is_undone(stage: Stage) -> None:
    job = await held_with_key(stage, "k")
    transaction = stage.a.connection.transaction()
    await transaction.start()
    await stage.enqueue(key="k")
    requeueing = await stage.begin(stage.b.requeue(job.id), stage.b)
    await transaction.rollback()
    assert await requeueing == {job.id: Requeued.REQUEUED}


async def test_a_requeue_in_a_transaction_of_the_caller_survives_a_taken_key(stage: Stage) -> None:
    job = await held_with_key(stage, "k")
    async with stage.b.connection.transaction():
        async with stage.a.connection.transaction():
            await stage.enqueue(key="k")
            requeueing = await stage.begin(stage.b.requeue(job.id), stage.b)
        assert await requeueing == {job.id: Requeued.KEY_TAKEN}
        assert await stage.b.connection.fetchval("select 1") == 1


async def test_an_enqueue_that_meets_a_requeue_of_its_key_finds_it_taken(stage: Stage) -> None:
    job = await held_with_key(stage, "k")
    new = [NewJob("mail", dedupe_key="k")]
    conflicts: tuple[OnConflict, ...] = ("raise", "skip")
    for conflict in conflicts:
        async with stage.a.connection.transaction():
            assert await stage.a.requeue(job.id) == {job.id: Requeued.REQUEUED}
            enqueueing = await stage.begin(stage.b.store.jobs.insert(new, conflict), stage.b)
        if conflict == "skip":
            assert await enqueueing == [None]
        else:
            with pytest.raises(DuplicateJobError, match="'k'"):
                await enqueueing
        [again] = await stage.a.claim()
        await stage.a.change(HOLD, again)


async def test_of_two_held_jobs_with_one_key_two_requeues_at_once_free_only_one(
    stage: Stage,
) -> None:
    first, second = await held_with_key(stage, "k"), await held_with_key(stage, "k")
    async with stage.a.connection.transaction():
        assert await stage.a.requeue(first.id) == {first.id: Requeued.REQUEUED}
        requeueing = await stage.begin(stage.b.requeue(second.id), stage.b)
    assert await requeueing == {second.id: Requeued.KEY_TAKEN}


async def test_a_requeue_that_waited_while_a_picked_job_was_held_requeues_it(
    stage: Stage,
) -> None:
    """The statement saw it picked; under its lock it is held."""
    await stage.enqueue(2)
    held_before, running = await stage.a.claim()
    await stage.a.change(HOLD, held_before)
    async with stage.a.connection.transaction():
        await stage.a.change(HOLD, running)
        requeueing = await stage.begin(stage.b.requeue(held_before.id, running.id), stage.b)
    assert await requeueing == {
        held_before.id: Requeued.REQUEUED,
        running.id: Requeued.REQUEUED,
    }
    assert [job.status for job in await stage.queue()] == [Status.QUEUED] * 2


async def test_of_two_schedulers_one_turns_a_tick_into_a_job(stage: Stage) -> None:
    now = stage.clock.now()
    a, b = stage.a.store.schedules, stage.b.store.schedules
    schedule = await a.register("report", "* * * * *", "UTC", "once", "allow", now)
    later = now + timedelta(minutes=1)
    async with stage.a.connection.transaction():
        won = await a.advance(schedule, [now], later)
        assert await b.advance(schedule, [now], later) is None
    assert won is not None
    assert [job.id for job in await stage.queue()] == won
    assert await b.advance(schedule, [now], later) is None
    [after] = await b.all()
    assert (after.next_run, after.last_run) == (later, now)


async def test_a_tick_whose_scheduler_died_is_left_to_another(stage: Stage) -> None:
    now = stage.clock.now()
    a, b = stage.a.store.schedules, stage.b.store.schedules
    schedule = await a.register("report", "* * * * *", "UTC", "once", "allow", now)
    transaction = stage.a.connection.transaction()
    await transaction.start()
    await a.advance(schedule, [now], now + timedelta(minutes=1))
    await transaction.rollback()
    assert await b.advance(schedule, [now], now + timedelta(minutes=1)) is not None
    assert len(await stage.queue()) == 1


def moves(stage: Stage, *jobs: Job, force: bool = False) -> Coroutine[Any, Any, dict[JobId, Moved]]:
    """Session b moves these jobs to another entrypoint."""
    ids = [job.id for job in jobs]
    return stage.b.store.jobs.move(ids, "other", actor=None, reason=None, force=force)


async def test_a_move_that_waited_while_a_picked_job_was_held_moves_it(stage: Stage) -> None:
    await stage.enqueue(2)
    waiting, running = await stage.queue()
    [claimed] = await stage.a.claim(limit=1)
    async with stage.a.connection.transaction():
        await stage.a.change(HOLD, claimed)
        moving = await stage.begin(moves(stage, waiting, running), stage.b)
    assert await moving == {waiting.id: Moved.MOVED, running.id: Moved.MOVED}
    assert {(job.status, job.entrypoint) for job in await stage.queue()} == {
        (Status.QUEUED, "other")
    }


async def test_a_move_that_waited_for_a_claim_leaves_the_job_to_its_worker(stage: Stage) -> None:
    await stage.enqueue()
    [job] = await stage.queue()
    async with stage.a.connection.transaction():
        [claimed] = await stage.a.claim()
        moving = await stage.begin(moves(stage, job), stage.b)
    assert await moving == {job.id: Moved.LEASED}
    assert await stage.a.change(COMPLETE, claimed) == held(claimed)


async def test_a_move_that_waited_for_a_heartbeat_leaves_the_job_to_its_worker(
    stage: Stage,
) -> None:
    await stage.enqueue()
    [job] = await stage.a.claim()
    stage.clock.advance(LEASE)
    async with stage.a.connection.transaction():
        assert await stage.a.store.leases.renew(list(held(job))) == held(job)
        moving = await stage.begin(moves(stage, job), stage.b)
    assert await moving == {job.id: Moved.LEASED}
    assert await stage.a.change(COMPLETE, job) == held(job)


async def test_a_move_that_waited_for_an_outcome_finds_no_job(stage: Stage) -> None:
    await stage.enqueue()
    [job] = await stage.a.claim()
    async with stage.a.connection.transaction():
        await stage.a.change(COMPLETE, job)
        moving = await stage.begin(moves(stage, job, force=True), stage.b)
    assert await moving == {job.id: Moved.NOT_FOUND}
    assert await stage.log_of(job) == [Status.SUCCESSFUL]


async def test_an_outcome_that_waited_for_a_move_is_not_written(stage: Stage) -> None:
    await stage.enqueue()
    [job] = await stage.a.claim()
    async with stage.b.connection.transaction():
        assert await moves(stage, job, force=True) == {job.id: Moved.MOVED}
        outcome = await stage.begin(stage.a.change(COMPLETE, job), stage.a)
    assert await outcome == set()
    assert await stage.log_of(job) == [Status.QUEUED]


async def test_a_release_of_a_worker_passes_over_a_job_that_another_has_by_now(
    stage: Stage,
) -> None:
    await stage.enqueue()
    [job] = await stage.a.claim(worker="dead")
    stage.clock.advance(LEASE)
    async with stage.a.connection.transaction():
        await stage.a.store.leases.recover([RULE])
        [again] = await stage.a.store.leases.claim_recovered(
            [RULE], limit=1, worker="alive", suspects=False
        )
        release = stage.b.store.jobs.move([job.id], None, actor=None, reason=None, worker="dead")
        releasing = await stage.begin(release, stage.b)
    assert await releasing == {job.id: Moved.LEASED}
    assert await stage.a.change(COMPLETE, again) == held(again)


async def test_an_edit_that_waited_for_a_requeue_changes_nothing(stage: Stage) -> None:
    await stage.enqueue()
    [job] = await stage.a.claim()
    await stage.a.change(HOLD, job)
    async with stage.a.connection.transaction():
        await stage.a.requeue(job.id)
        edit = stage.b.store.jobs.edit(job.id, b"new", actor=None, reason=None)
        editing = await stage.begin(edit, stage.b)
    assert await editing is False
    [row] = await stage.queue()
    assert row.payload is None


ROUNDS, JOBS = 60, 12


async def test_every_id_has_an_outcome_whatever_the_others_do(stage: Stage) -> None:
    """A worker claims, holds and releases while an operator acts on all ids, again and again."""
    await stage.enqueue(JOBS)
    ids = [job.id for job in await stage.queue()]
    over = asyncio.Event()

    async def work() -> None:
        rules = [RULE, ClaimRule("other", lease=LEASE)]
        while not over.is_set():
            jobs = await stage.a.store.leases.claim(rules, limit=JOBS, worker="w", sweep=True)
            for place, job in enumerate(jobs):
                await stage.a.change(OWNED_AND_STAYING[place % len(OWNED_AND_STAYING)], job)

    async def operate() -> None:
        jobs = stage.b.store.jobs
        for turn in range(ROUNDS):
            stage.clock.advance(timedelta(seconds=1))
            assert set(await jobs.requeue(ids, actor="ann", reason=None)) == set(ids)
            name = ("other", "mail")[turn % 2]
            moved = await jobs.move(ids, name, actor="ann", reason=None, force=turn % 3 == 0)
            assert set(moved) == set(ids)
            await jobs.edit(ids[turn % JOBS], b"new", actor="ann", reason=None)
        # The last act takes them all out, whoever has them.
        assert await jobs.remove(CANCEL, ids, actor="ann", reason=None) == set(ids)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        working = group.create_task(work())
        try:
            await operate()
        finally:
            over.set()
        await working
    assert await stage.queue() == []
    ends = [entry for entry in await tables.log(stage.observer) if entry.status in FINAL]
    assert sorted(entry.job_id for entry in ends) == sorted(ids)
