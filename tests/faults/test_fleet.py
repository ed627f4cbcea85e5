"""Fleets of real processes: limits that hold everywhere, and a server that crashes under them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from tests.faults.crew import Crew

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from pathlib import Path

    from devtools.cluster import Cluster
    from holdfast import LogEntry
    from tests.faults.crew import Line
    from tests.servers import Database


def most_leased_at_once(log: Iterable[LogEntry]) -> int:
    """By the database's clock: the log has every lease as an interval."""
    moments: list[tuple[datetime, int]] = []
    for entry in log:
        assert entry.claimed_at is not None
        moments += [(entry.claimed_at, 1), (entry.created, -1)]
    now = most = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


def most_running_at_once(lines: Iterable[Line]) -> int:
    """By the order in which the handlers wrote to their common file."""
    now = most = 0
    for line in lines:
        now += 1 if line.event == "start" else -1
        most = max(most, now)
    return most


async def test_eight_processes_never_exceed_a_limit(pg18: Database, tmp_path: Path) -> None:
    async with Crew(pg18.dsn, tmp_path) as crew:
        # Before the workers come, so that all of them find the whole backlog at once.
        kinds = ["limited"] * 60 + ["serial"] * 30
        jobs = await crew.hf.queries.enqueue(kinds, [b"0.02"] * len(kinds))
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(crew.start(lease=10.0, concurrency=20, dequeue_timeout=0.1))
        await crew.until_empty()

        log = await crew.log()
        assert len(log) == len(jobs)
        of_kind: dict[int, str] = dict(zip(jobs, kinds, strict=True))
        for kind, limit in (("limited", 2), ("serial", 1)):
            leases = [entry for entry in log if entry.entrypoint == kind]
            assert most_leased_at_once(leases) <= limit
            lines = [line for line in crew.lines("start", "end") if of_kind[line.job] == kind]
            assert most_running_at_once(lines) <= limit
        assert len({entry.claimed_by for entry in log}) > 1


async def test_the_slots_of_a_killed_worker_are_free_again(pg18: Database, tmp_path: Path) -> None:
    async with Crew(pg18.dsn, tmp_path) as crew:
        await crew.hf.queries.enqueue(["limited"] * 2, [b"600"] * 2)
        victim = await crew.start(lease=1.0)
        await crew.until_started(2)
        third = await crew.hf.queries.enqueue("limited", b"0", priority=1)
        victim.kill()
        heir = await crew.start(lease=1.0)
        await crew.until(lambda: crew.runs(third[0]) == [heir.pid])


async def test_workers_outlive_a_crash_of_the_server(
    controlled_server: Cluster, tmp_path: Path
) -> None:
    async with Crew(controlled_server.dsn, tmp_path) as crew:
        workers = [await crew.start(lease=2.0, concurrency=5) for _ in range(2)]
        jobs = await crew.hf.queries.enqueue(["nap"] * 300, [b"0.1"] * 300)
        await crew.until_started(30)
        await asyncio.to_thread(controlled_server.stop, "immediate")
        # Long enough for every part of them to have noticed.
        await asyncio.sleep(2)
        started = len(crew.lines("start"))
        await asyncio.to_thread(controlled_server.start)
        await crew.until(lambda: len(crew.lines("start")) > started)
        await crew.until_empty()

        assert [worker.poll() for worker in workers] == [None, None]
        log = await crew.log()
        ended = Counter(entry.job_id for entry in log if entry.status == "successful")
        assert ended == dict.fromkeys(jobs, 1)
        assert {str(entry.status) for entry in log} <= {"successful", "queued"}
