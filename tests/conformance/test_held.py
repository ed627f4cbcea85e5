"""Held jobs as case files: found, edited, resolved, sent back with other rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.lifecycle import LIVE, Status, Verb
from holdfast.models import ClaimRule, HeldFilter, LogEntry
from tests.conformance.stores import LEASE, SECOND, ids, ledger

if TYPE_CHECKING:
    from holdfast.models import JobId
    from tests.conformance.stores import Rig


async def hold(rig: Rig, entrypoint: str, error: str | None) -> JobId:
    job = await rig.lease(entrypoint)
    await rig.settle(Verb.HOLD, job, error=error)
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
    rig: Rig, among: HeldFilter, found: list[int]
) -> None:
    told = [("mail", "Timeout: 5 s"), ("mail", "at 100%_"), ("sms", "timeout"), ("mail", None)]
    held = []
    for entrypoint, error in told:
        held.append(await hold(rig, entrypoint, error))
        rig.clock.advance(SECOND)
    listed = ids(await rig.queries.list_failed_jobs(among=among))
    assert listed == [held[place] for place in found]


@pytest.mark.parametrize("payload", [b"new", b"", None])
async def test_editing_replaces_the_payload_and_says_who_did(
    rig: Rig, payload: bytes | None
) -> None:
    job_id = await rig.hold(payload=b"old")
    held = await rig.row(job_id)
    rig.clock.advance(SECOND)
    now = rig.clock.now()
    assert await rig.queries.edit_job(job_id, payload, actor="ann", reason="typo") is True
    assert await rig.row(job_id) == held._replace(payload=payload, updated=now)
    entry = await rig.last_entry(job_id)
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
    await rig.queries.requeue_jobs([job_id])
    assert [job.payload for job in await rig.claim()] == [payload]


@pytest.mark.parametrize("status", LIVE)
async def test_only_a_held_job_can_be_resolved(rig: Rig, status: Status) -> None:
    job = (await rig.job_in(status)).job
    before = await rig.rows()
    resolved = await rig.queries.resolve_job(job.id, "can never work", actor="ann")
    assert resolved is (status is Status.FAILED)
    if not resolved:
        assert await rig.rows() == before
        return
    entry = await rig.last_entry(job.id)
    assert (entry.status, entry.actor, entry.reason) == (Status.DELETED, "ann", "can never work")


@pytest.mark.parametrize(("given", "kept"), [(None, 3), (7, 7)])
async def test_a_requeue_may_give_a_cap_of_its_own(rig: Rig, given: int | None, kept: int) -> None:
    job_id = await rig.hold(max_attempts=3)
    await rig.queries.requeue_jobs([job_id], max_attempts=given)
    [job] = await rig.claim(ClaimRule("mail", LEASE, max_attempts=1))
    assert (job.id, job.max_attempts) == (job_id, kept)
