"""Claims of a large fleet take places. A worker that finds none comes back soon."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest_asyncio

from holdfast import Holdfast, Job
from holdfast.models import ClaimRule, NewJob
from holdfast.stores.postgres import claim_places
from holdfast.stores.postgres.claim_places import EPOCH_SECONDS
from holdfast.stores.postgres.lanes import Lanes
from holdfast.worker.upkeep import UpkeepDuty
from tests.postgres import tables
from tests.postgres.stage import LEASE, RULE, stage_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from tests.postgres.stage import Session, Stage
    from tests.servers import Database

FLEET = 200
SMS = ClaimRule("sms", lease=LEASE)


@pytest_asyncio.fixture
async def stage(pg: Database) -> AsyncIterator[Stage]:
    async with stage_on(pg.dsn) as here:
        yield here


async def claim(
    session: Session, *rules: ClaimRule, limit: int = 500, fleet: int = FLEET, idle: bool = True
) -> list[Job]:
    return await session.store.leases.claim(
        rules or (RULE,), limit=limit, worker="worker", fleet=fleet, idle=idle
    )


async def enqueue(session: Session, entrypoint: str = "mail") -> None:
    """One job, committed even while another session is in a transaction."""
    await session.store.jobs.insert([NewJob(entrypoint)], "raise")


@asynccontextmanager
async def backlog_being_claimed(stage: Stage) -> AsyncIterator[list[Job]]:
    """A worker in the middle of a backlog whose claim has not ended yet, and what it took."""
    first = await claim(stage.a, limit=2)
    assert len(first) == 2
    async with stage.a.connection.transaction():
        yield await claim(stage.a, limit=500, idle=False)


async def test_a_worker_without_a_place_claims_nothing_and_asks_again_soon(stage: Stage) -> None:
    await stage.enqueue(4)
    async with backlog_being_claimed(stage) as taken:
        assert len(taken) == 2
        await enqueue(stage.b)
        assert await claim(stage.b) == []
        due = await stage.b.store.leases.next_due([RULE])
        assert due is not None
        assert due < timedelta(seconds=0.1)
    assert len(await claim(stage.b)) == 1


async def test_a_small_fleet_waits_for_no_place(stage: Stage) -> None:
    await stage.enqueue(4)
    async with backlog_being_claimed(stage):
        await enqueue(stage.b)
        assert len(await claim(stage.b, fleet=15)) == 1


async def test_a_frozen_client_keeps_its_place_for_an_epoch_only(stage: Stage) -> None:
    await stage.enqueue(4)
    async with backlog_being_claimed(stage):
        await enqueue(stage.b)
        assert await claim(stage.b) == []
        stage.clock.advance(timedelta(seconds=EPOCH_SECONDS))
        assert len(await claim(stage.b)) == 1


async def test_workers_of_other_entrypoints_have_places_of_their_own(stage: Stage) -> None:
    await stage.enqueue(4)
    async with backlog_being_claimed(stage):
        await enqueue(stage.b, "sms")
        assert [job.entrypoint for job in await claim(stage.b, RULE, SMS)] == ["sms"]


async def test_a_claim_without_a_backlog_takes_no_place_from_others(stage: Stage) -> None:
    await stage.enqueue(1)
    async with stage.a.connection.transaction():
        assert len(await claim(stage.a)) == 1
        await enqueue(stage.b)
        assert len(await claim(stage.b)) == 1


async def test_every_job_is_claimed_once_and_in_order(stage: Stage) -> None:
    await stage.enqueue(300)
    found: list[int] = []
    async with asyncio.timeout(60):
        while len(found) < 300:
            for session, idle in ((stage.a, True), (stage.b, False)):
                found += [job.id for job in await claim(session, limit=7, idle=idle)]
    assert found == sorted(set(found))


async def test_a_refused_claim_leaves_no_trace(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.enqueue()
    assert len(await claim(stage.b)) == 1
    # The claim itself is refused, not the scan before it.
    monkeypatch.setattr(Lanes, "scan_due", lambda _: False)
    await stage.enqueue(4)
    async with backlog_being_claimed(stage):
        await enqueue(stage.b)
        before = await stage.observer.fetchval("select count(*) from holdfast_leases")
        assert await claim(stage.b) == []
        after = await stage.observer.fetchval("select count(*) from holdfast_leases")
    assert before == after
    assert len(await claim(stage.b)) == 1


TAKE_ALL = """
select pg_advisory_lock(hashtextextended(
    'claims of ' || $1 || ' mail',
    place + 1000 * (epoch
        + extract(epoch from coalesce($3::timestamptz, clock_timestamp()))::bigint / $2)
))
from generate_series(1, 32) as place, generate_series(0, 12) as epoch
"""


async def test_a_refused_worker_needs_no_other_wake_up(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job's NOTIFY came while no place was free, and its poll is an hour away."""
    monkeypatch.setattr(claim_places, "_CROWD", 0)
    refused, ran = asyncio.Event(), asyncio.Event()
    refuse = claim_places.ClaimPlaces.refuse

    def noted(places: claim_places.ClaimPlaces) -> None:
        refuse(places)
        refused.set()

    monkeypatch.setattr(claim_places.ClaimPlaces, "refuse", noted)
    async with (
        tables.installed(pg.dsn),
        tables.session(pg.dsn) as stranger,
        Holdfast.connect(pg.dsn) as hf,
    ):

        @hf.entrypoint("mail")
        async def mail(job: Job) -> None:
            ran.set()

        await stranger.fetch(TAKE_ALL, tables.NAMES.channel, EPOCH_SECONDS, None)
        await hf.queries.enqueue("mail", None)
        running = asyncio.create_task(hf.run(dequeue_timeout=timedelta(hours=1), signals=False))
        async with asyncio.timeout(30):
            await refused.wait()
            assert not ran.is_set()
            await stranger.execute("select pg_advisory_unlock_all()")
            await ran.wait()
            hf.shutdown.set()
            await running


async def test_a_stranger_who_takes_all_places_stops_no_fleet(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    monkeypatch.setattr(claim_places, "monotonic", lambda: now)
    await stage.enqueue(2)
    channel = tables.NAMES.channel
    await stage.observer.fetch(TAKE_ALL, channel, EPOCH_SECONDS, stage.clock.now())
    taken: list[Job] = []
    for idle in (True, False):
        while not taken:
            taken = await claim(stage.b, limit=1, idle=idle)
            now += 1.0
        assert now > claim_places._PATIENCE_SECONDS
        assert ("no place to claim was free" in caplog.text) is not idle
        # The next claim asks for a place again.
        assert await claim(stage.b, limit=1, idle=idle) == []
        taken, now = [], 0.0


async def test_a_drain_leaves_nothing_to_others(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_places, "_CROWD", 2)
    async with (
        tables.installed(pg.dsn),
        tables.session(pg.dsn) as stranger,
        Holdfast.connect(pg.dsn) as hf,
    ):
        ran: list[Job] = []

        @hf.entrypoint("mail")
        async def mail(job: Job) -> None:
            ran.append(job)

        await stranger.fetch(TAKE_ALL, tables.NAMES.channel, EPOCH_SECONDS, None)
        await hf.queries.enqueue(["mail"] * 20, [None] * 20, [0] * 20)
        monkeypatch.setattr(UpkeepDuty, "workers", FLEET)
        async with asyncio.timeout(30):
            await hf.run(mode="drain", signals=False)
        assert len(ran) == 20
