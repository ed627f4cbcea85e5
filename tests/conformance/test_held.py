"""Held jobs as case files: found, edited, resolved, sent back with other rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.lifecycle import LIVE, Status, Verb
from holdfast.models import ClaimRule, HeldFilter, LogEntry
from tests.conformance.stores import LEASE, SECOND, ids, ledger

if TYPE_CHECKING:
    from holdfast.models import JobId
    from tests.conformance.stores import QueueUnderTest


async def hold(queue: QueueUnderTest, entrypoint: str, error: str | None) -> JobId:
    job = await queue.lease(entrypoint)
    await queue.settle(Verb.HOLD, job, error=error)
    return job.id


@pytest.mark.parametrize(
    ("among", "found"),
    [
        (HeldFilter(), [3, 2, 1, 0]),
        (HeldFilter(entrypoint="sms"), [2]),
        (HeldFilter(error="TIMEOUT"), [2, 0]),
        (HeldFilter(error="100%_"), [1]),
        (HeldFilter("mail", error="timeout"), [0]),
        (HeldFilter(since=2 * SECOND), [3, 2]),
        (HeldFilter(older_than=2 * SECOND), [1, 0]),
        (HeldFilter(since=3 * SECOND, older_than=2 * SECOND), [1]),
        (HeldFilter("fax"), []),
    ],
)
async def test_held_jobs_are_found_by_what_is_known_of_them(
    queue: QueueUnderTest, among: HeldFilter, found: list[int]
) -> None:
    told = [("mail", "Timeout: 5 s"), ("mail", "at 100%_"), ("sms", "timeout"), ("mail", None)]
    held = []
    for entrypoint, error in told:
        held.append(await hold(queue, entrypoint, error))
        queue.clock.advance(SECOND)
    listed = ids(await queue.queries.list_failed_jobs(among=among))
    assert listed == [held[place] for place in found]


@pytest.mark.parametrize("payload", [b"new", b"", None])
async def test_editing_replaces_the_payload_and_says_who_did(
    queue: QueueUnderTest, payload: bytes | None
) -> None:
    job_id = await queue.hold(payload=b"old")
    held = await queue.row(job_id)
    queue.clock.advance(SECOND)
    now = queue.clock.now()
    assert await queue.queries.edit_job(job_id, payload, actor="ann", reason="typo") is True
    assert await queue.row(job_id) == held._replace(payload=payload, updated=now)
    entry = await queue.last_entry(job_id)
    assert entry == LogEntry(
        id=entry.id,
        job_id=job_id,
        status=Status.FAILED,
        entrypoint="mail",
        priority=0,
        attempt=0,
        recoveries=0,
        claimed_by=None,
        claimed_at=None,
        actor="ann",
        reason="typo",
        traceback=None,
        created=now,
        **ledger(held),
    )
    await queue.queries.requeue_jobs([job_id])
    assert [job.payload for job in await queue.claim()] == [payload]


@pytest.mark.parametrize("status", LIVE)
async def test_only_a_held_job_can_be_resolved(queue: QueueUnderTest, status: Status) -> None:
    job = (await queue.job_in(status)).job
    before = await queue.rows()
    resolved = await queue.queries.resolve_job(job.id, "can never work", actor="ann")
    assert resolved is (status is Status.FAILED)
    if not resolved:
        assert await queue.rows() == before
        return
    entry = await queue.last_entry(job.id)
    assert (entry.status, entry.actor, entry.reason) == (Status.DELETED, "ann", "can never work")


@pytest.mark.parametrize(("given", "kept"), [(None, 3), (7, 7)])
async def test_a_requeue_may_give_a_cap_of_its_own(
    queue: QueueUnderTest, given: int | None, kept: int
) -> None:
    job_id = await queue.hold(max_attempts=3)
    await queue.queries.requeue_jobs([job_id], max_attempts=given)
    [job] = await queue.claim(ClaimRule("mail", LEASE, max_attempts=1))
    assert (job.id, job.max_attempts) == (job_id, kept)
