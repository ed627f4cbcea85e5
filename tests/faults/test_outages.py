"""The database is away for longer than a lease: no job is charged, and no work is repeated."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Literal

import pytest

from tests.faults.crew import Crew, eventually
from tests.faults.proxy import Proxy

if TYPE_CHECKING:
    from pathlib import Path

    from devtools.cluster import Cluster
    from tests.servers import Database

LEASE = 2.0
OUTAGE = 1.75 * LEASE


async def outage(server: Cluster, mode: Literal["fast", "immediate"] = "immediate") -> None:
    await asyncio.to_thread(server.stop, mode)
    await asyncio.sleep(OUTAGE)
    await asyncio.to_thread(server.start)


async def charged(crew: Crew) -> Counter[str | None]:
    """The reasons of log rows that count against a job."""
    log = await crew.log()
    return Counter(
        entry.reason
        for entry in log
        if entry.recoveries or entry.reason in ("lease_expired", "crash_loop", "outage")
    )


async def test_outages_longer_than_the_lease_count_for_no_job(
    controlled_server: Cluster, tmp_path: Path
) -> None:
    async with Crew(controlled_server.dsn, tmp_path) as crew:
        workers = [await crew.start(lease=LEASE) for _ in range(2)]
        jobs = await crew.hf.queries.enqueue(["nap"] * 60, [b"4"] * 60)
        started = 0

        def all_started() -> bool:
            ended = len(crew.lines("end"))
            return len(crew.lines("start")) >= started + len(jobs) - ended

        for _ in range(3):
            # Each outage stops every handler, so all jobs that have not ended start again after it.
            await crew.until(all_started)
            started = len(crew.lines("start"))
            await outage(controlled_server)
        await crew.until_empty()

        assert await charged(crew) == {}
        ended = Counter(e.job_id for e in await crew.log() if e.status == "successful")
        assert ended == dict.fromkeys(jobs, 1)
        assert [worker.poll() for worker in workers] == [None, None]


@pytest.mark.parametrize("workers", [1, 2])
async def test_jobs_that_end_during_an_outage_are_not_run_again(
    controlled_server: Cluster, tmp_path: Path, workers: int
) -> None:
    async with Crew(controlled_server.dsn, tmp_path) as crew:
        for _ in range(workers):
            await crew.start(lease=LEASE)
        for round_ in range(1, 4):
            await crew.hf.queries.enqueue(["nap"] * 40, [b"1"] * 40)
            await crew.until_started(40 * round_)
            # A crash may forget claims, which are not fsynced. This one forgets nothing.
            await outage(controlled_server, "fast")
            await crew.until_empty()

        assert Counter(line.job for line in crew.lines("start")).most_common(1)[0][1] == 1
        assert await charged(crew) == {}


@pytest.mark.parametrize("workers", [1, 2])
async def test_an_outage_of_the_network_counts_for_no_job(
    pg18: Database, tmp_path: Path, workers: int
) -> None:
    async with Proxy(pg18.dsn) as proxy, Crew(pg18.dsn, tmp_path) as crew:
        for _ in range(workers):
            await crew.start(dsn=proxy.dsn, lease=LEASE)
        await crew.hf.queries.enqueue(["nap"] * 30, [b"1"] * 30)
        await crew.until_started(30)
        await proxy.swallow()
        await asyncio.sleep(OUTAGE)
        await proxy.flow()
        await crew.until_empty()

        assert Counter(line.job for line in crew.lines("start")).most_common(1)[0][1] == 1
        assert await charged(crew) == {}


async def test_a_sweep_does_not_recover_what_its_own_worker_can_still_settle(
    pg18: Database, tmp_path: Path
) -> None:
    """Renewals and outcomes are stuck for longer than the lease while sweeps go through."""
    async with Proxy(pg18.dsn) as proxy, Crew(pg18.dsn, tmp_path) as crew:
        # Each purpose has a connection of its own, so sweeps do not share that of the outcomes.
        await crew.start(dsn=proxy.dsn, lease=LEASE, connections=7)
        jobs = await crew.hf.queries.enqueue(["nap"] * 10, [b"1"] * 10)
        await crew.until_started(10)
        await proxy.swallow("renew", "settle")
        # Two leases, in which several sweeps find the heartbeats too old.
        await asyncio.sleep(2 * LEASE)
        assert [job.status for job in await crew.hf.queries.get_jobs(jobs)] == ["picked"] * 10
        await proxy.flow()
        await crew.until_empty()

        assert [str(entry.status) for entry in await crew.log()] == ["successful"] * 10


async def test_the_jobs_of_a_worker_that_died_in_an_outage_are_recovered_and_not_counted(
    controlled_server: Cluster, tmp_path: Path
) -> None:
    async with Crew(controlled_server.dsn, tmp_path) as crew:
        victim = await crew.start(lease=LEASE)
        goal = tmp_path / "goal"
        [job] = await crew.hf.queries.enqueue("gated", bytes(goal))
        await crew.until_started(1)
        # It sees the outage. A worker that starts later would count the death.
        heir = await crew.start(lease=LEASE)
        await crew.worker_id(heir)
        await asyncio.to_thread(controlled_server.stop, "fast")
        victim.kill()
        await asyncio.to_thread(controlled_server.start)
        await crew.until(lambda: crew.runs(job) == [victim.pid, heir.pid])
        goal.touch()
        await crew.until_empty()

        recovered, done = await crew.log()
        assert (recovered.status, recovered.reason) == ("queued", "outage")
        assert (done.status, done.recoveries) == ("successful", 0)


async def test_a_restart_of_the_server_does_not_make_a_killer_immortal(
    controlled_server: Cluster, tmp_path: Path
) -> None:
    """A worker that starts after the server has seen no outage, so it counts each death."""
    async with Crew(controlled_server.dsn, tmp_path) as crew:
        [job] = await crew.hf.queries.enqueue("poison")
        for death in range(1, 4):
            process = await crew.start(lease=1.0)
            await crew.ends(process)
            assert len(crew.runs(job)) == death
            if death == 1:
                await asyncio.to_thread(controlled_server.restart, "fast")
        await crew.start(lease=1.0)

        async def held() -> bool:
            return (await crew.log())[-1].status == "failed"

        await eventually(held)
        assert [(entry.reason, entry.recoveries) for entry in await crew.log()] == [
            ("lease_expired", 0),
            ("lease_expired", 1),
            ("crash_loop", 2),
        ]
        assert len(crew.runs(job)) == 3
