"""Jobs whose worker is gone: taken back, or held when they keep killing workers."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast.lifecycle import Status, Verb
from holdfast.models import ClaimRule, LogEntry, NewJob, Recovery
from tests.conformance.stores import (
    INSTANT,
    LEASE,
    RULE,
    SECOND,
    change,
    holding,
    ids,
    ledger,
    token_of,
)

if TYPE_CHECKING:
    from holdfast.models import Job
    from tests.conformance.stores import QueueUnderTest


def capped(recoveries: int) -> ClaimRule:
    return ClaimRule("mail", LEASE, max_recoveries=recoveries)


async def died(queue: QueueUnderTest, times: int) -> Job:
    """A job that waits after so many dead leases."""
    job = await queue.lease()
    for number in range(times):
        queue.clock.advance(LEASE)
        assert (await queue.recover(capped(99))).recovered == (job.id,)
        if number + 1 < times:
            [job] = await queue.claim_any()
    return await queue.row(job.id)


async def test_a_lease_lapses_at_its_very_end_and_not_before(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    queue.clock.advance(LEASE - INSTANT)
    assert await queue.recover() == Recovery()
    queue.clock.advance(INSTANT)
    assert await queue.recover() == Recovery(recovered=(job.id,))


async def test_a_recovered_job_waits_again_with_one_recovery_more(queue: QueueUnderTest) -> None:
    job_id = await queue.add()
    before = await queue.row(job_id)
    [job] = await queue.claim()
    queue.clock.advance(LEASE)
    now = queue.clock.now()
    await queue.recover()
    assert await queue.row(job_id) == before._replace(
        recoveries=1, updated=now, last_error="stale claim recovered", last_error_at=now
    )
    [entry] = await queue.store.jobs.history(job_id)
    assert entry == LogEntry(
        id=entry.id,
        job_id=job_id,
        status=Status.QUEUED,
        entrypoint="mail",
        priority=0,
        attempt=0,
        recoveries=0,
        claimed_by="w1",
        claimed_at=job.claimed_at,
        actor=None,
        reason="lease_expired",
        traceback=None,
        created=now,
        **ledger(job),
    )


async def test_an_error_that_the_job_had_before_is_kept(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    await queue.settle(Verb.RETRY, job, error="the real one")
    await queue.claim()
    queue.clock.advance(LEASE)
    await queue.recover()
    row = await queue.row(job.id)
    assert (row.last_error, row.last_error_at) == ("the real one", queue.clock.now())
    assert (row.attempts, row.recoveries) == (1, 1)


async def test_a_crash_loop_ends_in_a_held_job(queue: QueueUnderTest) -> None:
    job = await died(queue, 2)
    [claimed] = await queue.claim_recovered(suspects=True)
    queue.clock.advance(LEASE)
    now = queue.clock.now()
    assert await queue.recover(capped(3)) == Recovery(retired=(job.id,))
    assert await queue.row(job.id) == job._replace(
        status=Status.FAILED, recoveries=3, updated=now, held_at=now, last_error_at=now
    )
    entry = await queue.last_entry(job.id)
    assert (entry.status, entry.reason, entry.recoveries) == (Status.FAILED, "crash_loop", 2)
    assert (entry.claimed_by, entry.claimed_at) == ("w1", claimed.claimed_at)
    assert await queue.claim_any() == []


async def test_a_recovery_tells_how_many_jobs_of_which_entrypoint(queue: QueueUnderTest) -> None:
    text = ClaimRule("text", LEASE)
    await queue.enqueue(NewJob("text", max_recoveries=2))
    await queue.claim(text)
    queue.clock.advance(LEASE)
    assert dict((await queue.recover()).recovered_by_queue) == {"text": 1}
    await queue.claim_recovered(text, suspects=True)
    await queue.enqueue(NewJob("mail"), NewJob("mail"))
    await queue.claim(RULE)
    queue.clock.advance(LEASE)
    recovery = await queue.recover()
    assert dict(recovery.recovered_by_queue) == {"mail": 2}
    assert dict(recovery.retired_by_queue) == {"text": 1}


@pytest.mark.parametrize(
    ("own", "general", "deaths"), [(None, 1, 2), (None, 2, 2), (1, 9, 2), (3, 1, 3)]
)
async def test_the_cap_of_a_row_goes_before_that_of_its_entrypoint(
    queue: QueueUnderTest, own: int | None, general: int, deaths: int
) -> None:
    job_id = await queue.add(max_recoveries=own)
    outcomes = []
    while await queue.claim_any():
        queue.clock.advance(LEASE)
        outcomes.append(await queue.recover(capped(general)))
    survived = [Recovery(recovered=(job_id,))] * (deaths - 1)
    assert outcomes == [*survived, Recovery(retired=(job_id,))]


async def test_any_worker_recovers_jobs_of_entrypoints_it_does_not_know(
    queue: QueueUnderTest,
) -> None:
    job = await queue.lease("sms")
    for deaths in (1, 2, 3):
        queue.clock.advance(LEASE)
        recovery = await queue.recover(RULE)
        assert recovery.recovered + recovery.retired == (job.id,)
        assert bool(recovery.retired) is (deaths == 3)
        await queue.claim_any(ClaimRule("sms", LEASE))


async def test_only_the_leases_that_lapsed_are_taken_back(queue: QueueUnderTest) -> None:
    short, long, renewed = await queue.enqueue(NewJob("mail"), NewJob("sms"), NewJob("mail"))
    jobs = await queue.claim(RULE, ClaimRule("sms", 2 * LEASE))
    assert sorted(ids(jobs)) == [short, long, renewed]
    queue.clock.advance(LEASE / 2)
    await queue.store.leases.renew([holding(job) for job in jobs if job.id == renewed])
    queue.clock.advance(LEASE / 2)
    assert await queue.recover() == Recovery(recovered=(short,))
    queue.clock.advance(LEASE)
    assert await queue.recover() == Recovery(recovered=(long, renewed))


async def test_a_sweep_is_bounded_and_goes_on_where_it_stopped(queue: QueueUnderTest) -> None:
    job_ids = await queue.enqueue(*[NewJob("mail")] * 5)
    await queue.claim()
    queue.clock.advance(LEASE)
    found = [(await queue.recover(limit=2)).recovered for _ in range(4)]
    assert [len(some) for some in found] == [2, 2, 1, 0]
    assert sorted(job_id for some in found for job_id in some) == job_ids


async def test_recovering_again_counts_nothing_again(queue: QueueUnderTest) -> None:
    job = await died(queue, 1)
    before = await queue.rows()
    assert await queue.recover() == Recovery()
    assert await queue.rows() == before
    assert job.recoveries == 1


async def test_a_recovered_job_is_out_of_reach_for_its_old_worker(queue: QueueUnderTest) -> None:
    old = await queue.lease()
    queue.clock.advance(LEASE)
    await queue.recover()
    [new] = await queue.claim_recovered(worker="w2")
    assert new.id == old.id
    assert token_of(new) != token_of(old)
    before = await queue.rows()
    for verb in (Verb.COMPLETE, Verb.RETRY, Verb.FAIL, Verb.HOLD, Verb.RELEASE):
        assert await queue.change(verb, change(old, error="late")) == set()
    assert await queue.store.leases.renew([holding(old)]) == set()
    assert await queue.rows() == before


async def test_all_jobs_of_a_worker_known_to_be_dead_are_taken_back_at_once(
    queue: QueueUnderTest,
) -> None:
    await queue.enqueue(*[NewJob("mail")] * 4)
    dead = [*await queue.claim(limit=1, worker="w1"), *await queue.claim(limit=1, worker="w1")]
    alive = await queue.claim(worker="w2")
    recovery = await queue.recover(worker="w1")
    assert recovery == Recovery(recovered=tuple(ids(dead)))
    assert {(await queue.row(job.id)).recoveries for job in dead} == {1}
    assert [await queue.row(job.id) for job in alive] == alive
    assert await queue.recover(worker="w1") == Recovery()
    assert await queue.recover(worker="unknown") == Recovery()


async def test_a_dead_worker_also_retires_at_the_cap(queue: QueueUnderTest) -> None:
    poison, innocent = await queue.enqueue(NewJob("mail", max_recoveries=2), NewJob("mail"))
    await queue.claim()
    assert await queue.recover(worker="w1") == Recovery(recovered=(poison, innocent))
    assert len(await queue.claim_any()) == 2
    assert await queue.recover(worker="w1") == Recovery(recovered=(innocent,), retired=(poison,))


async def test_settled_jobs_of_a_dead_worker_stay_settled(queue: QueueUnderTest) -> None:
    await queue.enqueue(*[NewJob("mail")] * 3)
    done, released, held = await queue.claim()
    await queue.settle(Verb.COMPLETE, done)
    await queue.settle(Verb.RELEASE, released)
    await queue.settle(Verb.HOLD, held, error="no")
    before = await queue.rows()
    assert await queue.recover(worker="w1") == Recovery()
    queue.clock.advance(LEASE)
    assert await queue.recover() == Recovery()
    assert await queue.rows() == before


async def test_releases_and_retries_are_no_recoveries(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    for verb in (Verb.RELEASE, Verb.RETRY, Verb.RELEASE):
        await queue.settle(verb, job, error="no")
        [job] = await queue.claim()
    assert (job.attempts, job.recoveries) == (1, 0)


async def test_requeuing_gives_a_crash_loop_new_chances(queue: QueueUnderTest) -> None:
    job = await died(queue, 2)
    await queue.claim_any()
    queue.clock.advance(LEASE)
    await queue.recover(capped(3))
    queue.clock.advance(SECOND)
    await queue.queries.requeue_jobs([job.id])
    assert (await queue.row(job.id)).recoveries == 0
    [job] = await queue.claim()
    queue.clock.advance(LEASE)
    assert await queue.recover(capped(3)) == Recovery(recovered=(job.id,))


async def test_after_an_outage_a_holder_has_one_lease_to_renew(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    queue.clock.advance(LEASE * 3)
    assert await queue.recover(contact=SECOND) == Recovery()
    queue.clock.advance(LEASE - SECOND - INSTANT)
    assert await queue.recover(contact=LEASE - INSTANT) == Recovery()
    assert await queue.store.leases.renew([holding(job)]) == {holding(job)}
    queue.clock.advance(INSTANT)
    assert await queue.recover(contact=LEASE) == Recovery()


async def test_a_recovery_after_an_outage_is_not_counted(queue: QueueUnderTest) -> None:
    job_id = await queue.add()
    before = await queue.row(job_id)
    await queue.claim()
    queue.clock.advance(LEASE * 2)
    now = queue.clock.now()
    found = await queue.recover(capped(1), contact=LEASE)
    assert found == Recovery(recovered=(job_id,), excused=(job_id,))
    assert await queue.row(job_id) == before._replace(updated=now)
    [entry] = await queue.store.jobs.history(job_id)
    assert (entry.status, entry.reason, entry.claimed_by) == (Status.QUEUED, "outage", "w1")
    assert ids(await queue.claim()) == [job_id]


async def test_a_lease_that_was_taken_after_the_outage_is_recovered_in_time_and_counted(
    queue: QueueUnderTest,
) -> None:
    job = await queue.lease()
    queue.clock.advance(LEASE)
    # The outage ended at the very instant of the claim.
    assert await queue.recover(contact=LEASE) == Recovery(recovered=(job.id,))
    assert (await queue.row(job.id)).recoveries == 1


async def test_a_worker_known_to_be_dead_has_no_grace_and_is_counted(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    queue.clock.advance(SECOND)
    found = await queue.recover(worker="w1", contact=timedelta(0))
    assert found == Recovery(recovered=(job.id,))
    assert (await queue.row(job.id)).recoveries == 1


async def test_a_sweep_leaves_what_its_own_worker_still_holds(queue: QueueUnderTest) -> None:
    mine, other = await queue.lease(), await queue.lease()
    queue.clock.advance(LEASE)
    assert await queue.recover(held=[holding(mine)]) == Recovery(recovered=(other.id,))
    await queue.settle(Verb.COMPLETE, mine)


async def test_a_sweep_takes_back_a_job_that_its_own_worker_has_lost(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    lost = holding(job)
    await queue.settle(Verb.RELEASE, job)
    await queue.claim(worker="w2")
    queue.clock.advance(LEASE)
    assert await queue.recover(held=[lost]) == Recovery(recovered=(job.id,))


async def test_of_one_claim_only_what_is_still_held_is_left(queue: QueueUnderTest) -> None:
    first, second = await queue.enqueue(NewJob("mail"), NewJob("mail"))
    jobs = {job.id: job for job in await queue.claim()}
    queue.clock.advance(LEASE)
    assert await queue.recover(held=[holding(jobs[first])]) == Recovery(recovered=(second,))
