"""Leases whose bookkeeping an operator deleted are found by a rare scan of the table."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Holdfast
from holdfast.models import ClaimRule, LeaseKey
from holdfast.stores.postgres import restore
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from holdfast.stores.postgres.store import PostgresStore
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import Database

LEASE = timedelta(seconds=0.3)
RULE = ClaimRule("mail", LEASE)


@pytest.fixture
async def store(pg: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresStore]:
    """Its leases look through the table in slices of three rows, at every housekeeping."""
    monkeypatch.setattr(restore, "_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(restore, "_SLICE", 3)
    async with tables.installed(pg.dsn) as (connection, _):
        yield PostgresStore(AsyncpgDriver(connection), tables.NAMES)


async def leased(store: PostgresStore, count: int) -> list[LeaseKey]:
    await Holdfast(store.driver).queries.enqueue(["mail"] * count)
    jobs = await store.leases.claim([RULE], limit=count, worker="w1")
    assert len(jobs) == count
    return [LeaseKey(job.id, job.claim_token) for job in jobs if job.claim_token]


async def forget_claims(store: PostgresStore) -> None:
    await store.driver.fetch("truncate holdfast_leases")


async def recovered(store: PostgresStore) -> list[int]:
    """Everything that a sweep finds once all leases are over."""
    await asyncio.sleep(LEASE.total_seconds())
    return sorted((await store.leases.recover([RULE])).recovered)


async def test_without_the_look_no_sweep_finds_such_a_job(store: PostgresStore) -> None:
    await leased(store, 2)
    await forget_claims(store)
    assert await recovered(store) == []
    assert await store.jobs.unrecorded() == 2


async def test_a_look_lets_the_sweep_find_every_job_again(
    store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    held = await leased(store, 10)
    await forget_claims(store)
    await store.leases.housekeep()
    assert "10 leased jobs had no bookkeeping" in caplog.text
    assert await store.jobs.unrecorded() == 0
    assert await recovered(store) == sorted(lease.id for lease in held)


async def test_a_live_lease_is_left_to_its_holder(store: PostgresStore) -> None:
    held = await leased(store, 4)
    await forget_claims(store)
    await store.leases.housekeep()
    await asyncio.sleep(LEASE.total_seconds())
    assert await store.leases.renew(held) == set(held)
    assert (await store.leases.recover([RULE])).recovered == ()


async def test_a_look_at_sound_bookkeeping_changes_nothing(store: PostgresStore) -> None:
    async def claims() -> list[Any]:
        return [*await store.driver.fetch("select * from holdfast_leases order by token")]

    await leased(store, 4)
    await leased(store, 3)
    before = await claims()
    await store.leases.housekeep()
    assert await claims() == before


async def test_looks_are_rare(pg18: Database) -> None:
    async with tables.installed(pg18.dsn) as (connection, _):
        store = PostgresStore(AsyncpgDriver(connection), tables.NAMES)
        store.leases._restorer._scan_at = 0.0
        # Emptied again, the table of leases has none of either job.
        for found in (0, 2):
            await leased(store, 1)
            await forget_claims(store)
            await store.leases.housekeep()
            assert await store.jobs.unrecorded() == found
