"""mode="drain": work until nothing is claimable, and not a job less."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from holdfast import Holdfast, Job, RetryRequested, Status
from tests.worker.workers import ending, ends, the_log, the_row

HOUR = timedelta(hours=1)


async def test_an_empty_queue_is_drained_at_once(hf: Holdfast) -> None:
    @hf.entrypoint("one")
    async def one(job: Job) -> None:
        raise AssertionError("there was no job")

    await ends(hf.run(mode="drain", dequeue_timeout=HOUR))


async def test_a_drain_runs_the_jobs_that_its_jobs_enqueue(hf: Holdfast) -> None:
    """Of another priority and another entrypoint too, which no earlier claim has seen."""
    ran: list[tuple[str, int]] = []
    depth = 30

    async def follow(job: Job) -> None:
        ran.append((job.entrypoint, job.priority))
        step = int(job.payload or b"0")
        if step < depth:
            name = "odd" if step % 2 else "even"
            await hf.queries.enqueue(name, str(step + 1).encode(), priority=step % 3)

    hf.entrypoint("even")(follow)
    hf.entrypoint("odd")(follow)
    await hf.queries.enqueue("even", b"0")
    await ends(hf.run(mode="drain", dequeue_timeout=HOUR))

    assert len(ran) == depth + 1
    assert await hf.queries.queue_size() == []


async def test_a_drain_after_a_slow_claim_still_looks_everywhere(hf: Holdfast) -> None:
    """A store may put its search for new lanes off, but not until after the worker has left."""

    @hf.entrypoint("one")
    async def one(job: Job) -> None:
        if job.payload == b"last":
            await hf.queries.enqueue("one", priority=-1)

    await hf.queries.enqueue(["one"] * 4_000, [*[b""] * 3_999, b"last"])
    await ends(hf.run(mode="drain", dequeue_timeout=HOUR, concurrency=4_000, batch_size=4_000))

    assert await hf.queries.queue_size() == []


async def test_a_drain_leaves_what_is_not_due_and_what_is_held(hf: Holdfast) -> None:
    @hf.entrypoint("one")
    async def one(job: Job) -> None:
        await asyncio.sleep(0)

    @hf.entrypoint("bad", on_failure="hold")
    async def bad(job: Job) -> None:
        raise ValueError

    deferred, held, done = await hf.queries.enqueue(
        ["one", "bad", "one"], execute_after=[HOUR, None, None]
    )
    await ends(hf.run(mode="drain", dequeue_timeout=HOUR))

    assert (await the_row(hf, deferred)).status == Status.QUEUED
    assert (await the_row(hf, held)).status == Status.FAILED
    assert (await ending(hf, done)).status == Status.SUCCESSFUL


async def test_a_drain_runs_a_job_again_that_asked_for_it_at_once(hf: Holdfast) -> None:
    @hf.entrypoint("again")
    async def again(job: Job) -> None:
        if job.attempts < 5:
            raise RetryRequested

    [job_id] = await hf.queries.enqueue("again")
    await ends(hf.run(mode="drain", dequeue_timeout=HOUR))

    assert [entry.status for entry in await the_log(hf, job_id)] == ["queued"] * 5 + ["successful"]
