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
    SECOND,
    WANT,
    change,
    holding,
    ids,
    ledger,
    token_of,
)

if TYPE_CHECKING:
    from holdfast.models import Job
    from tests.conformance.stores import Rig


def capped(recoveries: int) -> ClaimRule:
    return ClaimRule("mail", LEASE, max_recoveries=recoveries)


async def died(rig: Rig, times: int) -> Job:
    """A job that waits after so many dead leases."""
    job = await rig.lease()
    for number in range(times):
        rig.clock.advance(LEASE)
        assert (await rig.recover(capped(99))).recovered == (job.id,)
        if number + 1 < times:
            [job] = await rig.claim_any()
    return await rig.row(job.id)


async def test_a_lease_lapses_at_its_very_end_and_not_before(rig: Rig) -> None:
    job = await rig.lease()
    rig.clock.advance(LEASE - INSTANT)
    assert await rig.recover() == Recovery()
    rig.clock.advance(INSTANT)
    assert await rig.recover() == Recovery(recovered=(job.id,))


async def test_a_recovered_job_waits_again_with_one_recovery_more(rig: Rig) -> None:
    job_id = await rig.add()
    before = await rig.row(job_id)
    [job] = await rig.claim()
    rig.clock.advance(LEASE)
    now = rig.clock.now()
    await rig.recover()
    assert await rig.row(job_id) == before._replace(
        recoveries=1, updated=now, last_error="stale claim recovered", last_error_at=now
    )
    [entry] = await rig.store.jobs.history(job_id)
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


async def test_an_error_that_the_job_had_before_is_kept(rig: Rig) -> None:
    job = await rig.lease()
    await rig.settle(Verb.RETRY, job, error="the real one")
    await rig.claim()
    rig.clock.advance(LEASE)
    await rig.recover()
    row = await rig.row(job.id)
    assert (row.last_error, row.last_error_at) == ("the real one", rig.clock.now())
    assert (row.attempts, row.recoveries) == (1, 1)


async def test_a_crash_loop_ends_in_a_held_job(rig: Rig) -> None:
    job = await died(rig, 2)
    [claimed] = await rig.claim_recovered(suspects=True)
    rig.clock.advance(LEASE)
    now = rig.clock.now()
    assert await rig.recover(capped(3)) == Recovery(retired=(job.id,))
    assert await rig.row(job.id) == job._replace(
        status=Status.FAILED, recoveries=3, updated=now, held_at=now, last_error_at=now
    )
    entry = await rig.last_entry(job.id)
    assert (entry.status, entry.reason, entry.recoveries) == (Status.FAILED, "crash_loop", 2)
    assert (entry.claimed_by, entry.claimed_at) == ("w1", claimed.claimed_at)
    assert await rig.claim_any() == []


async def test_a_recovery_tells_how_many_jobs_of_which_entrypoint(rig: Rig) -> None:
    text = ClaimRule("text", LEASE)
    await rig.enqueue(NewJob("text", max_recoveries=2))
    await rig.claim(text)
    rig.clock.advance(LEASE)
    assert dict((await rig.recover()).recovered_by_queue) == {"text": 1}
    await rig.claim_recovered(text, suspects=True)
    await rig.enqueue(NewJob("mail"), NewJob("mail"))
    await rig.claim(WANT)
    rig.clock.advance(LEASE)
    recovery = await rig.recover()
    assert dict(recovery.recovered_by_queue) == {"mail": 2}
    assert dict(recovery.retired_by_queue) == {"text": 1}


@pytest.mark.parametrize(
    ("own", "general", "deaths"), [(None, 1, 2), (None, 2, 2), (1, 9, 2), (3, 1, 3)]
)
async def test_the_cap_of_a_row_goes_before_that_of_its_entrypoint(
    rig: Rig, own: int | None, general: int, deaths: int
) -> None:
    job_id = await rig.add(max_recoveries=own)
    outcomes = []
    while await rig.claim_any():
        rig.clock.advance(LEASE)
        outcomes.append(await rig.recover(capped(general)))
    survived = [Recovery(recovered=(job_id,))] * (deaths - 1)
    assert outcomes == [*survived, Recovery(retired=(job_id,))]


async def test_any_worker_recovers_jobs_of_entrypoints_it_does_not_know(rig: Rig) -> None:
    job = await rig.lease("sms")
    for deaths in (1, 2, 3):
        rig.clock.advance(LEASE)
        recovery = await rig.recover(WANT)
        assert recovery.recovered + recovery.retired == (job.id,)
        assert bool(recovery.retired) is (deaths == 3)
        await rig.claim_any(ClaimRule("sms", LEASE))


async def test_only_the_leases_that_lapsed_are_taken_back(rig: Rig) -> None:
    short, long, renewed = await rig.enqueue(NewJob("mail"), NewJob("sms"), NewJob("mail"))
    jobs = await rig.claim(WANT, ClaimRule("sms", 2 * LEASE))
    assert sorted(ids(jobs)) == [short, long, renewed]
    rig.clock.advance(LEASE / 2)
    await rig.store.leases.renew([holding(job) for job in jobs if job.id == renewed])
    rig.clock.advance(LEASE / 2)
    assert await rig.recover() == Recovery(recovered=(short,))
    rig.clock.advance(LEASE)
    assert await rig.recover() == Recovery(recovered=(long, renewed))


async def test_a_sweep_is_bounded_and_goes_on_where_it_stopped(rig: Rig) -> None:
    job_ids = await rig.enqueue(*[NewJob("mail")] * 5)
    await rig.claim()
    rig.clock.advance(LEASE)
    found = [(await rig.recover(limit=2)).recovered for _ in range(4)]
    assert [len(some) for some in found] == [2, 2, 1, 0]
    assert sorted(job_id for some in found for job_id in some) == job_ids


async def test_recovering_again_counts_nothing_again(rig: Rig) -> None:
    job = await died(rig, 1)
    before = await rig.rows()
    assert await rig.recover() == Recovery()
    assert await rig.rows() == before
    assert job.recoveries == 1


async def test_a_recovered_job_is_out_of_reach_for_its_old_worker(rig: Rig) -> None:
    old = await rig.lease()
    rig.clock.advance(LEASE)
    await rig.recover()
    [new] = await rig.claim_recovered(worker="w2")
    assert new.id == old.id
    assert token_of(new) != token_of(old)
    before = await rig.rows()
    for verb in (Verb.COMPLETE, Verb.RETRY, Verb.FAIL, Verb.HOLD, Verb.RELEASE):
        assert await rig.change(verb, change(old, error="late")) == set()
    assert await rig.store.leases.renew([holding(old)]) == set()
    assert await rig.rows() == before


async def test_all_jobs_of_a_worker_known_to_be_dead_are_taken_back_at_once(rig: Rig) -> None:
    await rig.enqueue(*[NewJob("mail")] * 4)
    dead = [*await rig.claim(limit=1, worker="w1"), *await rig.claim(limit=1, worker="w1")]
    alive = await rig.claim(worker="w2")
    recovery = await rig.recover(worker="w1")
    assert recovery == Recovery(recovered=tuple(ids(dead)))
    assert {(await rig.row(job.id)).recoveries for job in dead} == {1}
    assert [await rig.row(job.id) for job in alive] == alive
    assert await rig.recover(worker="w1") == Recovery()
    assert await rig.recover(worker="nobody") == Recovery()


async def test_a_dead_worker_also_retires_at_the_cap(rig: Rig) -> None:
    poison, innocent = await rig.enqueue(NewJob("mail", max_recoveries=2), NewJob("mail"))
    await rig.claim()
    assert await rig.recover(worker="w1") == Recovery(recovered=(poison, innocent))
    assert len(await rig.claim_any()) == 2
    assert await rig.recover(worker="w1") == Recovery(recovered=(innocent,), retired=(poison,))


async def test_settled_jobs_of_a_dead_worker_stay_settled(rig: Rig) -> None:
    await rig.enqueue(*[NewJob("mail")] * 3)
    done, released, held = await rig.claim()
    await rig.settle(Verb.COMPLETE, done)
    await rig.settle(Verb.RELEASE, released)
    await rig.settle(Verb.HOLD, held, error="no")
    before = await rig.rows()
    assert await rig.recover(worker="w1") == Recovery()
    rig.clock.advance(LEASE)
    assert await rig.recover() == Recovery()
    assert await rig.rows() == before


async def test_releases_and_retries_are_no_recoveries(rig: Rig) -> None:
    job = await rig.lease()
    for verb in (Verb.RELEASE, Verb.RETRY, Verb.RELEASE):
        await rig.settle(verb, job, error="no")
        [job] = await rig.claim()
    assert (job.attempts, job.recoveries) == (1, 0)


async def test_requeuing_gives_a_crash_loop_new_chances(rig: Rig) -> None:
    job = await died(rig, 2)
    await rig.claim_any()
    rig.clock.advance(LEASE)
    await rig.recover(capped(3))
    rig.clock.advance(SECOND)
    await rig.queries.requeue_jobs([job.id])
    assert (await rig.row(job.id)).recoveries == 0
    [job] = await rig.claim()
    rig.clock.advance(LEASE)
    assert await rig.recover(capped(3)) == Recovery(recovered=(job.id,))


async def test_after_an_outage_a_holder_has_one_lease_to_renew(rig: Rig) -> None:
    job = await rig.lease()
    rig.clock.advance(LEASE * 3)
    assert await rig.recover(contact=SECOND) == Recovery()
    rig.clock.advance(LEASE - SECOND - INSTANT)
    assert await rig.recover(contact=LEASE - INSTANT) == Recovery()
    assert await rig.store.leases.renew([holding(job)]) == {holding(job)}
    rig.clock.advance(INSTANT)
    assert await rig.recover(contact=LEASE) == Recovery()


async def test_a_recovery_after_an_outage_is_not_counted(rig: Rig) -> None:
    job_id = await rig.add()
    before = await rig.row(job_id)
    await rig.claim()
    rig.clock.advance(LEASE * 2)
    now = rig.clock.now()
    found = await rig.recover(capped(1), contact=LEASE)
    assert found == Recovery(recovered=(job_id,), excused=(job_id,))
    assert await rig.row(job_id) == before._replace(updated=now)
    [entry] = await rig.store.jobs.history(job_id)
    assert (entry.status, entry.reason, entry.claimed_by) == (Status.QUEUED, "outage", "w1")
    assert ids(await rig.claim()) == [job_id]


async def test_a_lease_that_was_taken_after_the_outage_is_recovered_in_time_and_counted(
    rig: Rig,
) -> None:
    job = await rig.lease()
    rig.clock.advance(LEASE)
    # The outage ended at the very instant of the claim.
    assert await rig.recover(contact=LEASE) == Recovery(recovered=(job.id,))
    assert (await rig.row(job.id)).recoveries == 1


async def test_a_worker_known_to_be_dead_has_no_grace_and_is_counted(rig: Rig) -> None:
    job = await rig.lease()
    rig.clock.advance(SECOND)
    found = await rig.recover(worker="w1", contact=timedelta(0))
    assert found == Recovery(recovered=(job.id,))
    assert (await rig.row(job.id)).recoveries == 1


async def test_a_sweep_leaves_what_its_own_worker_still_holds(rig: Rig) -> None:
    mine, other = await rig.lease(), await rig.lease()
    rig.clock.advance(LEASE)
    assert await rig.recover(held=[holding(mine)]) == Recovery(recovered=(other.id,))
    await rig.settle(Verb.COMPLETE, mine)


async def test_a_sweep_takes_back_a_job_that_its_own_worker_has_lost(rig: Rig) -> None:
    job = await rig.lease()
    lost = holding(job)
    await rig.settle(Verb.RELEASE, job)
    await rig.claim(worker="w2")
    rig.clock.advance(LEASE)
    assert await rig.recover(held=[lost]) == Recovery(recovered=(job.id,))


async def test_of_one_claim_only_what_is_still_held_is_left(rig: Rig) -> None:
    first, second = await rig.enqueue(NewJob("mail"), NewJob("mail"))
    jobs = {job.id: job for job in await rig.claim()}
    rig.clock.advance(LEASE)
    assert await rig.recover(held=[holding(jobs[first])]) == Recovery(recovered=(second,))
