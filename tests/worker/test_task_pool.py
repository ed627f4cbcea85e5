"""One job, one task: nothing that a handler leaves behind reaches another job."""

from __future__ import annotations

import asyncio
import gc
import time
from contextvars import ContextVar

from holdfast import Holdfast, Job, Status
from tests.worker.workers import Gauge, ending, ends

MARK: ContextVar[str] = ContextVar("MARK", default="untouched")


async def test_each_job_has_a_task_of_its_own(hf: Holdfast) -> None:
    tasks: set[asyncio.Task[object] | None] = set()

    @hf.entrypoint("quick")
    async def quick(job: Job) -> None:
        tasks.add(asyncio.current_task())

    await hf.queries.enqueue(["quick"] * 40)
    await ends(hf.run(mode="drain"))

    assert len(tasks) == 40


async def test_a_timer_that_a_job_leaves_behind_does_not_cancel_another(hf: Holdfast) -> None:
    """It cancels the task that the job had, a moment after the job has ended."""
    went_off = 0

    @hf.entrypoint("careless")
    async def careless(job: Job) -> None:
        task = asyncio.current_task()
        assert task is not None

        def late() -> None:
            nonlocal went_off
            went_off += 1
            task.cancel()

        asyncio.get_running_loop().call_later(0.02, late)

    @hf.entrypoint("patient")
    async def patient(job: Job) -> None:
        await asyncio.sleep(0.1)

    ids = await hf.queries.enqueue(["careless", "patient"] * 20)
    await ends(hf.run(mode="drain", concurrency=40))

    assert went_off == 20
    ended = [(await ending(hf, job_id)).status for job_id in ids]
    assert ended == [Status.SUCCESSFUL] * 40


class Ambiguous:
    """As an array of numbers is: it cannot be compared as a whole."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = object.__hash__


AMBIGUOUS: ContextVar[Ambiguous] = ContextVar("AMBIGUOUS")


async def test_a_context_variable_that_cannot_be_compared_is_no_trouble(hf: Holdfast) -> None:
    @hf.entrypoint("array")
    async def array(job: Job) -> None:
        AMBIGUOUS.set(Ambiguous())

    errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    token = AMBIGUOUS.set(Ambiguous())
    # Many for few slots, so that the end of one job starts the next.
    ids = await hf.queries.enqueue(["array"] * 300)
    await ends(hf.run(mode="drain", concurrency=2, batch_size=50))
    AMBIGUOUS.reset(token)

    gc.collect()
    assert errors == [], "a task died of it"
    found = await hf.queries.job_status(ids)
    assert {status for _, status in found} == {Status.SUCCESSFUL}
    assert hf.queue_manager.running == 0


async def test_jobs_that_wait_all_run_at_once(hf: Holdfast) -> None:
    all_started, gauge = asyncio.Event(), Gauge()

    @hf.entrypoint("slow")
    async def slow(job: Job) -> None:
        with gauge:
            if gauge.most == 33:
                all_started.set()
            await all_started.wait()

    await hf.queries.enqueue(["slow"] * 33)
    await ends(hf.run(mode="drain", concurrency=40))

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
