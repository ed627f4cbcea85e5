"""The plan of an upgrade: each migration, and the locks that it takes on tables in use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.stores.postgres.migration import Migration, Way, statements_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.settings import Names

LOCK_MODES = (
    "ROW EXCLUSIVE",
    "SHARE UPDATE EXCLUSIVE",
    "SHARE",
    "SHARE ROW EXCLUSIVE",
    "ACCESS EXCLUSIVE",
)
"""The modes that a plan names, the strongest last. Reading alone is not worth a line."""
_WRITE, _MAINTAIN, _SHARE, _DEFINE, _EXCLUSIVE = LOCK_MODES

_NAME = r'((?:"[^"]+"|\w+)(?:\.(?:"[^"]+"|\w+))?)'
_CREATES = re.compile(rf"create (?:unlogged )?table (?:if not exists )?{_NAME}")
# The first pattern that a statement begins with decides.
_LOCKS: tuple[tuple[str, str], ...] = (
    (rf"create (?:unique )?index concurrently .*? on (?:only )?{_NAME}", _MAINTAIN),
    (rf"create (?:unique )?index .*? on (?:only )?{_NAME}", _SHARE),
    (rf"create (?:or replace )?(?:constraint )?trigger .*? on {_NAME}", _DEFINE),
    (rf"alter table (?:if exists )?(?:only )?{_NAME} validate constraint", _MAINTAIN),
    (rf"alter table (?:if exists )?(?:only )?{_NAME} (?:re)?set \(", _MAINTAIN),
    (rf"alter table (?:if exists )?(?:only )?{_NAME}", _EXCLUSIVE),
    (rf"drop table (?:if exists )?{_NAME}", _EXCLUSIVE),
    (rf"drop trigger (?:if exists )?\S+ on {_NAME}", _EXCLUSIVE),
    (rf"lock table (?:only )?{_NAME}", _EXCLUSIVE),
)
_WRITES = re.compile(rf"\b(?:insert into|update|delete from) (?:only )?{_NAME}(?! of\b)")
_REFERENCES = re.compile(rf"\breferences {_NAME}")


@dataclass(frozen=True, slots=True)
class TableLock:
    """The strongest lock of a migration on a table that was there before."""

    table: str
    mode: str


@dataclass(frozen=True, slots=True)
class PlannedMigration:
    """One line of the plan."""

    version: int
    name: str
    compatible: bool
    """Whether workers of the version before may go on."""
    way: Way
    creates: tuple[str, ...]
    locks: tuple[TableLock, ...]


def upgrade_plan(pending: Sequence[Migration], names: Names) -> list[PlannedMigration]:
    """The plan of an upgrade by these migrations, in their order."""
    return [_planned(migration, names) for migration in pending]


def _planned(migration: Migration, names: Names) -> PlannedMigration:
    statements = [" ".join(text.split()) for text in statements_of(migration.sql(names))]
    created = [
        name for text in statements if text.startswith("create") for name in _CREATES.findall(text)
    ]
    strongest: dict[str, str] = {}
    for text in statements:
        for table, mode in _locks_of(text):
            known = strongest.get(table, _WRITE)
            strongest[table] = max(known, mode, key=LOCK_MODES.index)
    return PlannedMigration(
        migration.version,
        migration.name,
        migration.compatible,
        migration.way,
        tuple(_plain(name) for name in created),
        tuple(
            TableLock(_plain(table), mode)
            for table, mode in sorted(strongest.items())
            if table not in created
        ),
    )


def _locks_of(statement: str) -> Iterator[tuple[str, str]]:
    for table in _REFERENCES.findall(statement):
        yield table, _DEFINE
    for pattern, mode in _LOCKS:
        if found := re.match(pattern, statement, re.IGNORECASE):
            yield found.group(1), mode
            return
    if not statement.startswith(("create", "comment", "grant", "revoke")):
        for table in _WRITES.findall(statement):
            yield table, _WRITE


def _plain(name: str) -> str:
    return name.replace('"', "")
