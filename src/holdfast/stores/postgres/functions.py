"""Functions for triggers, psql and other languages: the same statements, called from SQL.

They run with the rights of the caller and name every object by its schema.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.errors import SchemaMissing
from holdfast.lifecycle import Verb
from holdfast.models import SOON
from holdfast.stores.postgres.render import statements

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.settings import Names
    from holdfast.stores.postgres.drivers.base import Driver

_SCHEMA = (
    "select n.nspname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace"
    " where c.oid = to_regclass($1::text)"
)
_FOUND = "select to_regproc($1::text) is not null"
_MOST_NAME = 200


@dataclass(frozen=True, slots=True)
class _Function:
    suffix: str
    arguments: str
    returns: str
    body: str


def _execute(names: Names, statement: str, into: str, values: Mapping[str, str]) -> str:
    """A statement of ours with a value for each of its parameters."""
    found = statements(names)[statement]
    using = ", ".join(f"({values[parameter]})" for parameter in found.parameters)
    return f"execute $statement${found.text}$statement$ into {into} using {using};"


def _enqueue(names: Names, channel: str) -> _Function:
    values = {
        "now": "null::timestamptz",
        "entrypoint": "$1",
        "payload": "coalesce(payload_bytes, convert_to(payload::text, 'UTF8'))",
        "priority": "priority",
        "instant": "execute_after",
        "delay": "delay",
        "dedupe_key": "dedupe_key",
        "headers": "headers::text",
        "max_attempts": "null::integer",
        "max_recoveries": "null::integer",
        "channel": f"'{channel}'",
        "soon": f"interval '{SOON.total_seconds():.0f} seconds'",
        "key": "null::uuid",
    }
    insert = {
        word: _execute(names, f"{Verb.ENQUEUE}_one:{word}", "ids, skipped", values)
        for word in ("raise", "skip")
    }
    return _Function(
        "_enqueue",
        "entrypoint text, payload jsonb default null, priority integer default 0, "
        "execute_after timestamptz default null, delay interval default null, "
        "dedupe_key text default null, headers jsonb default null, "
        "on_conflict text default 'raise', payload_bytes bytea default null",
        "bigint",
        _enqueue_body(insert["skip"], insert["raise"]),
    )


def _enqueue_body(skipping: str, raising: str) -> str:
    return f"""
declare
    ids bigint[];
    skipped text[];
begin
    if coalesce(btrim(entrypoint), '') = '' or length(entrypoint) > {_MOST_NAME} then
        raise exception 'entrypoint must have 1 to {_MOST_NAME} characters, got %', entrypoint
            using errcode = '22023';
    end if;
    if execute_after is not null and delay is not null then
        raise exception 'execute_after and delay are two times for one job; pass one of them'
            using errcode = '22023';
    end if;
    if on_conflict = 'skip' then
        {skipping}
    elsif on_conflict = 'raise' then
        {raising}
    else
        raise exception 'on_conflict must be raise or skip, got %', on_conflict
            using errcode = '22023';
    end if;
    return ids[1];
end
"""


def _cancel(names: Names, channel: str) -> _Function:
    values = {
        "now": "null::timestamptz",
        "ids": "array[job_id]",
        "actor": "actor",
        "reason": "reason",
        "channel": f"'{channel}'",
    }
    return _Function(
        "_cancel",
        "job_id bigint, reason text default null, actor text default session_user",
        "boolean",
        f"""
declare
    found bigint;
begin
    {_execute(names, Verb.CANCEL, "found", values)}
    return found is not null;
end
""",
    )


def _status(names: Names) -> _Function:
    return _Function(
        "_status",
        "job_id bigint",
        "text",
        f"""
declare
    found bigint;
    word text;
begin
    {_execute(names, "statuses", "found, word", {"ids": "array[job_id]"})}
    return word;
end
""",
    )


def functions_sql(names: Names, channel: str) -> str:
    """A script that creates the functions; `names` says in which schema the tables are.

    `channel` is where workers listen. It follows from the names that workers are given, which need
    not have the schema.
    """
    made = (_enqueue(names, channel), _cancel(names, channel), _status(names))
    return drop_sql(names) + "\n".join(
        f"create function {names.table(one.suffix)}({one.arguments}) returns {one.returns}\n"
        f"language plpgsql security invoker set search_path = pg_catalog, pg_temp\n"
        f"as $function${one.body}$function$;"
        for one in made
    )


def drop_sql(names: Names) -> str:
    return "".join(
        f"drop function if exists {names.table(suffix)};\n"
        for suffix in ("_enqueue", "_cancel", "_status")
    )


async def install(driver: Driver, names: Names, *, wanted: bool) -> None:
    """Create or replace the functions, or remove them. They stand beside the tables."""
    placed = await _placed(driver, names)
    async with driver.transaction() as tx:
        await tx.script(functions_sql(placed, names.channel) if wanted else drop_sql(placed))


async def installed(driver: Driver, names: Names) -> bool:
    """Whether the functions are there."""
    try:
        placed = await _placed(driver, names)
    except SchemaMissing:
        return False
    [[found]] = await driver.fetch(_FOUND, (placed.table("_enqueue"),))
    return bool(found)


async def _placed(driver: Driver, names: Names) -> Names:
    """The names with the schema that the tables are really in: a function has no search path."""
    if names.schema:
        return names
    found = await driver.fetch(_SCHEMA, (names.table(),))
    if not found:
        raise SchemaMissing("there are no tables of Holdfast here; run `holdfast install`")
    schema = str(found[0][0])
    if not re.fullmatch(r"[a-z_][a-z0-9_$]*", schema):
        raise SchemaMissing(f"the schema {schema!r} needs quotes; move the tables to another one")
    return replace(names, schema=schema)
