"""What the tests of the store share: stores on a schema, and every table as plain values."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

from holdfast.settings import Names
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.binding import JOB_COLUMNS, LOG_COLUMNS
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from holdfast.stores.postgres.store import PostgresStore
from tests import servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from holdfast.clock import Clock
    from holdfast.models import Job, LogEntry

NAMES = Names()
SUFFIXES = ("", "_log", "_leases", "_statistics", "_counted", "_schedules", "_workers")


@asynccontextmanager
async def session(dsn: str) -> AsyncIterator[Any]:
    """A connection of asyncpg."""
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close(timeout=5)


@asynccontextmanager
async def installed(
    dsn: str, clock: Clock | None = None
) -> AsyncIterator[tuple[Any, PostgresStore]]:
    """A connection, and a store over it whose tables exist."""
    servers.prepare(dsn)
    async with session(dsn) as connection:
        store = PostgresStore(AsyncpgDriver(connection), NAMES, clock=clock)
        await store.install()
        yield connection, store


async def empty(connection: Any) -> None:
    """Forget every job; faster than TRUNCATE on tables this small."""
    tables = ("", "_log", "_leases", "_schedules")
    await connection.execute(";".join(f'delete from "holdfast{table}"' for table in tables))


async def load(connection: Any, jobs: Iterable[Job]) -> None:
    """Put rows into the queue table as they stand, each lease with its record of a claim."""
    jobs = list(jobs)
    records = [
        [
            rows.headers(job.headers) if column == "headers" else getattr(job, column)
            for column in JOB_COLUMNS
        ]
        for job in jobs
    ]
    await connection.copy_records_to_table("holdfast", records=records, columns=JOB_COLUMNS)
    last = max(job.id for job in jobs)
    await connection.execute(f"alter table holdfast alter id restart with {last + 1}")
    claims: dict[Any, list[Any]] = {}
    for job in jobs:
        if job.claim_token is not None:
            claim: list[Any] = [
                job.claim_token,
                job.claimed_by,
                None,
                job.claimed_at,
                job.lease,
                [],
            ]
            claims.setdefault(job.claim_token, claim)[-1].append(job.id)
    await connection.copy_records_to_table("holdfast_leases", records=claims.values())


async def queue(connection: Any, *, seen: bool = False) -> list[Job]:
    """Every row of the queue table, by id: as it stands, or as the store shows it."""
    columns = ", ".join(JOB_COLUMNS)
    found = await connection.fetch(f"select {columns} from holdfast order by id")
    return [rows.job(row) if seen else rows.stored(row) for row in found]


async def log(connection: Any) -> list[LogEntry]:
    """Every row of the log, by job and then in the order of writing."""
    columns = ", ".join(LOG_COLUMNS)
    found = await connection.fetch(f"select {columns} from holdfast_log order by job_id, id")
    return [rows.log_entry(row) for row in found]


async def dump(connection: Any) -> dict[str, list[str]]:
    """Every table of Holdfast as text: equal dumps mean that nothing whatever was changed."""
    return {
        suffix: [
            row[0]
            for row in await connection.fetch(
                f'select t::text || t.xmin::text from "holdfast{suffix}" t order by 1'
            )
        ]
        for suffix in SUFFIXES
    }
