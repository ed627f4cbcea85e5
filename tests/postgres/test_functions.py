"""Enqueue, cancel and status from SQL: with the caller's rights, whatever the search path is."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from holdfast import Holdfast, Status
from holdfast.models import ClaimRule
from holdfast.stores.postgres.grants import DatabaseRole
from tests.security.roles import granted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast import Job
    from tests.servers import Database

TRIGGER = """
create table orders (id integer primary key, item text);
create function order_placed() returns trigger language plpgsql as $$
begin
    perform holdfast_enqueue('ship', jsonb_build_object('order_id', new.id),
                             dedupe_key => 'order-' || new.id);
    return new;
end $$;
create trigger order_placed after insert on orders
    for each row execute function order_placed();
"""


@pytest.fixture
async def sql(pg: Database) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(pg.dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def hf(pg: Database) -> AsyncIterator[Holdfast]:
    async with Holdfast.connect(pg.dsn) as found:
        await found.install(functions=True)
        yield found


async def only_job(hf: Holdfast) -> Job:
    [job] = await hf.queries.browse_queue()
    return job


async def test_a_job_is_enqueued_as_it_would_be_from_python(hf: Holdfast, sql: Any) -> None:
    job_id = await sql.fetchval(
        "select holdfast_enqueue('ship', '{\"order_id\": 1}', priority => 5,"
        " delay => interval '1 hour', dedupe_key => 'k', headers => '{\"tenant\": \"a\"}')"
    )
    job = await only_job(hf)
    assert (job.id, job.entrypoint, job.priority) == (job_id, "ship", 5)
    assert (job.payload, job.dedupe_key) == (b'{"order_id": 1}', "k")
    assert job.headers == {"tenant": "a"}
    assert 3590 < (job.execute_after - job.created).total_seconds() < 3610


async def test_bytes_and_instants_are_taken_too(hf: Holdfast, sql: Any) -> None:
    await sql.execute(
        "select holdfast_enqueue('ship', payload_bytes => '\\x00ff'::bytea,"
        " execute_after => '2030-01-01T00:00:00Z')"
    )
    job = await only_job(hf)
    assert (job.payload, job.execute_after.isoformat()) == (
        b"\0\xff",
        "2030-01-01T00:00:00+00:00",
    )


async def test_a_trigger_enqueues_with_the_row(hf: Holdfast, sql: Any) -> None:
    await sql.execute(TRIGGER)
    async with sql.transaction():
        await sql.execute("insert into orders values (1, 'book')")
        assert await hf.queries.queue_size() == []
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("insert into orders values (2, 'pen')")
    await transaction.rollback()
    assert (await only_job(hf)).payload == b'{"order_id": 1}'


async def test_duplicates_are_errors_or_skipped(hf: Holdfast, sql: Any) -> None:
    await sql.execute("select holdfast_enqueue('ship', dedupe_key => 'k')")
    with pytest.raises(asyncpg.UniqueViolationError):
        await sql.execute("select holdfast_enqueue('ship', dedupe_key => 'k')")
    skipped = "select holdfast_enqueue('ship', dedupe_key => 'k', on_conflict => 'skip')"
    assert await sql.fetchval(skipped) is None
    await only_job(hf)


async def test_a_job_is_canceled_with_its_log_row(hf: Holdfast, sql: Any) -> None:
    job_id = await sql.fetchval("select holdfast_enqueue('ship')")
    assert await sql.fetchval("select holdfast_status($1)", job_id) == "queued"
    assert await sql.fetchval("select holdfast_cancel($1, 'sold out')", job_id) is True
    assert await sql.fetchval("select holdfast_cancel($1)", job_id) is False
    assert await sql.fetchval("select holdfast_status($1)", job_id) == "canceled"
    assert await sql.fetchval("select holdfast_status(123456)") is None
    [entry] = await hf.queries.job_history(job_id)
    user = await sql.fetchval("select session_user")
    assert (entry.status, entry.reason, entry.actor) == (Status.CANCELED, "sold out", user)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("holdfast_enqueue('')", "entrypoint must have"),
        ("holdfast_enqueue('a', on_conflict => 'x')", "raise or skip, got x"),
        ("holdfast_enqueue('a', delay => '1s', execute_after => now())", "two times for one job"),
    ],
)
async def test_bad_input_says_what_is_wrong(hf: Holdfast, sql: Any, call: str, said: str) -> None:
    with pytest.raises(asyncpg.PostgresError, match=said):
        await sql.execute(f"select {call}")
    assert await hf.queries.queue_size() == []


async def test_the_search_path_of_the_caller_does_not_matter(hf: Holdfast, pg: Database) -> None:
    stranger = await asyncpg.connect(pg.server_dsn)
    await stranger.execute("create temp table holdfast (id bigint)")
    await stranger.execute(f"select {pg.schema}.holdfast_enqueue('ship')")
    await stranger.close()
    await only_job(hf)


async def test_another_prefix_has_functions_of_its_own(pg: Database, sql: Any) -> None:
    async with Holdfast.connect(pg.dsn, prefix="jobs", schema=pg.schema) as hf:
        await hf.install(functions=True)
        await sql.execute("select jobs_enqueue('ship')")
        await only_job(hf)


@pytest.mark.parametrize("named", [False, True], ids=["search path", "schema"])
async def test_workers_hear_of_what_is_enqueued_and_cancelled(pg18: Database, named: bool) -> None:
    schema = pg18.schema if named else None
    async with Holdfast.connect(pg18.dsn, schema=schema) as hf:
        await hf.install(functions=True)
        connection = await asyncpg.connect(pg18.dsn)
        heard: asyncio.Queue[str] = asyncio.Queue()
        await connection.add_listener(hf.names.channel, lambda *said: heard.put_nowait(said[-1]))
        async with asyncio.timeout(30):
            await connection.execute("select holdfast_enqueue('ship')")
            assert await heard.get() == ""
            [job] = await hf.store.leases.claim(
                [ClaimRule("ship", timedelta(seconds=30))], limit=1, worker="w", sweep=True
            )
            assert await connection.fetchval("select holdfast_cancel($1)", job.id) is True
            assert str(job.id) in await heard.get()
        await connection.close()


async def test_they_are_replaced_removed_and_uninstalled(hf: Holdfast, sql: Any) -> None:
    there = (
        "select count(*) from pg_proc where proname like 'holdfast\\_%'"
        " and pronamespace = current_schema()::regnamespace"
    )
    all_of_them = await sql.fetchval(there)
    await hf.install(functions=True)
    assert await sql.fetchval(there) == all_of_them
    await hf.install(functions=False)
    assert await sql.fetchval(there) == all_of_them - 3, "the trigger of the log keeps its own"
    await hf.install(functions=True)
    await hf.uninstall()
    assert await sql.fetchval(there) == 0


async def test_the_callers_privileges_decide(pg18: Database) -> None:
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install(functions=True)
        with granted(pg18, hf.names, installed=True) as roles:
            producer = await asyncpg.connect(roles.dsn(DatabaseRole.PRODUCER))
            job_id = await producer.fetchval("select holdfast_enqueue('ship')")
            assert await producer.fetchval("select holdfast_status($1)", job_id) == "queued"
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await producer.execute("select holdfast_cancel($1)", job_id)
            await producer.close()
            operator = await asyncpg.connect(roles.dsn(DatabaseRole.OPERATOR))
            assert await operator.fetchval("select holdfast_cancel($1)", job_id) is True
            await operator.close()
