"""Roles whose privileges end before their statements do, as after an upgrade."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.monitor.doctor.finding import Finding, error
from holdfast.shell import shell_word
from holdfast.stores.postgres.binding import Binding
from holdfast.stores.postgres.grants import GRANTS, DatabaseRole, Grant

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PostgresStore

_MARKS = {
    DatabaseRole.WORKER: Grant("insert", "leases"),
    DatabaseRole.OPERATOR: Grant("update", "schedules", ("paused",)),
    DatabaseRole.PRUNER: Grant("delete", "log"),
    DatabaseRole.PRODUCER: Grant("insert", "enqueues"),
    DatabaseRole.READER: Grant("select", "breakers"),
}
"""What each of them alone may do, beside those before it in this list."""

_INCLUDED = {
    DatabaseRole.PRODUCER: (DatabaseRole.WORKER, DatabaseRole.OPERATOR),
    DatabaseRole.READER: (DatabaseRole.WORKER, DatabaseRole.OPERATOR),
}
"""A worker may enqueue without being a producer."""

Privilege = tuple[str, str, str]
"""Table, column (empty for the whole table), and what is granted on it."""


async def check_grants(store: PostgresStore) -> list[Finding]:
    relations = Binding(store.names).relations
    tables = [name for key, name in relations.items() if key not in ("prefix", "status")]
    privileges = sorted({each for grants in GRANTS.values() for each in _each(grants, relations)})
    found = []
    for [name] in await store.examine("doctor_roles", tables=tables):
        lacking = await _lacking(store, name, privileges)
        marks = {role: set(_each((mark,), relations)) for role, mark in _MARKS.items()}
        plays = {role for role, mark in marks.items() if not mark & lacking}
        for role in sorted(plays):
            if plays.isdisjoint(_INCLUDED.get(role, ())):
                missing = lacking & set(_each(GRANTS[role], relations))
                found += [_finding(name, role, missing)] if missing else []
    return found


def _each(grants: tuple[Grant, ...], relations: dict[str, str]) -> list[Privilege]:
    return [
        (relations[grant.relation], column, grant.privilege)
        for grant in grants
        for column in grant.columns or ("",)
    ]


async def _lacking(store: PostgresStore, role: str, wanted: list[Privilege]) -> set[Privilege]:
    tables, columns, privileges = (list(each) for each in zip(*wanted, strict=True))
    found = await store.examine(
        "doctor_lacking", role=role, tables=tables, columns=columns, privileges=privileges
    )
    return {wanted[place - 1] for [place] in found}


def _finding(name: str, role: DatabaseRole, missing: set[Privilege]) -> Finding:
    table, column, privilege = min(missing)
    first = f"{privilege} on {table}{f' ({column})' if column else ''}"
    more = f", and {len(missing) - 1} privileges more" if len(missing) > 1 else ""
    return error(
        "grants",
        f"role {name} is used as the {role} and lacks {first}{more}",
        f"holdfast sql grants --{role} {shell_word(name)} --apply",
    )
