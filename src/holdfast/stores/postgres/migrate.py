"""Applies the numbered migrations, one step at a time, and keeps their ledger in the database."""

from __future__ import annotations

import logging
from itertools import count
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, SchemaMissing, SchemaTooNew, SchemaTooOld
from holdfast.repeated import RepeatedLog
from holdfast.stores.postgres.binding import Binding
from holdfast.stores.postgres.functions import drop_sql
from holdfast.stores.postgres.holders import HOLDERS_OF_TABLES, TABLE_HOLDERS, holders
from holdfast.stores.postgres.migration import Migration, Way, migrations
from holdfast.stores.postgres.render import template
from holdfast.stores.postgres.upgrade_plan import PlannedMigration, upgrade_plan

if TYPE_CHECKING:
    from holdfast.settings import Names
    from holdfast.stores.postgres.drivers.base import Driver

UNDEFINED = ("42P01", "3F000")
"""The SQLSTATEs of a table or schema that does not exist."""

_BREAKERS = 2

_CAME_SECOND = ("55P03", "23505", "40P01", "42P06", "42P07", "42710")
"""The SQLSTATEs when another session is creating, or has just created, the same objects."""
_BLOCKED = ("55P03", "40P01")
"""A lock was not granted in time, or a deadlock was ended."""

_LOCK_TIMEOUT = "300ms"
"""While a migration waits for a lock, statements that come later wait behind it."""
_PAUSE_SECONDS = 0.5
"""After a lock that was not granted, for the statements that had to wait."""
_PATIENCE_SECONDS = 60.0
_TRIES = 5
_REPORT_SECONDS = 2.0
"""How often a migration in batches says how far it is."""

_log = logging.getLogger("holdfast.upgrade")


def _schema_sql(names: Names) -> str:
    return f'create schema if not exists "{names.schema}";\n' if names.schema else ""


def _ledger_sql(names: Names) -> str:
    return (
        f"{_schema_sql(names)}create table if not exists {names.table('_migrations')} (\n"
        "    version     integer primary key,\n"
        "    name        text not null,\n"
        "    applied_at  timestamptz not null default clock_timestamp(),\n"
        "    compatible  boolean not null default false\n"
        ");\n"
    )


def _widen_ledger_sql(names: Names) -> str:
    """The first release had no column that says what workers of an older version may accept."""
    return (
        f"alter table {names.table('_migrations')}"
        " add column if not exists compatible boolean not null default false;\n"
    )


def _record_sql(migration: Migration, names: Names) -> str:
    return (
        f"insert into {names.table('_migrations')} (version, name, compatible)"
        f" values ({migration.version}, '{migration.name}', {str(migration.compatible).lower()});\n"
    )


def _create_sql(migration: Migration, names: Names) -> str:
    return f"{migration.sql_for_new_tables(names)}\n{_record_sql(migration, names)}"


def install_sql(names: Names) -> str:
    """A script that installs everything into an empty place; deterministic, needs no database."""
    parts = [_ledger_sql(names), *(_create_sql(migration, names) for migration in migrations())]
    return "begin;\n" + "\n".join(parts) + "commit;\n"


def upgrade_sql(names: Names, since: int) -> str:
    """A script with the migrations after a version, for a client that sends it by statements."""
    parts = [_upgrade_part(m, names) for m in migrations() if m.version > since]
    return "\n".join([f"begin;\n{_widen_ledger_sql(names)}commit;\n", *parts]) if parts else ""


def _upgrade_part(migration: Migration, names: Names) -> str:
    limit = f"set local lock_timeout = '{_LOCK_TIMEOUT}';\n"
    # A part that failed must not be followed by the next one.
    before = (
        f"do $$ begin if not exists (select from {names.table('_migrations')} where version ="
        f" {migration.version - 1}) then raise 'apply migration {migration.version - 1} first';"
        " end if; end $$;\n"
    )
    record = _record_sql(migration, names)
    if migration.way is Way.TRANSACTION:
        return f"begin;\n{limit}{before}{migration.sql(names)}\n{record}commit;\n"
    if migration.way is Way.CONCURRENTLY:
        # A build that was interrupted leaves an index that is there and not valid.
        index, _ = migration.index(names)
        work = f"drop index concurrently if exists {index};\n{migration.sql(names)}"
    else:
        work = (
            f"do $$ declare found_rows bigint; begin loop\n{_batch_sql(migration, names)}"
            " into found_rows; commit; exit when found_rows = 0; end loop; end $$;"
        )
    return f"{work}\nbegin;\n{before}{record}commit;\n"


def _batch_sql(migration: Migration, names: Names) -> str:
    return f"with batch as (\n{migration.only_statement(names)}\n) select count(*) from batch"


def uninstall_sql(names: Names) -> str:
    """A script that removes every table and type of this prefix, with all jobs."""
    relations = Binding(names).relations
    tables = [name for key, name in relations.items() if key not in ("prefix", "status")]
    drops = [f"drop table if exists {name};" for name in sorted(tables)]
    functions = (*Binding(names).functions.values(), _notify_insert(names))
    drops += [f"drop function if exists {name};" for name in functions]
    drops.append(drop_sql(names).rstrip())
    return "\n".join(["begin;", *drops, f"drop type if exists {relations['status']};", "commit;\n"])


def _notify_insert(names: Names) -> str:
    """The function of the trigger that wakes workers."""
    return names.table("_notify_insert")


def notify_inserts_sql(names: Names) -> str:
    """A script that adds the trigger which wakes workers when others insert rows."""
    return template("notify_inserts").format(
        **Binding(names).relations, notify_insert=_notify_insert(names), channel=names.channel
    )


async def notify_inserts(driver: Driver, names: Names, *, wanted: bool) -> None:
    """Add the trigger, or remove it; safe to repeat."""
    drops = (
        f"drop trigger if exists {names.prefix}_notify_inserts on {names.table()};"
        f"drop function if exists {_notify_insert(names)};"
    )
    async with driver.transaction() as tx:
        await tx.script("set local lock_timeout = '5s'")
        await tx.script(notify_inserts_sql(names) if wanted else drops)


async def notifies_inserts(driver: Driver, names: Names) -> bool:
    """Whether the trigger is there."""
    [[found]] = await driver.fetch(
        "select exists (select from pg_trigger where tgrelid = to_regclass($1) and tgname = $2)",
        [names.table(), f"{names.prefix}_notify_inserts"],
    )
    return bool(found)


async def applied(driver: Driver, names: Names) -> list[int]:
    """The versions in the ledger; none where there is no ledger."""
    try:
        rows = await driver.fetch(
            f"select version from {names.table('_migrations')} order by version"
        )
    except DatabaseError as error:
        if error.sqlstate in UNDEFINED:
            return []
        raise
    return [row[0] for row in rows]


async def install(driver: Driver, names: Names) -> list[str]:
    """Apply what is missing; safe to call from many processes at once, and again when killed.

    Tables that are not there are all made in one transaction. Where there are some, each migration
    is a step with a row of its own in the ledger, and an upgrade goes on behind the last of them.
    """
    if not await pending(driver, names):
        return []
    created = await _create(driver, names)
    if created:
        return created
    todo = await pending(driver, names)
    done = [m.name for m in todo if await _upgrade_by(driver, names, m)]
    return done


async def plan(driver: Driver, names: Names) -> list[PlannedMigration]:
    """What `install` would do to tables that exist, with the locks it would take."""
    return upgrade_plan(await pending(driver, names), names)


async def pending(driver: Driver, names: Names) -> list[Migration]:
    """The migrations that the ledger does not name."""
    done = await applied(driver, names)
    return [migration for migration in migrations() if migration.version not in done]


async def _create(driver: Driver, names: Names) -> list[str]:
    """Create ledger and tables where there are none. Return the migrations applied.

    Only one session can create the ledger. The server's own catalogues keep the others waiting, and
    refuse them afterwards.
    """
    ledger, until = names.table("_migrations"), monotonic() + _PATIENCE_SECONDS
    for tries in count(1):
        locked = False
        try:
            async with driver.transaction() as tx:
                await tx.script("set local lock_timeout = '1s'")
                await tx.script(_ledger_sql(names))
                await tx.script(f"lock table {ledger} in share row exclusive mode")
                locked = True
                return await _create_all(tx, names)
        except DatabaseError as error:
            blocked = error.sqlstate in _BLOCKED
            came_second = not locked and error.sqlstate in _CAME_SECOND
            if not (blocked or came_second) or monotonic() > until:
                raise
            if error.locked:
                await _report_holders(driver, ledger)
            elif tries >= _TRIES:
                raise
    raise AssertionError("unreachable")


async def _create_all(tx: Driver, names: Names) -> list[str]:
    if await applied(tx, names):
        await _widen_ledger(tx, names)
        return []
    for migration in migrations():
        await tx.script(_create_sql(migration, names))
    return [migration.name for migration in migrations()]


async def _widen_ledger(tx: Driver, names: Names) -> None:
    """Only where it is needed: the statement locks the table even if there is nothing to do."""
    [[there]] = await tx.fetch(
        "select exists (select from pg_attribute where attrelid = to_regclass($1)"
        " and attname = 'compatible')",
        [names.table("_migrations")],
    )
    if not there:
        await tx.script(_widen_ledger_sql(names))


async def _upgrade_by(driver: Driver, names: Names, migration: Migration) -> bool:
    """Apply one migration, again and again while its locks are taken; False if another did."""
    steps = {
        Way.TRANSACTION: _in_transaction,
        Way.CONCURRENTLY: _concurrently,
        Way.BATCHES: _in_batches,
    }
    until, repeated = monotonic() + _PATIENCE_SECONDS, RepeatedLog(_log)
    while True:
        try:
            done = await steps[migration.way](driver, names, migration)
        except DatabaseError as error:
            if error.sqlstate not in _BLOCKED or monotonic() > until:
                raise
            await _report_blocked(driver, names, migration, repeated)
            # A pause in the server: a synchronous driver has no event loop to sleep in.
            await driver.fetch("select pg_sleep($1)", [_PAUSE_SECONDS])
        else:
            if done:
                _log.info("applied %s", migration.name)
            return done


async def _is_missing(tx: Driver, names: Names, migration: Migration) -> bool:
    """Lock the ledger for this transaction and look into it."""
    await tx.script(f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
    await tx.script(f"lock table {names.table('_migrations')} in share row exclusive mode")
    return migration.version not in await applied(tx, names)


async def _in_transaction(driver: Driver, names: Names, migration: Migration) -> bool:
    async with driver.transaction() as tx:
        if not await _is_missing(tx, names, migration):
            return False
        await tx.script(f"{migration.sql(names)}\n{_record_sql(migration, names)}")
    return True


async def _concurrently(driver: Driver, names: Names, migration: Migration) -> bool:
    index, table = migration.index(names)
    async with driver.transaction() as tx:
        if not await _is_missing(tx, names, migration):
            return False
        # The builder of an index holds this lock to the end, so an index that is invalid now was
        # abandoned.
        await tx.script(f"lock table {table} in share update exclusive mode")
        if await _is_valid(tx, index) is False:
            _log.info("%s: removes what an interrupted build has left", migration.name)
            await tx.script(f"drop index {index}")
    _log.info("%s: builds %s; jobs go on meanwhile", migration.name, index)
    await driver.script(migration.only_statement(names))
    async with driver.transaction() as tx:
        if not await _is_missing(tx, names, migration):
            return False
        if not await _is_valid(tx, index):
            raise DatabaseError(f"the build of {index} was undone by another session; run it again")
        await tx.script(_record_sql(migration, names))
    return True


async def _is_valid(tx: Driver, index: str) -> bool | None:
    """Whether the index is complete; None when there is none."""
    found = await tx.fetch(
        "select indisvalid from pg_index where indexrelid = to_regclass($1)", [index]
    )
    return bool(found[0][0]) if found else None


async def _in_batches(driver: Driver, names: Names, migration: Migration) -> bool:
    total, report_at = 0, monotonic() + _REPORT_SECONDS
    while True:
        async with driver.transaction() as tx:
            if not await _is_missing(tx, names, migration):
                return False
            [[rows]] = await tx.fetch(_batch_sql(migration, names))
            if not rows:
                await tx.script(_record_sql(migration, names))
                return True
        total += rows
        if monotonic() >= report_at:
            _log.info("%s: %d rows so far", migration.name, total)
            report_at = monotonic() + _REPORT_SECONDS


async def _report_blocked(
    driver: Driver, names: Names, migration: Migration, repeated: RepeatedLog
) -> None:
    [planned] = upgrade_plan([migration], names)
    tables = [lock.table for lock in planned.locks] or [names.table("_migrations")]
    found = await holders(driver.fetch(HOLDERS_OF_TABLES, [tables]))
    repeated.warning(
        "%s waits for a lock on %s, held by %s; it tries again, and nobody waits behind it for "
        "longer than " + _LOCK_TIMEOUT,
        migration.name,
        ", ".join(tables),
        found,
    )


async def _report_holders(driver: Driver, ledger: str) -> None:
    found = await holders(driver.fetch(TABLE_HOLDERS, [ledger]))
    _log.warning("the installation waits for a lock on %s, held by %s", ledger, found)


async def install_breakers(driver: Driver, names: Names, tries: int = _TRIES) -> list[str]:
    """Create the table of the breakers alone, without a ledger; a full install may follow."""
    [migration] = [migration for migration in migrations() if migration.version == _BREAKERS]
    [[there]] = await driver.fetch("select to_regclass($1) is not null", [names.table("_breakers")])
    if there:
        return []
    try:
        async with driver.transaction() as tx:
            await tx.script(_schema_sql(names) + migration.sql(names))
    except DatabaseError as error:
        if error.sqlstate not in _CAME_SECOND or tries <= 1:
            raise
        return await install_breakers(driver, names, tries - 1)
    return [migration.name]


async def uninstall(driver: Driver, names: Names) -> None:
    async with driver.transaction() as tx:
        await tx.script(uninstall_sql(names).replace("begin;\n", "").replace("commit;\n", ""))


async def verify(driver: Driver, names: Names) -> list[str]:
    """Raise SchemaError unless this Holdfast can work with the tables.

    Return the migrations that it does not know and that are marked as compatible with it.
    """
    done = await applied(driver, names)
    newest = migrations()[-1].version
    where = f"prefix {names.prefix!r}" + (f" in schema {names.schema!r}" if names.schema else "")
    if not done:
        raise SchemaMissing(f"Holdfast is not installed under {where}; run `holdfast install`")
    if done[-1] < newest:
        raise SchemaTooOld(
            f"the tables under {where} are at version {done[-1]}, this Holdfast needs {newest}; "
            f"run `holdfast upgrade`"
        )
    if done[-1] == newest:
        return []
    unknown = await driver.fetch(
        f"select name, compatible from {names.table('_migrations')} where version > $1"
        " order by version",
        [newest],
    )
    breaking = ", ".join(name for name, compatible in unknown if not compatible)
    if breaking:
        raise SchemaTooNew(
            f"the tables under {where} are at version {done[-1]}, this Holdfast knows {newest}, "
            f"and cannot work with what has changed ({breaking}); "
            f"run `pip install --upgrade holdfast` where this worker runs"
        )
    return [name for name, _ in unknown]
