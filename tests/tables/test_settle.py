"""What becomes of a leased row: each outcome, and what stays as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast.lifecycle import RETIRE_LAST_RETRY
from holdfast.models import Change
from holdfast.stores.postgres.tables.inspect import inspect
from tests.tables.three_tables import COMPLETE, FAIL, HOLD, RELEASE, RETRY, SECOND, Bench, held

if TYPE_CHECKING:
    from holdfast.lifecycle import Transition
    from holdfast.models import LeaseKey

FREE = ("claim_token", "claimed_at", "claimed_by", "heartbeat")


def is_free(row: dict[str, Any]) -> bool:
    return all(row.get(part) is None for part in FREE)


def writes(row: dict[str, Any], part: str, value: object) -> bool:
    """Where the table has a place for it, it says so."""
    return part not in row or row[part] == value


async def lease(table: Bench) -> LeaseKey:
    await table.add(1)
    return await table.claim_one()


async def test_success_ends_the_row_and_keeps_what_it_went_through(table: Bench) -> None:
    await table.add(1, attempts=2)
    mine = await table.claim_one()
    table.clock.advance(SECOND)
    assert await table.change(COMPLETE, mine) == {mine}
    row = await table.row(1)
    assert row["inactive"] is True
    assert is_free(row)
    assert row["attempts"] == 2
    assert writes(row, "outcome", "successful")
    assert writes(row, "updated_at", table.clock.now())
    assert await table.claim() == []


async def test_a_failure_frees_the_row_counts_it_and_puts_it_off(table: Bench) -> None:
    mine = await lease(table)
    table.clock.advance(SECOND)
    now = table.clock.now()
    assert await table.change(RETRY, mine, delay=30 * SECOND, error="no luck") == {mine}
    row = await table.row(1)
    assert (row["inactive"], row["attempts"]) == (False, 1)
    assert is_free(row)
    assert row["due"] == now + 30 * SECOND
    assert writes(row, "last_error", "no luck")
    assert writes(row, "last_error_at", now)
    assert writes(row, "updated_at", now)
    assert await table.claim() == []
    table.clock.advance(30 * SECOND)
    [again] = await table.claim()
    assert again.attempts == 1
    assert again.claim_token != mine.token


async def test_a_retry_never_brings_a_row_forward_that_was_put_off_by_hand(table: Bench) -> None:
    mine = await lease(table)
    later = table.clock.now() + 3600 * SECOND
    await table.witness.execute(f"update {table.kind.name} set {table.kind.queue.due} = $1", later)
    await table.change(RETRY, mine, delay=30 * SECOND)
    assert (await table.row(1))["due"] == later


async def test_a_retry_without_a_delay_is_due_at_once(table: Bench) -> None:
    mine = await lease(table)
    table.clock.advance(SECOND)
    await table.change(RETRY, mine)
    assert (await table.row(1))["due"] == table.clock.now()


async def test_the_last_retry_is_refused_and_retires_the_row_instead(table: Bench) -> None:
    await table.add(1, attempts=4)
    mine = await table.claim_one()
    before = await table.dump()
    assert await table.change(RETRY, mine, error="no luck") == set()
    assert await table.dump() == before
    assert await table.change(RETIRE_LAST_RETRY, mine, error="no luck") == {mine}
    row = await table.row(1)
    assert (row["inactive"], row["attempts"]) == (True, 5)
    assert is_free(row)
    assert writes(row, "outcome", "failed")
    assert writes(row, "last_error", "no luck")


async def test_a_row_with_attempts_left_is_not_retired(table: Bench) -> None:
    await table.add(1, attempts=3)
    mine = await table.claim_one()
    before = await table.dump()
    assert await table.change(RETIRE_LAST_RETRY, mine) == set()
    assert await table.dump() == before


async def test_a_held_row_becomes_a_case_file_without_spending_an_attempt(table: Bench) -> None:
    mine = await lease(table)
    assert await table.change(HOLD, mine, error="does not fit") == {mine}
    row = await table.row(1)
    assert (row["inactive"], row["attempts"] or 0) == (True, 0)
    assert is_free(row)
    assert writes(row, "outcome", "failed")
    assert writes(row, "last_error", "does not fit")


async def test_a_failed_row_ends(table: Bench) -> None:
    mine = await lease(table)
    assert await table.change(FAIL, mine) == {mine}
    row = await table.row(1)
    assert row["inactive"] is True
    assert is_free(row)
    assert writes(row, "outcome", "exception")


async def test_a_row_that_is_released_has_lost_nothing(table: Bench) -> None:
    await table.add(1, attempts=2)
    due = table.clock.now()
    mine = await table.claim_one()
    table.clock.advance(SECOND)
    assert await table.change(RELEASE, mine) == {mine}
    row = await table.row(1)
    assert (row["inactive"], row["attempts"], row["due"]) == (False, 2, due)
    assert is_free(row)
    assert row.get("recoveries") is None
    assert len(await table.claim()) == 1


async def test_each_row_of_a_batch_gets_its_own_delay_and_error(table: Bench) -> None:
    await table.add(*range(1, 14))
    jobs = await table.claim()
    now = table.clock.now()
    changes = [
        Change(held(job), delay=SECOND * n, error=f"error {n}")
        for n, job in enumerate(jobs, start=1)
    ]
    moved = await table.leases.change(RETRY, list(reversed(changes)))
    assert moved == [change.key for change in changes]
    for n, number in enumerate(table.numbers(jobs), start=1):
        row = await table.row(number)
        assert row["due"] == now + SECOND * n
        assert writes(row, "last_error", f"error {n}")


async def test_two_leases_on_one_row_are_judged_each_by_its_own_token(table: Bench) -> None:
    old = await lease(table)
    table.clock.advance(table.kind.queue.lease)
    await table.recover()
    new = await table.claim_again()
    assert await table.leases.renew([old, new]) == {new}
    assert await table.change(COMPLETE, old, new) == {new}


async def test_a_text_that_its_column_cannot_hold_is_cut(table: Bench) -> None:
    mine = await lease(table)
    assert await table.change(RETRY, mine, error="0123456789" * 9) == {mine}
    row = await table.row(1)
    kept = 30 if table.kind.name == "chores" else 90
    assert writes(row, "last_error", ("0123456789" * 9)[:kept])


@pytest.mark.parametrize("transition", [COMPLETE, HOLD])
async def test_a_case_file_and_a_success_are_told_apart(
    table: Bench, transition: Transition
) -> None:
    mine = await lease(table)
    await table.change(transition, mine, error="does not fit")
    counts, cases = await inspect(table.driver, table.kind.queue, 10)
    knows = table.kind.name != "chores"
    retired = int(transition is HOLD and knows)
    assert (counts.retired, counts.done) == (retired, 1 - retired)
    assert [case.state for case in cases] == ["retired"] * retired
