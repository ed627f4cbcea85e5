"""Whoever does not have the row's token changes nothing, whatever it asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from holdfast.lifecycle import LIFECYCLE, Guard, Transition, Verb
from holdfast.models import LeaseKey
from tests.tables.three_tables import COMPLETE, HOLD, RELEASE, RETRY, SECOND, Bench

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Past = Callable[[Bench], Awaitable[LeaseKey]]

VERBS = [row for row in LIFECYCLE if Guard.OWNED in row.guards]


async def never_claimed(table: Bench) -> LeaseKey:
    await table.add(1)
    return LeaseKey(table.kind.key(1), UUID(int=1))


async def of_another(table: Bench) -> LeaseKey:
    await table.add(1, attempts=4)
    mine = await table.claim_one()
    return mine._replace(token=UUID(int=1))


async def of_no_row(table: Bench) -> LeaseKey:
    await table.add(1)
    mine = await table.claim_one()
    return mine._replace(id=table.kind.key(2))


async def recovered(table: Bench) -> LeaseKey:
    await table.add(1)
    mine = await table.claim_one()
    table.clock.advance(table.kind.queue.lease)
    assert len((await table.recover()).recovered) == 1
    return mine


async def recovered_and_claimed_again(table: Bench) -> LeaseKey:
    mine = await recovered(table)
    await table.claim_again(worker="worker-2")
    return mine


async def completed(table: Bench) -> LeaseKey:
    return await _after(table, COMPLETE)


async def retried(table: Bench) -> LeaseKey:
    return await _after(table, RETRY)


async def put_aside(table: Bench) -> LeaseKey:
    return await _after(table, HOLD)


async def released(table: Bench) -> LeaseKey:
    return await _after(table, RELEASE)


async def _after(table: Bench, transition: Transition) -> LeaseKey:
    await table.add(1)
    mine = await table.claim_one()
    assert await table.change(transition, mine) == {mine}
    return mine


PASTS: list[Past] = [
    never_claimed,
    of_another,
    of_no_row,
    recovered,
    recovered_and_claimed_again,
    completed,
    retried,
    put_aside,
    released,
]


@pytest.mark.parametrize("past", PASTS, ids=lambda past: past.__name__)
async def test_a_stale_token_changes_nothing_by_any_verb(table: Bench, past: Past) -> None:
    stale = await past(table)
    table.clock.advance(SECOND)
    before = await table.dump()
    for transition in VERBS:
        if transition.verb is Verb.RENEW:
            assert await table.leases.renew([stale]) == set()
        else:
            assert await table.change(transition, stale, delay=SECOND, error="late") == set()
        assert await table.dump() == before, transition.name


async def test_one_stale_token_does_not_keep_the_others_from_moving(table: Bench) -> None:
    await table.add(*range(1, 10))
    leases = [LeaseKey(job.id, job.claim_token or UUID(int=0)) for job in await table.claim()]
    stale = {lease._replace(token=UUID(int=n)) for n, lease in enumerate(leases[::2], start=1)}
    good = set(leases[1::2])
    assert await table.leases.renew([*stale, *good]) == good
    assert await table.change(COMPLETE, *stale, *good) == good
    rows = [await table.row(number) for number in range(1, 10)]
    assert sum(row["inactive"] for row in rows) == len(good)
