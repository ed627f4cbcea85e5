"""Calls of tasks that type checkers refuse: every line that ends with `# bad`."""

from __future__ import annotations

from holdfast import Context, Holdfast, JobHandle, Queries, SyncQueries

hf = Holdfast.in_memory()


@hf.task
async def ship(order: int, *, express: bool = False) -> str:
    return str(order)


@hf.task
def convert(context: Context, name: str) -> bytes:
    return name.encode()


async def calls(context: Context) -> None:
    await ship.enqueue("one")  # bad
    await ship.enqueue()  # bad
    await ship.enqueue(1, True)  # bad
    await ship.enqueue(1, expres=True)  # bad
    await ship.options(priority="high").enqueue(1)  # bad
    await ship.options(priority=1).enqueue("one")  # bad
    ship.job("one")  # bad
    ship.enqueue_sync("one")  # bad
    await convert.enqueue(context, "x")  # bad
    convert("x")  # bad
    number: int = await (await ship.enqueue(1)).result()  # bad
    handle: JobHandle[int] = hf.handle(1, ship)  # bad
    total: int = await ship(1)  # bad
    hf.task(retry="often")  # bad
    hf.schedule("nightly", "0 3 * * *", concurency_limit=1)  # bad
    hf.schedule("nightly", "0 3 * * *", timeout=30)  # bad
    Holdfast.connect("postgresql:///", prefx="jobs")  # bad
    Holdfast.in_memory(max_payload="large")  # bad
    Holdfast.from_asyncpg_pool(None, carry=dict)  # bad
    Queries.from_asyncpg_connection(None, notify=True)  # bad
    SyncQueries.from_psycopg_connection(None, notify=True)  # bad
    print(number, handle, total)
