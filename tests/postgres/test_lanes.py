"""What a claim leaves for the next one is looked for at once, not at the next poll."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from holdfast.lifecycle import TRANSITIONS, Verb
from holdfast.models import Change, ClaimRule, LeaseKey, NewJob
from holdfast.stores.postgres import lanes
from holdfast.stores.postgres.lanes import MOST_OF_A_LANE
from tests.faults.proxy import Proxy
from tests.postgres import tables

if TYPE_CHECKING:
    import pytest

    from holdfast.models import Job
    from tests.servers import Database

MAIL = ClaimRule("mail", lease=timedelta(minutes=1))


async def test_a_claim_that_takes_too_long_says_that_there_is_more(pg: Database) -> None:
    """Its jobs are not renewed before it is over, so it stops, with a lane still open."""
    hasty = ClaimRule("mail", lease=timedelta(microseconds=1))
    async with tables.installed(pg.dsn) as (_, store):
        await store.jobs.insert([NewJob("mail", priority=n) for n in (1, 0)], "raise")
        first = await store.leases.claim([hasty], limit=10, worker="w")
        assert [job.priority for job in first] == [1]
        assert await store.leases.next_due([hasty]) is not None
        second = await store.leases.claim([hasty], limit=10, worker="w")
        assert [job.priority for job in second] == [0]


async def test_a_claim_that_found_everything_says_so(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (_, store):
        await store.jobs.insert([NewJob("mail", priority=n) for n in (1, 0)], "raise")
        assert len(await store.leases.claim([MAIL], limit=10, worker="w", sweep=True)) == 2
        assert await store.leases.next_due([MAIL]) is None


async def test_what_comes_back_below_a_floor_is_found_without_a_sweep(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (_, store):
        await store.jobs.insert([NewJob("mail") for _ in range(20)], "raise")
        jobs = await store.leases.claim([MAIL], limit=20, worker="w")
        back = [Change(LeaseKey(job.id, job.claim_token)) for job in jobs[:3] if job.claim_token]
        await store.leases.change(TRANSITIONS[Verb.RELEASE], back)
        # After a look that took long, the next one is put off: that may be any of them.
        found: list[Job] = []
        async with asyncio.timeout(60):
            while not found:
                found = await store.leases.claim([MAIL], limit=20, worker="w")
        assert [job.id for job in found] == [change.key.id for change in back]


async def test_what_lies_far_below_a_floor_is_found_on_a_slow_link(pg: Database) -> None:
    """All looks are slow there: were they made smaller for it, they would never come so far."""
    async with (
        tables.installed(pg.dsn) as (_, near),
        Proxy(pg.dsn, delay=0.03) as proxy,
        tables.installed(proxy.dsn) as (_, store),
    ):
        await near.jobs.insert([NewJob("mail")], "raise")
        assert await store.leases.claim([MAIL], limit=2, worker="w")
        for _ in range(5):
            assert not await store.leases.claim([MAIL], limit=2, worker="w")
        late = datetime.now(UTC) - timedelta(hours=1)
        ids = await near.jobs.insert([NewJob("mail", execute_after=late)], "raise")
        async with asyncio.timeout(60):
            while not (found := await store.leases.claim([MAIL], limit=2, worker="w")):
                pass
    assert [job.id for job in found] == ids


async def test_who_takes_back_a_dead_workers_jobs_knows_where_they_are(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where looks are dear: an hour below the floor, they would find them much later."""
    monkeypatch.setattr(lanes, "_SLICE_SECONDS", 1e-9)
    stale = ClaimRule("mail", lease=timedelta(microseconds=1))
    async with tables.installed(pg.dsn) as (_, store), tables.installed(pg.dsn) as (_, dead):
        late = datetime.now(UTC) - timedelta(hours=1)
        ids = await store.jobs.insert([NewJob("mail", execute_after=late)], "raise")
        await dead.leases.claim([stale], limit=1, worker="dead")
        await store.jobs.insert([NewJob("mail")], "raise")
        assert await store.leases.claim([MAIL], limit=2, worker="w")
        for _ in range(5):
            assert not await store.leases.claim([MAIL], limit=2, worker="w")
        recovery = await store.leases.recover([MAIL])
        found = await store.leases.claim_recovered([MAIL], limit=2, worker="w", suspects=False)
    assert list(recovery.recovered) == ids
    assert [job.id for job in found] == ids


async def test_a_claim_may_be_larger_than_what_one_statement_takes_of_a_lane(pg: Database) -> None:
    count = 2 * MOST_OF_A_LANE + 1
    async with tables.installed(pg.dsn) as (_, store):
        ids = await store.jobs.insert([NewJob("mail") for _ in range(count)], "raise")
        jobs = await store.leases.claim([MAIL], limit=count, worker="w")
    assert [job.id for job in jobs] == ids


async def test_a_new_priority_is_found_beside_known_ones(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (_, store):
        await store.jobs.insert([NewJob("mail", priority=n) for n in (5, 0)], "raise")
        await store.leases.claim([MAIL], limit=20, worker="w")
        for priority in (9, 3, -4):
            await store.jobs.insert([NewJob("mail", priority=priority)], "raise")
            [job] = await store.leases.claim([MAIL], limit=20, worker="w")
            assert job.priority == priority


async def test_what_came_late_for_one_entrypoint_does_not_keep_the_others_waiting(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a slow machine as well each look is at what is below the floors too.
    monkeypatch.setattr(lanes, "_CHEAP_SCAN_SECONDS", 3600.0)
    rules = [MAIL, ClaimRule("sms", lease=timedelta(minutes=1))]
    async with tables.installed(pg.dsn) as (_, store):
        await store.jobs.insert([NewJob("mail")], "raise")
        assert len(await store.leases.claim(rules, limit=10, worker="w")) == 1
        late = datetime.now(UTC) - timedelta(hours=1)
        jobs = [NewJob("mail", execute_after=late), NewJob("sms")] * 50
        await store.jobs.insert(jobs, "raise")
        claims = [await store.leases.claim(rules, limit=10, worker="w") for _ in range(10)]
    shares = [sum(job.entrypoint == "mail" for job in claim) for claim in claims]
    assert shares == [5] * 10
