"""Enqueues that are called at once share statements, and nothing else."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from holdfast import DuplicateJobError, Holdfast, HoldfastError, NewJob
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from tests.servers import Database

KINDS = ["asyncpg", "psycopg", "pool"]
PATIENCE = 60.0


@asynccontextmanager
async def opened(kind: str, dsn: str) -> AsyncIterator[Holdfast]:
    if kind == "pool":
        async with asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool:
            yield Holdfast.from_asyncpg_pool(pool)
        return
    async with Holdfast.connect(dsn, driver=kind) as hf:  # type: ignore[arg-type]
        yield hf


async def statements(connection: Any) -> list[int]:
    """How many jobs each enqueue statement has made."""
    found = await connection.fetch("select cardinality(ids) from holdfast_enqueues order by key")
    return [row[0] for row in found]


async def payloads(connection: Any) -> list[bytes]:
    return [row[0] for row in await connection.fetch("select payload from holdfast order by id")]


@asynccontextmanager
async def traffic_jam(dsn: str) -> AsyncIterator[Any]:
    """No enqueue gets through until the end of the block."""
    async with tables.session(dsn) as blocker, blocker.transaction():
        await blocker.execute("lock table holdfast in share mode")
        yield blocker


async def until_waiting(blocker: Any, number: int = 1) -> None:
    """Until so many statements wait for the table."""
    waiting = "select count(*) from pg_locks where not granted and relation = 'holdfast'::regclass"
    async with asyncio.timeout(PATIENCE):
        while await blocker.fetchval(waiting) < number:  # noqa: ASYNC110 (the server's doing)
            await asyncio.sleep(0.01)


def start(*work: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(one) for one in work]


async def begun() -> None:
    """Every task that was just made has come to its first wait."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", KINDS)
async def test_calls_made_at_once_share_statements_and_have_their_own_ids(
    pg: Database, kind: str
) -> None:
    async with tables.installed(pg.dsn) as (connection, _), opened(kind, pg.dsn) as hf:
        wanted = [f"{place}".encode() for place in range(200)]
        found = await asyncio.gather(*(hf.queries.enqueue("mail", one) for one in wanted))
        rows = dict(await connection.fetch("select id, payload from holdfast"))
        assert [rows[job_id] for [job_id] in found] == wanted
        assert len(rows) == 200
        # One alone on each way there is, and all that came meanwhile in one more.
        assert len(await statements(connection)) <= 3


async def test_calls_one_after_the_other_are_statements_of_their_own(pg18: Database) -> None:
    async with tables.installed(pg18.dsn) as (connection, _), opened("asyncpg", pg18.dsn) as hf:
        for _ in range(3):
            await hf.queries.enqueue("mail")
        assert await statements(connection) == [1, 1, 1]


async def test_a_statement_does_not_grow_without_bound(pg18: Database) -> None:
    async with tables.installed(pg18.dsn) as (connection, _), opened("asyncpg", pg18.dsn) as hf:
        calls = [hf.queries.enqueue_many([NewJob("mail")] * 30) for _ in range(100)]
        assert sum(map(len, await asyncio.gather(*calls))) == 3000
        assert max(await statements(connection)) == 990


async def test_a_bulk_enqueue_waits_for_no_other(pg18: Database) -> None:
    async with tables.installed(pg18.dsn) as (connection, _), opened("asyncpg", pg18.dsn) as hf:
        bulks = [hf.queries.enqueue_many([NewJob("mail")] * 1000) for _ in range(3)]
        await asyncio.gather(*bulks)
        assert await statements(connection) == [1000, 1000, 1000]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_duplicate_of_one_call_fails_that_call_alone(pg18: Database, kind: str) -> None:
    async with tables.installed(pg18.dsn) as (connection, _), opened(kind, pg18.dsn) as hf:
        await hf.queries.enqueue("mail", b"first", dedupe_key="taken")
        keys = [None, "taken", "a", "b", None, "a", "taken", "c"]
        jobs = [
            [NewJob("mail", b"x"), NewJob("mail", f"{place}".encode(), dedupe_key=key)]
            for place, key in enumerate(keys)
        ]
        found = await asyncio.gather(
            *(hf.queries.enqueue_many(pair) for pair in jobs), return_exceptions=True
        )
        failed = [place for place, one in enumerate(found) if isinstance(one, DuplicateJobError)]
        assert failed == [1, 5, 6]
        assert {one.dedupe_key for one in found if isinstance(one, DuplicateJobError)} == {
            "taken",
            "a",
        }
        there = [one for one in await payloads(connection) if one != b"x"]
        assert sorted(there) == sorted([b"first", *(f"{n}".encode() for n in (0, 2, 3, 4, 7))])
        # All or none of each call.
        assert len(await payloads(connection)) == 1 + 2 * 5


async def test_calls_that_skip_duplicates_do_not_mix_with_calls_that_refuse_them(
    pg18: Database,
) -> None:
    async with tables.installed(pg18.dsn), opened("asyncpg", pg18.dsn) as hf:
        await hf.queries.enqueue("mail", dedupe_key="taken")
        lone, skipped, refused, again, twin = await asyncio.gather(
            hf.queries.enqueue("mail"),
            hf.queries.enqueue("mail", dedupe_key="taken", on_conflict="skip"),
            hf.queries.enqueue("mail", dedupe_key="taken"),
            hf.queries.enqueue("mail", dedupe_key="new", on_conflict="skip"),
            hf.queries.enqueue("mail", dedupe_key="new", on_conflict="skip"),
            return_exceptions=True,
        )
        assert isinstance(refused, DuplicateJobError)
        assert skipped == twin == [None]
        assert isinstance(lone, list)
        assert isinstance(again, list)
        assert again[0] is not None


async def test_a_call_cancelled_while_it_waits_is_not_sent(pg18: Database) -> None:
    async with tables.installed(pg18.dsn) as (connection, _), opened("asyncpg", pg18.dsn) as hf:
        async with traffic_jam(pg18.dsn) as blocker:
            [first] = start(hf.queries.enqueue("mail", b"first"))
            await until_waiting(blocker)
            waiting = start(*(hf.queries.enqueue("mail", one) for one in (b"a", b"b", b"c")))
            await begun()
            waiting[1].cancel()
            await begun()
            assert waiting[1].cancelled()
        await asyncio.gather(first, waiting[0], waiting[2])
        assert await payloads(connection) == [b"first", b"a", b"c"]


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg"])
async def test_a_call_cancelled_on_its_way_cancels_no_other(pg18: Database, kind: str) -> None:
    async with tables.installed(pg18.dsn) as (connection, _), opened(kind, pg18.dsn) as hf:
        async with traffic_jam(pg18.dsn) as blocker:
            [alone] = start(hf.queries.enqueue("mail", b"alone"))
            await until_waiting(blocker)
            waiting = start(*(hf.queries.enqueue("mail", one) for one in (b"a", b"b")))
            await begun()
            alone.cancel()
            await asyncio.wait([alone])
            assert alone.cancelled()
            await until_waiting(blocker)
            # These two share a statement that is on its way now.
            waiting[0].cancel()
            await begun()
        [job_id] = await waiting[1]
        assert await connection.fetchval("select payload from holdfast where id = $1", job_id) == (
            b"b"
        )


async def test_what_is_enqueued_in_a_callers_transaction_stays_in_it(pg18: Database) -> None:
    async with (
        tables.installed(pg18.dsn) as (connection, _),
        opened("pool", pg18.dsn) as hf,
        tables.session(pg18.dsn) as mine,
    ):
        transaction = mine.transaction()
        await transaction.start()
        inside = hf.queries.on(mine)
        await asyncio.gather(
            *(inside.enqueue("mail", b"mine") for _ in range(3)),
            *(hf.queries.enqueue("mail", b"theirs") for _ in range(3)),
        )
        assert await payloads(connection) == [b"theirs"] * 3
        await transaction.rollback()
        assert await payloads(connection) == [b"theirs"] * 3


async def test_the_end_of_the_server_reaches_every_waiting_call(pg18: Database) -> None:
    async with tables.installed(pg18.dsn):
        pool = await asyncpg.create_pool(pg18.dsn, min_size=1, max_size=2)
        hf = Holdfast.from_asyncpg_pool(pool)
        await pool.close()
        found = await asyncio.gather(
            *(hf.queries.enqueue("mail") for _ in range(20)), return_exceptions=True
        )
        assert {type(one).__name__ for one in found} == {"ConnectionFailed"}


def test_a_closing_loop_leaves_no_task_behind(
    pg18: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        async with (
            tables.installed(pg18.dsn),
            opened("asyncpg", pg18.dsn) as hf,
            traffic_jam(pg18.dsn) as blocker,
        ):
            abandoned.extend(start(*(hf.queries.enqueue("mail") for _ in range(10))))
            await until_waiting(blocker)
            abandoned[0].cancel()
            await asyncio.wait([abandoned[0]])
            # Now the others are on their way, in a task that none of them is.
            await until_waiting(blocker)
            raise KeyError

    abandoned: list[asyncio.Task[Any]] = []
    with pytest.raises(KeyError):
        asyncio.run(leave())
    assert len(abandoned) == 10
    assert all(task.done() for task in abandoned)
    assert not caplog.records


def test_one_queue_serves_one_loop_after_the_other(pg18: Database) -> None:
    async def enqueue() -> int:
        async with asyncpg.create_pool(pg18.dsn, min_size=1, max_size=2) as pool:
            driver._pool = pool
            await asyncio.gather(*(hf.queries.enqueue("mail") for _ in range(10)))
            return int(await pool.fetchval("select count(*) from holdfast"))

    async def install() -> None:
        async with tables.installed(pg18.dsn):
            pass

    asyncio.run(install())
    hf = Holdfast.from_asyncpg_pool(None)
    driver: Any = hf.store.driver  # type: ignore[attr-defined]
    assert asyncio.run(enqueue()) == 10
    assert asyncio.run(enqueue()) == 20


async def test_a_call_that_waits_for_a_dedupe_key_is_overtaken(pg18: Database) -> None:
    async with (
        tables.installed(pg18.dsn) as (connection, _),
        opened("pool", pg18.dsn) as hf,
        tables.session(pg18.dsn) as mine,
    ):
        transaction = mine.transaction()
        await transaction.start()
        await hf.queries.on(mine).enqueue("mail", b"mine", dedupe_key="hot")
        slow = start(
            *(hf.queries.enqueue("mail", b"slow", dedupe_key=key) for key in ("hot", "hot"))
        )
        await begun()
        await asyncio.gather(*(hf.queries.enqueue("mail", b"quick") for _ in range(20)))
        assert await payloads(connection) == [b"quick"] * 20
        assert not any(task.done() for task in slow)
        await transaction.rollback()
        found = await asyncio.gather(*slow, return_exceptions=True)
        assert [isinstance(one, DuplicateJobError) for one in found].count(True) == 1
        assert (await payloads(connection)).count(b"slow") == 1


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg"])
async def test_a_call_that_waits_for_a_dedupe_key_delays_none_without_a_key(
    pg18: Database, kind: str
) -> None:
    """Also with connections of our own: there is a second one, and there are never more."""
    sessions = (
        "select count(*) from pg_stat_activity where datname = current_database()"
        " and application_name like 'holdfast:%' and query like $1 and backend_start > $2"
    )
    async with tables.installed(pg18.dsn) as (connection, _), tables.session(pg18.dsn) as mine:
        # Other tests may leave sessions in this database.
        began = await connection.fetchval("select clock_timestamp()")
        async with opened(kind, pg18.dsn) as hf:
            transaction = mine.transaction()
            await transaction.start()
            await hf.queries.on(mine).enqueue("mail", b"mine", dedupe_key="hot")
            slow = start(
                *(
                    hf.queries.enqueue("mail", b"slow", dedupe_key=key)
                    for key in ("hot", "hot", "cold")
                )
            )
            await begun()
            for _ in range(20):
                await hf.queries.enqueue("mail", b"quick")
            await hf.queries.enqueue_many([NewJob("mail", b"quick") for _ in range(1000)])
            assert not any(task.done() for task in slow)
            assert await payloads(connection) == [b"quick"] * 1020
            assert await connection.fetchval(sessions, '%"holdfast"%', began) <= 2
            await transaction.rollback()
            found = await asyncio.gather(*slow, return_exceptions=True)
            assert [isinstance(one, DuplicateJobError) for one in found].count(True) == 1


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg"])
async def test_a_key_that_stays_taken_costs_no_connections(pg18: Database, kind: str) -> None:
    """Every call that is given up ends on the server, however many there are."""
    waiting = (
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and wait_event_type = 'Lock'"
        " and application_name like 'holdfast:%'"
        " and cardinality(pg_blocking_pids(pid)) > 0 and query like '%holdfast%'"
    )
    async with (
        tables.installed(pg18.dsn) as (connection, _),
        Holdfast.connect(pg18.dsn, driver=kind, timeout=1.0) as hf,  # type: ignore[arg-type]
        tables.session(pg18.dsn) as mine,
    ):
        async with mine.transaction():
            await hf.queries.on(mine).enqueue("mail", b"mine", dedupe_key="hot")
            for _ in range(5):
                with pytest.raises(HoldfastError):
                    await hf.queries.enqueue("mail", b"slow", dedupe_key="hot")
                assert await connection.fetchval(waiting) == 0
        assert await payloads(connection) == [b"mine"]
