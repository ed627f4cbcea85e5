"""Holdfast's tables: schema, indexes, the plan of a claim, dead rows, and the log."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from holdfast.errors import PrivilegeMissing, SchemaError
from holdfast.monitor.doctor.finding import Finding, error, warning
from holdfast.settings import Retention

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.stores.postgres.store import PostgresStore

_INDEXES = ("ready", "dedupe_key", "held", "recovered")
_READY = "ready"
_MANY_DEAD = 500_000
_DEAD_SHARE = 5
_LATE_VACUUM = timedelta(minutes=15)
_FEWEST_LATE = 10_000
"""Dead rows that are worth a word."""
_BLOATED_INDEXES = 256 * 2**20
_PLANNED_FROM = 20_000
"""A scan of fewer rows than this can be the best plan."""
_LARGE_LOG = 20 * 2**30
_LARGE_KEPT_LOG = 2**30
_OVERDUE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Table:
    """What the server says of the table of jobs, and of the size of the log."""

    live: int
    dead: int
    vacuumed: datetime | None
    log_bytes: int
    index_bytes: int
    table_bytes: int
    valid_indexes: Sequence[str]
    invalid_indexes: Sequence[str]
    autovacuum: bool
    vacuum_from: int
    """The number of dead rows at which autovacuum comes."""
    now: datetime


@dataclass(frozen=True, slots=True)
class Log:
    """How large the log is, and how it grows."""

    bytes: int
    overdue: datetime | None
    """Of when a row is that should have been deleted."""
    rows: int
    last_hour: int
    retention: Retention

    @property
    def bytes_a_day(self) -> float:
        """At the rate of the last hour."""
        return 24 * self.last_hour * self.bytes / max(self.rows, 1)


async def check_schema(store: PostgresStore) -> list[Finding]:
    try:
        await store.verify()
    except SchemaError as found:
        return [error("schema", str(found), found.command)]
    return []


async def check_tables(store: PostgresStore) -> list[Finding]:
    names = store.names
    [row] = await store.examine("doctor_tables", table=names.table(), log=names.table("_log"))
    table = Table(*row)
    found = list(_indexes(names.prefix, table))
    if not found:
        found += await _check_plan(store, table)
    found += judge_table(_shown(store), table)
    found += judge_log(await _log(store, table))
    return found


async def check_leases(store: PostgresStore) -> list[Finding]:
    """Jobs that no sweep can find. It reads the whole queue."""
    with suppress(PrivilegeMissing):
        if count := await store.jobs.unrecorded():
            jobs = "1 job is" if count == 1 else f"{count:,} jobs are"
            return [
                warning(
                    "leases",
                    f"{jobs} leased without a row in {store.names.table('_leases')}, as if it had "
                    f"been emptied: a running worker writes the rows anew within some minutes, "
                    f"and until then nobody recovers the jobs of a worker that dies",
                    "holdfast workers",
                )
            ]
    return []


async def _log(store: PostgresStore, table: Table) -> Log:
    retention = await store.upkeep.retention()
    longest = _longest(retention)
    before = None if longest is None else table.now - longest - _OVERDUE
    [[overdue, rows, last_hour]] = await store.examine(
        "doctor_log", log=store.names.table("_log"), before=before
    )
    return Log(table.log_bytes, overdue, rows, last_hour, retention)


def _longest(retention: Retention) -> timedelta | None:
    """How long any row is kept; None where some are kept for ever."""
    if retention.succeeded is None or retention.others is None:
        return None
    return max(retention.succeeded, retention.others)


def _shown(store: PostgresStore) -> str:
    """The table as people write it; a quoted name would end the quotes of a shell."""
    names = store.names
    return f"{names.schema}.{names.prefix}" if names.schema else names.prefix


def judge_table(name: str, table: Table) -> Iterator[Finding]:
    """Dead rows, and who should have removed them."""
    if not table.autovacuum:
        yield warning(
            "autovacuum",
            f"autovacuum is off for {name}: dead rows stay where no worker may vacuum",
            f'psql -c "alter table {name} reset (autovacuum_enabled)"',
        )
    if table.dead > _MANY_DEAD and table.dead > _DEAD_SHARE * table.live:
        yield warning(
            "dead_rows", f"{name} has {table.dead:,} dead rows", f'psql -c "vacuum {name}"'
        )
    elif table.dead > max(2 * table.vacuum_from, _FEWEST_LATE) and _late(table):
        since = "never" if table.vacuumed is None else f"last at {table.vacuumed:%Y-%m-%d %H:%MZ}"
        yield warning(
            "autovacuum_lag",
            f"autovacuum lags: {name} has {table.dead:,} dead rows, was due for it at "
            f"{table.vacuum_from:,}, and was vacuumed {since}",
            f'psql -c "vacuum {name}"',
        )
    if table.index_bytes > max(_BLOATED_INDEXES, 3 * table.table_bytes):
        yield warning(
            "index_bloat",
            f"the indexes of {name} take {table.index_bytes / 2**20:,.0f} MiB",
            f'psql -c "reindex table concurrently {name}"',
        )


def _late(table: Table) -> bool:
    return table.vacuumed is None or table.now - table.vacuumed > _LATE_VACUUM


def judge_log(log: Log) -> Iterator[Finding]:
    """Its size, how long rows are kept, and whether expired ones are deleted."""
    kept = (log.retention.succeeded, log.retention.others)
    if None in kept and log.bytes > _LARGE_KEPT_LOG:
        yield warning(
            "retention",
            f"log rows are kept for ever: {_gib(log.bytes)} now, "
            f"and {_gib(log.bytes_a_day)} more a day",
            "holdfast retention set --successful 30d --others 90d",
        )
    elif log.bytes > _LARGE_LOG:
        yield warning(
            "log_size",
            f"the log takes {_gib(log.bytes)} and grows by {_gib(log.bytes_a_day)} a day",
            "holdfast retention set --successful 7d",
        )
    longest = _longest(log.retention)
    if longest is not None and log.overdue is not None:
        yield warning(
            "retention_overdue",
            f"the log has rows of {log.overdue:%Y-%m-%d}, and rows are kept for "
            f"{longest.days} days: no worker may delete them, or none runs",
            "holdfast retention apply",
        )


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"


async def _check_plan(store: PostgresStore, table: Table) -> list[Finding]:
    """A plan that walks the backlog makes every claim slower with every job that waits."""
    if table.live < _PLANNED_FROM:
        return []
    ready = f"{store.names.prefix}_{_READY}"
    used = set(_indexes_of(await store.plan("doctor_plan", entrypoint="")))
    if used == {ready}:
        return []
    instead = f"uses {', '.join(sorted(used))}" if used else "scans the table"
    return [
        error(
            "claim_plan",
            f"a claim {instead} instead of walking index {ready}",
            f'psql -c "analyze {_shown(store)}" -c "show enable_indexscan"',
        )
    ]


def _indexes_of(plan: Any) -> Iterator[str]:
    """The indexes that a plan uses, as EXPLAIN names them; a sort of rows counts as another."""
    match plan:
        case list():
            for each in plan:
                yield from _indexes_of(each)
        case dict():
            if plan.get("Node Type") in ("Sort", "Seq Scan"):
                yield f"a {plan['Node Type'].lower()}"
            if "Index Name" in plan:
                yield plan["Index Name"]
            yield from _indexes_of([plan.get("Plan", []), plan.get("Plans", [])])


def _indexes(prefix: str, table: Table) -> Iterator[Finding]:
    for index in table.invalid_indexes:
        yield error(
            "index_invalid",
            f"index {index} is not valid: it is written and not used",
            f'psql -c "reindex index concurrently {index}"',
        )
    for name in _INDEXES:
        index = f"{prefix}_{name}"
        if index not in table.valid_indexes and index not in table.invalid_indexes:
            yield error(
                "index_missing",
                f"index {index} is missing: claims scan the backlog",
                f"holdfast sql install | grep -A2 {index}",
            )
