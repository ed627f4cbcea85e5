"""The table of the lifecycle, walked: every verb from every state, with every kind of token."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from holdfast.lifecycle import (
    CLAIM_RECOVERED,
    CLAIM_SUSPECT,
    FINAL,
    LIFECYCLE,
    LIVE,
    RECOVER_OUTAGE,
    RETIRE_LAST_RETRY,
    RETIRE_STALE,
    RETIRE_UNCLAIMABLE,
    Guard,
    Status,
    Transition,
    Verb,
)
from holdfast.models import Change, ClaimRule, LeaseKey, Moved, Requeued
from tests.conformance.stores import LEASE, SECOND

if TYPE_CHECKING:
    from uuid import UUID

    from holdfast.models import Job
    from tests.conformance.stores import QueueUnderTest

LATER = [row for row in LIFECYCLE if row.sources]
BY_THE_HOLDER = [row for row in LATER if Guard.OWNED in row.guards]


DEATHS = {CLAIM_RECOVERED: 1, CLAIM_SUSPECT: 2, RETIRE_STALE: 1}
"""Deaths of its worker that a job has behind it, so that the guards of a transition are met."""


async def attempt(  # noqa: C901 - one branch for each verb
    queue: QueueUnderTest, row: Transition, job: Job, token: UUID | None
) -> bool:
    """Ask for a transition whose guards are met, but for the state and the token."""
    if row.verb is Verb.RENEW:
        held = LeaseKey(job.id, token)  # type: ignore[arg-type]
        return await queue.store.leases.renew([held]) == {held}
    if Guard.OWNED in row.guards:
        cap = job.attempts + 1 if row is RETIRE_LAST_RETRY else None
        asked = Change(LeaseKey(job.id, token), error="no", max_attempts=cap)  # type: ignore[arg-type]
        return bool(await queue.store.leases.change(row, [asked]))
    if row.verb is Verb.CLAIM:
        suspects = row is CLAIM_SUSPECT
        claim = queue.claim_recovered(suspects=suspects) if row.variant else queue.claim()
        return [found.status for found in await claim] == [row.target]
    if row is RETIRE_UNCLAIMABLE:
        spent = ClaimRule(job.entrypoint, LEASE, max_attempts=job.attempts)
        return [found.status for found in await queue.claim(spent)] == [row.target]
    if row.verb is Verb.RECOVER or row is RETIRE_STALE:
        queue.clock.advance(LEASE)
        cap = job.recoveries + (1 if row is RETIRE_STALE else 2)
        contact = LEASE if row is RECOVER_OUTAGE else None
        queue.clock.advance(LEASE if contact else timedelta(0))
        recovery = await queue.recover(
            ClaimRule(job.entrypoint, LEASE, max_recoveries=cap), contact=contact
        )
        return bool(recovery.retired if row is RETIRE_STALE else recovery.recovered)
    if row.verb is Verb.EDIT:
        return await queue.store.jobs.edit(job.id, b"edited", actor=None, reason=None)
    if row.verb is Verb.REQUEUE:
        outcomes = await queue.store.jobs.requeue([job.id], actor=None, reason=None)
        return outcomes == {job.id: Requeued.REQUEUED}
    if row.verb is Verb.MOVE:
        return await _move(queue, row, job)
    return bool(await queue.store.jobs.remove(row, [job.id], actor=None, reason=None))


async def _move(queue: QueueUnderTest, row: Transition, job: Job) -> bool:
    """One call serves every state, and the store chooses the row of the table."""
    queue.clock.advance(LEASE)
    before = {found.status for found in await queue.store.jobs.get([job.id])}
    if before and not before & set(row.sources):
        return False
    outcomes = await queue.store.jobs.move([job.id], "other", actor=None, reason=None)
    return outcomes == {job.id: Moved.MOVED}


@pytest.mark.parametrize("status", LIVE)
@pytest.mark.parametrize("row", LATER, ids=lambda row: row.name)
async def test_a_verb_moves_a_job_from_its_sources_and_from_no_other_state(
    queue: QueueUnderTest, row: Transition, status: Status
) -> None:
    leased = await queue.job_in(status, DEATHS.get(row, 0))
    queue.clock.advance(SECOND)
    before = await queue.rows()
    moved = await attempt(queue, row, leased.job, leased.job.claim_token)
    assert moved is (status in row.sources)
    if not moved:
        assert await queue.rows() == before
        return
    assert await queue.status(leased.job.id) is row.target
    written = await queue.last_entry(leased.job.id)
    assert (written not in before.log) is row.logged
    if row.logged:
        assert (written.status, written.reason) == (row.target, row.reason)


@pytest.mark.parametrize("row", LATER, ids=lambda row: row.name)
async def test_a_job_that_left_the_queue_never_moves_again(
    queue: QueueUnderTest, row: Transition
) -> None:
    jobs = await queue.ended()
    before = await queue.rows()
    assert {entry.status for entry in before.log} >= set(FINAL)
    for job in jobs:
        assert not await attempt(queue, row, job, job.claim_token)
    assert await queue.rows() == before


@pytest.mark.parametrize("row", BY_THE_HOLDER, ids=lambda row: row.name)
async def test_a_write_under_another_token_changes_nothing(
    queue: QueueUnderTest, row: Transition
) -> None:
    leased = await queue.job_in(Status.PICKED)
    queue.clock.advance(SECOND)
    before = await queue.rows()
    wrong, stale, absent = uuid4(), leased.stale, None
    for token in (wrong, stale, absent):
        assert not await attempt(queue, row, leased.job, token)
    assert await queue.rows() == before
    assert await attempt(queue, row, leased.job, leased.job.claim_token)
