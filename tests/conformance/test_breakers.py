"""Circuit breakers as rows: every store keeps the same rules, and no call waits for a lock."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast.breaker import Admission, Breaker, BreakerPolicy, BreakerState, Verdicts
from tests.conformance.backends import DATABASES, MEMORY, Backends
from tests.conformance.stores import SECOND

if TYPE_CHECKING:
    from holdfast.clock import ManualClock
    from holdfast.ports import Breakers
    from tests.conformance.stores import QueueUnderTest

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
POLICY = BreakerPolicy("stripe", threshold=2, cooldown=10 * SECOND, probe_lease=5 * SECOND)
OTHER = BreakerPolicy("mail", threshold=1, cooldown=10 * SECOND, probes=3)


async def ask(breakers: Breakers, policy: BreakerPolicy = POLICY, wanted: int = 9) -> Admission:
    return (await breakers.admit([policy], wanted))[policy.name]


async def tell(
    breakers: Breakers, *verdicts: bool, generation: int, policy: BreakerPolicy = POLICY
) -> None:
    await breakers.record([Verdicts(policy, generation, verdicts)])


async def the(queue: QueueUnderTest, name: str = "stripe") -> Breaker:
    """As a worker sees it that has just started."""
    [breaker] = [row for row in await queue.worker().breakers.all() if row.name == name]
    return breaker


async def test_a_breaker_is_known_from_the_first_question_on(queue: QueueUnderTest) -> None:
    assert await queue.store.breakers.all() == []
    assert await ask(queue.store.breakers) == Admission(0, None)
    assert await queue.store.breakers.all() == [Breaker.new("stripe", queue.clock.now())]


async def test_breakers_are_listed_by_name(queue: QueueUnderTest) -> None:
    await queue.store.breakers.admit([POLICY, OTHER], 1)
    assert [row.name for row in await queue.store.breakers.all()] == ["mail", "stripe"]


async def test_the_life_of_a_breaker_from_its_first_failure_to_its_closing(
    queue: QueueUnderTest,
) -> None:
    breakers, clock = queue.store.breakers, queue.clock
    await tell(breakers, False, generation=0)
    assert (await the(queue)).failures == 1
    await tell(breakers, True, False, False, generation=0)
    opened = await the(queue)
    assert (opened.state, opened.generation) == (OPEN, 1)
    assert (opened.opened_at, opened.cooldown) == (clock.now(), 10 * SECOND)

    assert await ask(breakers) == Admission(1, 0, wait=10 * SECOND)
    clock.advance(10 * SECOND)
    expires = clock.now() + 5 * SECOND
    assert await ask(breakers) == Admission(2, 1, expires=expires)
    assert await ask(breakers) == Admission(2, 0, wait=5 * SECOND)

    await tell(breakers, False, generation=2)
    assert await ask(breakers) == Admission(3, 0, wait=20 * SECOND)
    clock.advance(20 * SECOND)
    assert (await ask(breakers)).allowance == 1
    await tell(breakers, True, generation=4)
    assert await the(queue) == replace(Breaker.new("stripe", clock.now()), generation=5)
    assert await ask(breakers) == Admission(5, None)


async def test_late_outcomes_do_not_move_a_breaker(queue: QueueUnderTest) -> None:
    await tell(queue.store.breakers, False, False, generation=0)
    opened = await the(queue)
    queue.clock.advance(SECOND)
    await tell(queue.store.breakers, True, True, generation=0)
    await queue.store.breakers.record(
        [Verdicts(POLICY, 0, (False,)), Verdicts(POLICY, 1, (True,)), Verdicts(POLICY, 7, (True,))]
    )
    assert await the(queue) == opened


async def test_a_success_where_nothing_failed_leaves_no_trace(queue: QueueUnderTest) -> None:
    await tell(queue.store.breakers, True, False, True, generation=0)
    assert await queue.store.breakers.all() == []
    await ask(queue.store.breakers)
    known = await the(queue)
    queue.clock.advance(SECOND)
    await tell(queue.store.breakers, True, generation=0)
    assert await the(queue) == known


async def test_outcomes_of_several_breakers_are_told_together(queue: QueueUnderTest) -> None:
    await queue.store.breakers.record(
        [Verdicts(POLICY, 0, (False,)), Verdicts(OTHER, 0, (False,)), Verdicts(POLICY, 0, (False,))]
    )
    assert {row.name: row.state for row in await queue.store.breakers.all()} == {
        "stripe": OPEN,
        "mail": OPEN,
    }


async def test_permits_of_a_dead_worker_expire_and_those_given_back_do_not_have_to(
    queue: QueueUnderTest,
) -> None:
    breakers, clock = queue.store.breakers, queue.clock
    await tell(breakers, False, generation=0, policy=OTHER)
    clock.advance(10 * SECOND)
    first = await ask(breakers, OTHER, wanted=2)
    clock.advance(SECOND)
    second = await ask(breakers, OTHER, wanted=2)
    assert (first.allowance, second.allowance) == (2, 1)
    assert first.expires is not None
    await breakers.return_permits("mail", first.generation, first.expires, 1)
    await breakers.return_permits("mail", first.generation - 1, first.expires, 1)
    assert (await ask(breakers, OTHER)).allowance == 1
    clock.set(first.expires)
    assert (await ask(breakers, OTHER)).allowance == 1


async def test_a_breaker_is_held_open_until_it_is_closed_by_hand(queue: QueueUnderTest) -> None:
    breakers, clock = queue.store.breakers, queue.clock
    held = await breakers.force("stripe", OPEN, actor="me", reason="their weekend")
    assert await the(queue) == held
    assert (held.actor, held.reason, held.generation) == ("me", "their weekend", 1)
    clock.advance(timedelta(days=365))
    assert await ask(breakers) == Admission(1, 0)
    closed = await breakers.force("stripe", CLOSED, actor="me", reason=None)
    assert await the(queue) == closed == replace(Breaker.new("stripe", clock.now()), generation=2)


async def test_closing_an_unknown_breaker_makes_none(queue: QueueUnderTest) -> None:
    await queue.store.breakers.force("stripe", CLOSED, actor="me", reason=None)
    assert await queue.store.breakers.all() == []


async def test_permits_that_many_ask_for_at_once_are_granted_once(queue: QueueUnderTest) -> None:
    await tell(queue.store.breakers, False, generation=0, policy=OTHER)
    queue.clock.advance(10 * SECOND)
    asked = await asyncio.gather(*(ask(queue.worker().breakers, OTHER, 2) for _ in range(12)))
    assert sorted(admission.allowance or 0 for admission in asked) == [0] * 10 + [1, 2]
    assert len((await the(queue, "mail")).probes) == OTHER.probes


async def test_no_failure_is_lost_when_many_report_at_once(queue: QueueUnderTest) -> None:
    patient = replace(POLICY, threshold=1000)
    await asyncio.gather(
        *(tell(queue.worker().breakers, False, generation=0, policy=patient) for _ in range(12))
    )
    assert (await the(queue)).failures == 12


@pytest.mark.parametrize("name", [name for name in DATABASES if "asyncpg_dsn" in name])
async def test_no_caller_waits_for_a_frozen_transaction_on_a_breaker(
    backends: Backends, clock: ManualClock, name: str
) -> None:
    tables = await backends.emptied(name)
    store = tables.store(clock)
    await tell(store.breakers, False, generation=0, policy=OTHER)
    clock.advance(10 * SECOND)
    other = tables.driver.fork("side")
    async with asyncio.timeout(60), other.transaction() as frozen:
        await frozen.fetch(f"select from {tables.names.table('_breakers')} for update")
        assert (await ask(store.breakers, OTHER)).allowance == 0
    assert (await ask(store.breakers, OTHER)).allowance == 3
    await other.close()


async def test_memory_is_a_store_like_the_others(backends: Backends, clock: ManualClock) -> None:
    """Both stores, driven by one script, tell the same story."""
    stories: list[list[object]] = []
    for name in (MEMORY, DATABASES[0]):
        clock.set(clock.now())
        began = clock.now()
        breakers = (await backends.workers(name, clock))().breakers
        story: list[object] = []
        for step in range(60):
            clock.advance(timedelta(seconds=step % 7))
            admission = await ask(breakers, wanted=step % 3)
            story.append(admission)
            if step % 4 == 0 and admission.expires:
                await breakers.return_permits("stripe", admission.generation, admission.expires, 1)
            elif step % 5:
                await tell(breakers, step % 13 > 9, generation=admission.generation)
            story += await breakers.all()
        stories.append(story)
        clock.set(began)
    assert stories[0] == stories[1]
    assert {row.state for row in stories[0] if isinstance(row, Breaker)} == set(BreakerState)
