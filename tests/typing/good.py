"""Calls of tasks that type checkers accept."""

from __future__ import annotations

from datetime import timedelta

from holdfast import (
    Context,
    Holdfast,
    Job,
    JobHandle,
    Queries,
    Retry,
    SyncQueries,
    TaskGroup,
    exponential,
)

hf = Holdfast.in_memory()
tasks = TaskGroup()


@hf.task
async def ship(order: int, *, express: bool = False) -> str:
    return str(order)


@hf.task(name="count", store_result=timedelta(hours=1), retry=Retry(backoff=exponential()))
def count(words: list[str]) -> int:
    return len(words)


@tasks.task()
async def export(context: Context, pages: int) -> None:
    await context.progress(0.5, "half")


@tasks.task(retry=3)
def convert(context: Context, name: str) -> bytes:
    context.progress(1)
    return name.encode()


@hf.schedule(
    "nightly", "0 3 * * *", misfire="skip", timeout=timedelta(minutes=5), executor="thread"
)
def nightly(job: Job) -> None:
    pass


def made() -> list[object]:
    queries = Queries.from_asyncpg_pool(None, prefix="jobs", max_payload=1000)
    sync = SyncQueries.from_psycopg_connection(None, schema="jobs")
    connected = Holdfast.connect("postgresql:///", schema="jobs", notify=False, timeout=5)
    return [queries, sync, connected, Holdfast.in_memory(resources={})]


async def calls(context: Context) -> None:
    handle: JobHandle[str] = await ship.enqueue(1, express=True)
    text: str = await handle.result(timeout=1)
    number: int = await (await count.enqueue(["a"])).result(timedelta(seconds=1))
    await export.enqueue(3)
    await export.enqueue(pages=3)
    bound = ship.options(priority=2, delay=timedelta(1), dedupe_key=text)
    handles: list[JobHandle[str]] = await bound.enqueue_many([ship.job(number), (2,)])
    again: JobHandle[int] = hf.handle(handles[0].id, count)
    async for done in hf.as_completed(handles):
        text = await done.result()
    direct: str = await ship(1)
    total: int = count(["a"])
    await export(context, 3)
    data: bytes = convert(context, "x")
    count.enqueue_sync([direct])
    print(again, total, data)
