"""The log is counted in batches, of which none takes so long that it could never end."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.clock import SystemClock
from holdfast.errors import DatabaseError
from holdfast.lifecycle import TRANSITIONS, Verb
from holdfast.models import NewJob
from holdfast.settings import Names
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from holdfast.stores.postgres.render import MOST_UNCOUNTED, statements
from holdfast.stores.postgres.rollup import StatisticsRollup
from holdfast.stores.postgres.runner import Runner
from tests.conformance.stores import RULE, change
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.stores.postgres.store import PostgresStore
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


async def test_many_transactions_are_counted_in_batches_and_each_row_once(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, _):
        await connection.execute(FILL)
        counting, runner, spans = StatisticsRollup(), runner_over(connection), []
        total, last = 0, await counted_up_to(connection)
        # Rows are counted when no older transaction runs on the server, and it has others.
        async with asyncio.timeout(30):
            while total < ROWS:
                counted, _ = await counting.count_batch(runner)
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


async def test_batches_grow_only_where_more_is_to_be_counted(pg: Database) -> None:
    """On a server with others there may be more now and then."""
    async with tables.installed(pg.dsn) as (connection, _):
        counting, runner = StatisticsRollup(), runner_over(connection)
        more = [(await counting.count_batch(runner))[1] for _ in range(100)]
        await connection.execute(FILL)
        before = await counted_up_to(connection)
        await counting.count_batch(runner)
        assert await counted_up_to(connection) - before <= FIRST_BITE * 2 ** sum(more)


async def test_after_a_batch_that_failed_the_next_is_the_smallest(pg: Database) -> None:
    """A call that took too long costs its connection, so each has one of its own."""
    async with tables.installed(pg.dsn) as (connection, _), tables.session(pg.dsn) as hasty:
        counting, runner = StatisticsRollup(), runner_over(connection)
        await connection.execute("update holdfast_counted set tx = tx - 31 * $1", FIRST_BITE)
        for _ in range(5):
            await counting.count_batch(runner)
        await connection.execute(FILL)
        async with connection.transaction():
            await connection.execute("lock table holdfast_statistics")
            with pytest.raises(DatabaseError):
                await counting.count_batch(runner_over(hasty, timeout=0.3))
        before = await counted_up_to(connection)
        await counting.count_batch(runner)
        assert await counted_up_to(connection) - before <= FIRST_BITE


ELSEWHERE = 10**15
"""An id that the transactions of another server had reached, and those of ours never will."""

RESTORED = f"""
insert into holdfast_log (job_id, status, entrypoint, priority, attempt, recoveries, tx)
values (-1, 'successful', 'mail', 0, 1, 0, 1), (-2, 'successful', 'mail', 0, 1, 0, {ELSEWHERE - 1});
update holdfast_counted set tx = {ELSEWHERE}
"""
"""What a dump brings along: rows that were counted there, and the mark that says so."""


async def settle(store: PostgresStore, jobs: int) -> None:
    await store.jobs.insert([NewJob("mail")] * jobs, "raise")
    claimed = await store.leases.claim([RULE], limit=jobs, worker="w", sweep=True)
    assert len(claimed) == jobs
    await store.leases.change(TRANSITIONS[Verb.COMPLETE], [change(job) for job in claimed])


async def count_all(connection: Any, store: PostgresStore) -> int:
    """Count whatever is committed by now; the sum of the statistics then."""
    until = int(await connection.fetchval("select pg_current_xact_id()::text::bigint"))
    async with asyncio.timeout(30):
        await store.jobs.aggregate()
        # Rows are counted when no older transaction runs on the server, and it has others.
        while await counted_up_to(connection) < until:
            await store.jobs.aggregate()
    return await count(connection)


async def test_after_a_restore_what_is_logged_here_is_counted_once(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, store):
        await settle(store, 2)
        assert await count_all(connection, store) == 2
        await connection.execute(RESTORED)
        await settle(store, 3)
        assert await count_all(connection, store) == 5
        assert await count_all(connection, store) == 5


async def test_after_a_restore_nothing_is_pruned_before_it_is_counted(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, store):
        await connection.execute(RESTORED)
        await settle(store, 3)
        await store.jobs.prune(older_than=timedelta(0), limit=100)
        assert await count_all(connection, store) == 3
        await store.jobs.prune(older_than=timedelta(0), limit=100)
        assert await tables.log(connection) == []


async def test_restored_rows_are_not_counted_when_our_own_ids_reach_theirs(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, store):
        await connection.execute(
            "insert into holdfast_log"
            " (job_id, status, entrypoint, priority, attempt, recoveries, tx)"
            " select -n, 'successful', 'mail', 0, 1, 0, pg_current_xact_id()::text::bigint + n"
            f" from generate_series(1, {ROWS // 2}) n"
        )
        await connection.execute(f"update holdfast_counted set tx = {ELSEWHERE}")
        await connection.execute(FILL)
        assert await count_all(connection, store) == ROWS


async def test_the_documented_delete_takes_no_job_out_of_the_statistics(pg: Database) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "retention.md").read_text(
        encoding="utf-8"
    )
    [delete] = re.findall(r"```sql\n(delete from holdfast_log\n?.*?)```", page, re.DOTALL)
    columns = "job_id, status, entrypoint, priority, attempt, recoveries, created"
    old = f"insert into holdfast_log ({columns})"
    async with tables.installed(pg.dsn) as (connection, store):
        await connection.execute(f"{old} values (1, 'successful', 'mail', 0, 1, 0, '2020-01-01')")
        assert await count_all(connection, store) == 1
        await connection.execute(f"{old} values (2, 'successful', 'mail', 0, 1, 0, '2020-01-01')")
        assert await connection.execute(delete) == "DELETE 2"
        assert await count_all(connection, store) == 2


WORKED = """
insert into holdfast_log
    (job_id, status, entrypoint, priority, attempt, recoveries, due_at, claimed_at, created)
select n, (array['successful', 'exception', 'queued', 'deleted'])[1 + n % 4]::holdfast_status,
       'mail' || n % 3, n % 2, 0, 0, due, due + interval '3 milliseconds' * n * n,
       due + case when n % 7 > 0 then interval '4 milliseconds' * n * n else interval '1 hour' end
from generate_series(1, 200) n, (select timestamptz '2026-01-01 00:00:30 UTC' as due) d
"""
CELLS = "select * from holdfast_statistics order by bucket, entrypoint, priority, status"


@pytest.mark.parametrize("by_hand", ["delete from holdfast_log", "truncate holdfast_log"])
async def test_rows_that_are_deleted_before_they_are_counted_do_not_vanish(
    pg: Database, by_hand: str
) -> None:
    async with tables.installed(pg.dsn) as (connection, store):
        await connection.execute(WORKED)
        await count_all(connection, store)
        expected = await connection.fetch(CELLS)
        await connection.execute("delete from holdfast_log; delete from holdfast_statistics")

        await connection.execute(WORKED)
        async with connection.transaction():
            await connection.execute("delete from holdfast_log where job_id = 1")
            await connection.execute(by_hand)
        assert await connection.fetch(CELLS) == expected
        assert await count_all(connection, store) == 200


async def test_rows_that_are_deleted_when_they_are_counted_are_counted_once(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, store):
        await settle(store, 3)
        assert await count_all(connection, store) == 3
        await settle(store, 2)
        await connection.execute("delete from holdfast_log")
        assert await count_all(connection, store) == 5
        await settle(store, 1)
        async with connection.transaction():
            await connection.execute("savepoint before")
            await connection.execute("delete from holdfast_log")
            await connection.execute("rollback to before")
        assert await count_all(connection, store) == 6


async def test_counting_and_deleting_at_once_count_each_row_once(pg: Database) -> None:
    """The upkeep leaves the mark alone while a deletion counts, and the deletion waits for it."""
    async with tables.installed(pg.dsn) as (connection, store), tables.session(pg.dsn) as other:
        await settle(store, 4)
        transaction = other.transaction()
        await transaction.start()
        await other.execute("delete from holdfast_log where job_id % 2 = 0")
        await store.jobs.aggregate()
        assert await count(connection) == 0
        await transaction.commit()
        assert await count_all(connection, store) == 4

        await settle(store, 4)
        async with connection.transaction():
            await connection.execute("select from holdfast_counted for update")
            deleting = asyncio.create_task(other.execute("delete from holdfast_log"))
            await connection.execute(
                "update holdfast_counted set tx = pg_current_xact_id()::text::bigint"
            )
            waiting = (
                "select count(*) from pg_stat_activity"
                " where wait_event_type = 'Lock' and query = 'delete from holdfast_log'"
            )
            async with asyncio.timeout(30):
                while not await connection.fetchval(waiting):
                    await connection.execute("select pg_stat_clear_snapshot()")
            await connection.execute(
                "update holdfast_statistics set count = count + 4"
                " where bucket = (select max(bucket) from holdfast_statistics)"
            )
        await asyncio.wait_for(deleting, 30)
        assert await count_all(connection, store) == 8


async def test_rows_of_another_server_are_not_counted_when_they_are_deleted(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, store):
        await connection.execute(RESTORED)
        await settle(store, 2)
        await connection.execute("delete from holdfast_log")
        assert await count(connection) == 2


async def test_rows_of_a_savepoint_are_counted(pg: Database) -> None:
    """They carry the id of the whole transaction, and were written under one of their own."""
    async with tables.installed(pg.dsn) as (connection, store):
        async with connection.transaction():
            await connection.execute("select pg_current_xact_id()")
            async with connection.transaction():
                await settle(store, 3)
        assert await count_all(connection, store) == 3


@asynccontextmanager
async def holding_back(dsn: str) -> AsyncIterator[None]:
    """Another transaction writes and stays open, so nothing after it is counted."""
    async with tables.session(dsn) as other, other.transaction():
        await other.execute("select pg_current_xact_id()")
        yield


async def test_uncounted_rows_are_seen_while_a_transaction_is_open(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, store):
        await settle(store, 2)
        assert await count_all(connection, store) == 2
        async with holding_back(pg.dsn):
            await settle(store, 3)
            await store.jobs.aggregate()
            assert await count(connection) == 2
            seen = await store.jobs.statistics(since=timedelta(hours=1), limit=100)
            assert sum(each.count for each in seen) == 5
            assert sum((each.busy for each in seen), timedelta(0)) > timedelta(0)
            assert await store.jobs.uncounted_since() is None
        assert await count_all(connection, store) == 5
        after = await store.jobs.statistics(since=timedelta(hours=1), limit=100)
        assert [(each.bucket, each.count, each.busy) for each in after] == [
            (each.bucket, each.count, each.busy) for each in seen
        ]


async def test_a_count_that_lacks_rows_says_since_when(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, store), holding_back(pg.dsn):
        await connection.execute(
            "insert into holdfast_log"
            " (job_id, status, entrypoint, priority, attempt, recoveries)"
            " select n, 'successful', 'mail', 0, 1, 0 from generate_series(1, $1) n",
            MOST_UNCOUNTED,
        )
        assert await store.jobs.uncounted_since() == await connection.fetchval(
            "select min(created) from holdfast_log"
        )
        seen = await store.jobs.statistics(since=None, limit=100)
        assert sum(each.count for each in seen) == MOST_UNCOUNTED


async def test_restored_rows_are_not_seen_as_uncounted(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, store):
        await connection.execute(RESTORED)
        await settle(store, 3)
        seen = await store.jobs.statistics(since=None, limit=100)
        assert sum(each.count for each in seen) == 3
