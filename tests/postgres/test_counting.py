"""The log is counted in bites, of which none takes so long that it could never end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.clock import SystemClock
from holdfast.errors import DatabaseError
from holdfast.settings import Names
from holdfast.stores.postgres.counting import Counting
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from holdfast.stores.postgres.render import statements
from holdfast.stores.postgres.runner import Runner
from tests.postgres import tables

if TYPE_CHECKING:
    from tests.servers import Database

ROWS = 2500
FIRST_BITE = 1000

FILL = f"""
do $$ begin
    for number in 1..{ROWS} loop
        insert into holdfast_log (job_id, status, entrypoint, priority, attempt, recoveries)
        values (number, 'successful', 'mail', 0, 1, 0);
        commit;
    end loop;
end $$
"""


def runner_over(connection: Any, **options: float) -> Runner:
    driver = AsyncpgDriver(connection, **options)
    return Runner(driver, statements(Names()), SystemClock())


async def counted_up_to(connection: Any) -> int:
    return int(await connection.fetchval("select tx from holdfast_counted"))


async def count(connection: Any) -> int:
    return int(await connection.fetchval("select coalesce(sum(count), 0) from holdfast_statistics"))


async def test_many_transactions_are_counted_in_bites_and_each_row_once(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, _):
        await connection.execute(FILL)
        counting, runner, spans = Counting(), runner_over(connection), []
        total, last = 0, await counted_up_to(connection)
        # Rows are counted when no older transaction runs on the server, and it has others.
        async with asyncio.timeout(30):
            while total < ROWS:
                counted, _ = await counting.bite(runner)
                total += counted
                reached = await counted_up_to(connection)
                spans.append(reached - last)
                assert counted <= reached - last
                last = reached
        assert 0 <= spans[0] <= FIRST_BITE
        assert sum(spans) >= ROWS
        assert await count(connection) == total == ROWS


@pytest.mark.parametrize("way", ["aggregate", "housekeep"])
async def test_who_counts_goes_on_until_all_is_counted(pg: Database, way: str) -> None:
    async with tables.installed(pg.dsn) as (connection, store):
        await connection.execute(FILL)
        async with asyncio.timeout(30):
            until = int(await connection.fetchval("select pg_current_xact_id()::text::bigint"))
            while await counted_up_to(connection) < until:
                before = await counted_up_to(connection)
                oldest = await connection.fetchval(
                    "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
                )
                await (store.jobs.aggregate() if way == "aggregate" else store.leases.housekeep())
                assert await counted_up_to(connection) >= max(before, int(oldest))
        assert await count(connection) == ROWS


async def test_bites_grow_only_where_more_is_to_be_counted(pg: Database) -> None:
    """On a server with others there may be more now and then."""
    async with tables.installed(pg.dsn) as (connection, _):
        counting, runner = Counting(), runner_over(connection)
        more = [(await counting.bite(runner))[1] for _ in range(100)]
        await connection.execute(FILL)
        before = await counted_up_to(connection)
        await counting.bite(runner)
        assert await counted_up_to(connection) - before <= FIRST_BITE * 2 ** sum(more)


async def test_after_a_bite_that_failed_the_next_is_the_smallest(pg: Database) -> None:
    """A call that took too long costs its connection, so each has one of its own."""
    async with tables.installed(pg.dsn) as (connection, _), tables.session(pg.dsn) as hasty:
        counting, runner = Counting(), runner_over(connection)
        await connection.execute("update holdfast_counted set tx = tx - 31 * $1", FIRST_BITE)
        for _ in range(5):
            await counting.bite(runner)
        await connection.execute(FILL)
        async with connection.transaction():
            await connection.execute("lock table holdfast_statistics")
            with pytest.raises(DatabaseError):
                await counting.bite(runner_over(hasty, timeout=0.3))
        before = await counted_up_to(connection)
        await counting.bite(runner)
        assert await counted_up_to(connection) - before <= FIRST_BITE
