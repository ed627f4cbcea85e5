"""Queueing jobs again by hand, under another entrypoint, and releasing the jobs of a worker."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import InvalidInput, WorkerAlive
from holdfast.lifecycle import Status, Verb
from holdfast.models import ClaimRule, JobId, Moved, WorkerInfo
from tests.conformance.stores import LEASE, SECOND, change, holding

if TYPE_CHECKING:
    from tests.conformance.stores import Rig

QUARANTINE = ClaimRule("quarantine", LEASE)


async def test_a_waiting_job_becomes_one_of_the_other_entrypoint(rig: Rig) -> None:
    job_id = await rig.add(payload=b"1", headers={"a": 1}, priority=3, dedupe_key="k")
    before = await rig.row(job_id)
    rig.clock.advance(SECOND)
    moved = await rig.queries.move_jobs([job_id], "quarantine", actor="ann", reason="odd")
    assert moved == {job_id: Moved.MOVED}
    now = rig.clock.now()
    assert await rig.row(job_id) == before._replace(entrypoint="quarantine", updated=now)
    entry = await rig.last_entry(job_id)
    assert (entry.status, entry.entrypoint, entry.claimed_by) == (Status.QUEUED, "mail", None)
    assert (entry.actor, entry.reason) == ("ann", "moved to quarantine: odd")
    assert await rig.claim() == []
    assert [job.id for job in await rig.claim(QUARANTINE)] == [job_id]


async def test_a_job_whose_lease_is_stale_moves_and_its_worker_can_change_it_no_more(
    rig: Rig,
) -> None:
    job = await rig.lease()
    rig.clock.advance(LEASE)
    assert await rig.queries.move_jobs([job.id], "quarantine") == {job.id: Moved.MOVED}
    row, entry = await rig.row(job.id), await rig.last_entry(job.id)
    assert (row.status, row.claim_token, row.claimed_by) == (Status.QUEUED, None, None)
    assert (row.attempts, row.recoveries) == (0, 0)
    assert (entry.claimed_by, entry.claimed_at) == ("w1", job.claimed_at)
    assert (entry.actor, entry.reason) == (None, "moved to quarantine")
    assert await rig.store.leases.renew([holding(job)]) == set()
    for verb in (Verb.COMPLETE, Verb.FAIL, Verb.RETRY, Verb.HOLD, Verb.RELEASE):
        assert await rig.change(verb, change(job, error="late", max_attempts=25)) == set()
    assert (await rig.recover(worker="w1")).recovered == ()
    assert await rig.store.jobs.list_running(10) == []
    [again] = await rig.claim(QUARANTINE, worker="w2")
    assert await rig.change(Verb.COMPLETE, change(job)) == set()
    await rig.settle(Verb.COMPLETE, again)


async def test_a_live_lease_ends_only_by_force(rig: Rig) -> None:
    job = await rig.lease()
    assert await rig.queries.move_jobs([job.id], "quarantine") == {job.id: Moved.LEASED}
    assert await rig.row(job.id) == job
    moved = await rig.queries.move_jobs([job.id], "quarantine", force=True)
    assert moved == {job.id: Moved.MOVED}
    assert await rig.change(Verb.COMPLETE, change(job)) == set()
    assert [found.id for found in await rig.claim(QUARANTINE)] == [job.id]


async def test_a_held_job_moves_with_fresh_counters(rig: Rig) -> None:
    job = await rig.lease()
    await rig.settle(Verb.RETRY, job, error="no")
    [job] = await rig.claim()
    await rig.settle(Verb.HOLD, job, error="no")
    rig.clock.advance(SECOND)
    assert await rig.queries.move_jobs([job.id], "quarantine") == {job.id: Moved.MOVED}
    row = await rig.row(job.id)
    assert (row.status, row.held_at, row.attempts) == (Status.QUEUED, None, 0)
    assert (row.entrypoint, row.execute_after) == ("quarantine", rig.clock.now())


async def test_a_held_job_whose_key_is_taken_stays(rig: Rig) -> None:
    first = await rig.hold(dedupe_key="k")
    second = await rig.hold(dedupe_key="k")
    both = await rig.queries.move_jobs([second, first], "quarantine")
    assert both == {second: Moved.KEY_TAKEN, first: Moved.MOVED}
    assert await rig.status(second) is Status.FAILED
    again = await rig.queries.move_jobs([second], "quarantine")
    assert again == {second: Moved.KEY_TAKEN}


async def test_every_id_has_its_outcome(rig: Rig) -> None:
    held = await rig.hold()
    leased = await rig.lease()
    waiting = await rig.add()
    unknown = JobId(999_999)
    assert await rig.queries.move_jobs([unknown, leased.id, waiting, held], "other") == {
        unknown: Moved.NOT_FOUND,
        leased.id: Moved.LEASED,
        waiting: Moved.MOVED,
        held: Moved.MOVED,
    }
    assert await rig.queries.move_jobs([], "other") == {}


async def test_a_job_moved_by_hand_leaves_its_limit_to_others(rig: Rig) -> None:
    limited = ClaimRule("mail", LEASE, concurrency_limit=1)
    job_id = await rig.add()
    [job] = await rig.claim(limited)
    await rig.add()
    assert await rig.claim(limited) == []
    await rig.queries.move_jobs([job.id], "quarantine", force=True)
    [other] = await rig.claim(limited)
    assert other.id != job_id


@pytest.mark.parametrize("name", ["", " ", "x" * 201, "nul\x00", None])
async def test_a_name_that_no_job_can_have_is_refused(rig: Rig, name: str) -> None:
    job_id = await rig.add()
    with pytest.raises(InvalidInput, match="entrypoint"):
        await rig.queries.move_jobs([job_id], name)
    assert (await rig.row(job_id)).entrypoint == "mail"


async def reported(rig: Rig, worker: str, timeout: timedelta | None) -> None:
    now = rig.clock.now()
    await rig.reports.report(
        WorkerInfo(worker, "host", 1, "1", ["mail"], 10, 1, "running", now, now, timeout)
    )


async def test_the_jobs_of_a_dead_worker_are_released_at_once(rig: Rig) -> None:
    dead = await rig.lease()
    [other_id] = [await rig.add()]
    [other] = await rig.claim(worker="w2")
    await reported(rig, "w1", timedelta(seconds=10))
    rig.clock.advance(timedelta(seconds=10))
    assert await rig.queries.release_worker("w1", actor="ann", reason="gone") == [dead.id]
    row, entry = await rig.row(dead.id), await rig.last_entry(dead.id)
    assert (row.status, row.entrypoint, row.recoveries) == (Status.QUEUED, "mail", 0)
    assert (entry.status, entry.claimed_by, entry.actor) == (Status.QUEUED, "w1", "ann")
    assert entry.reason == "worker released: gone"
    assert await rig.change(Verb.COMPLETE, change(dead)) == set()
    assert (await rig.row(other_id)).claimed_by == "w2"
    await rig.settle(Verb.COMPLETE, other)
    assert await rig.queries.release_worker("w1") == []


async def test_a_worker_that_still_reports_keeps_its_jobs_unless_forced(rig: Rig) -> None:
    job = await rig.lease()
    await reported(rig, "w1", timedelta(seconds=60))
    rig.clock.advance(timedelta(seconds=59))
    with pytest.raises(WorkerAlive, match=r"reported 59\.0 s ago.*after 60 s"):
        await rig.queries.release_worker("w1")
    assert (await rig.row(job.id)).status is Status.PICKED
    assert await rig.queries.release_worker("w1", force=True) == [job.id]


async def test_a_worker_that_reports_no_timeout_counts_as_dead_after_the_default(rig: Rig) -> None:
    job = await rig.lease()
    await reported(rig, "w1", None)
    rig.clock.advance(timedelta(seconds=29))
    with pytest.raises(WorkerAlive):
        await rig.queries.release_worker("w1")
    rig.clock.advance(timedelta(seconds=1))
    assert await rig.queries.release_worker("w1") == [job.id]


async def test_workers_are_listed_with_their_heartbeat_timeout(rig: Rig) -> None:
    await reported(rig, "w1", timedelta(seconds=7))
    [worker] = await rig.queries.list_workers()
    assert worker.heartbeat_timeout == timedelta(seconds=7)
