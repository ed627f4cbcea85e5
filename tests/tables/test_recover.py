"""Leases, not wishes: what happens to rows whose worker stopped renewing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.lifecycle import STALE_ERROR
from tests.tables.rig import LEASE, SECOND, SNOOZES, Bench, held
from tests.tables.test_settle import is_free, writes

if TYPE_CHECKING:
    from tests.tables.rig import Kind


def counts_recoveries(kind: Kind) -> bool:
    return kind.queue.recoveries == "crashes"


async def test_a_renewed_lease_lives_on(table: Bench) -> None:
    await table.add(1)
    mine = await table.claim_one()
    for _ in range(3):
        table.clock.advance(LEASE - SECOND)
        assert await table.leases.renew([mine]) == {mine}
        recovery = await table.recover()
        assert (recovery.recovered, recovery.retired) == ((), ())
    row = await table.row(1)
    assert row.get("heartbeat", row["claimed_at"]) == table.clock.now()


async def test_a_renewal_moves_the_claim_only_where_there_is_no_column_for_it(table: Bench) -> None:
    await table.add(1)
    mine = await table.claim_one()
    claimed = table.clock.now()
    table.clock.advance(SECOND)
    await table.leases.renew([mine])
    row = await table.row(1)
    assert row["claimed_at"] == (claimed if "heartbeat" in row else table.clock.now())
    assert writes(row, "updated_at", claimed)


async def test_a_lease_is_over_when_it_has_not_been_renewed_for_its_length(table: Bench) -> None:
    await table.add(1)
    await table.claim()
    table.clock.advance(LEASE - SECOND)
    assert (await table.recover()).recovered == ()
    table.clock.advance(SECOND)
    assert (await table.recover()).recovered == (table.kind.key(1),)
    row = await table.row(1)
    assert is_free(row)
    assert row["inactive"] is False
    assert writes(row, "last_error", STALE_ERROR)
    assert writes(row, "last_error_at", table.clock.now())
    assert len(await table.claim()) == 1


async def test_a_recovery_counts_as_an_attempt_where_there_is_no_place_for_it(
    table: Bench,
) -> None:
    await table.add(1)
    await table.claim()
    table.clock.advance(LEASE)
    await table.recover()
    row = await table.row(1)
    counted = (0, 1) if counts_recoveries(table.kind) else (1, None)
    assert (row["attempts"], row.get("recoveries")) == counted


async def test_an_earlier_error_says_more_than_a_recovery(snoozes: Bench) -> None:
    await snoozes.add(1, last_error="no luck")
    await snoozes.claim()
    snoozes.clock.advance(LEASE)
    await snoozes.recover()
    assert (await snoozes.row(1))["last_error"] == "no luck"


async def test_a_row_that_kills_its_workers_is_retired(table: Bench) -> None:
    await table.add(1)
    allowed = 3 if counts_recoveries(table.kind) else 5
    for _ in range(allowed - 1):
        assert len(await table.claim()) == 1
        table.clock.advance(LEASE)
        assert len((await table.recover()).recovered) == 1
    assert len(await table.claim()) == 1
    table.clock.advance(LEASE)
    recovery = await table.recover()
    assert (recovery.recovered, recovery.retired) == ((), (table.kind.key(1),))
    row = await table.row(1)
    assert row["inactive"] is True
    assert is_free(row)
    assert writes(row, "outcome", "failed")


async def test_a_row_that_one_more_death_would_retire_is_told_from_its_attempts(
    table: Bench,
) -> None:
    await table.add(1)
    allowed = 3 if counts_recoveries(table.kind) else 5
    for deaths in range(allowed):
        [job] = await table.claim()
        cap = job.max_recoveries
        assert cap is not None
        last_chance = job.recoveries > 0 and job.recoveries + 1 >= cap
        assert last_chance is (deaths == allowed - 1)
        table.clock.advance(LEASE)
        await table.recover()
    assert (await table.row(1))["inactive"] is True


@pytest.mark.parametrize(
    ("attempts", "cap", "error", "suspect"),
    [
        (4, 5, STALE_ERROR, True),
        (3, 5, STALE_ERROR, False),
        # It has failed by itself, and so it may do again beside others.
        (4, 5, "ValueError: no", False),
        (4, 5, None, False),
        (0, 1, None, False),
        (1, 2, STALE_ERROR, True),
    ],
)
async def test_of_rows_on_their_last_attempt_only_recovered_ones_run_alone(
    snoozes: Bench, attempts: int, cap: int, error: str | None, suspect: bool
) -> None:
    await snoozes.add(1, attempts=attempts, max_attempts=cap, last_error=error)
    [job] = await snoozes.claim()
    shown = (attempts, cap) if suspect else (0, SNOOZES.queue.max_recoveries)
    assert (job.recoveries, job.max_recoveries) == shown


async def test_a_sweep_takes_no_more_than_it_was_asked_to(table: Bench) -> None:
    await table.add(*range(1, 6))
    await table.claim()
    table.clock.advance(LEASE)
    assert len((await table.recover(limit=2)).recovered) == 2
    assert len((await table.recover()).recovered) == 3


async def test_the_rows_of_a_worker_known_to_be_dead_come_back_at_once(snoozes: Bench) -> None:
    await snoozes.add(1, 2)
    await snoozes.claim(1, worker="dead")
    [alive] = await snoozes.claim(1, worker="alive")
    recovery = await snoozes.recover(worker="dead")
    assert recovery.recovered == (snoozes.kind.key(1),)
    assert await snoozes.leases.renew([held(alive)]) == {held(alive)}


async def test_a_row_that_is_locked_is_left_to_the_next_sweep(table: Bench) -> None:
    await table.add(1, 2)
    await table.claim()
    table.clock.advance(LEASE)
    async with table.witness.transaction():
        await table.lock(1)
        assert (await table.recover()).recovered == (table.kind.key(2),)
    assert (await table.recover()).recovered == (table.kind.key(1),)


async def test_a_paused_row_whose_worker_died_comes_back_when_it_is_resumed(table: Bench) -> None:
    await table.add(1)
    await table.claim()
    column, name = table.kind.column("inactive"), table.kind.name
    await table.witness.execute(f"update {name} set {column} = true")
    table.clock.advance(LEASE)
    assert (await table.recover()).recovered == ()
    await table.witness.execute(f"update {name} set {column} = false")
    assert (await table.recover()).recovered == (table.kind.key(1),)


async def test_rows_that_nobody_may_claim_any_more_are_retired(table: Bench) -> None:
    await table.add(1, attempts=5)
    await table.add(2, attempts=4)
    await table.add(3, attempts=5, due=table.clock.now() + SECOND)
    recovery = await table.recover()
    assert (recovery.recovered, recovery.retired) == ((), (table.kind.key(1),))
    row = await table.row(1)
    assert (row["inactive"], row["attempts"]) == (True, 5)
    assert writes(row, "outcome", "failed")
    assert (await table.row(3))["inactive"] is False


@pytest.mark.parametrize("attempts", [0, 5])
async def test_a_queue_leaves_the_rows_of_another_on_the_same_table_alone(
    snoozes: Bench, attempts: int
) -> None:
    await snoozes.add(1, subject="slow", attempts=attempts)
    slow = snoozes.using(where="subject = 'slow'", name="slow", lease=2 * LEASE)
    quick = snoozes.using(where="subject = 'quick'", name="quick")
    await slow.claim([], limit=1, worker="w")
    snoozes.clock.advance(LEASE)
    before = await snoozes.dump()
    await quick.recover([])
    assert await snoozes.dump() == before
    snoozes.clock.advance(LEASE)
    recovery = await slow.recover([])
    assert len(recovery.recovered) + len(recovery.retired) == 1
