"""Applies the numbered migrations and keeps their ledger in the database."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from holdfast.errors import DatabaseError, SchemaMissing, SchemaTooNew, SchemaTooOld
from holdfast.stores.postgres.binding import Binding

if TYPE_CHECKING:
    from holdfast.settings import Names
    from holdfast.stores.postgres.drivers.base import Driver

UNDEFINED = ("42P01", "3F000")
"""What PostgreSQL says of a table or schema that is not there."""

_BREAKERS = 2


@dataclass(frozen=True, slots=True)
class Migration:
    """A numbered file; never edited once released."""

    version: int
    name: str
    template: str

    def sql(self, names: Names) -> str:
        return self.template.format(**Binding(names).relations)


@cache
def migrations() -> tuple[Migration, ...]:
    files = resources.files(__package__).joinpath("migrations").iterdir()
    found = [
        Migration(
            int(file.name.split("_")[0]), file.name.removesuffix(".sql"), file.read_text("utf-8")
        )
        for file in files
        if file.name.endswith(".sql")
    ]
    return tuple(sorted(found, key=lambda migration: migration.version))


def _schema_sql(names: Names) -> str:
    return f'create schema if not exists "{names.schema}";\n' if names.schema else ""


def _ledger_sql(names: Names) -> str:
    return (
        f"{_schema_sql(names)}create table if not exists {names.table('_migrations')} (\n"
        "    version     integer primary key,\n"
        "    name        text not null,\n"
        "    applied_at  timestamptz not null default clock_timestamp()\n"
        ");\n"
    )


def _apply_sql(migration: Migration, names: Names) -> str:
    return (
        f"{migration.sql(names)}\n"
        f"insert into {names.table('_migrations')} (version, name)"
        f" values ({migration.version}, '{migration.name}');\n"
    )


def install_sql(names: Names) -> str:
    """A script that installs everything into an empty place; deterministic, needs no database."""
    parts = [_ledger_sql(names), *(_apply_sql(migration, names) for migration in migrations())]
    return "begin;\n" + "\n".join(parts) + "commit;\n"


def upgrade_sql(names: Names, since: int) -> str:
    """A script with the migrations after a version."""
    parts = [_apply_sql(m, names) for m in migrations() if m.version > since]
    return "begin;\n" + "\n".join(parts) + "commit;\n" if parts else ""


def uninstall_sql(names: Names) -> str:
    """A script that removes every table and type of this prefix, with all jobs."""
    relations = Binding(names).relations
    tables = [name for key, name in relations.items() if key not in ("prefix", "status")]
    drops = [f"drop table if exists {name};" for name in sorted(tables)]
    return "\n".join(["begin;", *drops, f"drop type if exists {relations['status']};", "commit;\n"])


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


async def _lock(tx: Driver, names: Names) -> None:
    """One at a time whatever the prefix: two would both create the schema, and one would fail."""
    await tx.fetch(
        "select pg_advisory_xact_lock(hashtextextended($1, 0))",
        [f"holdfast migrate {names.schema}"],
        timeout=60,
    )


async def install(driver: Driver, names: Names) -> list[str]:
    """Apply what is missing; safe to call from many processes at once."""
    done = await applied(driver, names)
    if done and done[-1] >= migrations()[-1].version:
        return []
    async with driver.transaction() as tx:
        await _lock(tx, names)
        await tx.script("set local lock_timeout = '5s'")
        await tx.script(_ledger_sql(names))
        done = await applied(tx, names)
        missing = [migration for migration in migrations() if migration.version not in done]
        for migration in missing:
            await tx.script(_apply_sql(migration, names))
    return [migration.name for migration in missing]


async def install_breakers(driver: Driver, names: Names) -> list[str]:
    """Create the table of the breakers alone, without a ledger; a full install may follow."""
    [migration] = [migration for migration in migrations() if migration.version == _BREAKERS]
    [[there]] = await driver.fetch("select to_regclass($1) is not null", [names.table("_breakers")])
    if there:
        return []
    async with driver.transaction() as tx:
        await _lock(tx, names)
        await tx.script(_schema_sql(names) + migration.sql(names))
    return [migration.name]


async def uninstall(driver: Driver, names: Names) -> None:
    async with driver.transaction() as tx:
        await tx.script(uninstall_sql(names).replace("begin;\n", "").replace("commit;\n", ""))


async def verify(driver: Driver, names: Names) -> int:
    """The version installed, if this Holdfast can work with it."""
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
    if done[-1] > newest:
        raise SchemaTooNew(
            f"the tables under {where} are at version {done[-1]}, this Holdfast knows {newest}; "
            f"run `pip install --upgrade holdfast` where this worker runs"
        )
    return done[-1]
