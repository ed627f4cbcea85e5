"""Taking jobs out of the queue by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.lifecycle import LIVE, Status, Verb
from holdfast.models import JobId, LogEntry, NewJob
from tests.conformance.stores import SECOND, change, holding, ledger

if TYPE_CHECKING:
    from tests.conformance.stores import Rig


@pytest.mark.parametrize("status", LIVE)
async def test_a_job_can_be_cancelled_wherever_it_is(rig: Rig, status: Status) -> None:
    job = (await rig.job_in(status)).job
    assert await rig.queries.mark_job_as_cancelled([job.id]) == {job.id}
    assert await rig.store.jobs.get([job.id]) == []
    assert await rig.status(job.id) is Status.CANCELED


@pytest.mark.parametrize("status", LIVE)
async def test_a_job_can_be_deleted_unless_it_runs(rig: Rig, status: Status) -> None:
    job = (await rig.job_in(status)).job
    before = await rig.rows()
    moved = await rig.queries.delete_jobs([job.id])
    if status is Status.PICKED:
        assert moved == set()
        assert await rig.rows() == before
    else:
        assert moved == {job.id}
        assert await rig.status(job.id) is Status.DELETED


@pytest.mark.parametrize("leased", [True, False])
async def test_the_log_says_who_did_it_and_who_held_it(rig: Rig, leased: bool) -> None:
    job_id = await rig.add(priority=2)
    job = await rig.row(job_id)
    claimed = await rig.claim(worker="w3") if leased else []
    rig.clock.advance(SECOND)
    await rig.queries.mark_job_as_cancelled([job_id], actor="ann", reason="not wanted")
    entry = await rig.last_entry(job_id)
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
        created=rig.clock.now(),
        **ledger(claimed[0] if leased else job),
    )


async def test_a_cancelled_job_is_lost_to_its_holder(rig: Rig) -> None:
    job = await rig.lease()
    await rig.cancel(job.id)
    before = await rig.rows()
    assert await rig.store.leases.renew([holding(job)]) == set()
    for verb in (Verb.COMPLETE, Verb.RETRY, Verb.FAIL, Verb.HOLD, Verb.RELEASE):
        assert await rig.change(verb, change(job, error="late")) == set()
    assert await rig.rows() == before


async def test_a_batch_takes_what_it_can(rig: Rig) -> None:
    waiting, running, held = await rig.enqueue(NewJob("mail"), NewJob("sms"), NewJob("mail"))
    await rig.queries.delete_jobs([held])
    asked = [JobId(held + 1000), held, running, waiting, waiting]
    assert await rig.cancel(*asked) == {running, waiting}
    assert await rig.cancel(*asked) == set()


async def test_nothing_asked_is_nothing_done(rig: Rig) -> None:
    await rig.add()
    before = await rig.rows()
    assert await rig.cancel() == set()
    assert await rig.queries.delete_jobs([]) == set()
    assert await rig.rows() == before


async def test_actor_and_reason_may_be_left_out_or_be_any_text(rig: Rig) -> None:
    plain, told = await rig.enqueue(NewJob("mail"), NewJob("mail"))
    words = "it's \N{SNOWMAN} %s $1\n" + "x" * 5000
    await rig.queries.delete_jobs([plain])
    await rig.queries.delete_jobs([told], actor=words, reason=words)
    assert (await rig.last_entry(plain))[9:11] == (None, None)
    assert (await rig.last_entry(told))[9:11] == (words, words)
