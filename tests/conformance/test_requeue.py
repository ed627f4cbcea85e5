"""Sending held jobs back to the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.lifecycle import Status, Verb
from holdfast.models import JobId, LogEntry, NewJob, Requeued
from tests.conformance.stores import SECOND, change, ids, ledger

if TYPE_CHECKING:
    from tests.conformance.stores import QueueUnderTest


async def test_a_requeued_job_starts_anew_and_keeps_its_error(queue: QueueUnderTest) -> None:
    job_id = await queue.hold(payload=b"1", headers={"a": 1}, max_attempts=3)
    held = await queue.row(job_id)
    queue.clock.advance(SECOND)
    now = queue.clock.now()
    outcome = await queue.queries.requeue_jobs([job_id], actor="ann", reason="fixed")
    assert outcome == {job_id: Requeued.REQUEUED}
    assert await queue.row(job_id) == held._replace(
        status=Status.QUEUED, execute_after=now, updated=now, held_at=None
    )
    entry = await queue.last_entry(job_id)
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


async def test_a_preview_says_what_a_requeue_would_do(queue: QueueUnderTest) -> None:
    first = await queue.hold(dedupe_key="daily")
    second = await queue.hold(dedupe_key="daily")
    blocked = await queue.hold(dedupe_key="weekly")
    plain = await queue.hold()
    owner = await queue.add(dedupe_key="weekly")
    asked = [plain, owner, blocked, second, first, JobId(999)]
    before = await queue.rows()
    foretold = await queue.queries.preview_requeue(asked)
    assert foretold == {
        first: Requeued.REQUEUED,
        second: Requeued.KEY_TAKEN,
        blocked: Requeued.KEY_TAKEN,
        owner: Requeued.NOT_HELD,
        plain: Requeued.REQUEUED,
        JobId(999): Requeued.NOT_FOUND,
    }
    assert await queue.rows() == before
    assert await queue.queries.requeue_jobs(asked) == foretold


async def test_both_counters_are_reset_and_logged_as_they_were(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    await queue.settle(Verb.RETRY, job, error="no")
    await queue.claim()
    await queue.recover(worker="w1")
    [job] = await queue.claim_recovered()
    assert (job.attempts, job.recoveries) == (1, 1)
    await queue.settle(Verb.HOLD, job, error="no")
    await queue.queries.requeue_jobs([job.id])
    row, entry = await queue.row(job.id), await queue.last_entry(job.id)
    assert (row.attempts, row.recoveries) == (0, 0)
    assert (entry.attempt, entry.recoveries) == (1, 1)
    assert (entry.actor, entry.reason) == (None, None)


async def test_a_requeued_job_can_be_claimed_at_once(queue: QueueUnderTest) -> None:
    job_id = await queue.hold()
    await queue.queries.requeue_jobs([job_id])
    assert ids(await queue.claim()) == [job_id]


@pytest.mark.parametrize("status", [Status.QUEUED, Status.PICKED])
async def test_a_job_that_is_not_held_is_left_alone(queue: QueueUnderTest, status: Status) -> None:
    job = (await queue.job_in(status)).job
    before = await queue.rows()
    assert await queue.queries.requeue_jobs([job.id]) == {job.id: Requeued.NOT_HELD}
    assert await queue.rows() == before


async def test_a_job_that_left_the_queue_is_not_found(queue: QueueUnderTest) -> None:
    gone = ids(await queue.ended())
    before = await queue.rows()
    assert await queue.queries.requeue_jobs(gone) == dict.fromkeys(gone, Requeued.NOT_FOUND)
    assert await queue.rows() == before


async def test_every_id_has_its_own_outcome_and_the_rest_goes_through(
    queue: QueueUnderTest,
) -> None:
    taken = await queue.hold(dedupe_key="k")
    free = await queue.hold(dedupe_key="other")
    keyless = await queue.hold()
    waiting = await queue.add(dedupe_key="k")
    unknown = JobId(waiting + 1000)
    asked = [unknown, waiting, keyless, free, taken, free]
    assert await queue.queries.requeue_jobs(asked) == {
        unknown: Requeued.NOT_FOUND,
        waiting: Requeued.NOT_HELD,
        keyless: Requeued.REQUEUED,
        free: Requeued.REQUEUED,
        taken: Requeued.KEY_TAKEN,
    }
    assert await queue.status(taken) is Status.FAILED
    assert len(await queue.store.jobs.history(free)) == 2
    assert len(await queue.store.jobs.history(taken)) == 1


async def test_of_two_held_jobs_with_one_key_the_older_goes(queue: QueueUnderTest) -> None:
    first = await queue.hold(dedupe_key="k")
    second = await queue.hold(dedupe_key="k")
    assert await queue.queries.requeue_jobs([second, first]) == {
        second: Requeued.KEY_TAKEN,
        first: Requeued.REQUEUED,
    }
    assert await queue.queries.requeue_jobs([second]) == {second: Requeued.KEY_TAKEN}


async def test_a_taken_key_is_free_again_when_its_owner_ends(queue: QueueUnderTest) -> None:
    held = await queue.hold(dedupe_key="k")
    owner = await queue.lease(dedupe_key="k")
    assert await queue.queries.requeue_jobs([held]) == {held: Requeued.KEY_TAKEN}
    assert await queue.change(Verb.COMPLETE, change(owner))
    assert await queue.queries.requeue_jobs([held]) == {held: Requeued.REQUEUED}


async def test_nothing_asked_is_nothing_done(queue: QueueUnderTest) -> None:
    await queue.hold()
    before = await queue.rows()
    assert await queue.queries.requeue_jobs([]) == {}
    assert await queue.rows() == before


async def test_a_large_batch_is_requeued_at_once(queue: QueueUnderTest) -> None:
    await queue.enqueue(*[NewJob("mail")] * 200)
    jobs = await queue.claim(limit=200)
    await queue.change(Verb.HOLD, *[change(job, error="no") for job in jobs])
    outcomes = await queue.queries.requeue_jobs(ids(jobs))
    assert outcomes == dict.fromkeys(ids(jobs), Requeued.REQUEUED)
    assert len(await queue.claim(limit=300)) == 200
