"""Upgrades of tables in use: which locks they take, what they survive, and who may go on."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Holdfast, Job
from holdfast.errors import DatabaseError, SchemaTooNew
from holdfast.settings import Names
from holdfast.stores.postgres import migrate
from holdfast.stores.postgres.migration import Migration, Way, migrations, statements_of
from holdfast.stores.postgres.upgrade_plan import LOCK_MODES, upgrade_plan
from tests.postgres import tables
from tests.postgres.released import RELEASES, OldClient, schema_of
from tests.worker.workers import PATIENCE, eventually, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import Database

NEWEST = migrations()[-1].version
FIRST_RELEASE = 7
"""The last migration of version 0.1; those after it have a header."""


def later(*templates: str) -> tuple[Migration, ...]:
    """Migrations of a version to come."""
    return tuple(
        Migration(NEWEST + n, f"{NEWEST + n:04}_later_{n}", template)
        for n, template in enumerate(templates, start=1)
    )


COLUMN = "-- compatible: yes\nalter table {table} add column note text;"
INDEX = (
    "-- compatible: yes\n-- run: concurrently\n"
    "create index concurrently if not exists {prefix}_later on {table} (created);"
)
BATCHES = (
    "-- compatible: yes\n-- run: batches\n"
    "update {table} set note = coalesce(note, '') || 'x' where id in (\n"
    "    select id from {table} where note is null order by id limit 10\n"
    ") returning 1;"
)


class Future:
    """Lets the version under test know migrations that are still to come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.migrations = later(COLUMN, INDEX, BATCHES)
        self._monkeypatch = monkeypatch

    def reach(self, count: int) -> None:
        known = (*migrations(), *self.migrations[:count])
        self._monkeypatch.setattr(migrate, "migrations", lambda: known)


@pytest.fixture
def future(monkeypatch: pytest.MonkeyPatch) -> Future:
    return Future(monkeypatch)


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[Holdfast]:
    async with Holdfast.connect(dsn) as hf:
        yield hf


async def ledger(connection: Any) -> list[int]:
    rows = await connection.fetch("select version from holdfast_migrations order by 1")
    return [row[0] for row in rows]


# The files


@pytest.mark.parametrize("migration", migrations()[FIRST_RELEASE:], ids=lambda m: m.name)
def test_a_migration_says_whether_older_workers_may_go_on(migration: Migration) -> None:
    assert re.search(r"^-- compatible: (yes|no)$", migration.template, re.MULTILINE)
    if migration.way is Way.CONCURRENTLY:
        migration.index(Names())
    if migration.way is Way.BATCHES:
        assert "returning" in migration.only_statement(Names())


@pytest.mark.parametrize("migration", migrations()[FIRST_RELEASE:], ids=lambda m: m.name)
def test_no_migration_walks_a_table_in_use_under_a_lock_that_stops_jobs(
    migration: Migration,
) -> None:
    [planned] = upgrade_plan([migration], Names())
    modes = {lock.table: lock.mode for lock in planned.locks}
    assert "SHARE" not in modes.values(), "an index on a table in use is built concurrently"
    text = migration.sql(Names()).lower()
    if migration.way is Way.TRANSACTION:
        assert "validate constraint" not in text or "ACCESS EXCLUSIVE" not in modes.values()
        assert "set not null" not in text


KINDS = {
    "alter table {table} add column note text": ("holdfast", "ACCESS EXCLUSIVE"),
    "alter table {log} set (fillfactor = 90)": ("holdfast_log", "SHARE UPDATE EXCLUSIVE"),
    "create index {prefix}_x on {log} (actor)": ("holdfast_log", "SHARE"),
    "create table {prefix}_y (id bigint references {table})": ("holdfast", "SHARE ROW EXCLUSIVE"),
    "insert into {limits} values ('a')": ("holdfast_limits", "ROW EXCLUSIVE"),
    "update {counted} set tx = tx": ("holdfast_counted", "ROW EXCLUSIVE"),
    "with gone as (delete from {limits} returning 1) select from gone": (
        "holdfast_limits",
        "ROW EXCLUSIVE",
    ),
    "create trigger x after insert on {log} execute function tsvector_update_trigger()": (
        "holdfast_log",
        "SHARE ROW EXCLUSIVE",
    ),
    "drop index {prefix}_held": None,
    "create table {prefix}_z (id bigint)": None,
}
TAKEN = """
    select c.relname, k.mode from pg_locks k join pg_class c on c.oid = k.relation
    where k.pid = pg_backend_pid() and c.relkind = 'r' and c.relnamespace = $1::text::regnamespace
"""
WORDS = {mode.replace(" ", "") + "LOCK": mode for mode in LOCK_MODES}


async def locks_taken(connection: Any, schema: str, sql: str) -> dict[str, str]:
    """The strongest lock of a script on each table that was there before."""
    before = {
        row[0]
        for row in await connection.fetch(
            "select relname from pg_class where relnamespace = $1::text::regnamespace", schema
        )
    }
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(sql)
        strongest: dict[str, str] = {}
        for table, mode in await connection.fetch(TAKEN, schema):
            words = WORDS.get(mode.upper())
            if words and table in before:
                known = strongest.get(table, words)
                strongest[table] = max(known, words, key=LOCK_MODES.index)
    finally:
        await transaction.rollback()
    return strongest


@pytest.mark.parametrize("statement", [kind for kind, lock in KINDS.items() if lock])
async def test_the_plan_names_the_locks_that_the_server_takes(pg: Database, statement: str) -> None:
    [migration] = later(statement)
    [planned] = upgrade_plan([migration], Names())
    async with tables.installed(pg.dsn) as (connection, _):
        taken = await locks_taken(connection, pg.schema, migration.sql(Names()))
    assert {lock.table: lock.mode for lock in planned.locks} == taken
    assert taken == dict([KINDS[statement] or ("", "")])


@pytest.mark.parametrize("migration", migrations()[FIRST_RELEASE:], ids=lambda m: m.name)
async def test_the_plan_of_a_migration_names_the_locks_that_it_takes(
    pg18: Database, migration: Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    [planned] = upgrade_plan([migration], Names())
    before = migrations()[: migration.version - 1]
    async with tables.session(pg18.dsn) as connection:
        monkeypatch.setattr(migrate, "migrations", lambda: before)
        await connection.execute(migrate.install_sql(Names()))
        taken = await locks_taken(connection, pg18.schema, migration.sql_for_new_tables(Names()))
    if migration.way is Way.TRANSACTION:
        assert {lock.table: lock.mode for lock in planned.locks} == taken


def test_statements_are_told_apart_where_quotes_and_bodies_have_semicolons() -> None:
    script = """
        -- one; not two
        select ';' as "a;b"; /* none; here */
        create function f() returns int language sql as $body$ select 1; select 2; $body$;
    """
    assert [text[:6] for text in statements_of(script)] == ["select", "create"]


# Who may go on


async def test_a_worker_goes_on_with_newer_tables_that_are_marked_compatible(
    pg: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(pg.dsn) as hf:
        await hf.install()
        async with tables.session(pg.dsn) as connection:
            await connection.execute(
                "insert into holdfast_migrations (version, name, compatible)"
                f" values ({NEWEST + 1}, '9001_later', true), ({NEWEST + 2}, '9002_more', true)"
            )
        with caplog.at_level(logging.WARNING):
            await hf.verify()
            await hf.verify()
        assert len([line for line in caplog.messages if "9001_later, 9002_more" in line]) == 1
        done = asyncio.Event()

        @hf.entrypoint("mail")
        async def mail(job: Job) -> None:
            done.set()

        async with working(hf):
            await hf.queries.enqueue("mail")
            async with asyncio.timeout(PATIENCE):
                await done.wait()
        assert await hf.upgrade() == []


async def test_a_worker_refuses_newer_tables_when_one_change_breaks_it(pg: Database) -> None:
    async with opened(pg.dsn) as hf:
        await hf.install()
        async with tables.session(pg.dsn) as connection:
            await connection.execute(
                "insert into holdfast_migrations (version, name, compatible)"
                f" values ({NEWEST + 1}, '9001_breaks', false), ({NEWEST + 2}, '9002_fits', true)"
            )
        with pytest.raises(SchemaTooNew, match=r"\(9001_breaks\).*pip install --upgrade holdfast"):
            await hf.verify()


# What an upgrade survives


BUILDERS = """
    select pg_terminate_backend(pid) from pg_stat_activity
    where query ilike 'create index concurrently%' and wait_event_type = 'Lock'
      and datname = current_database()
"""


async def test_an_index_whose_build_was_interrupted_is_built_again(
    pg: Database, future: Future
) -> None:
    async with opened(pg.dsn) as hf, tables.session(pg.dsn) as other, tables.session(pg.dsn) as me:
        future.reach(1)
        await hf.install()
        future.reach(2)
        # A build waits for every transaction that has written to the table.
        transaction = other.transaction()
        await transaction.start()
        await other.execute("insert into holdfast (entrypoint) values ('mail')")
        work = asyncio.create_task(hf.install())

        async def killed() -> bool:
            return bool(await me.fetch(BUILDERS))

        await eventually(killed)
        with pytest.raises(DatabaseError):
            await work
        await transaction.commit()
        assert not await is_valid(me, "holdfast_later")
        assert (await ledger(me))[-1] == future.migrations[0].version
        assert await hf.install() == [future.migrations[1].name]
        assert await is_valid(me, "holdfast_later")
        assert await hf.install() == []


async def is_valid(connection: Any, index: str) -> bool:
    [[valid]] = await connection.fetch(
        "select indisvalid from pg_index where indexrelid = to_regclass($1)", index
    )
    return bool(valid)


async def test_two_upgrades_at_once_build_one_index(pg: Database, future: Future) -> None:
    async with opened(pg.dsn) as first, opened(pg.dsn) as second, tables.session(pg.dsn) as me:
        future.reach(1)
        await first.install()
        future.reach(3)
        done = await asyncio.gather(first.install(), second.install())
        assert sorted(name for names in done for name in names) == [
            migration.name for migration in future.migrations[1:]
        ]
        assert await is_valid(me, "holdfast_later")


async def test_a_change_in_batches_goes_on_where_it_was_killed(
    pg: Database, future: Future, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(pg.dsn) as hf, tables.session(pg.dsn) as other, tables.session(pg.dsn) as me:
        future.reach(2)
        await hf.install()
        future.reach(3)
        await me.execute(
            "insert into holdfast (entrypoint) select 'mail' from generate_series(1, 100)"
        )
        async with other.transaction():
            await other.execute(
                "select from holdfast where id = (select min(id) + 55 from holdfast) for update"
            )
            work = asyncio.create_task(hf.install())

            async def is_blocked() -> bool:
                return "waits for a lock on holdfast" in caplog.text

            await eventually(is_blocked)
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
            [[changed]] = await me.fetch("select count(*) from holdfast where note is not null")
            assert changed == 50
        assert await hf.install() == [future.migrations[2].name]
        notes = await me.fetch("select note, count(*) from holdfast group by note")
        assert [tuple(row) for row in notes] == [("x", 100)]


# Old and new side by side


class OldWorker:
    """Enqueues, claims and settles by the statements of a release, until it is stopped."""

    def __init__(self, release: str, dsn: str) -> None:
        self._release = release
        self._dsn = dsn
        self._client: OldClient | None = None
        self.enqueued: list[int] = []
        self.completed = 0
        self.die_holding = False
        """End after a claim, without settling it."""

    async def run(self) -> None:
        self._client = client = await OldClient.connect(self._release, self._dsn)
        try:
            while True:
                self.enqueued.append(await client.enqueue("mail"))
                token, ids = await client.claim("mail", 3)
                if self.die_holding and ids:
                    return client.die()
                if ids:
                    assert set(await client.renew(token, ids)) <= set(ids)
                    self.completed += len(await client.complete(token, ids))
        finally:
            client.die()


async def progress(workers: list[OldWorker], crew: list[asyncio.Task[None]]) -> None:
    """Wait until each of them has settled jobs enqueued after now."""
    goals = [worker.completed + 10 for worker in workers]

    async def reached() -> bool:
        for task in crew:
            if task.done():
                await task
        return all(w.completed >= goal for w, goal in zip(workers, goals, strict=True))

    await eventually(reached)


@pytest.mark.parametrize("release", RELEASES)
async def test_every_released_schema_is_upgraded_while_its_workers_go_on(
    pg: Database, release: str, future: Future, caplog: pytest.LogCaptureFixture
) -> None:
    """A transaction in the way must not make jobs wait behind the upgrade that waits for it."""
    future.reach(3)
    caplog.set_level(logging.INFO, "holdfast")
    old = [OldWorker(release, pg.dsn) for _ in range(3)]
    async with tables.session(pg.dsn) as me, tables.session(pg.dsn) as backup:
        await me.execute(schema_of(release))
        await me.execute(
            "insert into holdfast (entrypoint, status, held_at) values ('mail', 'failed', now())"
        )
        crew = [asyncio.create_task(worker.run()) for worker in old]
        async with opened(pg.dsn) as hf:
            reader = backup.transaction()
            await reader.start()
            await backup.execute("select count(*) from holdfast")
            upgrade = asyncio.create_task(hf.upgrade())

            async def waits() -> bool:
                if upgrade.done():
                    await upgrade
                return "waits for a lock on" in caplog.text

            await eventually(waits)
            await progress(old, crew)
            assert not upgrade.done(), "the migration cannot have had its lock"
            await reader.commit()
            applied = await upgrade
            assert applied[-3:] == [migration.name for migration in future.migrations]
            await progress(old, crew)
            await replace_workers(old, crew, pg.dsn, me)
        log = await me.fetch(
            "select job_id, count(*) from holdfast_log where status = 'successful' group by 1"
        )
        ended = Counter({row[0]: row[1] for row in log})
        assert ended == Counter(job_id for worker in old for job_id in worker.enqueued)
        [[held, left]] = await me.fetch(
            "select count(*) filter (where held_at is not null), count(*) from holdfast"
        )
        assert (held, left) == (1, 1)


async def replace_workers(
    old: list[OldWorker], crew: list[asyncio.Task[None]], dsn: str, me: Any
) -> None:
    """Kill the old workers one after the other, in the middle of a job; a new one has the rest."""
    async with opened(dsn) as hf:

        @hf.entrypoint("mail")
        async def mail(job: Job) -> None:
            pass

        async with working(hf, heartbeat_timeout=timedelta(seconds=2)):
            for worker, task in zip(old, crew, strict=True):
                worker.die_holding = True
                async with asyncio.timeout(PATIENCE):
                    await task

            async def all_done() -> bool:
                [[left]] = await me.fetch("select count(*) from holdfast where held_at is null")
                return not left

            await eventually(all_done)
