"""Install, upgrade, verify and uninstall: what they make, what they refuse, what they leave."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import InvalidInput, SchemaMissing, SchemaTooNew, SchemaTooOld
from holdfast.lifecycle import TRANSITIONS, Status, Verb
from holdfast.models import Change, ClaimRule, LeaseKey, NewJob
from holdfast.settings import Names
from holdfast.stores.postgres import migrate
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from holdfast.stores.postgres.migration import migrations, statements_of
from holdfast.stores.postgres.store import PostgresStore
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import Database

MIGRATIONS = migrations()
CATALOG = {
    "columns": """
        select c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
               a.attidentity, pg_get_expr(d.adbin, d.adrelid)
        from pg_class c
        join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
        where c.relnamespace = $1::text::regnamespace and c.relkind = 'r'
        order by c.relname, a.attnum
    """,
    "relations": """
        select relname, relkind, reloptions from pg_class
        where relnamespace = $1::text::regnamespace order by relname
    """,
    "constraints": """
        select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint
        where connamespace = $1::text::regnamespace order by 1, 2
    """,
    "indexes": """
        select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index
        join pg_class c on c.oid = indexrelid
        where c.relnamespace = $1::text::regnamespace order by 1
    """,
    "words": """
        select t.typname, e.enumlabel from pg_enum e join pg_type t on t.oid = e.enumtypid
        where t.typnamespace = $1::text::regnamespace order by e.enumsortorder
    """,
    "types": """
        select typname from pg_type where typnamespace = $1::text::regnamespace order by 1
    """,
}


async def catalog(connection: Any, schema: str) -> dict[str, list[str]]:
    """All that the server knows about a schema, with its name left out."""
    found = {part: await connection.fetch(query, schema) for part, query in CATALOG.items()}
    return {
        part: [repr(tuple(row)).replace(f"{schema}.", "") for row in rows]
        for part, rows in found.items()
    }


def store_on(connection: Any, names: Names) -> PostgresStore:
    return PostgresStore(AsyncpgDriver(connection), names)


@asynccontextmanager
async def another_schema(connection: Any, database: Database) -> AsyncIterator[str]:
    """The name of a schema that is not there yet, and is gone afterwards."""
    schema = f"{database.schema}_b"
    try:
        yield schema
    finally:
        await connection.execute(f"drop schema if exists {schema} cascade")


async def run_a_job(store: PostgresStore) -> None:
    [job_id] = await store.jobs.insert([NewJob("mail")], "raise")
    [job] = await store.leases.claim(
        [ClaimRule("mail", lease=timedelta(seconds=30))], limit=10, worker="w"
    )
    assert (job.id, job.claim_token is not None) == (job_id, True)
    change = Change(LeaseKey(job.id, job.claim_token or pytest.fail("no token")))
    assert len(await store.leases.change(TRANSITIONS[Verb.COMPLETE], [change])) == 1


async def test_install_applies_every_migration_and_the_second_time_none(pg: Database) -> None:
    async with tables.session(pg.dsn) as connection:
        store = store_on(connection, Names())
        assert await store.install() == [migration.name for migration in MIGRATIONS]
        before = await catalog(connection, pg.schema)
        assert await store.install() == []
        assert await catalog(connection, pg.schema) == before
        await store.verify()
        await run_a_job(store)
        ledger = await connection.fetch("select version, name from holdfast_migrations order by 1")
        assert [tuple(row) for row in ledger] == [(m.version, m.name) for m in MIGRATIONS]


async def test_migrations_are_numbered_without_gaps() -> None:
    assert [migration.version for migration in MIGRATIONS] == [*range(1, len(MIGRATIONS) + 1)]
    assert all(m.name.startswith(f"{m.version:04}_") for m in MIGRATIONS)


async def test_five_installs_at_once_make_one_schema(pg: Database) -> None:
    async def install() -> list[str]:
        async with tables.session(pg.dsn) as connection:
            return await store_on(connection, Names()).install()

    applied = await asyncio.gather(*(install() for _ in range(5)))
    assert sorted(applied) == [[], [], [], [], [migration.name for migration in MIGRATIONS]]
    async with tables.session(pg.dsn) as connection:
        await run_a_job(store_on(connection, Names()))


async def test_installs_of_several_prefixes_at_once_share_a_new_schema(pg: Database) -> None:
    async def install(prefix: str, schema: str) -> list[str]:
        async with tables.session(pg.dsn) as connection:
            return await store_on(connection, Names(prefix, schema)).install()

    async with tables.session(pg.dsn) as connection, another_schema(connection, pg) as schema:
        prefixes = [f"team_{letter}" for letter in "abcde"]
        applied = await asyncio.gather(*(install(prefix, schema) for prefix in prefixes))
        assert [len(names) for names in applied] == [len(MIGRATIONS)] * 5


async def test_the_printed_script_makes_exactly_what_install_makes(pg: Database) -> None:
    async with tables.session(pg.dsn) as connection, another_schema(connection, pg) as schema:
        await store_on(connection, Names()).install()
        installed = await catalog(connection, pg.schema)
        await connection.execute(f"create schema {schema}; set search_path = {schema}")
        await connection.execute(migrate.install_sql(Names()))
        assert await catalog(connection, schema) == installed
        await store_on(connection, Names()).verify()


async def test_the_printed_script_makes_the_schema_that_it_names(pg: Database) -> None:
    async with tables.session(pg.dsn) as connection, another_schema(connection, pg) as schema:
        await connection.execute(migrate.install_sql(Names("jobs", schema)))
        store = store_on(connection, Names("jobs", schema))
        await store.verify()
        await run_a_job(store)


@pytest.mark.parametrize("version", [migration.version for migration in MIGRATIONS[:-1]])
async def test_an_upgraded_schema_equals_a_fresh_one(
    pg: Database, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables.session(pg.dsn) as connection, another_schema(connection, pg) as schema:
        await store_on(connection, Names("holdfast", schema)).install()
        monkeypatch.setattr(migrate, "migrations", lambda: MIGRATIONS[:version])
        store = store_on(connection, Names())
        assert len(await store.install()) == version
        monkeypatch.undo()
        with pytest.raises(SchemaTooOld, match=rf"version {version}.*run `holdfast upgrade`"):
            await store.verify()
        assert await store.install() == [m.name for m in MIGRATIONS[version:]]
        await store.verify()
        upgraded = await catalog(connection, pg.schema)
        await connection.execute(f"set search_path = {schema}")
        assert await catalog(connection, schema) == upgraded


@pytest.mark.parametrize("version", [migration.version for migration in MIGRATIONS[:-1]])
async def test_the_printed_upgrade_makes_exactly_what_is_missing(
    pg: Database, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables.session(pg.dsn) as connection:
        monkeypatch.setattr(migrate, "migrations", lambda: MIGRATIONS[:version])
        store = store_on(connection, Names())
        await store.install()
        monkeypatch.undo()
        # As psql runs it: an index is not built concurrently inside a transaction.
        for statement in statements_of(migrate.upgrade_sql(Names(), version)):
            await connection.execute(statement)
        await store.verify()
        assert await store.install() == []


def test_there_is_no_script_where_nothing_is_missing() -> None:
    assert migrate.upgrade_sql(Names(), MIGRATIONS[-1].version) == ""


async def test_a_database_without_the_tables_is_refused_with_the_command_to_run(
    pg: Database,
) -> None:
    async with tables.session(pg.dsn) as connection:
        with pytest.raises(SchemaMissing, match=r"prefix 'holdfast'.*run `holdfast install`"):
            await store_on(connection, Names()).verify()
        with pytest.raises(SchemaMissing, match=r"prefix 'jobs' in schema 'nowhere'"):
            await store_on(connection, Names("jobs", "nowhere")).verify()


async def test_tables_of_a_newer_version_are_refused_with_the_command_to_run(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, store):
        await connection.execute("insert into holdfast_migrations values (9999, '9999_later')")
        with pytest.raises(SchemaTooNew, match=r"version 9999.*pip install --upgrade holdfast"):
            await store.verify()
        assert await store.install() == []


async def test_uninstall_leaves_nothing_behind(pg: Database) -> None:
    async with tables.session(pg.dsn) as connection:
        empty = await catalog(connection, pg.schema)
        assert not any(empty.values())
        store = store_on(connection, Names())
        await store.install()
        await run_a_job(store)
        await store.uninstall()
        assert await catalog(connection, pg.schema) == empty
        with pytest.raises(SchemaMissing):
            await store.verify()
        await store.uninstall()
        assert len(await store.install()) == len(MIGRATIONS)


async def test_the_printed_uninstall_leaves_nothing_behind(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, _):
        await connection.execute(migrate.uninstall_sql(Names()))
        assert not any((await catalog(connection, pg.schema)).values())


async def test_uninstall_does_not_touch_what_others_have_put_there(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, store):
        await connection.execute("create table holdfast_notes (text text)")
        await store.uninstall()
        found = await connection.fetch(
            "select tablename from pg_tables where schemaname = $1", pg.schema
        )
        assert [row[0] for row in found] == ["holdfast_notes"]


async def test_prefix_and_schema_are_where_the_tables_are(pg: Database) -> None:
    async with tables.session(pg.dsn) as connection, another_schema(connection, pg) as schema:
        store = store_on(connection, Names("jobs", schema))
        await store.install()
        assert not any((await catalog(connection, pg.schema)).values())
        made = await catalog(connection, schema)
        assert all(line.startswith(("('jobs", "('_jobs")) for line in made["relations"])
        assert all(line.startswith(("('jobs", "('_jobs")) for line in made["types"])
        await run_a_job(store)


async def test_the_longest_prefix_fits_into_every_name(pg: Database) -> None:
    async with tables.session(pg.dsn) as connection:
        store = store_on(connection, Names("p" * 31))
        await store.install()
        made = await catalog(connection, pg.schema)
        names = [line.split("'")[1] for line in made["relations"]]
        assert all(len(name) < 63 for name in names), "a longer name would be cut short"
        await run_a_job(store)
        await store.uninstall()
        assert not any((await catalog(connection, pg.schema)).values())


async def test_two_prefixes_live_side_by_side(pg: Database) -> None:
    async with tables.session(pg.dsn) as connection:
        first, second = store_on(connection, Names()), store_on(connection, Names("other"))
        await first.install()
        await second.install()
        await first.jobs.insert([NewJob("mail", dedupe_key="k")], "raise")
        await second.jobs.insert([NewJob("mail", dedupe_key="k")], "raise")
        assert [size.count for size in await first.jobs.size(None)] == [1]
        assert Names().channel != Names("other").channel
        await first.uninstall()
        await second.verify()
        assert [size.count for size in await second.jobs.size(None)] == [1]


async def test_the_enum_has_the_seven_words_of_the_lifecycle_in_order(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, _):
        found = await connection.fetch("select unnest(enum_range(null::holdfast_status))::text")
        assert [row[0] for row in found] == [str(status) for status in Status]
        assert len(found) == 7


@pytest.mark.parametrize(
    "name",
    [
        "",
        'quo"te',
        "apo'strophe",
        "dot.ted",
        "semi;colon",
        "space d",
        "Upper",
        "1digit",
        "é",
        "nul\x00",
        "new\nline",
        "p" * 32,
        "{brace}",
        "%s",
        "$1",
        "-- comment",
    ],
)
def test_a_name_that_could_be_anything_but_a_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="prefix"):
        Names(prefix=name)
    with pytest.raises(InvalidInput, match="schema"):
        Names(schema=name)


def test_all_faults_of_the_names_are_reported_together() -> None:
    with pytest.raises(InvalidInput, match=r"prefix 'A'.*schema 'B'"):
        Names("A", "B")
