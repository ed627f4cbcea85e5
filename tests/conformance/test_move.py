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
    from tests.conformance.stores import QueueUnderTest

QUARANTINE = ClaimRule("quarantine", LEASE)


async def test_a_waiting_job_becomes_one_of_the_other_entrypoint(queue: QueueUnderTest) -> None:
    job_id = await queue.add(payload=b"1", headers={"a": 1}, priority=3, dedupe_key="k")
    before = await queue.row(job_id)
    queue.clock.advance(SECOND)
    moved = await queue.queries.move_jobs([job_id], "quarantine", actor="ann", reason="odd")
    assert moved == {job_id: Moved.MOVED}
    now = queue.clock.now()
    assert await queue.row(job_id) == before._replace(entrypoint="quarantine", updated=now)
    entry = await queue.last_entry(job_id)
    assert (entry.status, entry.entrypoint, entry.claimed_by) == (Status.QUEUED, "mail", None)
    assert (entry.actor, entry.reason) == ("ann", "moved to quarantine: odd")
    assert await queue.claim() == []
    assert [job.id for job in await queue.claim(QUARANTINE)] == [job_id]


async def test_a_job_whose_lease_is_stale_moves_and_its_worker_can_change_it_no_more(
    queue: QueueUnderTest,
) -> None:
    job = await queue.lease()
    queue.clock.advance(LEASE)
    assert await queue.queries.move_jobs([job.id], "quarantine") == {job.id: Moved.MOVED}
    row, entry = await queue.row(job.id), await queue.last_entry(job.id)
    assert (row.status, row.claim_token, row.claimed_by) == (Status.QUEUED, None, None)
    assert (row.attempts, row.recoveries) == (0, 0)
    assert (entry.claimed_by, entry.claimed_at) == ("w1", job.claimed_at)
    assert (entry.actor, entry.reason) == (None, "moved to quarantine")
    assert await queue.store.leases.renew([holding(job)]) == set()
    for verb in (Verb.COMPLETE, Verb.FAIL, Verb.RETRY, Verb.HOLD, Verb.RELEASE):
        assert await queue.change(verb, change(job, error="late", max_attempts=25)) == set()
    assert (await queue.recover(worker="w1")).recovered == ()
    assert await queue.store.jobs.list_running(10) == []
    [again] = await queue.claim(QUARANTINE, worker="w2")
    assert await queue.change(Verb.COMPLETE, change(job)) == set()
    await queue.settle(Verb.COMPLETE, again)


async def test_a_live_lease_ends_only_by_force(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    assert await queue.queries.move_jobs([job.id], "quarantine") == {job.id: Moved.LEASED}
    assert await queue.row(job.id) == job
    moved = await queue.queries.move_jobs([job.id], "quarantine", force=True)
    assert moved == {job.id: Moved.MOVED}
    assert await queue.change(Verb.COMPLETE, change(job)) == set()
    assert [found.id for found in await queue.claim(QUARANTINE)] == [job.id]


async def test_a_held_job_moves_with_fresh_counters(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    await queue.settle(Verb.RETRY, job, error="no")
    [job] = await queue.claim()
    await queue.settle(Verb.HOLD, job, error="no")
    queue.clock.advance(SECOND)
    assert await queue.queries.move_jobs([job.id], "quarantine") == {job.id: Moved.MOVED}
    row = await queue.row(job.id)
    assert (row.status, row.held_at, row.attempts) == (Status.QUEUED, None, 0)
    assert (row.entrypoint, row.execute_after) == ("quarantine", queue.clock.now())


async def test_a_held_job_whose_key_is_taken_stays(queue: QueueUnderTest) -> None:
    first = await queue.hold(dedupe_key="k")
    second = await queue.hold(dedupe_key="k")
    both = await queue.queries.move_jobs([second, first], "quarantine")
    assert both == {second: Moved.KEY_TAKEN, first: Moved.MOVED}
    assert await queue.status(second) is Status.FAILED
    again = await queue.queries.move_jobs([second], "quarantine")
    assert again == {second: Moved.KEY_TAKEN}


async def test_every_id_has_its_outcome(queue: QueueUnderTest) -> None:
    held = await queue.hold()
    leased = await queue.lease()
    waiting = await queue.add()
    unknown = JobId(999_999)
    assert await queue.queries.move_jobs([unknown, leased.id, waiting, held], "other") == {
        unknown: Moved.NOT_FOUND,
        leased.id: Moved.LEASED,
        waiting: Moved.MOVED,
        held: Moved.MOVED,
    }
    assert await queue.queries.move_jobs([], "other") == {}


async def test_a_job_moved_by_hand_leaves_its_limit_to_others(queue: QueueUnderTest) -> None:
    limited = ClaimRule("mail", LEASE, concurrency_limit=1)
    job_id = await queue.add()
    [job] = await queue.claim(limited)
    await queue.add()
    assert await queue.claim(limited) == []
    await queue.queries.move_jobs([job.id], "quarantine", force=True)
    [other] = await queue.claim(limited)
    assert other.id != job_id


@pytest.mark.parametrize("name", ["", " ", "x" * 201, "nul\x00", None])
async def test_a_name_that_no_job_can_have_is_refused(queue: QueueUnderTest, name: str) -> None:
    job_id = await queue.add()
    with pytest.raises(InvalidInput, match="entrypoint"):
        await queue.queries.move_jobs([job_id], name)
    assert (await queue.row(job_id)).entrypoint == "mail"


async def reported(queue: QueueUnderTest, worker: str, timeout: timedelta | None) -> None:
    now = queue.clock.now()
    await queue.reports.report(
        WorkerInfo(worker, "host", 1, "1", ["mail"], 10, 1, "running", now, now, timeout)
    )


async def test_the_jobs_of_a_dead_worker_are_released_at_once(queue: QueueUnderTest) -> None:
    dead = await queue.lease()
    [other_id] = [await queue.add()]
    [other] = await queue.claim(worker="w2")
    await reported(queue, "w1", timedelta(seconds=10))
    queue.clock.advance(timedelta(seconds=10))
    assert await queue.queries.release_worker("w1", actor="ann", reason="gone") == [dead.id]
    row, entry = await queue.row(dead.id), await queue.last_entry(dead.id)
    assert (row.status, row.entrypoint, row.recoveries) == (Status.QUEUED, "mail", 0)
    assert (entry.status, entry.claimed_by, entry.actor) == (Status.QUEUED, "w1", "ann")
    assert entry.reason == "worker released: gone"
    assert await queue.change(Verb.COMPLETE, change(dead)) == set()
    assert (await queue.row(other_id)).claimed_by == "w2"
    await queue.settle(Verb.COMPLETE, other)
    assert await queue.queries.release_worker("w1") == []


async def test_a_worker_that_still_reports_keeps_its_jobs_unless_forced(
    queue: QueueUnderTest,
) -> None:
    job = await queue.lease()
    await reported(queue, "w1", timedelta(seconds=60))
    queue.clock.advance(timedelta(seconds=59))
    with pytest.raises(WorkerAlive, match=r"reported 59\.0 s ago.*after 60 s"):
        await queue.queries.release_worker("w1")
    assert (await queue.row(job.id)).status is Status.PICKED
    assert await queue.queries.release_worker("w1", force=True) == [job.id]


async def test_a_worker_that_reports_no_timeout_counts_as_dead_after_the_default(
    queue: QueueUnderTest,
) -> None:
    job = await queue.lease()
    await reported(queue, "w1", None)
    queue.clock.advance(timedelta(seconds=29))
    with pytest.raises(WorkerAlive):
        await queue.queries.release_worker("w1")
    queue.clock.advance(timedelta(seconds=1))
    assert await queue.queries.release_worker("w1") == [job.id]


async def test_workers_are_listed_with_their_heartbeat_timeout(queue: QueueUnderTest) -> None:
    await reported(queue, "w1", timedelta(seconds=7))
    [worker] = await queue.queries.list_workers()
    assert worker.heartbeat_timeout == timedelta(seconds=7)
