"""Holdfast's tables: schema, indexes, dead rows, size of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import SchemaError
from holdfast.monitor.doctor.finding import Finding, error, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.stores.postgres.store import PostgresStore

_INDEXES = ("ready", "dedupe_key", "held", "recovered")
_MANY_DEAD = 500_000
_DEAD_SHARE = 5
_BLOATED_INDEXES = 256 * 2**20
_LARGE_LOG = 20 * 2**30


async def check_schema(store: PostgresStore) -> list[Finding]:
    try:
        await store.verify()
    except SchemaError as found:
        return [error("schema", str(found), "holdfast upgrade")]
    return []


async def check_tables(store: PostgresStore) -> list[Finding]:
    table = store.names.table()
    [row] = await store.examine("doctor_tables", table=table, log=store.names.table("_log"))
    live, dead, _, log_bytes, index_bytes, table_bytes, valid, invalid = row
    found = list(_indexes(store.names.prefix, valid, invalid))
    if dead > _MANY_DEAD and dead > _DEAD_SHARE * live:
        found.append(
            warning("dead_rows", f"{table} has {dead:,} dead rows", f'psql -c "vacuum {table}"')
        )
    if index_bytes > max(_BLOATED_INDEXES, 3 * table_bytes):
        found.append(
            warning(
                "index_bloat",
                f"the indexes of {table} take {index_bytes / 2**20:,.0f} MiB",
                f'psql -c "reindex table concurrently {table}"',
            )
        )
    if log_bytes > _LARGE_LOG:
        found.append(
            warning(
                "log_size",
                f"the log takes {log_bytes / 2**30:,.0f} GiB",
                "holdfast prune --older-than 30d",
            )
        )
    return found


def _indexes(prefix: str, valid: list[str], invalid: list[str]) -> Iterator[Finding]:
    for index in invalid:
        yield error(
            "index_invalid",
            f"index {index} is not valid: it is written and not used",
            f'psql -c "reindex index concurrently {index}"',
        )
    for name in _INDEXES:
        index = f"{prefix}_{name}"
        if index not in valid and index not in invalid:
            yield error(
                "index_missing",
                f"index {index} is missing: claims scan the backlog",
                f"holdfast sql install | grep -A2 {index}",
            )
