"""Workers that die, freeze or block, as real processes."""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.faults.crew import Crew, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.servers import Database

LEASE = 2.0
SLACK = 30.0
"""Seconds that a busy machine may take for what takes one."""


@pytest.fixture
async def crew(pg18: Database, tmp_path: Path) -> AsyncIterator[Crew]:
    async with Crew(pg18.dsn, tmp_path) as made:
        yield made


async def test_the_jobs_of_a_killed_worker_are_finished_by_another_in_time(crew: Crew) -> None:
    jobs = await crew.hf.queries.enqueue(["hang_once"] * 50)
    victim = await crew.start(lease=LEASE)
    await crew.until_started(50)
    heir = await crew.start(lease=LEASE)
    heir_id = await crew.worker_id(heir)
    killed = await crew.hf.queries.now()
    victim.kill()
    await crew.until_empty()

    of_job = defaultdict(list)
    for entry in await crew.log():
        of_job[entry.job_id].append(entry)
    assert sorted(of_job) == sorted(jobs)
    for recovered, finished in of_job.values():
        assert (recovered.status, finished.status) == ("queued", "successful")
        assert (finished.claimed_by, finished.recoveries) == (heir_id, 1)
        assert finished.created - killed < timedelta(seconds=LEASE + SLACK)


async def test_a_frozen_worker_that_wakes_after_its_lease_writes_nothing(
    crew: Crew, tmp_path: Path
) -> None:
    goal = tmp_path / "goal"
    jobs = await crew.hf.queries.enqueue(["wait_for_file"] * 5, [str(goal).encode()] * 5)
    frozen = await crew.start(lease=LEASE)
    await crew.until_started(5)
    frozen.send_signal(signal.SIGSTOP)
    heir = await crew.start(lease=LEASE)
    heir_id = await crew.worker_id(heir)
    await crew.until(lambda: sum(line.pid == heir.pid for line in crew.lines("start")) == 5)

    # It wakes while the other holds the leases, ends its runs, and tries to record them.
    frozen.send_signal(signal.SIGCONT)
    await crew.until(lambda: sum(line.pid == frozen.pid for line in crew.lines("end")) == 5)
    frozen.terminate()
    assert await crew.ends(frozen) == 0
    assert Counter(size.status for size in await crew.hf.queries.queue_size()) == {"picked": 1}
    goal.touch()
    await crew.until_empty()

    log = await crew.log()
    assert Counter((entry.job_id, str(entry.status)) for entry in log) == {
        (job, status): 1 for job in jobs for status in ("queued", "successful")
    }
    assert {e.claimed_by for e in log if e.status == "successful"} == {heir_id}


async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(crew: Crew) -> None:
    lease = 1.5
    blocked = await crew.start(lease=lease)
    [job] = await crew.hf.queries.enqueue("block", str(5 * lease).encode())
    await crew.until_started(1)
    await crew.start(lease=lease)
    await crew.until_empty()

    assert crew.runs(job) == [blocked.pid]
    [entry] = await crew.log()
    assert (entry.status, entry.recoveries) == ("successful", 0)
    assert f"the handler of 'block' (job {job}) has blocked the event loop" in crew.said


async def test_a_job_that_kills_its_worker_is_held_after_three_deaths_alone(crew: Crew) -> None:
    good = await crew.hf.queries.enqueue(["nap"] * 49, [b"0.05"] * 49)
    [poison] = await crew.hf.queries.enqueue("poison", priority=1)

    async def settled() -> bool:
        sizes = await crew.hf.queries.queue_size()
        return {size.status for size in sizes} <= {"failed"}

    async def death() -> bool:
        """Start a worker, and say whether it died before there was nothing left to do."""
        process = await crew.start(lease=1.0)

        async def over() -> bool:
            return process.poll() is not None or await settled()

        await eventually(over)
        assert process.poll() in (None, -signal.SIGKILL), crew.said
        return process.poll() is not None

    deaths = 0
    while await death():
        deaths += 1
        counted = deaths - await crew.excused(poison)
        assert counted <= 3, "it was not held after three deaths"

    assert len(crew.runs(poison)) == deaths
    assert deaths - await crew.excused(poison) == 3
    [held] = await crew.hf.queries.list_failed_jobs(limit=100)
    assert (held.id, held.recoveries) == (poison, 3)
    assert (await crew.hf.queries.job_history(poison))[-1].reason == "crash_loop"
    ended = [entry.job_id for entry in await crew.log() if entry.status == "successful"]
    assert sorted(ended) == sorted(good)
