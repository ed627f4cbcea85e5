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
    from tests.conformance.stores import Rig

LATER = [row for row in LIFECYCLE if row.sources]
BY_THE_HOLDER = [row for row in LATER if Guard.OWNED in row.guards]


DEATHS = {CLAIM_RECOVERED: 1, CLAIM_SUSPECT: 2, RETIRE_STALE: 1}
"""Deaths of its worker that a job has behind it, so that the guards of a transition are met."""


async def attempt(  # noqa: C901 - one branch for each verb
    rig: Rig, row: Transition, job: Job, token: UUID | None
) -> bool:
    """Ask for a transition whose guards are met, but for the state and the token."""
    if row.verb is Verb.RENEW:
        held = LeaseKey(job.id, token)  # type: ignore[arg-type]
        return await rig.store.leases.renew([held]) == {held}
    if Guard.OWNED in row.guards:
        cap = job.attempts + 1 if row is RETIRE_LAST_RETRY else None
        asked = Change(LeaseKey(job.id, token), error="no", max_attempts=cap)  # type: ignore[arg-type]
        return bool(await rig.store.leases.change(row, [asked]))
    if row.verb is Verb.CLAIM:
        suspects = row is CLAIM_SUSPECT
        claim = rig.claim_recovered(suspects=suspects) if row.variant else rig.claim()
        return [found.status for found in await claim] == [row.target]
    if row is RETIRE_UNCLAIMABLE:
        spent = ClaimRule(job.entrypoint, LEASE, max_attempts=job.attempts)
        return [found.status for found in await rig.claim(spent)] == [row.target]
    if row.verb is Verb.RECOVER or row is RETIRE_STALE:
        rig.clock.advance(LEASE)
        cap = job.recoveries + (1 if row is RETIRE_STALE else 2)
        contact = LEASE if row is RECOVER_OUTAGE else None
        rig.clock.advance(LEASE if contact else timedelta(0))
        recovery = await rig.recover(
            ClaimRule(job.entrypoint, LEASE, max_recoveries=cap), contact=contact
        )
        return bool(recovery.retired if row is RETIRE_STALE else recovery.recovered)
    if row.verb is Verb.EDIT:
        return await rig.store.jobs.edit(job.id, b"edited", actor=None, reason=None)
    if row.verb is Verb.REQUEUE:
        outcomes = await rig.store.jobs.requeue([job.id], actor=None, reason=None)
        return outcomes == {job.id: Requeued.REQUEUED}
    if row.verb is Verb.MOVE:
        return await _move(rig, row, job)
    return bool(await rig.store.jobs.remove(row, [job.id], actor=None, reason=None))


async def _move(rig: Rig, row: Transition, job: Job) -> bool:
    """One call serves every state, and the store chooses the row of the table."""
    rig.clock.advance(LEASE)
    before = {found.status for found in await rig.store.jobs.get([job.id])}
    if before and not before & set(row.sources):
        return False
    outcomes = await rig.store.jobs.move([job.id], "other", actor=None, reason=None)
    return outcomes == {job.id: Moved.MOVED}


@pytest.mark.parametrize("status", LIVE)
@pytest.mark.parametrize("row", LATER, ids=lambda row: row.name)
async def test_a_verb_moves_a_job_from_its_sources_and_from_no_other_state(
    rig: Rig, row: Transition, status: Status
) -> None:
    leased = await rig.job_in(status, DEATHS.get(row, 0))
    rig.clock.advance(SECOND)
    before = await rig.rows()
    moved = await attempt(rig, row, leased.job, leased.job.claim_token)
    assert moved is (status in row.sources)
    if not moved:
        assert await rig.rows() == before
        return
    assert await rig.status(leased.job.id) is row.target
    written = await rig.last_entry(leased.job.id)
    assert (written not in before.log) is row.logged
    if row.logged:
        assert (written.status, written.reason) == (row.target, row.reason)


@pytest.mark.parametrize("row", LATER, ids=lambda row: row.name)
async def test_a_job_that_left_the_queue_never_moves_again(rig: Rig, row: Transition) -> None:
    jobs = await rig.ended()
    before = await rig.rows()
    assert {entry.status for entry in before.log} >= set(FINAL)
    for job in jobs:
        assert not await attempt(rig, row, job, job.claim_token)
    assert await rig.rows() == before


@pytest.mark.parametrize("row", BY_THE_HOLDER, ids=lambda row: row.name)
async def test_a_write_under_another_token_changes_nothing(rig: Rig, row: Transition) -> None:
    leased = await rig.job_in(Status.PICKED)
    rig.clock.advance(SECOND)
    before = await rig.rows()
    wrong, stale, absent = uuid4(), leased.stale, None
    for token in (wrong, stale, absent):
        assert not await attempt(rig, row, leased.job, token)
    assert await rig.rows() == before
    assert await attempt(rig, row, leased.job, leased.job.claim_token)
