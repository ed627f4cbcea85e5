"""Tokens find their rows whatever the key is, and however the database sorts it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from holdfast import TableQueue
from holdfast.clock import ManualClock
from holdfast.models import Change, LeaseKey
from holdfast.stores.postgres.drivers import connect
from holdfast.stores.postgres.tables.leases import TableLeases
from tests.tables.three_tables import NAMES, RETRY, DriverName, held, session

if TYPE_CHECKING:
    from tests.servers import Database

COLUMNS = """
    due timestamptz not null default '2029-01-01',
    claim_token uuid, claimed_at timestamptz,
    attempts integer not null default 0, inactive boolean not null default false,
    last_error text
"""

NUMBERS = [-32768, -5, 0, 3, 4, 32767]

KEYS: dict[str, list[Any]] = {
    "text": [*NAMES, "", " ", "a", "A", "ab ", "\U0010ffff", "\uffff", "a\u0301", "\u00e1"],
    "varchar(30)": [*NAMES, "a", "A"],
    "smallint": NUMBERS,
    "integer": [*NUMBERS, 2**31 - 1],
    "bigint": [*NUMBERS, -(2**63), 2**63 - 1],
    "uuid": [UUID(int=0), UUID(int=2**128 - 1), UUID(int=2**127), *(uuid4() for _ in range(20))],
}


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("kind", KEYS)
async def test_every_row_gets_what_was_said_of_it(
    pg: Database, kind: str, driver: DriverName
) -> None:
    async with session(pg.dsn) as witness:
        linguistic = await witness.fetchval(
            "select exists (select from pg_collation where collname = 'und-x-icu')"
        )
        text = kind.startswith(("text", "varchar"))
        collation = 'collate "und-x-icu"' if text and linguistic else ""
        await witness.execute(f"create table things (k {kind} {collation} primary key, {COLUMNS})")
        await witness.executemany("insert into things (k) values ($1)", [[k] for k in KEYS[kind]])
        link = connect(pg.dsn, driver=driver)
        queue = TableQueue("things", key="k", due="due", max_attempts=None)
        leases = TableLeases(link, queue, ManualClock())
        jobs = await leases.claim([], limit=1000, worker="w")
        changes = [
            Change(held(job), delay=timedelta(seconds=n), error=repr(job.id))
            for n, job in enumerate(jobs)
        ]
        assert len(await leases.renew([held(job) for job in jobs])) == len(KEYS[kind])
        # Some with a wrong token, so that a mistaken place would show as a lost or stolen row.
        wrong = [c for n, c in enumerate(changes) if n % 3 == 0]
        spoiled = [c._replace(key=LeaseKey(c.key.id, uuid4()), error="stolen") for c in wrong]
        right = [c for c in changes if c not in wrong]
        assert len(await leases.change(RETRY, spoiled + right)) == len(right)
        assert len(await leases.change(RETRY, wrong)) == len(wrong)
        found = await witness.fetch("select k, last_error, due from things")
        await link.close()
    now = ManualClock().now()
    expected = {
        (change.key.id, change.error, now + (change.delay or timedelta(0))) for change in changes
    }
    assert {tuple(row) for row in found} == expected


async def test_a_name_that_needs_quotes_is_quoted(pg18: Database) -> None:
    async with session(pg18.dsn) as witness:
        await witness.execute(
            f'create schema if not exists "{pg18.schema}";'
            f'create table "{pg18.schema}"."Order" ("Select" integer primary key, '
            f'"Where" integer, {COLUMNS});'
            f'insert into "Order" ("Select", "Where") values (1, 1), (2, 2)'
        )
        link = connect(pg18.dsn)
        queue = TableQueue(
            f"{pg18.schema}.Order",
            key="Select",
            due="due",
            order=("Where\tDESC  nulls last",),
            max_attempts=3,
        )
        leases = TableLeases(link, queue, ManualClock())
        jobs = await leases.claim([], limit=9, worker="w")
        await link.close()
    assert [job.id for job in jobs] == [2, 1]
