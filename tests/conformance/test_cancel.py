"""Taking jobs out of the queue by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.lifecycle import LIVE, Status, Verb
from holdfast.models import JobId, LogEntry, NewJob
from tests.conformance.stores import SECOND, change, holding, ledger

if TYPE_CHECKING:
    from tests.conformance.stores import QueueUnderTest


@pytest.mark.parametrize("status", LIVE)
async def test_a_job_can_be_cancelled_wherever_it_is(queue: QueueUnderTest, status: Status) -> None:
    job = (await queue.job_in(status)).job
    assert await queue.queries.mark_job_as_cancelled([job.id]) == {job.id}
    assert await queue.store.jobs.get([job.id]) == []
    assert await queue.status(job.id) is Status.CANCELED


@pytest.mark.parametrize("status", LIVE)
async def test_a_job_can_be_deleted_unless_it_runs(queue: QueueUnderTest, status: Status) -> None:
    job = (await queue.job_in(status)).job
    before = await queue.rows()
    moved = await queue.queries.delete_jobs([job.id])
    if status is Status.PICKED:
        assert moved == set()
        assert await queue.rows() == before
    else:
        assert moved == {job.id}
        assert await queue.status(job.id) is Status.DELETED


@pytest.mark.parametrize("leased", [True, False])
async def test_the_log_says_who_did_it_and_who_held_it(queue: QueueUnderTest, leased: bool) -> None:
    job_id = await queue.add(priority=2)
    job = await queue.row(job_id)
    claimed = await queue.claim(worker="w3") if leased else []
    queue.clock.advance(SECOND)
    await queue.queries.mark_job_as_cancelled([job_id], actor="ann", reason="not wanted")
    entry = await queue.last_entry(job_id)
    assert entry == LogEntry(
        id=entry.id,
        job_id=job_id,
        status=Status.CANCELED,
        entrypoint="mail",
        priority=2,
        attempt=0,
        recoveries=0,
        claimed_by="w3" if leased else None,
        claimed_at=claimed[0].claimed_at if leased else None,
        actor="ann",
        reason="not wanted",
        traceback=None,
        created=queue.clock.now(),
        **ledger(claimed[0] if leased else job),
    )


async def test_a_cancelled_job_is_lost_to_its_holder(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    await queue.cancel(job.id)
    before = await queue.rows()
    assert await queue.store.leases.renew([holding(job)]) == set()
    for verb in (Verb.COMPLETE, Verb.RETRY, Verb.FAIL, Verb.HOLD, Verb.RELEASE):
        assert await queue.change(verb, change(job, error="late")) == set()
    assert await queue.rows() == before


async def test_a_batch_takes_what_it_can(queue: QueueUnderTest) -> None:
    waiting, running, held = await queue.enqueue(NewJob("mail"), NewJob("sms"), NewJob("mail"))
    await queue.queries.delete_jobs([held])
    asked = [JobId(held + 1000), held, running, waiting, waiting]
    assert await queue.cancel(*asked) == {running, waiting}
    assert await queue.cancel(*asked) == set()


async def test_nothing_asked_is_nothing_done(queue: QueueUnderTest) -> None:
    await queue.add()
    before = await queue.rows()
    assert await queue.cancel() == set()
    assert await queue.queries.delete_jobs([]) == set()
    assert await queue.rows() == before


async def test_actor_and_reason_may_be_left_out_or_be_any_text(queue: QueueUnderTest) -> None:
    plain, told = await queue.enqueue(NewJob("mail"), NewJob("mail"))
    words = "it's \N{SNOWMAN} %s $1\n" + "x" * 5000
    await queue.queries.delete_jobs([plain])
    await queue.queries.delete_jobs([told], actor=words, reason=words)
    assert (await queue.last_entry(plain))[9:11] == (None, None)
    assert (await queue.last_entry(told))[9:11] == (words, words)
