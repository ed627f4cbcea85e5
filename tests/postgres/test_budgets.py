"""What a job may cost, counted: statements, buffers, bytes. A fifth more than reviewed is too much.

Figures are of PostgreSQL and of the statements, not of the machine, so they can be kept to.
"""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Holdfast, Job, NewJob
from holdfast.lifecycle import TRANSITIONS, Verb
from holdfast.models import Change, Want
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from holdfast.stores.postgres.store import PostgresStore
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.servers import Database

GROWTH = 1.2
WANT = Want("mail", lease=timedelta(seconds=30))
PAYLOAD = b"x" * 256

STATEMENTS_FOR_1000_JOBS = 5.5
"""In batches of 500: two claims, two batches of outcomes, two claims to forget; and a look around
now and then."""

BUFFERS_OF_A_CLAIM = 2_250
"""For 500 jobs: each is read from the index's leaf, locked, and written beside itself."""

WAL_OF_A_JOB = {"enqueue": 545, "claim": 228, "complete": 277}


class Counting(AsyncpgDriver):
    """Counts what goes through it."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.statements: Counter[str] = Counter()

    async def fetch(
        self, sql: str, args: Sequence[object] = (), *, timeout: float | None = None
    ) -> Sequence[Sequence[Any]]:
        self.statements[sql] += 1
        return await super().fetch(sql, args, timeout=timeout)


@asynccontextmanager
async def counting(dsn: str) -> AsyncIterator[tuple[Any, Counting]]:
    async with tables.session(dsn) as connection:
        driver = Counting(connection)
        await PostgresStore(driver, tables.NAMES).install()
        await connection.execute("alter table holdfast set (autovacuum_enabled = off)")
        yield connection, driver


async def test_statements_for_a_thousand_jobs(pg: Database) -> None:
    async with counting(pg.dsn) as (_, driver):
        hf = Holdfast(driver)

        @hf.entrypoint("mail")
        async def mail(job: Job) -> None:
            """Nothing to do."""

        for _ in range(10):
            await hf.queries.enqueue_many([NewJob("mail", PAYLOAD) for _ in range(1000)])
        driver.statements.clear()
        await hf.run(mode="drain", batch_size=500, concurrency=1000, signals=False)
    work = {sql: count for sql, count in driver.statements.items() if "holdfast" in sql}
    assert sum(work.values()) / 10 <= STATEMENTS_FOR_1000_JOBS * GROWTH, work


@pytest.mark.parametrize("waiting", [10_000, 1_000_000])
async def test_buffers_of_a_claim_whatever_waits(pg18: Database, waiting: int) -> None:
    async with counting(pg18.dsn) as (connection, driver):
        store = PostgresStore(driver, tables.NAMES)
        await connection.execute(
            "insert into holdfast (entrypoint, payload, execute_after)"
            " select 'mail', '\\x00', now() - interval '1 day' + make_interval(secs => n / 100.0)"
            " from generate_series(1, $1) n",
            waiting,
            timeout=300,
        )
        for _ in range(2):
            await store.leases.claim([WANT], limit=500, worker="w")
        before = await touched(connection)
        jobs = await store.leases.claim([WANT], limit=500, worker="w")
        used = await touched(connection) - before
    assert len(jobs) == 500
    assert used <= BUFFERS_OF_A_CLAIM * GROWTH


async def test_bytes_of_wal_of_a_job(pg18: Database) -> None:
    async with counting(pg18.dsn) as (connection, driver):
        used = await written(connection, PostgresStore(driver, tables.NAMES))
    for act, most in WAL_OF_A_JOB.items():
        assert used[act] <= most * GROWTH, used


async def written(connection: Any, store: PostgresStore) -> dict[str, float]:
    """Bytes of log that each act on a thousand jobs wrote, for one of them.

    A page that changes for the first time after a checkpoint is logged whole, so that a round in
    which that happened says nothing.
    """
    used: dict[str, float] = {}
    for _ in range(5):
        pages = Counter[str]()
        async with measured(connection, used, pages, "enqueue"):
            await store.jobs.insert([NewJob("mail", PAYLOAD)] * 1000, "raise")
        async with measured(connection, used, pages, "claim"):
            claimed = await store.leases.claim([WANT], limit=1000, worker="w")
        changes = [Change(job.id, job.claim_token) for job in claimed if job.claim_token]
        async with measured(connection, used, pages, "complete"):
            await store.leases.change(TRANSITIONS[Verb.COMPLETE], changes)
        if not pages.total():
            break
    return used


@asynccontextmanager
async def measured(
    connection: Any, used: dict[str, float], pages: Counter[str], act: str
) -> AsyncIterator[None]:
    before = await wal(connection)
    yield
    after = await wal(connection)
    used[act] = (after[0] - before[0]) / 1000
    pages[act] = after[1] - before[1]


async def wal(connection: Any) -> tuple[int, int]:
    """Bytes that this session has written to the log, and whole pages among them."""
    await connection.execute("select pg_stat_force_next_flush()")
    found = await connection.fetchrow(
        "select wal_bytes, wal_fpi from pg_stat_get_backend_wal(pg_backend_pid())"
    )
    return int(found[0]), int(found[1])


async def touched(connection: Any) -> int:
    """Blocks of the queue table and its indexes that were looked at."""
    await connection.execute("select pg_stat_force_next_flush()")
    found = await connection.fetchval(
        "select sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)"
        " from pg_statio_user_tables where relid = 'holdfast'::regclass"
    )
    return int(found)
