"""What a job may cost, counted: statements, buffers, bytes. A fifth more than reviewed is too much.

Figures are of PostgreSQL and of the statements, not of the machine, so they can be kept to.
"""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from holdfast import Holdfast, Job, NewJob
from holdfast.lifecycle import TRANSITIONS, Verb
from holdfast.models import Change, ClaimRule, LeaseKey
from holdfast.stores.postgres import render
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from holdfast.stores.postgres.store import PostgresStore
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.servers import Database

GROWTH = 1.2
RULE = ClaimRule("mail", lease=timedelta(seconds=30))
PAYLOAD = b"x" * 256

BATCHES_OF_10_000_JOBS = 40
"""Claims are of 500 jobs. Outcomes that come late, on a machine that is busy, make more batches."""

STATEMENTS_BESIDE_THEM = 30
"""Ended claims that are deleted together, looks for other lanes, renewals and reports."""

MOST_LOOKS_FOR_RECOVERED = 4
"""At the start, and before a drain ends."""

BUFFERS_OF_A_CLAIM = 2_250
"""For 500 jobs: each is read from the index's leaf, locked, and written beside itself."""

COST = 20_000
"""As the planner reckons it, whatever waits. From 100,000 on it has a statement compiled each time,
which takes longer than to run it."""

WAL_OF_A_JOB = {"enqueue": 545, "claim": 228, "complete": 309}
"""A log row has 32 bytes for when its job was enqueued and due and how long the lease was."""


class CountingDriver(AsyncpgDriver):
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
async def counting(dsn: str) -> AsyncIterator[tuple[Any, CountingDriver]]:
    async with tables.session(dsn) as connection:
        driver = CountingDriver(connection)
        await PostgresStore(driver, tables.NAMES).install()
        await connection.execute("alter table holdfast set (autovacuum_enabled = off)")
        yield connection, driver


async def test_statements_for_ten_thousand_jobs(pg: Database) -> None:
    async with counting(pg.dsn) as (_, driver):
        hf = Holdfast(driver)

        @hf.entrypoint("mail")
        async def mail(job: Job) -> None:
            """Nothing to do."""

        for _ in range(10):
            await hf.queries.enqueue_many([NewJob("mail", PAYLOAD) for _ in range(1000)])
        driver.statements.clear()
        await hf.run(mode="drain", batch_size=500, concurrency=1000, signals=False)
    work = Counter({sql: count for sql, count in driver.statements.items() if "holdfast" in sql})
    named = render.statements(tables.NAMES)
    for name in ("claim", "complete"):
        assert 0 < work.pop(named[name].text) <= BATCHES_OF_10_000_JOBS
    assert work.total() <= STATEMENTS_BESIDE_THEM, work
    # Where no worker has died, nothing but the few looks at the end concerns recovered jobs.
    for name in ("claim:recovered", "claim:suspect", "lanes:recovered"):
        assert driver.statements[named[name].text] == 0
    assert driver.statements[named["recovered_waiting"].text] <= MOST_LOOKS_FOR_RECOVERED


PLANNED = """
select statement, custom_plans from pg_prepared_statements
where generic_plans + custom_plans > 10
"""
MOST_PLANS = 5
"""PostgreSQL tries so many before it believes that the general one is as good."""


async def test_what_a_worker_says_again_and_again_is_planned_once(pg: Database) -> None:
    async with counting(pg.dsn) as (connection, driver):
        leases = PostgresStore(driver, tables.NAMES).leases
        for _ in range(20):
            await Holdfast(driver).queries.enqueue("mail", PAYLOAD)
            jobs = await leases.claim([RULE], limit=500, worker="w", sweep=True)
            tokens = [job.claim_token for job in jobs if job.claim_token]
            changes = [
                Change(LeaseKey(job.id, token)) for job, token in zip(jobs, tokens, strict=True)
            ]
            await leases.renew([change.key for change in changes])
            await leases.change(TRANSITIONS[Verb.COMPLETE], changes)
            await leases.delete_claims(tokens)
        planned = {row[0]: row[1] for row in await connection.fetch(PLANNED)}
    assert len(planned) == len({"enqueue", "claim", "look", "renew", "complete", "delete_claims"})
    assert {text for text, count in planned.items() if count > MOST_PLANS} == set()


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
            await store.leases.claim([RULE], limit=500, worker="w")
        before = await touched(connection)
        jobs = await store.leases.claim([RULE], limit=500, worker="w")
        used = await touched(connection) - before
        await connection.execute("analyze holdfast")
        costs = costs_of(pg18.dsn, driver)
    assert len(jobs) == 500
    assert used <= BUFFERS_OF_A_CLAIM * GROWTH
    assert set(costs) == {"claim", "look"}
    assert max(costs.values()) <= COST, costs


async def test_a_worker_that_comes_among_dead_rows(pg18: Database) -> None:
    """They were deleted, and a transaction that is open keeps them: it walks them once."""
    async with counting(pg18.dsn) as (connection, driver), tables.session(pg18.dsn) as other:
        await connection.execute(
            "insert into holdfast (entrypoint, payload, execute_after)"
            " select 'mail', '\\x00', now() - interval '1 day' + make_interval(secs => n / 100.0)"
            " from generate_series(1, 100_500) n",
            timeout=300,
        )
        await other.execute("begin isolation level repeatable read; select count(*) from holdfast")
        await connection.execute("delete from holdfast where id <= 100_000", timeout=300)
        await connection.execute("analyze holdfast")
        colleague = PostgresStore(driver, tables.NAMES).leases
        assert len(await colleague.claim([RULE], limit=1000, worker="v")) == 500
        leases = PostgresStore(driver, tables.NAMES).leases
        assert await leases.claim([RULE], limit=500, worker="w") == []
        before = await touched(connection)
        await Holdfast(driver).queries.enqueue("mail", PAYLOAD)
        jobs = await leases.claim([RULE], limit=500, worker="w")
        used = await touched(connection) - before
        costs = costs_of(pg18.dsn, driver)
    assert len(jobs) == 1
    assert used <= 100
    assert max(costs.values()) <= COST, costs


def costs_of(dsn: str, driver: CountingDriver) -> dict[str, float]:
    return {
        name: expected_cost(dsn, sql)
        for name, mark in {"claim": "picked as", "look": "with recursive"}.items()
        for sql in driver.statements
        if mark in sql
    }


def expected_cost(dsn: str, sql: str) -> float:
    """Of the plan for any arguments."""
    with psycopg.connect(dsn) as session:
        asked = f"explain (generic_plan, format json) {sql}".encode()
        [[[plan]]] = session.execute(asked).fetchall()
    cost: float = plan["Plan"]["Total Cost"]
    return cost


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
            claimed = await store.leases.claim([RULE], limit=1000, worker="w")
        changes = [Change(LeaseKey(job.id, job.claim_token)) for job in claimed if job.claim_token]
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
