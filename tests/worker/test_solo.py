"""A job that one more death of its worker would retire runs alone."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast import Holdfast, Job, Status
from tests.worker.rig import Gauge, Watch, ends, eventually, the_log, working

if TYPE_CHECKING:
    from tests.worker.conftest import NewWorker

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


class Suspects:
    """Handlers that note what their worker holds while a suspect runs."""

    def __init__(self, witness: Any, *workers: Holdfast) -> None:
        self._witness = witness
        self._turn = asyncio.Lock()
        self.running = Gauge()
        self.beside: list[int] = []
        self.release = asyncio.Event()
        for hf in workers:

            @hf.entrypoint("suspect")
            async def suspect(job: Job) -> None:
                with self.running:
                    held = "select count(*) from holdfast where claimed_by = $1"
                    # Suspects of two workers may ask at once, on the one connection.
                    async with self._turn:
                        self.beside.append(await witness.fetchval(held, job.claimed_by) - 1)

            @hf.entrypoint("long")
            async def long(job: Job) -> None:
                await self.release.wait()

            @hf.entrypoint("innocent")
            async def innocent(job: Job) -> None:
                await asyncio.sleep(0)

    async def accuse(self) -> None:
        """As two workers that died have left them."""
        await self._witness.execute(
            "update holdfast set recoveries = 2 where entrypoint = 'suspect'"
        )


async def test_suspects_run_one_at_a_time_and_are_leased_one_at_a_time(
    pg_hf: Holdfast, witness: Any
) -> None:
    suspects = Suspects(witness, pg_hf)
    jobs = await pg_hf.queries.enqueue(["suspect"] * 12)
    await suspects.accuse()
    await ends(pg_hf.run(mode="drain", dequeue_timeout=HOUR))

    assert (suspects.running.total, suspects.running.most) == (12, 1)
    assert suspects.beside == [0] * 12
    for job in jobs:
        *handed_back, last = await the_log(pg_hf, job)
        assert last.status == Status.SUCCESSFUL
        assert {entry.reason for entry in handed_back} <= {"waits to run alone"}


async def test_a_suspect_waits_for_the_others_of_its_worker(pg_hf: Holdfast, witness: Any) -> None:
    suspects, watch = Suspects(witness, pg_hf), Watch(pg_hf)
    await pg_hf.queries.enqueue(["suspect", "long", "innocent", "suspect"])
    await suspects.accuse()
    async with working(pg_hf, heartbeat_timeout=HOUR, dequeue_timeout=HOUR):
        await watch.until(lambda: any(job.entrypoint == "innocent" for job, _, _ in watch.settled))
        assert suspects.running.total == 0
        suspects.release.set()
        await watch.until(lambda: suspects.running.total == 2 and suspects.running.now == 0)

    assert suspects.beside == [0, 0]


async def test_a_suspect_does_not_wait_for_long_jobs_longer_than_a_lease(
    pg_hf: Holdfast, witness: Any
) -> None:
    suspects, watch = Suspects(witness, pg_hf), Watch(pg_hf)
    await pg_hf.queries.enqueue(["long", "suspect"])
    await suspects.accuse()
    async with working(pg_hf, heartbeat_timeout=SECOND):
        await watch.until(lambda: any(seconds for _, _, seconds in watch.settled))
        suspects.release.set()

    assert suspects.beside == [1]


async def test_two_workers_share_the_suspects(new_pg_worker: NewWorker, witness: Any) -> None:
    first, second = new_pg_worker(), new_pg_worker()
    suspects = Suspects(witness, first, second)
    await first.queries.enqueue(["suspect"] * 10 + ["innocent"] * 10)
    await suspects.accuse()
    async with working(first), working(second):

        async def done() -> bool:
            return await first.queries.queue_size() == []

        await eventually(done)

    assert suspects.running.total == 10
    assert suspects.beside == [0] * 10
