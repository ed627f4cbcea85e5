"""Sending held jobs back to the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.lifecycle import Status, Verb
from holdfast.models import JobId, LogEntry, NewJob, Requeued
from tests.conformance.stores import SECOND, change, ids, ledger

if TYPE_CHECKING:
    from tests.conformance.stores import Rig


async def test_a_requeued_job_starts_anew_and_keeps_its_error(rig: Rig) -> None:
    job_id = await rig.hold(payload=b"1", headers={"a": 1}, max_attempts=3)
    held = await rig.row(job_id)
    rig.clock.advance(SECOND)
    now = rig.clock.now()
    outcome = await rig.queries.requeue_jobs([job_id], actor="ann", reason="fixed")
    assert outcome == {job_id: Requeued.REQUEUED}
    assert await rig.row(job_id) == held._replace(
        status=Status.QUEUED, execute_after=now, updated=now, held_at=None
    )
    entry = await rig.last_entry(job_id)
    assert entry == LogEntry(
        id=entry.id,
        job_id=job_id,
        status=Status.QUEUED,
        entrypoint="mail",
        priority=0,
        attempt=0,
        recoveries=0,
        claimed_by=None,
        claimed_at=None,
        actor="ann",
        reason="fixed",
        traceback=None,
        created=now,
        **ledger(held),
    )


async def test_a_preview_says_what_a_requeue_would_do(rig: Rig) -> None:
    first = await rig.hold(dedupe_key="daily")
    second = await rig.hold(dedupe_key="daily")
    blocked = await rig.hold(dedupe_key="weekly")
    plain = await rig.hold()
    owner = await rig.add(dedupe_key="weekly")
    asked = [plain, owner, blocked, second, first, JobId(999)]
    before = await rig.rows()
    foretold = await rig.queries.preview_requeue(asked)
    assert foretold == {
        first: Requeued.REQUEUED,
        second: Requeued.KEY_TAKEN,
        blocked: Requeued.KEY_TAKEN,
        owner: Requeued.NOT_HELD,
        plain: Requeued.REQUEUED,
        JobId(999): Requeued.NOT_FOUND,
    }
    assert await rig.rows() == before
    assert await rig.queries.requeue_jobs(asked) == foretold


async def test_both_counters_are_reset_and_logged_as_they_were(rig: Rig) -> None:
    job = await rig.lease()
    await rig.settle(Verb.RETRY, job, error="no")
    await rig.claim()
    await rig.recover(worker="w1")
    [job] = await rig.claim_recovered()
    assert (job.attempts, job.recoveries) == (1, 1)
    await rig.settle(Verb.HOLD, job, error="no")
    await rig.queries.requeue_jobs([job.id])
    row, entry = await rig.row(job.id), await rig.last_entry(job.id)
    assert (row.attempts, row.recoveries) == (0, 0)
    assert (entry.attempt, entry.recoveries) == (1, 1)
    assert (entry.actor, entry.reason) == (None, None)


async def test_a_requeued_job_can_be_claimed_at_once(rig: Rig) -> None:
    job_id = await rig.hold()
    await rig.queries.requeue_jobs([job_id])
    assert ids(await rig.claim()) == [job_id]


@pytest.mark.parametrize("status", [Status.QUEUED, Status.PICKED])
async def test_a_job_that_is_not_held_is_left_alone(rig: Rig, status: Status) -> None:
    job = (await rig.job_in(status)).job
    before = await rig.rows()
    assert await rig.queries.requeue_jobs([job.id]) == {job.id: Requeued.NOT_HELD}
    assert await rig.rows() == before


async def test_a_job_that_left_the_queue_is_not_found(rig: Rig) -> None:
    gone = ids(await rig.ended())
    before = await rig.rows()
    assert await rig.queries.requeue_jobs(gone) == dict.fromkeys(gone, Requeued.NOT_FOUND)
    assert await rig.rows() == before


async def test_every_id_has_its_own_outcome_and_the_rest_goes_through(rig: Rig) -> None:
    taken = await rig.hold(dedupe_key="k")
    free = await rig.hold(dedupe_key="other")
    keyless = await rig.hold()
    waiting = await rig.add(dedupe_key="k")
    unknown = JobId(waiting + 1000)
    asked = [unknown, waiting, keyless, free, taken, free]
    assert await rig.queries.requeue_jobs(asked) == {
        unknown: Requeued.NOT_FOUND,
        waiting: Requeued.NOT_HELD,
        keyless: Requeued.REQUEUED,
        free: Requeued.REQUEUED,
        taken: Requeued.KEY_TAKEN,
    }
    assert await rig.status(taken) is Status.FAILED
    assert len(await rig.store.jobs.history(free)) == 2
    assert len(await rig.store.jobs.history(taken)) == 1


async def test_of_two_held_jobs_with_one_key_the_older_goes(rig: Rig) -> None:
    first = await rig.hold(dedupe_key="k")
    second = await rig.hold(dedupe_key="k")
    assert await rig.queries.requeue_jobs([second, first]) == {
        second: Requeued.KEY_TAKEN,
        first: Requeued.REQUEUED,
    }
    assert await rig.queries.requeue_jobs([second]) == {second: Requeued.KEY_TAKEN}


async def test_a_taken_key_is_free_again_when_its_owner_ends(rig: Rig) -> None:
    held = await rig.hold(dedupe_key="k")
    owner = await rig.lease(dedupe_key="k")
    assert await rig.queries.requeue_jobs([held]) == {held: Requeued.KEY_TAKEN}
    assert await rig.change(Verb.COMPLETE, change(owner))
    assert await rig.queries.requeue_jobs([held]) == {held: Requeued.REQUEUED}


async def test_nothing_asked_is_nothing_done(rig: Rig) -> None:
    await rig.hold()
    before = await rig.rows()
    assert await rig.queries.requeue_jobs([]) == {}
    assert await rig.rows() == before


async def test_a_large_batch_is_requeued_at_once(rig: Rig) -> None:
    await rig.enqueue(*[NewJob("mail")] * 200)
    jobs = await rig.claim(limit=200)
    await rig.change(Verb.HOLD, *[change(job, error="no") for job in jobs])
    outcomes = await rig.queries.requeue_jobs(ids(jobs))
    assert outcomes == dict.fromkeys(ids(jobs), Requeued.REQUEUED)
    assert len(await rig.claim(limit=300)) == 200
