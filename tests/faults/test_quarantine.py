"""Deaths of whole fleets: nothing stands still, no innocent job is held, a killer is."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from holdfast.worker.quarantine import FIRST_ALLOWANCE
from tests.faults.crew import Crew, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.servers import Database

LEASE = 3.0
WORKERS = 2
IN_FLIGHT = 100


@pytest.fixture
async def crew(pg18: Database, tmp_path: Path) -> AsyncIterator[Crew]:
    async with Crew(pg18.dsn, tmp_path) as made:
        yield made


async def test_two_deaths_of_the_whole_fleet_stop_nothing(crew: Crew, tmp_path: Path) -> None:
    # No job ends before the second death, however long the processes take to start.
    goal = tmp_path / "goal"
    payload = str(goal).encode()
    old = await crew.hf.queries.enqueue(["gated"] * IN_FLIGHT, [payload] * IN_FLIGHT)
    fleet = [await crew.start(lease=LEASE, concurrency=IN_FLIGHT) for _ in range(WORKERS)]
    await crew.until_started(IN_FLIGHT)
    for process in fleet:
        process.kill()
    fleet = [await crew.start(lease=LEASE, concurrency=IN_FLIGHT) for _ in range(WORKERS)]
    await crew.until_started(IN_FLIGHT + FIRST_ALLOWANCE)
    for process in fleet:
        process.kill()
    started = len(crew.lines("start"))
    goal.touch()
    for _ in range(WORKERS):
        await crew.start(lease=LEASE, concurrency=IN_FLIGHT)
    # The jobs of the dead are recovered and run again when the fresh ones come.
    await crew.until_started(started + 1)
    fresh = await crew.hf.queries.enqueue(["nap"] * IN_FLIGHT, [b"0"] * IN_FLIGHT)
    await crew.until_empty()

    log = await crew.log()
    done = {entry.job_id: entry for entry in log if entry.status == "successful"}
    assert sorted(done) == sorted([*old, *fresh])
    assert Counter(entry.reason for entry in log if entry.status == "failed") == {}
    suspects = [entry for entry in done.values() if entry.recoveries == 2]
    # The second death incriminates what the allowance let run, which had begun to grow.
    assert 1 <= len(suspects) < IN_FLIGHT
    last = max(done[job].created for job in fresh)
    after = [entry for entry in suspects if entry.created > last]
    assert after, "fresh jobs waited for all suspects"


@pytest.mark.parametrize("priority", [1, -1], ids=["first", "last"])
async def test_a_deadly_job_among_many_is_held_after_three_deaths_and_no_other(
    crew: Crew, priority: int
) -> None:
    good = await crew.hf.queries.enqueue(["nap"] * IN_FLIGHT, [b"0.3"] * IN_FLIGHT)
    [poison] = await crew.hf.queries.enqueue("poison", priority=priority)

    async def settled() -> bool:
        sizes = await crew.hf.queries.queue_size()
        return {size.status for size in sizes} <= {"failed"}

    async def death() -> bool:
        """Start a worker, and say whether it died before there was nothing left to do."""
        process = await crew.start(lease=1.0, concurrency=2 * IN_FLIGHT)

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

    assert deaths - await crew.excused(poison) == 3
    [held] = await crew.hf.queries.list_failed_jobs(limit=1000)
    assert (held.id, held.recoveries) == (poison, 3)
    assert (await crew.hf.queries.job_history(poison))[-1].reason == "crash_loop"
    ended = [entry.job_id for entry in await crew.log() if entry.status == "successful"]
    assert sorted(ended) == sorted(good)
