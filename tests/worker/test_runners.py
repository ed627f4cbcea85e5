"""Jobs that share a task find it as if it were made for them."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar

from holdfast import Holdfast, Job, Status
from tests.worker.rig import Gauge, ending, ends

MARK: ContextVar[str] = ContextVar("MARK", default="untouched")


async def test_jobs_that_never_wait_share_a_task(hf: Holdfast) -> None:
    tasks: set[asyncio.Task[object] | None] = set()

    @hf.entrypoint("quick")
    async def quick(job: Job) -> None:
        tasks.add(asyncio.current_task())

    await hf.queries.enqueue(["quick"] * 40)
    await ends(hf.run(mode="drain"))

    # Another one is made where a job took its time, as on a busy machine.
    assert 1 <= len(tasks) < 40


async def test_jobs_that_wait_all_run_at_once(hf: Holdfast) -> None:
    everybody, gauge = asyncio.Event(), Gauge()

    @hf.entrypoint("slow")
    async def slow(job: Job) -> None:
        with gauge:
            if gauge.most == 33:
                everybody.set()
            await everybody.wait()

    await hf.queries.enqueue(["slow"] * 33)
    await ends(hf.run(mode="drain"))

    assert gauge.most == 33


async def test_a_context_variable_is_not_seen_by_the_next_job(hf: Holdfast) -> None:
    seen: list[str] = []

    @hf.entrypoint("marking")
    async def marking(job: Job) -> None:
        seen.append(MARK.get())
        MARK.set(f"job {job.id}")

    await hf.queries.enqueue(["marking"] * 5)
    await ends(hf.run(mode="drain"))

    assert seen == ["untouched"] * 5


async def test_a_job_that_cancels_its_own_task_does_not_cancel_the_next(hf: Holdfast) -> None:
    @hf.entrypoint("rash")
    async def rash(job: Job) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    @hf.entrypoint("calm")
    async def calm(job: Job) -> None:
        await asyncio.sleep(0)

    ids = await hf.queries.enqueue(["rash", "calm", "rash", "calm"])
    await ends(hf.run(mode="drain"))

    ended = [(await ending(hf, job_id)).status for job_id in ids]
    assert ended == [Status.SUCCESSFUL] * 4


async def test_jobs_that_never_wait_leave_others_their_turn(hf: Holdfast) -> None:
    turns: list[int] = []
    done = 0

    @hf.entrypoint("busy")
    async def busy(job: Job) -> None:
        nonlocal done
        until = time.monotonic() + 0.003
        while time.monotonic() < until:
            pass
        done += 1

    async def other() -> None:
        while True:
            turns.append(done)
            await asyncio.sleep(0)

    await hf.queries.enqueue(["busy"] * 30)
    beside = asyncio.create_task(other())
    await ends(hf.run(mode="drain"))
    beside.cancel()

    assert any(0 < turn < 30 for turn in turns)
