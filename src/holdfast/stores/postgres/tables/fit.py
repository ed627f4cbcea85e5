"""Compares a live table with the needs of its queue. Lists what it lacks, and the DDL for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.errors import (
    ConnectionFailed,
    ConnectionLost,
    DatabaseError,
    InvalidInput,
    UnreadableReply,
)
from holdfast.table import OPTIONAL, REQUIRED, TableQueue, order_item

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.stores.postgres.drivers.base import Driver

_COLUMNS = """
select a.attname::text, format_type(a.atttypid, null), format_type(a.atttypid, a.atttypmod),
       a.attnotnull
from pg_attribute a
where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""
_INDEXES = """
select i.indexrelid::regclass::text, i.indisunique and i.indpred is null and i.indimmediate,
       array(
           select coalesce(a.attname::text, '')
           from unnest(i.indkey::int[]) with ordinality as k(attnum, n)
           left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
           where k.n <= i.indnkeyatts
           order by k.n
       )
from pg_index i
where i.indrelid = to_regclass($1) and i.indisvalid
"""
_WHOLE = ("smallint", "integer", "bigint")
_TYPES: dict[str, tuple[str, ...]] = {
    "due": ("timestamp with time zone",),
    "claim_token": ("uuid",),
    "claimed_at": ("timestamp with time zone",),
    "attempts": _WHOLE,
    "inactive": ("boolean",),
    "claimed_by": ("text", "character varying"),
    "heartbeat": ("timestamp with time zone",),
    "recoveries": _WHOLE,
    "last_error": ("text", "character varying"),
    "last_error_at": ("timestamp with time zone",),
    "updated_at": ("timestamp with time zone",),
    "outcome": ("text", "character varying"),
    "max_attempts": _WHOLE,
}
_DDL_TYPES = {
    "due": "timestamptz not null default now()",
    "claim_token": "uuid",
    "claimed_at": "timestamptz",
    "attempts": "integer not null default 0",
    "inactive": "boolean not null default false",
    "claimed_by": "text",
    "heartbeat": "timestamptz",
    "recoveries": "integer not null default 0",
    "last_error": "text",
    "last_error_at": "timestamptz",
    "updated_at": "timestamptz not null default now()",
    "outcome": "text",
    "max_attempts": "integer not null default 5",
}
_KEY_TYPES = (*_WHOLE, "text", "character varying", "uuid")


class Deaths(Enum):
    """The columns by which the table shows that a worker died with a row."""

    COUNTED = "a recoveries column"
    DERIVED = "last_error_at is later than the due column"
    UNKNOWN = "it does not"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something the table lacks. `required` ones keep the queue from starting."""

    subject: str
    message: str
    ddl: str | None
    required: bool


@dataclass(frozen=True, slots=True)
class Fit:
    """A table queue as it fits the live table."""

    queue: TableQueue
    columns: tuple[str, ...]
    key_type: str
    parts: dict[str, str]
    """The column of each part that the table has."""
    lengths: dict[str, str] = field(default_factory=dict)
    """The type of each column of text that cannot take every text."""
    json: frozenset[str] = frozenset()
    """Columns that arrive as JSON text."""
    instants: frozenset[str] = frozenset()
    claim_leads: bool = False
    """An index has the order after the claim, so it can serve only what is sorted by both."""
    faults: tuple[Fault, ...] = field(default=())

    @property
    def deaths(self) -> Deaths:
        return _deaths(self.parts)

    def demand(self) -> Fit:
        """Itself, if the queue can work on the table."""
        serious = [fault for fault in self.faults if fault.required]
        if serious:
            found = "; ".join(fault.message for fault in serious)
            raise InvalidInput(
                f"table {self.queue.table!r} cannot be a queue: {found}; "
                f"`holdfast table check {self.queue.table}` prints the DDL"
            )
        return self


def quote(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def quoted_table(queue: TableQueue) -> str:
    return ".".join(map(quote, queue.path))


async def fit(driver: Driver, queue: TableQueue) -> Fit:
    """Look at the live table."""
    name = quoted_table(queue)
    found = await driver.fetch(_COLUMNS, [name])
    if not found:
        raise InvalidInput(
            f"there is no table {queue.table!r} in this database; "
            f"check the name, or write it as schema.table"
        )
    types = {row[0]: row[1] for row in found}
    indexes = [(row[0], row[1], list(row[2])) for row in await driver.fetch(_INDEXES, [name])]
    parts = {
        part: column
        for part, column in queue.columns().items()
        if column in types or not _is_default(queue, part)
    }
    faults = [
        *_column_faults(queue, parts, types),
        *_key_faults(queue, types, indexes),
        *_null_faults(queue, {row[0] for row in found if not row[3]}),
        *_index_faults(queue, types, indexes),
        *_death_faults(queue, parts),
        *await _where_faults(driver, queue),
    ]
    key_type = types.get(queue.key, "bigint")
    return Fit(
        queue,
        tuple(types),
        key_type,
        parts,
        lengths={row[0]: row[2] for row in found if row[1] == "character varying"},
        json=_of_type(types, "json", "jsonb"),
        instants=_of_type(types, "timestamp with time zone"),
        claim_leads=_claim_leads(queue, [columns for _, _, columns in indexes]),
        faults=tuple(faults),
    )


def _of_type(types: dict[str, str], *kinds: str) -> frozenset[str]:
    return frozenset(column for column, kind in types.items() if kind in kinds)


async def unreadable_column(driver: Driver, fit: Fit, key: object) -> str | None:
    """Find the column of a row that the driver cannot read, by reading one after the other."""
    table, own = quoted_table(fit.queue), quote(fit.queue.key)
    for column in fit.columns:
        try:
            await driver.fetch(
                f"select {quote(column)} from {table} where {own} = $1::{fit.key_type}", [key]
            )
        except UnreadableReply:
            return column
    return None


def _claim_leads(queue: TableQueue, indexes: list[list[str]]) -> bool:
    first = order_item(queue.ordering[0])[0]
    starts = ([queue.inactive, queue.claimed_at, first], [queue.claimed_at, first])
    return any(columns[: len(start)] == start for columns in indexes for start in starts)


def _is_default(queue: TableQueue, part: str) -> bool:
    """An optional column under its default name may be absent."""
    optional = part in OPTIONAL
    return optional and getattr(queue, part) == TableQueue.__dataclass_fields__[part].default


def _column_faults(queue: TableQueue, parts: dict[str, str], types: dict[str, str]) -> list[Fault]:
    faults = []
    for part, column in parts.items():
        required = part in REQUIRED or part == "max_attempts" or not _is_default(queue, part)
        if column not in types:
            ddl = _DDL_TYPES.get(part)
            faults.append(
                Fault(
                    column,
                    f"column {column!r} ({part}) is missing",
                    ddl and f"alter table {quoted_table(queue)} add column {quote(column)} {ddl};",
                    required,
                )
            )
        elif part in _TYPES and types[column] not in _TYPES[part]:
            allowed = " or ".join(_TYPES[part])
            without = f", or {part}=None to do without" if part in OPTIONAL else ""
            faults.append(
                Fault(
                    column,
                    f"column {column!r} ({part}) is {types[column]}, but must be {allowed}"
                    f"{without}",
                    f"alter table {quoted_table(queue)} alter column {quote(column)} "
                    f"type {_TYPES[part][0]};",
                    True,
                )
            )
    missing = [column for column, _ in map(order_item, queue.order) if column not in types]
    return faults + [
        Fault(column, f"column {column!r} (order) is missing", None, True) for column in missing
    ]


def _key_faults(
    queue: TableQueue, types: dict[str, str], indexes: list[tuple[str, bool, list[str]]]
) -> list[Fault]:
    if queue.key not in types:
        return []
    table, key = quoted_table(queue), quote(queue.key)
    faults = []
    if types[queue.key] not in _KEY_TYPES:
        faults.append(
            Fault(
                queue.key,
                f"key {queue.key!r} is {types[queue.key]}; it must be an integer, text or uuid",
                None,
                True,
            )
        )
    if not any(unique and columns == [queue.key] for _, unique, columns in indexes):
        faults.append(
            Fault(
                queue.key,
                f"key {queue.key!r} has no unique index",
                f"create unique index concurrently on {table} ({key});",
                True,
            )
        )
    return faults


def _null_faults(queue: TableQueue, nullable: set[str]) -> list[Fault]:
    if queue.inactive not in nullable:
        return []
    table, column = quoted_table(queue), quote(queue.inactive)
    return [
        Fault(
            queue.inactive,
            f"column {queue.inactive!r} (inactive) may be null: such a row is never claimed",
            f"alter table {table} alter column {column} set default false, "
            f"alter column {column} set not null;",
            False,
        )
    ]


def _index_faults(
    queue: TableQueue, types: dict[str, str], indexes: list[tuple[str, bool, list[str]]]
) -> list[Fault]:
    """A missing index makes the queue slow, not wrong. It is listed with its DDL, and the queue
    starts."""
    table = quoted_table(queue)
    ordering = [order_item(item) for item in queue.ordering]
    first = ordering[0][0]
    wanted = ", ".join([*(f"{quote(name)}{way}" for name, way in ordering), quote(queue.key)])
    waiting = f"{quote(queue.inactive)} = false and {quote(queue.claimed_at)} is null"
    faults = []
    if not any(first in columns for _, _, columns in indexes) and first in types:
        faults.append(
            Fault(
                first,
                f"no index has the order column {first!r}: every claim sorts the whole table",
                f"create index concurrently on {table} ({wanted}) where {waiting};",
                False,
            )
        )
    if not any(columns[:1] == [queue.claimed_at] for _, _, columns in indexes):
        faults.append(
            Fault(
                queue.claimed_at,
                f"no index starts with {queue.claimed_at!r}: every sweep scans the whole table",
                f"create index concurrently on {table} ({quote(queue.claimed_at)}) "
                f"where {quote(queue.claimed_at)} is not null;",
                False,
            )
        )
    return faults


def _deaths(parts: Mapping[str, str]) -> Deaths:
    if "recoveries" in parts:
        return Deaths.COUNTED
    return Deaths.DERIVED if "last_error_at" in parts else Deaths.UNKNOWN


def _death_faults(queue: TableQueue, parts: Mapping[str, str]) -> list[Fault]:
    if _deaths(parts) is not Deaths.UNKNOWN:
        return []
    column = queue.recoveries or "recoveries"
    declared = "" if queue.recoveries else f"; then declare recoveries={column!r}"
    return [
        Fault(
            column,
            "no column tells that a worker died with a row (recoveries or last_error_at): a row "
            f"that kills its worker each time is run again without end{declared}",
            f"alter table {quoted_table(queue)} add column {quote(column)} "
            f"{_DDL_TYPES['recoveries']};",
            False,
        )
    ]


async def _where_faults(driver: Driver, queue: TableQueue) -> list[Fault]:
    if queue.where is None:
        return []
    try:
        await driver.fetch(f"explain select from {quoted_table(queue)} j where (\n{queue.where}\n)")
    except (ConnectionFailed, ConnectionLost):
        raise
    except DatabaseError as error:
        return [Fault("where", f"where {queue.where!r} is not a condition: {error}", None, True)]
    return []
