"""What the holder of a lease writes when a handler is done, and what the log says of it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.fingerprint import fingerprint
from holdfast.lifecycle import RETIRE_LAST_RETRY, Status, Verb
from holdfast.models import JobId, LogEntry, NewJob, TracebackRecord
from tests.conformance.stores import SECOND, change, holding, ledger

if TYPE_CHECKING:
    from holdfast.models import Job
    from tests.conformance.stores import QueueUnderTest

RECORD = TracebackRecord(
    "ValueError", "it's \N{SNOWMAN}", 'File "x.py"\n\t\\n', {"attempt": 1}, job_id=7
)
UNLEASED: dict[str, Any] = {
    "heartbeat": None,
    "claim_token": None,
    "claimed_by": None,
    "claimed_at": None,
    "lease": None,
}


def entry_of(job: Job, status: Status, **fields: Any) -> LogEntry:
    """The log row for the end of this lease."""
    entry = LogEntry(
        id=0,
        job_id=job.id,
        status=status,
        entrypoint=job.entrypoint,
        priority=job.priority,
        attempt=job.attempts,
        recoveries=job.recoveries,
        claimed_by=job.claimed_by,
        claimed_at=job.claimed_at,
        actor=None,
        reason=None,
        traceback=None,
        created=job.created,
        **ledger(job),
    )
    return entry._replace(**fields)


async def only_entry(queue: QueueUnderTest, job: Job) -> LogEntry:
    [entry] = await queue.store.jobs.history(job.id)
    return entry._replace(id=0)


@pytest.mark.parametrize(
    ("verb", "status"), [(Verb.COMPLETE, Status.SUCCESSFUL), (Verb.FAIL, Status.EXCEPTION)]
)
async def test_a_job_that_ended_leaves_the_queue_and_one_log_row(
    queue: QueueUnderTest, verb: Verb, status: Status
) -> None:
    job = await queue.lease(priority=4)
    queue.clock.advance(SECOND)
    await queue.settle(verb, job, reason="because")
    assert await queue.store.jobs.get([job.id]) == []
    assert await only_entry(queue, job) == entry_of(
        job, status, reason="because", created=queue.clock.now()
    )


async def test_a_held_job_stays_with_its_error(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    queue.clock.advance(SECOND)
    now = queue.clock.now()
    await queue.settle(Verb.HOLD, job, error="ValueError: no", reason="policy")
    assert await queue.row(job.id) == job._replace(
        status=Status.FAILED,
        updated=now,
        last_error="ValueError: no",
        last_error_at=now,
        held_at=now,
        **UNLEASED,
    )
    assert await only_entry(queue, job) == entry_of(
        job, Status.FAILED, reason="policy", created=now, fingerprint=fingerprint("ValueError: no")
    )


@pytest.mark.parametrize("delay", [None, timedelta(0), SECOND, timedelta(days=400)])
async def test_a_retried_job_waits_for_its_delay_with_one_attempt_more(
    queue: QueueUnderTest, delay: timedelta | None
) -> None:
    job = await queue.lease()
    queue.clock.advance(SECOND)
    now = queue.clock.now()
    await queue.settle(Verb.RETRY, job, delay=delay, error="not yet", reason="busy")
    assert await queue.row(job.id) == job._replace(
        status=Status.QUEUED,
        execute_after=now + (delay or timedelta(0)),
        attempts=1,
        updated=now,
        last_error="not yet",
        last_error_at=now,
        **UNLEASED,
    )
    assert await only_entry(queue, job) == entry_of(
        job, Status.QUEUED, reason="busy", created=now, fingerprint=fingerprint("not yet")
    )


async def test_a_released_job_is_as_it_was_before_its_claim(queue: QueueUnderTest) -> None:
    job_id = await queue.add(execute_after=queue.clock.now() - SECOND)
    before = await queue.row(job_id)
    [job] = await queue.claim()
    queue.clock.advance(SECOND)
    await queue.settle(Verb.RELEASE, job, reason="shutdown")
    assert await queue.row(job_id) == before._replace(updated=queue.clock.now())
    assert await only_entry(queue, job) == entry_of(
        job, Status.QUEUED, reason="shutdown", created=queue.clock.now()
    )


@pytest.mark.parametrize(
    ("own", "general", "retried"),
    [(None, None, True), (None, 2, True), (None, 1, False), (2, 1, True), (1, 9, False)],
)
async def test_a_retry_needs_an_attempt_left(
    queue: QueueUnderTest, own: int | None, general: int | None, retried: bool
) -> None:
    job = await queue.lease(max_attempts=own)
    asked = change(job, error="no", max_attempts=general)
    before = await queue.rows()
    moved = await queue.change(Verb.RETRY, asked)
    assert bool(moved) is retried
    if not retried:
        assert await queue.rows() == before
    assert bool(await queue.change(RETIRE_LAST_RETRY.name, asked)) is not retried


async def test_the_last_retry_holds_the_job_and_says_why(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    queue.clock.advance(SECOND)
    now = queue.clock.now()
    await queue.settle(RETIRE_LAST_RETRY.name, job, error="no", max_attempts=1)
    assert await queue.row(job.id) == job._replace(
        status=Status.FAILED,
        attempts=1,
        updated=now,
        last_error="no",
        last_error_at=now,
        held_at=now,
        **UNLEASED,
    )
    assert await only_entry(queue, job) == entry_of(
        job, Status.FAILED, reason="max_attempts", created=now, fingerprint=fingerprint("no")
    )


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.HOLD, Verb.FAIL, Verb.RELEASE, Verb.COMPLETE])
async def test_a_traceback_is_kept_as_json(queue: QueueUnderTest, verb: Verb) -> None:
    job = await queue.lease()
    await queue.settle(verb, job, error="no", traceback=RECORD)
    assert (await only_entry(queue, job)).traceback == {
        "exception_type": "ValueError",
        "exception_message": "it's \N{SNOWMAN}",
        "traceback": 'File "x.py"\n\t\\n',
        "additional_context": {"attempt": 1},
        "job_id": 7,
    }


async def test_what_a_traceback_does_not_say_is_left_out(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    record = TracebackRecord("E", "", "", None, timestamp=queue.clock.now())
    await queue.settle(Verb.FAIL, job, traceback=record)
    assert (await only_entry(queue, job)).traceback == {
        "exception_type": "E",
        "exception_message": "",
        "traceback": "",
        "additional_context": None,
        "timestamp": "2030-01-01T00:00:00+00:00",
    }


async def test_a_newer_error_replaces_the_older(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    await queue.settle(Verb.RETRY, job, error="first")
    [job] = await queue.claim()
    assert job.last_error == "first"
    await queue.settle(Verb.HOLD, job, error="second")
    assert (await queue.row(job.id)).last_error == "second"


@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
async def test_each_job_of_a_batch_gets_its_own_values(queue: QueueUnderTest, order: int) -> None:
    await queue.enqueue(*[NewJob("mail")] * 100)
    jobs = await queue.claim()
    changes = [
        change(job, delay=n * SECOND, error=f"error {n}", reason=f"reason {n}")
        for n, job in enumerate(jobs)
    ][::order]
    assert len(await queue.change(Verb.RETRY, *changes)) == 100
    for n, row in enumerate(await queue.queries.get_jobs([job.id for job in jobs])):
        assert row.execute_after == queue.clock.now() + n * SECOND
        assert row.last_error == f"error {n}"
    reasons = {entry.job_id: entry.reason for entry in (await queue.rows()).log}
    assert reasons == {job.id: f"reason {n}" for n, job in enumerate(jobs)}


@pytest.mark.parametrize("verb", [Verb.COMPLETE, Verb.HOLD])
async def test_lost_leases_do_not_keep_the_rest_of_a_batch_back(
    queue: QueueUnderTest, verb: Verb
) -> None:
    await queue.enqueue(*[NewJob("mail")] * 3)
    gone, taken, kept = await queue.claim()
    await queue.cancel(gone.id)
    await queue.settle(Verb.RELEASE, taken)
    [again] = await queue.claim()
    changes = [change(job, error="no") for job in (kept, taken, gone)]
    assert await queue.change(verb, *changes) == {holding(kept)}
    assert await queue.row(taken.id) == again


async def test_both_leases_of_one_job_in_a_batch_are_told_apart(queue: QueueUnderTest) -> None:
    first = await queue.lease()
    await queue.settle(Verb.RELEASE, first)
    [second] = await queue.claim()
    moved = await queue.change(Verb.COMPLETE, change(first), change(second), change(first))
    assert moved == {holding(second)}


async def test_a_lease_ends_once(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    twice = [change(job), change(job)]
    assert await queue.change(Verb.COMPLETE, *twice) == {holding(job)}
    assert await queue.change(Verb.COMPLETE, *twice) == set()
    assert len(await queue.store.jobs.history(job.id)) == 1


async def test_nothing_to_settle_is_nothing_done(queue: QueueUnderTest) -> None:
    for verb in (Verb.COMPLETE, Verb.RETRY, Verb.HOLD):
        assert await queue.change(verb) == set()


async def test_an_unknown_job_is_not_settled(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    stranger = job._replace(id=JobId(job.id + 1000))
    assert await queue.change(Verb.COMPLETE, change(stranger)) == set()


async def test_forgetting_a_claim_whose_jobs_are_settled_changes_nothing(
    queue: QueueUnderTest,
) -> None:
    job = await queue.lease()
    await queue.settle(Verb.RELEASE, job)
    before = await queue.rows()
    await queue.store.leases.delete_claims([holding(job).token])
    await queue.store.leases.delete_claims([])
    assert await queue.rows() == before


async def test_what_a_producer_gave_never_changes(queue: QueueUnderTest) -> None:
    job = await queue.lease(payload=b"\1", headers={"a": [1]}, dedupe_key="k", priority=3)
    fixed = "id", "entrypoint", "payload", "headers", "dedupe_key", "priority", "created"
    given = {name: getattr(job, name) for name in fixed}
    seen = []
    for verb in (Verb.RETRY, Verb.RELEASE, Verb.HOLD):
        await queue.settle(verb, job, error="no")
        seen.append(await queue.row(job.id))
        if verb is Verb.HOLD:
            await queue.queries.requeue_jobs([job.id])
        [job] = await queue.claim()
        seen.append(job)
    await queue.recover(worker="w1")
    seen.append(await queue.row(job.id))
    assert [{name: getattr(row, name) for name in fixed} for row in seen] == [given] * 7
