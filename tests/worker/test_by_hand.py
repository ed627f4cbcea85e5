"""A person changes rows with plain SQL while workers run."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from holdfast import Holdfast, Job, Moved, Status
from holdfast.models import ClaimRule, WorkerInfo
from holdfast.stores.postgres.fleet import FleetTimeouts
from tests.worker.workers import Watch, ends, eventually, working

if TYPE_CHECKING:
    from tests.worker.conftest import NewWorker

SOON = timedelta(milliseconds=200)
QUARANTINE = "update holdfast set entrypoint = 'quarantine', status = 'queued' where id = $1"


def quarantine(hf: Holdfast) -> list[int]:
    """The ids of the jobs that the handler of the quarantine has run."""
    ran: list[int] = []

    @hf.entrypoint("quarantine")
    async def look_at(job: Job) -> None:
        ran.append(job.id)

    return ran


async def log_of(hf: Holdfast, job_id: Any) -> list[tuple[Status, str | None]]:
    return [(row.status, row.claimed_by) for row in await hf.queries.job_history(job_id)]


async def test_a_stale_job_is_quarantined_by_the_plain_update(
    new_pg_worker: NewWorker, witness: Any
) -> None:
    hf, dead = new_pg_worker(), new_pg_worker()
    ran = quarantine(hf)
    [job_id] = await hf.queries.enqueue("mail")
    rules = [ClaimRule("mail", lease=timedelta(hours=1))]
    [job] = await dead.store.leases.claim(rules, limit=1, worker="dead")
    await witness.execute("update holdfast set heartbeat = now() - interval '11 minutes'")
    async with working(hf, dequeue_timeout=SOON):
        [[stale]] = await witness.fetch(
            "select id from holdfast where status = 'picked'"
            " and heartbeat < now() - interval '10 minutes' order by heartbeat"
        )
        assert stale == job_id == job.id
        await witness.execute(QUARANTINE, stale)

        async def left() -> bool:
            return not await witness.fetch("select from holdfast")

        await eventually(left)
    assert ran == [job_id]
    assert await log_of(hf, job_id) == [(Status.SUCCESSFUL, hf.queue_manager.id)]


async def test_a_worker_whose_job_was_queued_by_hand_cannot_change_it(
    new_pg_worker: NewWorker, witness: Any
) -> None:
    """It ends its handler before another worker claims the job, and after."""
    holder, other = new_pg_worker(), new_pg_worker()
    ran = quarantine(other)
    started, go_on = asyncio.Event(), asyncio.Event()
    watch = Watch(holder)

    @holder.entrypoint("mail")
    async def mail(job: Job) -> None:
        started.set()
        await go_on.wait()

    async with working(holder):
        [job_id] = await holder.queries.enqueue("mail")
        await ends(started.wait())
        await witness.execute(QUARANTINE, job_id)
        go_on.set()
        await watch.until(lambda: bool(watch.lost))
        [[status, name]] = await witness.fetch("select status::text, entrypoint from holdfast")
        assert (status, name) == ("queued", "quarantine")
        assert await holder.queries.job_history(job_id) == []
        async with working(other, dequeue_timeout=SOON):
            await eventually(lambda: _ended(other, job_id))
    assert ran == [job_id]
    assert await log_of(other, job_id) == [(Status.SUCCESSFUL, other.queue_manager.id)]


async def _ended(hf: Holdfast, job_id: Any) -> bool:
    [(_, status)] = await hf.queries.job_status([job_id])
    return status is Status.SUCCESSFUL


async def test_a_job_moved_by_force_stops_where_it_ran_and_runs_where_it_belongs(
    new_pg_worker: NewWorker,
) -> None:
    holder, other = new_pg_worker(), new_pg_worker()
    ran = quarantine(other)
    started, stopped = asyncio.Event(), asyncio.Event()

    @holder.entrypoint("mail")
    async def mail(job: Job) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with working(holder, heartbeat_timeout=timedelta(hours=1)), working(other):
        [job_id] = await holder.queries.enqueue("mail")
        await ends(started.wait())
        left = await holder.queries.move_jobs([job_id], "quarantine")
        assert left == {job_id: Moved.LEASED}
        moved = await holder.queries.move_jobs([job_id], "quarantine", force=True)
        assert moved == {job_id: Moved.MOVED}
        # Long before its lease of an hour is renewed again.
        await ends(stopped.wait())
        await eventually(lambda: _ended(other, job_id))
    assert ran == [job_id]


async def test_a_held_job_is_queued_by_hand_with_the_column_that_holds_it(
    pg_hf: Holdfast, witness: Any
) -> None:
    fails = True

    @pg_hf.entrypoint("mail", on_failure="hold")
    async def mail(job: Job) -> None:
        if fails:
            raise ValueError("bad")

    [job_id] = await pg_hf.queries.enqueue("mail")
    async with working(pg_hf, dequeue_timeout=SOON):

        async def is_held() -> bool:
            return bool(await pg_hf.queries.list_failed_jobs())

        await eventually(is_held)
        with pytest.raises(asyncpg.CheckViolationError, match="holdfast_held_while_failed"):
            await witness.execute("update holdfast set status = 'queued' where id = $1", job_id)
        fails = False
        await witness.execute(
            "update holdfast set status = 'queued', held_at = null where id = $1", job_id
        )
        await eventually(lambda: _ended(pg_hf, job_id))


async def test_a_dead_workers_jobs_run_as_soon_as_they_are_released(
    new_pg_worker: NewWorker,
) -> None:
    hf, dead = new_pg_worker(), new_pg_worker()
    done = asyncio.Event()

    @hf.entrypoint("mail")
    async def mail(job: Job) -> None:
        done.set()

    [job_id] = await hf.queries.enqueue("mail")
    rules = [ClaimRule("mail", lease=timedelta(hours=1))]
    assert await dead.store.leases.claim(rules, limit=1, worker="dead")
    async with working(hf, dequeue_timeout=timedelta(seconds=60)):
        assert await hf.queries.release_worker("dead", actor="ann") == [job_id]
        await ends(done.wait())


async def test_different_heartbeat_timeouts_are_warned_of_once(
    new_pg_worker: NewWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast.worker")
    workers = [new_pg_worker(), new_pg_worker()]

    def warnings() -> list[str]:
        return [text for text in caplog.messages if "heartbeat_timeout" in text]

    for hf in workers:
        hf.entrypoint("mail")(_mail)
    async with working(workers[0], heartbeat_timeout=timedelta(seconds=20)):
        await workers[0].store.leases.housekeep()
        assert warnings() == []
        async with working(workers[1], heartbeat_timeout=timedelta(seconds=7)):

            async def both() -> bool:
                return len(await workers[0].queries.list_workers()) == 2

            await eventually(both)
            for _ in range(3):
                await workers[0].store.leases.housekeep()
    [warning] = warnings()
    assert "7 s in" in warning
    assert "20 s in" in warning
    assert "give all workers the same" in warning


def test_a_worker_that_has_fallen_silent_is_not_compared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such as those of yesterday's deployment, which had another value."""
    now = datetime.now(UTC)

    def worker(name: str, silent: int, timeout: int | None) -> WorkerInfo:
        seen = now - timedelta(seconds=silent)
        span = None if timeout is None else timedelta(seconds=timeout)
        return WorkerInfo(name, "host", 1, "1", [], 1, 0, "running", seen, seen, span)

    fleet = FleetTimeouts()
    fleet.check([])
    fleet.check([worker("new", 0, 30), worker("gone", 21, 20), worker("older", 0, None)])
    assert caplog.messages == []
    fleet.check([worker("new", 0, 30), worker("old", 19, 20)])
    assert len(caplog.messages) == 1


async def _mail(job: Job) -> None:
    """Nothing to do."""
