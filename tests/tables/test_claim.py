"""A claim on a table of the user's own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.errors import ConnectionLost
from holdfast.lifecycle import Status
from holdfast.models import Capacity, ClaimRule
from holdfast.stores.postgres.drivers import connect
from holdfast.stores.postgres.tables.leases import TableLeases
from tests.faults.proxy import Proxy
from tests.tables.three_tables import KINDS, LEASE, RELEASE, SECOND, Bench, bench, held

if TYPE_CHECKING:
    from tests.servers import Database
    from tests.tables.conftest import Link


async def test_a_claim_leases_what_is_due_and_says_so_in_the_row(table: Bench) -> None:
    await table.add(1)
    [job] = await table.claim(worker="worker-1")
    row = await table.row(1)
    assert row["claim_token"] == job.claim_token
    assert row["claimed_at"] == job.claimed_at == table.clock.now()
    assert row.get("claimed_by", "worker-1") == "worker-1"
    assert row.get("heartbeat", table.clock.now()) == table.clock.now()
    assert row.get("updated_at", table.clock.now()) == table.clock.now()
    assert (row["inactive"], row["attempts"] or 0) == (False, 0)
    assert (job.id, job.entrypoint, job.status) == (table.kind.key(1), table.kind.name, "picked")
    assert (job.lease, job.max_attempts, job.attempts, job.recoveries) == (LEASE, 5, 0, 0)
    assert job.status is Status.PICKED


async def test_the_job_carries_every_column_of_the_row(table: Bench) -> None:
    await table.add(1)
    [job] = await table.claim()
    found = await table.witness.fetchrow(f"select * from {table.kind.name}")
    assert job.row == dict(found)


async def test_what_has_been_due_longest_comes_first(table: Bench) -> None:
    for number, seconds in ((1, 30), (2, 10), (3, 20), (4, 40), (5, 0)):
        await table.add(number, due=table.clock.now() - seconds * SECOND)
    assert table.numbers(await table.claim(2)) == [4, 1]
    assert table.numbers(await table.claim(2)) == [3, 2]
    assert table.numbers(await table.claim(2)) == [5]


async def test_rows_that_are_due_together_come_in_the_order_of_their_keys(table: Bench) -> None:
    await table.add(*range(1, 12))
    key, name = table.kind.queue.key, table.kind.name
    keys = [row[0] for row in await table.witness.fetch(f"select {key} from {name} order by {key}")]
    assert [job.id for job in await table.claim()] == keys


async def test_a_composite_order_is_kept_within_and_across_claims(
    place: Database, link: Link
) -> None:
    async with bench(KINDS["chores"], place.dsn, link.driver) as chores:
        now = chores.clock.now()
        for number, priority, seconds in ((1, 0, 50), (2, 5, 10), (3, 5, 20), (4, 9, 0), (5, 0, 9)):
            await chores.add(number, priority=priority, due=now - seconds * SECOND)
        assert chores.numbers(await chores.claim(3)) == [4, 3, 2]
        assert chores.numbers(await chores.claim(3)) == [1, 5]


async def test_claims_are_disjoint_and_never_larger_than_asked(table: Bench) -> None:
    await table.add(*range(1, 8))
    first, second, third = [await table.claim(3) for _ in range(3)]
    assert [len(first), len(second), len(third)] == [3, 3, 1]
    assert len({job.id for job in first + second + third}) == 7
    assert len({job.claim_token for job in first + second + third}) == 3


async def test_workers_that_claim_at_the_same_time_get_different_rows(
    table: Bench, link: Link, place: Database
) -> None:
    await table.add(*range(1, 41))
    drivers = [connect(place.dsn, driver=link.driver) for _ in range(4)]
    workers = [TableLeases(driver, table.kind.queue, table.clock) for driver in drivers]
    claims = await asyncio.gather(
        *(worker.claim([], limit=10, worker=f"w{n}") for n, worker in enumerate(workers))
    )
    rest = await table.claim()
    for driver in drivers:
        await driver.close()
    taken = [job.id for jobs in (*claims, rest) for job in jobs]
    assert len(taken) == len(set(taken)) == 40


async def test_a_row_is_claimed_from_the_moment_it_is_due(table: Bench) -> None:
    await table.add(1, due=table.clock.now() + SECOND)
    assert await table.claim() == []
    table.clock.advance(SECOND)
    assert table.numbers(await table.claim()) == [1]


async def test_a_row_whose_attempts_are_spent_is_not_claimed(table: Bench) -> None:
    await table.add(1, attempts=5)
    await table.add(2, attempts=4)
    assert table.numbers(await table.claim()) == [2]


async def test_an_inactive_row_is_not_claimed(table: Bench) -> None:
    await table.add(1, inactive=True)
    assert await table.claim() == []


async def test_a_row_that_another_transaction_has_locked_is_skipped(table: Bench) -> None:
    await table.add(1, 2)
    async with table.witness.transaction():
        await table.lock(1)
        assert table.numbers(await table.claim()) == [2]
    assert table.numbers(await table.claim()) == [1]


async def test_a_cap_of_each_row_is_its_own(snoozes: Bench) -> None:
    await snoozes.add(1, attempts=5, max_attempts=6)
    await snoozes.add(2, attempts=1, max_attempts=1)
    assert snoozes.numbers(await snoozes.claim()) == [1]


async def test_a_row_without_a_cap_or_a_count_has_all_the_attempts_there_are(
    place: Database, link: Link
) -> None:
    async with bench(KINDS["chores"], place.dsn, link.driver) as chores:
        await chores.add(1, attempts=1_000_000, max_attempts=None)
        await chores.add(2, attempts=None)
        assert {job.attempts for job in await chores.claim()} == {0, 1_000_000}


async def test_a_further_condition_decides_what_is_work(snoozes: Bench) -> None:
    await snoozes.add(1, 2, subject="a:b it's")
    await snoozes.add(3, subject="other")
    leases = snoozes.using(where="subject like '%:b it''s' -- a comment")
    assert {job.id for job in await leases.claim([], limit=9, worker="w")} == {1, 2}
    assert snoozes.numbers(await snoozes.claim()) == [3]


async def test_the_time_until_the_next_row_is_due_is_known(table: Bench) -> None:
    assert await table.leases.next_due([]) is None
    await table.add(1, due=table.clock.now() + 30 * SECOND)
    await table.add(2, due=table.clock.now() + 20 * SECOND)
    await table.add(3, due=table.clock.now() + 10 * SECOND, inactive=True)
    await table.add(4)
    assert await table.leases.next_due([]) == 20 * SECOND


async def test_a_claim_whose_reply_was_lost_is_released_by_the_next_one(
    table: Bench, link: Link, place: Database
) -> None:
    async with Proxy(place.dsn) as proxy:
        driver = connect(proxy.dsn, driver=link.driver, timeout=0.5)
        leases = TableLeases(driver, table.kind.queue, table.clock)
        # The statement is known to the server from here on, so that sending it is running it.
        for _ in range(7):
            assert await leases.claim([], limit=5, worker="w") == []
        await table.add(1, 2, 3)
        await proxy.hold_replies()
        with suppress(ConnectionLost):
            await leases.claim([], limit=5, worker="w")
            raise AssertionError("a reply came through")
        await _until_claimed(table, 3)
        await proxy.flow()
        jobs = await leases.claim([], limit=5, worker="w")
        await driver.close()
    assert sorted(table.numbers(jobs)) == [1, 2, 3]
    assert {job.attempts + job.recoveries for job in jobs} == {0}
    assert len(await table.change(RELEASE, *map(held, jobs))) == 3


async def _until_claimed(table: Bench, count: int) -> None:
    statement = f"select count({table.kind.queue.claim_token}) from {table.kind.name}"
    async with asyncio.timeout(30):
        while await table.witness.fetchval(statement) < count:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.02)


async def test_a_claim_takes_no_more_than_there_is_room_for_and_counts_it_down(
    table: Bench,
) -> None:
    await table.add(1, 2, 3)
    room = Capacity(2)
    rule = ClaimRule(table.kind.name, LEASE, capacity=room)
    jobs = await table.leases.claim([rule], limit=10, worker="worker-1")
    assert (len(jobs), room.left) == (2, 0)
    assert await table.leases.claim([rule], limit=10, worker="worker-1") == []
