"""Every driver keeps the same promises, on real servers and broken connections."""

from __future__ import annotations

import asyncio
import socket
import sys
import uuid
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast import db
from holdfast.errors import (
    ConnectionFailed,
    ConnectionLost,
    DatabaseError,
    DeadlineExceeded,
    DuplicateJobError,
    InvalidInput,
    MissingDependency,
)
from holdfast.stores.postgres.drivers import base, connect, wrap
from holdfast.stores.postgres.drivers.asyncpg import (
    AsyncpgDriver,
    AsyncpgDsnDriver,
    AsyncpgPoolDriver,
)
from holdfast.stores.postgres.drivers.psycopg import (
    PsycopgDriver,
    PsycopgDsnDriver,
    SyncPsycopgDriver,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from holdfast.stores.postgres.drivers.base import Driver
    from tests.servers import Database

DSN_KINDS = ["asyncpg_dsn", "psycopg_dsn"]
OWNED_KINDS = ["asyncpg", "psycopg", "psycopg_manual"]
SYNC_KINDS = ["sync", "sync_manual"]
ASYNC_KINDS = [*DSN_KINDS, *OWNED_KINDS, "asyncpg_pool"]
ALL_KINDS = [*ASYNC_KINDS, *SYNC_KINDS]

# Far below the six seconds that psycopg alone takes to give up on a dead socket.
PATIENCE = 3.0


@asynccontextmanager
async def opened(kind: str, dsn: str, timeout: float = 10.0) -> AsyncIterator[Driver]:
    match kind:
        case "asyncpg":
            connection = await asyncpg.connect(dsn)
            yield AsyncpgDriver(connection, timeout=timeout)
            connection.terminate()
        case "asyncpg_pool":
            pool = await asyncpg.create_pool(dsn, min_size=1, max_size=3)
            yield AsyncpgPoolDriver(pool, timeout=timeout)
            pool.terminate()
        case "psycopg" | "psycopg_manual":
            autocommit = kind == "psycopg"
            aconnection = await psycopg.AsyncConnection.connect(dsn, autocommit=autocommit)
            yield PsycopgDriver(aconnection, timeout=timeout)
            await aconnection.close()
        case "sync" | "sync_manual":
            with psycopg.connect(dsn, autocommit=kind == "sync") as sync_connection:
                yield SyncPsycopgDriver(sync_connection)
        case _:
            driver = dsn_driver(kind, dsn, timeout=timeout)
            yield driver
            await driver.close()


def dsn_driver(kind: str, dsn: str, **options: Any) -> AsyncpgDsnDriver | PsycopgDsnDriver:
    return (AsyncpgDsnDriver if kind == "asyncpg_dsn" else PsycopgDsnDriver)(dsn, **options)


@pytest.fixture(params=ALL_KINDS)
async def driver(request: pytest.FixtureRequest, pg: Database) -> AsyncIterator[Driver]:
    async with opened(request.param, pg.dsn) as made:
        yield made


@pytest.fixture
async def witness(pg18: Database) -> AsyncIterator[Any]:
    """Another session of the same database, to look on from outside."""
    connection = await asyncpg.connect(pg18.dsn)
    yield connection
    await connection.close()


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it holds: what another session does raises no event here."""
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def value(driver: Driver, sql: str, *args: object) -> Any:
    ((found,),) = await driver.fetch(sql, args)
    return found


async def ends(work: Coroutine[Any, Any, Any]) -> Any:
    """What the work returns, unless it outlasts the patience of the test."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=PATIENCE)
    assert done, "the call hung"
    return task.result()


class Proxy:
    """A TCP proxy that can swallow everything without closing anything."""

    def __init__(self, dsn: str) -> None:
        address = dsn.rpartition("@")[2].partition("/")[0]
        self._upstream = address.rsplit(":", 1)
        self._address = address
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._ending = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    def swallow(self) -> None:
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    def through(self, dsn: str) -> str:
        return dsn.replace(self._address, f"127.0.0.1:{self.port}")

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._server.close()
        self._ending = True
        self._flowing.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        await self._flowing.wait()
        if self._ending:
            return
        onward_reader, onward = await asyncio.open_connection(*self._upstream)
        self._writers.append(onward)
        for source, sink in ((reader, onward), (onward_reader, writer)):
            self._tasks.add(asyncio.create_task(self._pump(source, sink)))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        sink.close()


@pytest.fixture
async def proxy(pg18: Database) -> AsyncIterator[Proxy]:
    async with Proxy(pg18.dsn) as made:
        yield made


NOON = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30)))
UUID = uuid.UUID("6f0c9d3e-8a51-4f0e-9a57-0d3b1c2d4e5f")
SCALARS: list[tuple[str, object]] = [
    ("bigint", 2**63 - 1),
    ("bigint", -1),
    ("int", 7),
    ("smallint", 7),
    ("bool", True),
    ("text", "käse \\ \"quoted\" 'single' {brace}, ☃"),
    ("text", ""),
    ("bytea", b"\x00\xff\\x00'\""),
    ("bytea", b""),
    ("timestamptz", NOON),
    ("timestamptz", datetime(100, 1, 1, tzinfo=UTC)),
    ("interval", timedelta(days=-3, seconds=5, microseconds=7)),
    ("interval", timedelta(days=4000, microseconds=-1)),
    ("uuid", UUID),
    ("jsonb", '{"a": [1, null, "☃"]}'),
    ("json", '{"b":  1}'),
    ("float8", 1.5),
]
ARRAYS: list[tuple[str, list[object]]] = [
    ("text", ["a", None, "", "NULL", 'q"u\\o,te{}', " padded "]),
    ("int", [1, None, -5]),
    ("bigint", [2**40, None, 3, -(2**63)]),
    ("bool", [True, None, False]),
    ("bytea", [b"\x00\xff", None, b"", b"plain"]),
    ("timestamptz", [NOON, None]),
    ("interval", [timedelta(hours=-30), None, timedelta(0)]),
    ("uuid", [UUID, None]),
]


async def test_a_value_comes_back_as_it_was_sent(driver: Driver) -> None:
    for kind, sent in SCALARS:
        found = await value(driver, f"select $1::{kind}", sent)
        assert (kind, found) == (kind, sent)
        assert isinstance(found, type(sent))
        assert await value(driver, f"select $1::{kind}", None) is None


async def test_an_array_comes_back_with_its_nulls(driver: Driver) -> None:
    for kind, sent in ARRAYS:
        for array in (sent, [None, None], []):
            found = await value(driver, f"select $1::{kind}[]", array)
            assert (kind, found) == (kind, array)


async def test_parallel_arrays_unnest_into_rows(driver: Driver) -> None:
    sql = "select * from unnest($1::text[], $2::interval[], $3::bytea[], $4::bigint[])"
    day = timedelta(days=1)

    rows = await driver.fetch(sql, (["a", None], [None, day], [b"\0", None], [1, 2**40]))
    assert [tuple(row) for row in rows] == [("a", None, b"\0", 1), (None, day, None, 2**40)]
    assert await driver.fetch(sql, ([], [], [], [])) == []
    rows = await driver.fetch(sql, ([None], [None], [None], [None]))
    assert [tuple(row) for row in rows] == [(None, None, None, None)]


async def test_instants_are_utc_and_enums_are_text_in_any_session(driver: Driver) -> None:
    await driver.script(
        "create type mood as enum ('good', 'bad'); set timezone to 'Asia/Kolkata';"
        " set datestyle to 'German'; set intervalstyle to 'sql_standard'"
    )
    sql = "select $1::timestamptz, $2::mood, $3::interval, array[$1::timestamptz]"

    async with driver.transaction() as tx:
        ((instant, mood, span, instants),) = await tx.fetch(sql, (NOON, "bad", timedelta(hours=-1)))

    assert (instant, mood, span) == (NOON, "bad", timedelta(hours=-1))
    assert instant.utcoffset() == instants[0].utcoffset() == timedelta(0)


async def test_infinite_instants_are_the_ends_of_time(driver: Driver) -> None:
    sql = "select 'infinity'::timestamptz, '-infinity'::timestamptz"

    ((end, start),) = await driver.fetch(sql)

    assert (end.year, start.year) == (9999, 1)


async def test_a_statement_without_rows_gives_an_empty_list(driver: Driver) -> None:
    assert await driver.fetch("create table nothing (id bigint)") == []
    assert await driver.fetch("insert into nothing values ($1)", (1,)) == []
    assert [tuple(row) for row in await driver.fetch("select id from nothing")] == [(1,)]


async def test_a_script_runs_all_its_statements(driver: Driver) -> None:
    await driver.script("create table t (note text); insert into t values ('100% $1')")

    assert await value(driver, "select note from t") == "100% $1"


async def test_a_transaction_commits_at_its_end(driver: Driver) -> None:
    await driver.script("create table t (id bigint)")

    async with driver.transaction() as tx:
        await tx.fetch("insert into t values (1)")
        async with tx.transaction() as inner:
            await inner.fetch("insert into t values (2)")

    assert await value(driver, "select array_agg(id) from t") == [1, 2]


async def test_a_transaction_that_raises_leaves_nothing(driver: Driver) -> None:
    await driver.script("create table t (id bigint)")

    async def work() -> None:
        async with driver.transaction() as tx:
            await tx.fetch("insert into t values (1)")
            raise OSError("not a database error")

    with pytest.raises(OSError, match="not a database error"):
        await work()

    assert await value(driver, "select count(*) from t") == 0


async def test_a_savepoint_that_raises_keeps_the_outer_work(driver: Driver) -> None:
    await driver.script("create table t (id bigint primary key)")

    async with driver.transaction() as tx:
        await tx.fetch("insert into t values (1)")
        with pytest.raises(DatabaseError):
            async with tx.transaction() as inner:
                await inner.fetch("insert into t values (1)")
        await tx.fetch("insert into t values (2)")

    assert await value(driver, "select array_agg(id) from t") == [1, 2]


async def test_a_taken_dedupe_key_is_named(driver: Driver) -> None:
    await driver.script("create table t (k text); create unique index t_dedupe_key on t (k)")

    for key in ("plain", "a)=(b", "(x) already exists.", "☃ 'q'"):
        await driver.fetch("insert into t values ($1)", (key,))
        with pytest.raises(DuplicateJobError) as caught:
            await driver.fetch("insert into t values ($1)", (key,))
        assert caught.value.dedupe_key == key


async def test_an_error_of_the_server_keeps_its_code_and_drops_the_data(driver: Driver) -> None:
    await driver.script("create table t (secret text, n int not null); create unique index on t(n)")

    with pytest.raises(DatabaseError) as caught:
        await driver.fetch("insert into t values ($1, null)", ("hunter2",))
    assert caught.value.sqlstate == "23502"
    assert not isinstance(caught.value, ConnectionLost)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__

    with pytest.raises(DatabaseError) as caught:
        await driver.fetch("select $1::text::uuid", ("hunter2",))
    assert caught.value.sqlstate == "22P02"
    assert "hunter2" not in str(caught.value)


async def test_an_argument_that_cannot_be_sent_is_a_database_error(driver: Driver) -> None:
    for broken in ("lone \ud800 surrogate", "nul \0 byte"):
        with pytest.raises(DatabaseError) as caught:
            await driver.fetch("select $1::text", (broken,))
        assert "surrogate'" not in str(caught.value)
    assert await value(driver, "select 1") == 1


CONFLICT = """
create sequence tries;
create function conflict(failures int) returns bigint language plpgsql as $$
declare n bigint := nextval('tries');
begin
    if n <= failures then raise exception 'again' using errcode = '40001'; end if;
    return n;
end $$
"""


async def test_a_conflict_is_retried_three_times(driver: Driver) -> None:
    await driver.script(CONFLICT)

    assert await value(driver, "select conflict(3)") == 4
    await driver.script("alter sequence tries restart")
    with pytest.raises(DatabaseError) as caught:
        await driver.fetch("select conflict(9)")
    assert caught.value.sqlstate == "40001"
    assert await value(driver, "select last_value from tries") == 4


async def test_a_conflict_inside_a_transaction_is_not_retried(driver: Driver) -> None:
    await driver.script(CONFLICT)

    with pytest.raises(DatabaseError) as caught:
        async with driver.transaction() as tx:
            await tx.fetch("select conflict(9)")

    assert caught.value.sqlstate == "40001"
    assert await value(driver, "select last_value from tries") == 1


@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_a_statement_on_an_idle_connection_is_committed(
    kind: str, pg18: Database, witness: Any
) -> None:
    async with opened(kind, pg18.dsn) as driver:
        await driver.fetch("create table t (id bigint)")
        await driver.fetch("insert into t values ($1)", (1,))
        assert await witness.fetchval("select count(*) from t") == 1


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_transaction_of_the_callers_psycopg_connection_is_joined(
    autocommit: bool, pg18: Database, witness: Any
) -> None:
    await witness.execute("create table t (id bigint)")
    async with await psycopg.AsyncConnection.connect(pg18.dsn, autocommit=autocommit) as connection:
        driver = PsycopgDriver(connection)
        async with connection.transaction(force_rollback=True):
            await connection.execute("insert into t values (1)")
            await driver.fetch("insert into t values ($1)", (2,))
            async with driver.transaction() as tx:
                await tx.fetch("insert into t values (3)")
            assert await value(driver, "select count(*) from t") == 3
            assert await witness.fetchval("select count(*) from t") == 0
        assert await value(driver, "select count(*) from t") == 0


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_transaction_of_the_callers_sync_connection_is_joined(
    autocommit: bool, pg18: Database, witness: Any
) -> None:
    await witness.execute("create table t (id bigint)")
    with psycopg.connect(pg18.dsn, autocommit=autocommit) as connection:
        driver = SyncPsycopgDriver(connection)
        with connection.transaction(force_rollback=True):
            connection.execute("insert into t values (1)")
            await driver.fetch("insert into t values ($1)", (2,))
            async with driver.transaction() as tx:
                await tx.fetch("insert into t values (3)")
            assert await value(driver, "select count(*) from t") == 3
        assert await value(driver, "select count(*) from t") == 0


@pytest.mark.parametrize("by_hand", [True, False])
async def test_a_transaction_of_the_callers_asyncpg_connection_is_joined(
    by_hand: bool, pg18: Database, witness: Any
) -> None:
    await witness.execute("create table t (id bigint)")
    connection = await asyncpg.connect(pg18.dsn)
    driver, block = AsyncpgDriver(connection), connection.transaction()

    await (connection.execute("begin") if by_hand else block.start())
    await driver.fetch("insert into t values ($1)", (2,))
    async with driver.transaction() as tx:
        await tx.fetch("insert into t values (3)")
    assert await value(driver, "select count(*) from t") == 2
    await (connection.execute("rollback") if by_hand else block.rollback())

    assert await value(driver, "select count(*) from t") == 0
    await connection.close()


async def test_the_callers_adapters_and_row_factory_are_left_alone(pg18: Database) -> None:
    sql = "select '{\"a\": 1}'::jsonb as j, 5 as n"
    async with await psycopg.AsyncConnection.connect(
        pg18.dsn, autocommit=True, row_factory=dict_row
    ) as connection:
        rows = await PsycopgDriver(connection).fetch(sql)
        assert [tuple(row) for row in rows] == [('{"a": 1}', 5)]
        theirs = await (await connection.execute(sql)).fetchone()
    assert theirs == {"j": {"a": 1}, "n": 5}


@pytest.mark.parametrize("autocommit", [True, False])
def test_the_sync_driver_never_suspends_and_needs_no_loop(autocommit: bool, pg18: Database) -> None:
    async def work(driver: Driver) -> Any:
        await driver.script(CONFLICT)
        async with driver.transaction() as tx:
            await tx.fetch("select $1::int", (1,))
        return await value(driver, "select conflict(1)")

    with psycopg.connect(pg18.dsn, autocommit=autocommit) as connection:
        driver = SyncPsycopgDriver(connection)
        with pytest.raises(StopIteration) as caught:
            work(driver).send(None)
        assert caught.value.value == 2
        with pytest.raises(InvalidInput, match="cannot listen"):
            driver.listen("c", print, print).send(None)


class Listening:
    """A listen() in the background, and what it has heard."""

    def __init__(self, driver: Driver, channel: str) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()
        self._ready = asyncio.Event()
        self.task = asyncio.ensure_future(
            driver.listen(channel, self.heard.put_nowait, self._ready.set)
        )

    async def __aenter__(self) -> Listening:
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait({ready, self.task}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        assert self._ready.is_set(), self.task
        return self

    async def __aexit__(self, *failure: object) -> None:
        self.task.cancel()
        await asyncio.wait({self.task}, timeout=PATIENCE)
        assert self.task.done()

    async def next(self) -> str:
        async with asyncio.timeout(10):
            return await self.heard.get()


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_notifications_arrive_from_others_and_from_oneself(
    kind: str, pg18: Database, witness: Any
) -> None:
    channel = f"Odd {pg18.schema}"
    async with opened(kind, pg18.dsn) as driver, Listening(driver, channel) as listening:
        await witness.execute("select pg_notify($1, 'outside')", channel)
        assert await listening.next() == "outside"
        await driver.fetch("select pg_notify($1, $2)", (channel, "inside"))
        assert await listening.next() == "inside"
        async with driver.transaction() as tx:
            await tx.fetch("select pg_notify($1, $2)", (channel, "committed"))
        assert await listening.next() == "committed"


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_listening_ends_with_its_cancellation_and_can_begin_again(
    kind: str, pg18: Database, witness: Any
) -> None:
    async with opened(kind, pg18.dsn) as driver:
        async with Listening(driver, pg18.schema) as first:
            pass
        assert first.task.cancelled()
        async with Listening(driver, pg18.schema) as second:
            await witness.execute("select pg_notify($1, 'again')", pg18.schema)
            assert await second.next() == "again"
        assert first.heard.empty()
        if kind != "asyncpg_pool":
            assert await driver.fetch("select pg_listening_channels()") == []


@pytest.mark.parametrize("kind", [*DSN_KINDS, *OWNED_KINDS])
async def test_statements_get_their_turn_on_a_connection_that_listens(
    kind: str, pg18: Database, witness: Any
) -> None:
    other = f"{pg18.schema}_2"
    async with (
        opened(kind, pg18.dsn) as driver,
        Listening(driver, pg18.schema) as one,
        Listening(driver, other) as two,
    ):
        for number in range(200):
            assert await value(driver, "select $1::int", number) == number
            await witness.execute("select pg_notify($1, $2)", pg18.schema, str(number))
            await witness.execute("select pg_notify($1, $2)", other, str(-number))
        assert [await one.next() for _ in range(200)] == [str(n) for n in range(200)]
        assert [await two.next() for _ in range(200)] == [str(-n) for n in range(200)]


@pytest.mark.parametrize("kind", [*DSN_KINDS, *OWNED_KINDS])
async def test_a_handler_of_notifications_that_raises_breaks_nothing(
    kind: str, pg18: Database, caplog: pytest.LogCaptureFixture
) -> None:
    ready = asyncio.Event()

    def refuse(payload: str) -> None:
        raise RuntimeError(payload)

    async def logged() -> bool:
        return "could not be handled" in caplog.text

    async with opened(kind, pg18.dsn) as driver:
        task = asyncio.ensure_future(driver.listen(pg18.schema, refuse, ready.set))
        await asyncio.wait_for(ready.wait(), 10)
        await driver.fetch("select pg_notify($1, $2)", (pg18.schema, "x"))
        await eventually(logged)
        assert await value(driver, "select 1") == 1
        assert not task.done()
        task.cancel()
        await asyncio.wait({task})


async def test_a_pool_of_one_refuses_to_listen(pg18: Database) -> None:
    async with asyncpg.create_pool(pg18.dsn, min_size=1, max_size=1) as pool:
        with pytest.raises(InvalidInput, match="max_size"):
            await AsyncpgPoolDriver(pool).listen("c", print, lambda: None)


async def test_a_pool_runs_statements_side_by_side(pg18: Database, witness: Any) -> None:
    await witness.execute("select pg_advisory_lock(hashtext($1))", pg18.schema)
    async with opened("asyncpg_pool", pg18.dsn) as driver:
        assert driver.concurrent
        blocked = asyncio.ensure_future(
            driver.fetch("select pg_advisory_xact_lock(hashtext($1))", (pg18.schema,))
        )
        assert await value(driver, "select 1") == 1
        assert not blocked.done()
        await witness.execute("select pg_advisory_unlock(hashtext($1))", pg18.schema)
        await asyncio.wait_for(blocked, 10)


@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_a_killed_backend_is_a_lost_connection(
    kind: str, pg18: Database, witness: Any
) -> None:
    async with opened(kind, pg18.dsn) as driver:
        with pytest.raises(ConnectionLost):
            await driver.fetch("select pg_terminate_backend(pg_backend_pid())")
        if kind in [*DSN_KINDS, "asyncpg_pool"]:
            assert await value(driver, "select 1") == 1
        else:
            with pytest.raises(ConnectionLost):
                await driver.fetch("select 1")


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_a_transaction_on_a_killed_backend_is_lost_and_the_next_one_works(
    kind: str, pg18: Database, witness: Any
) -> None:
    await witness.execute("create table t (id bigint)")

    async def work(driver: Driver) -> None:
        async with driver.transaction() as tx:
            await tx.fetch("insert into t values (1)")
            pid = await value(tx, "select pg_backend_pid()")
            await witness.execute("select pg_terminate_backend($1, 5000)", pid)

    async with opened(kind, pg18.dsn) as driver:
        with pytest.raises(ConnectionLost):
            await work(driver)
        async with driver.transaction() as tx:
            await tx.fetch("insert into t values (2)")
        assert await value(driver, "select array_agg(id) from t") == [2]


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_listener_learns_that_its_backend_was_killed(
    kind: str, pg18: Database, witness: Any
) -> None:
    pids = "select array_agg(pid) from pg_stat_activity where datname = current_database()"
    others = await witness.fetchval(pids)
    async with opened(kind, pg18.dsn) as driver, Listening(driver, pg18.schema) as listening:
        await witness.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> all($1)",
            others,
        )
        with pytest.raises(ConnectionLost):
            await ends(asyncio.wait_for(listening.task, None))


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_a_statement_refused_by_a_read_only_server_is_sent_through_a_new_connection(
    kind: str, pg18: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(kind, pg18.dsn) as driver:
        before = await value(driver, "select pg_backend_pid()")
        await driver.script("set default_transaction_read_only to on")
        await driver.fetch("create table t (id bigint)")
        assert await value(driver, "select pg_backend_pid()") != before
    assert "the server takes no changes" in caplog.text


@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_a_server_that_stays_read_only_has_changed_nothing(kind: str, pg18: Database) -> None:
    dsn = f"{pg18.dsn}%20-cdefault_transaction_read_only%3Don"
    async with opened(kind, dsn) as driver:
        with pytest.raises(ConnectionFailed, match="nothing was changed") as caught:
            await driver.fetch("create table t (id bigint)")
        assert caught.value.sqlstate == "25006"


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_swallowed_statement_ends_at_its_deadline(
    kind: str, pg18: Database, proxy: Proxy
) -> None:
    async with opened(kind, proxy.through(pg18.dsn), timeout=0.3) as driver:
        assert await value(driver, "select 1") == 1
        proxy.swallow()
        with pytest.raises(DeadlineExceeded, match=r"0\.3 s"):
            await ends(driver.fetch("select 2"))
        proxy.flow()
        if kind in [*DSN_KINDS, "asyncpg_pool"]:
            assert await value(driver, "select 3") == 3
        else:
            with pytest.raises(ConnectionLost):
                await driver.fetch("select 3")


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_swallowed_commit_ends_at_its_deadline(
    kind: str, pg18: Database, proxy: Proxy
) -> None:
    async def work(driver: Driver) -> None:
        async with driver.transaction() as tx:
            await tx.fetch("select 1")
            proxy.swallow()

    async with opened(kind, proxy.through(pg18.dsn), timeout=0.3) as driver:
        with pytest.raises(DeadlineExceeded):
            await ends(work(driver))


async def one_statement(driver: Driver) -> None:
    await driver.fetch("select 2")


async def one_transaction(driver: Driver) -> None:
    async with driver.transaction() as tx:
        await tx.fetch("select 2")


@pytest.mark.parametrize("kind", ASYNC_KINDS)
@pytest.mark.parametrize("work", [one_statement, one_transaction])
async def test_a_swallowed_call_can_be_cancelled(
    kind: str,
    work: Callable[[Driver], Coroutine[Any, Any, None]],
    pg18: Database,
    proxy: Proxy,
) -> None:
    async with opened(kind, proxy.through(pg18.dsn)) as driver:
        assert await value(driver, "select 1") == 1
        proxy.swallow()
        task = asyncio.ensure_future(work(driver))
        for _ in range(10):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=PATIENCE)
        assert done
        assert task.cancelled()


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_half_open_listener_is_noticed(
    kind: str, pg18: Database, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "PING_EVERY", 0.1)
    monkeypatch.setattr(base, "PING_TIMEOUT", 0.3)
    dsn = proxy.through(pg18.dsn)
    async with opened(kind, dsn) as driver, Listening(driver, pg18.schema) as listening:
        proxy.swallow()
        with pytest.raises(ConnectionLost):
            await ends(asyncio.wait_for(listening.task, None))


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_an_event_loop_ends_although_its_connection_is_swallowed(
    kind: str, pg18: Database, proxy: Proxy
) -> None:
    dsn, stuck = proxy.through(pg18.dsn), asyncio.Event()
    outer = asyncio.get_running_loop()

    async def work() -> None:
        driver = dsn_driver(kind, dsn)
        await driver.fetch("select 1")
        waiting = asyncio.ensure_future(driver.fetch("select pg_sleep(60)"))
        await asyncio.sleep(0)
        outer.call_soon_threadsafe(proxy.swallow)
        outer.call_soon_threadsafe(stuck.set)
        waiting.cancel()
        await asyncio.wait({waiting})
        await driver.close()

    await asyncio.wait_for(asyncio.to_thread(asyncio.run, work()), PATIENCE)
    assert stuck.is_set()


async def in_flight(witness: Any, marker: str) -> bool:
    return bool(
        await witness.fetchval(
            "select count(*) from pg_stat_activity where state = 'active'"
            " and query like '%' || $1 || '%' and pid <> pg_backend_pid()",
            marker,
        )
    )


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_cancelled_statement_stops_and_leaves_the_driver_usable(
    kind: str, pg18: Database, witness: Any
) -> None:
    marker = f"/* {pg18.schema} */"

    async def running() -> bool:
        return await in_flight(witness, marker)

    async def stopped() -> bool:
        return not await in_flight(witness, marker)

    async with opened(kind, pg18.dsn) as driver:
        for _ in range(3):
            task = asyncio.ensure_future(driver.fetch(f"select pg_sleep(60) {marker}"))
            await eventually(running)
            task.cancel()
            await asyncio.wait({task}, timeout=PATIENCE)
            assert task.cancelled()
            assert await value(driver, "select 1") == 1
            await eventually(stopped)


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_cancelled_transaction_is_rolled_back(
    kind: str, pg18: Database, witness: Any
) -> None:
    marker = f"/* {pg18.schema} */"
    await witness.execute("create table t (id bigint)")

    async def work(driver: Driver) -> None:
        async with driver.transaction() as tx:
            await tx.fetch("insert into t values (1)")
            await tx.fetch(f"select pg_sleep(60) {marker}")

    async def running() -> bool:
        return await in_flight(witness, marker)

    async with opened(kind, pg18.dsn) as driver:
        task = asyncio.ensure_future(work(driver))
        await eventually(running)
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE)
        assert task.cancelled()
        async with driver.transaction() as tx:
            await tx.fetch("insert into t values (2)")
        assert await value(driver, "select array_agg(id) from t") == [2]


@pytest.mark.parametrize("kind", ASYNC_KINDS)
@pytest.mark.parametrize("nested", [False, True])
async def test_a_transaction_may_be_cancelled_at_any_moment(
    kind: str, nested: bool, pg18: Database, witness: Any
) -> None:
    await witness.execute("create table t (id bigint)")

    async def work(driver: Driver) -> None:
        async with driver.transaction() as tx:
            await tx.fetch("insert into t values (0)")
            if nested:
                await work_inside(tx)

    async def work_inside(tx: Driver) -> None:
        async with tx.transaction() as inner:
            await inner.fetch("insert into t values (0)")

    async with opened(kind, pg18.dsn) as driver:
        await work(driver)
        for moment in range(1, 160):
            task = asyncio.ensure_future(work(driver))
            for _ in range(moment):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task}, timeout=PATIENCE)
            assert task.done()
            async with driver.transaction() as tx:
                await tx.fetch("insert into t values ($1)", (moment,))
            assert await witness.fetchval("select count(*) from t where id = $1", moment) == 1


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_a_refused_connection_names_the_place_but_not_the_password(kind: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for dsn in (
            f"postgresql://me:s3cret%2Fword@127.0.0.1:{port}/app",
            f"host=127.0.0.1 port={port} user=me password='s3cret word' dbname=app",
        ):
            with pytest.raises(ConnectionFailed) as caught:
                await dsn_driver(kind, dsn).fetch("select 1")
            assert f"127.0.0.1:{port}, database app" in str(caught.value)
            assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_a_server_that_never_greets_is_given_up(
    kind: str, pg18: Database, proxy: Proxy
) -> None:
    proxy.swallow()
    driver = dsn_driver(kind, proxy.through(pg18.dsn), connect_timeout=0.3)
    with pytest.raises(ConnectionFailed):
        await ends(driver.fetch("select 1"))


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_the_second_host_is_tried_when_the_first_one_is_silent(
    kind: str, pg18: Database, proxy: Proxy
) -> None:
    proxy.swallow()
    place = pg18.dsn.rpartition("@")[2].partition("/")[0]
    dsn = pg18.dsn.replace(place, f"127.0.0.1:{proxy.port},{place}")
    driver = dsn_driver(kind, f"{dsn}&target_session_attrs=read-write", connect_timeout=2)
    assert await value(driver, "select 1") == 1
    await driver.close()


@pytest.mark.parametrize("kind", DSN_KINDS)
@pytest.mark.parametrize(
    "dsn",
    [
        "mysql://me:s3cret@host/db",
        "s3cret",
        "postgresql://me:s3/cret@host/db",
        "postgresql://me:12?s3cret@host/db",
        "postgresql://host:s3cret/db",
        "host=a,b,c port=1,2 password=s3cret",
    ],
)
def test_a_dsn_that_cannot_be_read_is_refused_without_quoting_it(kind: str, dsn: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        dsn_driver(kind, dsn)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_a_deadline_that_never_comes_is_refused(timeout: float) -> None:
    with pytest.raises(InvalidInput, match="timeout"):
        AsyncpgDsnDriver("postgresql://host/db", timeout=timeout)


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_a_fork_has_its_own_connection_fit_for_another_loop(
    kind: str, pg18: Database
) -> None:
    sql = "select pg_backend_pid(), current_setting('application_name')"

    async def elsewhere(sibling: Driver) -> Any:
        ((pid, name),) = await sibling.fetch(sql)
        await sibling.close()
        return pid, name

    async with opened(kind, pg18.dsn) as driver:
        assert driver.dedicated
        ((own, name),) = await driver.fetch(sql)
        assert name == "holdfast:main"
        sibling = driver.fork("heartbeat")
        other, name = await asyncio.to_thread(asyncio.run, elsewhere(sibling))
        assert (other != own, name) == (True, "holdfast:heartbeat")


@pytest.mark.parametrize("kind", [*OWNED_KINDS, *SYNC_KINDS, "asyncpg_pool"])
async def test_a_driver_of_a_callers_connection_forks_to_itself_and_closes_nothing(
    kind: str, pg18: Database
) -> None:
    async with opened(kind, pg18.dsn) as driver:
        assert driver.fork("heartbeat") is driver
        assert not driver.dedicated
        await driver.close()
        assert await value(driver, "select 1") == 1


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_a_closed_driver_opens_nothing_again(kind: str, pg18: Database, witness: Any) -> None:
    async with opened(kind, pg18.dsn) as driver:
        pid = await value(driver, "select pg_backend_pid()")
        await driver.close()
        with pytest.raises(ConnectionFailed, match="closed"):
            await driver.fetch("select 1")

    async def gone() -> bool:
        return not await witness.fetchval("select 1 from pg_stat_activity where pid = $1", pid)

    await eventually(gone)


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_closing_does_not_wait_for_a_statement_in_flight(kind: str, pg18: Database) -> None:
    async with opened(kind, pg18.dsn) as driver:
        await driver.fetch("select 1")
        task = asyncio.ensure_future(driver.fetch("select pg_sleep(60)"))
        await asyncio.sleep(0)
        await ends(driver.close())
        with pytest.raises(ConnectionLost):
            await ends(asyncio.wait_for(task, None))


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_statements_are_not_prepared_when_the_cache_is_off(kind: str, pg18: Database) -> None:
    driver = dsn_driver(kind, pg18.dsn, statement_cache_size=0)
    for number in range(10):
        assert await value(driver, "select $1::bigint", number) == number
    assert await value(driver, "select count(*) from pg_prepared_statements where name <> ''") == 0
    await driver.close()


async def test_connect_chooses_the_library(pg18: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(connect(pg18.dsn), AsyncpgDsnDriver)
    assert isinstance(connect(pg18.dsn, driver="psycopg"), PsycopgDsnDriver)
    with pytest.raises(InvalidInput, match="'odbc'"):
        connect(pg18.dsn, driver="odbc")  # type: ignore[arg-type]

    monkeypatch.setitem(sys.modules, "asyncpg", None)
    assert isinstance(connect(pg18.dsn), PsycopgDsnDriver)
    with pytest.raises(MissingDependency, match=r"holdfast\[asyncpg\]"):
        connect(pg18.dsn, driver="asyncpg")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependency, match=r"holdfast\[asyncpg\]"):
        connect(pg18.dsn)


async def test_wrap_finds_the_driver_of_a_connection(pg18: Database) -> None:
    class Special(asyncpg.Connection):  # type: ignore[misc]
        pass

    async with (
        asyncpg.create_pool(pg18.dsn, min_size=1, connection_class=Special) as pool,
        pool.acquire() as connection,
        await psycopg.AsyncConnection.connect(pg18.dsn) as aconnection,
    ):
        assert isinstance(wrap(pool), AsyncpgPoolDriver)
        assert isinstance(wrap(connection), AsyncpgDriver)
        assert isinstance(wrap(aconnection), PsycopgDriver)
        assert isinstance(wrap(driver := PsycopgDriver(aconnection)), PsycopgDriver)
        assert wrap(driver) is driver
        with psycopg.connect(pg18.dsn) as sync_connection:
            assert isinstance(wrap(sync_connection), SyncPsycopgDriver)
        for wrong in ("postgresql://me:s3cret@host/db", aconnection.cursor(), None):
            with pytest.raises(InvalidInput, match=type(wrong).__name__) as caught:
                wrap(wrong)
            assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("library", "names"),
    [
        ("asyncpg", ["AsyncpgDriver", "AsyncpgPoolDriver"]),
        ("psycopg", ["PsycopgDriver", "SyncPsycopgDriver"]),
    ],
)
def test_a_driver_without_its_library_names_the_extra(
    library: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        assert getattr(db, name).__name__ == name
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"holdfast.stores.postgres.drivers.{library}")
    for name in names:
        with pytest.raises(MissingDependency, match=rf"holdfast\[{library}\]"):
            getattr(db, name)


def test_an_unknown_driver_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="OdbcDriver"):
        db.OdbcDriver  # noqa: B018 (the lookup is what is tested)
