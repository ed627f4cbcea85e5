"""Leases, not wishes: what happens to rows whose worker stopped renewing."""

from __future__ import annotations

import pytest

from holdfast.lifecycle import STALE_ERROR
from holdfast.models import Recovery
from tests.tables.test_settle import is_free, writes
from tests.tables.three_tables import LEASE, SECOND, Bench, held


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
    recovery = await table.recover()
    assert recovery.recovered == (table.kind.key(1),)
    assert dict(recovery.recovered_by_queue) == {table.kind.queue.queue: 1}
    row = await table.row(1)
    assert is_free(row)
    assert row["inactive"] is False
    assert writes(row, "last_error", STALE_ERROR)
    assert writes(row, "last_error_at", table.clock.now())


async def test_a_recovery_never_counts_as_an_attempt(table: Bench) -> None:
    for attempts in range(5):
        await table.add(attempts, attempts=attempts)
    await table.claim()
    table.clock.advance(LEASE)
    assert len((await table.recover()).recovered) == 5
    counted = 1 if table.kind.name == "outbox" else None
    for attempts in range(5):
        row = await table.row(attempts)
        assert (row["attempts"], row.get("recoveries")) == (attempts, counted)
        assert row["inactive"] is False


async def test_an_earlier_error_says_more_than_a_recovery(snoozes: Bench) -> None:
    await snoozes.add(1, last_error="no luck")
    await snoozes.claim()
    snoozes.clock.advance(LEASE)
    await snoozes.recover()
    assert (await snoozes.row(1))["last_error"] == "no luck"


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


async def test_rows_that_may_not_be_claimed_any_more_are_retired(table: Bench) -> None:
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


async def test_after_an_outage_a_row_has_a_lease_of_grace_and_is_not_counted(table: Bench) -> None:
    await table.add(1)
    before = await table.row(1)
    mine = await table.claim_one()
    table.clock.advance(LEASE * 3)
    assert (await table.recover(contact=LEASE - SECOND)).recovered == ()
    assert (await table.recover(contact=LEASE, held=[mine])).recovered == ()
    recovery = await table.recover(contact=LEASE)
    assert recovery == Recovery(recovered=(mine.id,), excused=(mine.id,))
    after = await table.row(1)
    assert {name for name in before if before[name] != after[name]} <= {"updated_at"}
