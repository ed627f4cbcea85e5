"""Who gets which job, and in which order."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from holdfast.lifecycle import TRANSITIONS, Status, Verb
from holdfast.models import Change, ClaimRule, NewJob
from tests.conformance.stores import INSTANT, LEASE, RULE, SECOND, holding, ids, token_of

if TYPE_CHECKING:
    from holdfast.models import Job
    from holdfast.ports import Leases
    from tests.conformance.stores import QueueUnderTest

SMS = ClaimRule("sms", LEASE)


async def claim_until_found(leases: Leases, *rules: ClaimRule) -> list[Job]:
    """As a worker does that polls: its store says when to look again."""
    async with asyncio.timeout(60):
        while not (found := await leases.claim(rules, limit=10, worker="w1", sweep=True)):
            pause = await leases.next_due(rules)
            await asyncio.sleep(0 if pause is None else pause.total_seconds())
    return found


async def test_a_claim_takes_a_lease_and_changes_nothing_else(queue: QueueUnderTest) -> None:
    job_id = await queue.add(payload=b"1", headers={"a": 1}, dedupe_key="k", max_attempts=9)
    before = await queue.row(job_id)
    queue.clock.advance(SECOND)
    [job] = await queue.claim(worker="w7")
    now = queue.clock.now()
    assert isinstance(job.claim_token, UUID)
    assert job == before._replace(
        status=Status.PICKED,
        updated=now,
        heartbeat=now,
        claim_token=job.claim_token,
        claimed_by="w7",
        claimed_at=now,
        lease=LEASE,
    )
    assert await queue.row(job_id) == job


@pytest.mark.parametrize("lease", [timedelta(milliseconds=100), timedelta(days=40, seconds=1)])
async def test_the_lease_is_the_one_of_the_entrypoint(
    queue: QueueUnderTest, lease: timedelta
) -> None:
    await queue.enqueue(NewJob("mail"), NewJob("sms"))
    jobs = await queue.claim(ClaimRule("mail", lease), SMS)
    assert {job.entrypoint: job.lease for job in jobs} == {"mail": lease, "sms": LEASE}


async def test_an_empty_queue_gives_nothing(queue: QueueUnderTest) -> None:
    assert await queue.claim() == []


async def test_only_wanted_entrypoints_are_claimed(queue: QueueUnderTest) -> None:
    await queue.enqueue(NewJob("sms"), NewJob("Mail"), NewJob("mail "))
    assert await queue.claim() == []
    assert {job.status for job in (await queue.rows()).jobs} == {Status.QUEUED}


@pytest.mark.parametrize(("limit", "claimed"), [(0, 0), (1, 1), (4, 4), (5, 5), (50, 5)])
async def test_a_claim_takes_no_more_than_it_has_room_for(
    queue: QueueUnderTest, limit: int, claimed: int
) -> None:
    job_ids = await queue.enqueue(*[NewJob("mail")] * 5)
    assert ids(await queue.claim(limit=limit)) == job_ids[:claimed]
    assert len(await queue.claim()) == 5 - claimed


@pytest.mark.parametrize("limit", [3, 10])
async def test_the_bound_holds_over_all_lanes_together(queue: QueueUnderTest, limit: int) -> None:
    await queue.enqueue(*[NewJob(name, priority=p) for name in ("mail", "sms") for p in range(6)])
    assert len(await queue.claim(RULE, SMS, limit=limit)) == limit


async def test_higher_priorities_come_first_and_then_the_longest_due(queue: QueueUnderTest) -> None:
    now = queue.clock.now()
    low, late, early, second, high = await queue.enqueue(
        NewJob("mail", priority=-1),
        NewJob("mail", execute_after=now - SECOND),
        NewJob("mail", execute_after=now - 2 * SECOND),
        NewJob("mail", execute_after=now - SECOND),
        NewJob("mail", priority=1),
    )
    one_by_one = [job.id for _ in range(5) for job in await queue.claim(limit=1)]
    assert one_by_one == [high, early, late, second, low]


async def test_a_batch_is_in_the_same_order_as_single_claims(queue: QueueUnderTest) -> None:
    for priority in (1, 3, 2, 3):
        await queue.add(priority=priority)
    jobs = await queue.claim()
    order = [(-job.priority, job.execute_after, job.id) for job in jobs]
    assert order == sorted(order)
    assert len(order) == 4


async def test_a_higher_priority_is_served_before_anything_is_shared(queue: QueueUnderTest) -> None:
    await queue.enqueue(*[NewJob("mail", priority=1)] * 3, *[NewJob("sms", priority=2)] * 3)
    jobs = await queue.claim(RULE, SMS, limit=4)
    assert [job.entrypoint for job in jobs] == ["sms", "sms", "sms", "mail"]


async def test_a_job_is_due_at_its_instant_and_not_before(queue: QueueUnderTest) -> None:
    job_id = await queue.add(execute_after=SECOND)
    queue.clock.advance(SECOND - INSTANT)
    assert await queue.claim() == []
    queue.clock.advance(INSTANT)
    assert ids(await queue.claim()) == [job_id]


async def test_a_deferred_job_of_high_priority_delays_no_other(queue: QueueUnderTest) -> None:
    await queue.add(priority=9, execute_after=SECOND)
    job_id = await queue.add(priority=1)
    assert ids(await queue.claim()) == [job_id]


async def test_picked_and_held_jobs_are_not_claimed(queue: QueueUnderTest) -> None:
    await queue.hold()
    await queue.lease()
    assert await queue.claim() == []


@pytest.mark.parametrize(
    ("waiting", "limit", "shares"),
    [
        ((9, 9, 9), 6, [2, 2, 2]),
        ((9, 9, 9), 8, [2, 3, 3]),
        ((9, 9, 9), 1, [0, 0, 1]),
        ((1, 9, 9), 9, [1, 4, 4]),
        ((0, 0, 9), 5, [0, 0, 5]),
        ((1, 2, 3), 9, [1, 2, 3]),
    ],
)
async def test_entrypoints_of_one_priority_share_a_batch_evenly(
    queue: QueueUnderTest, waiting: tuple[int, ...], limit: int, shares: list[int]
) -> None:
    for name, number in zip("abc", waiting, strict=True):
        await queue.enqueue(*[NewJob(name)] * number)
    jobs = await queue.claim(*(ClaimRule(name, LEASE) for name in "abc"), limit=limit)
    # Which lane gets the remainder is left open.
    assert sorted(sum(job.entrypoint == name for job in jobs) for name in "abc") == shares


async def test_with_one_free_slot_every_entrypoint_has_its_turn(queue: QueueUnderTest) -> None:
    rules = [ClaimRule(name, LEASE) for name in "abc"]
    await queue.enqueue(*[NewJob(name) for name in "abc" for _ in range(9)])
    leases = queue.worker().leases
    turns = [await leases.claim(rules, limit=1, worker="w1") for _ in range(3)]
    assert {job.entrypoint for [job] in turns} == set("abc")


async def test_claims_at_the_same_time_are_disjoint(queue: QueueUnderTest) -> None:
    job_ids = await queue.enqueue(*[NewJob("mail")] * 40)
    workers = [queue.claim(limit=10, worker=f"w{number}") for number in range(6)]
    claimed = [job.id for jobs in await asyncio.gather(*workers) for job in jobs]
    claimed += ids(await queue.claim())
    assert sorted(claimed) == job_ids


async def test_every_claim_has_a_token_of_its_own(queue: QueueUnderTest) -> None:
    await queue.enqueue(*[NewJob("mail")] * 3)
    first = [token_of(job) for _ in range(3) for job in await queue.claim(limit=1)]
    assert len(set(first)) == 3


async def test_a_job_that_is_claimed_again_has_another_token(queue: QueueUnderTest) -> None:
    first = await queue.lease()
    await queue.settle(Verb.RELEASE, first)
    [second] = await queue.claim()
    assert second.id == first.id
    assert token_of(second) != token_of(first)


async def test_a_worker_finds_what_came_behind_its_back(queue: QueueUnderTest) -> None:
    """Released jobs, late commits and new priorities lie where it has been already."""
    leases = queue.worker().leases
    await queue.enqueue(*[NewJob("mail")] * 2)
    first, _ = await claim_until_found(leases, RULE)
    await queue.settle(Verb.RELEASE, first)
    assert ids(await claim_until_found(leases, RULE)) == [first.id]
    earlier = await queue.add(execute_after=queue.clock.now() - SECOND)
    assert ids(await claim_until_found(leases, RULE)) == [earlier]
    higher = await queue.add(priority=5)
    assert ids(await claim_until_found(leases, RULE)) == [higher]
    other = await queue.add("sms")
    assert ids(await claim_until_found(leases, RULE, SMS)) == [other]


async def wait_for_jobs_only(leases: Leases) -> timedelta | None:
    """When the next job is due, once no search that the store put off comes before it."""
    async with asyncio.timeout(60):
        # The store itself says how long to wait.
        while (due := await leases.next_due([RULE])) and due < 30 * SECOND:  # noqa: ASYNC110
            await asyncio.sleep(due.total_seconds())
    return due


@pytest.mark.parametrize("delays", [[60], [90, 60, 120]])
async def test_the_next_deferred_job_tells_when_to_look_again(
    queue: QueueUnderTest, delays: list[int]
) -> None:
    await queue.enqueue(*[NewJob("mail", execute_after=n * SECOND) for n in delays])
    await queue.add("sms", execute_after=40 * SECOND)
    leases = queue.worker().leases
    assert await leases.claim([RULE], limit=5, worker="w1", sweep=True) == []
    due = await wait_for_jobs_only(leases)
    assert due is not None
    # Real time passes between the look at the queue and this question.
    assert 50 * SECOND < due <= 60 * SECOND


async def test_without_a_deferred_job_there_is_nothing_to_wait_for(queue: QueueUnderTest) -> None:
    leases = queue.worker().leases
    await queue.add()
    await queue.add("sms", execute_after=40 * SECOND)
    assert len(await leases.claim([RULE], limit=5, worker="w1", sweep=True)) == 1
    assert await wait_for_jobs_only(leases) is None


async def test_the_payloads_of_leases_can_be_read_while_they_are_owned(
    queue: QueueUnderTest,
) -> None:
    payloads = [None, b"", b"small", bytes(70_000)]
    made = await queue.store.jobs.insert([NewJob("mail", each) for each in payloads], "raise")
    jobs = await queue.store.leases.claim([RULE], limit=10, worker="a")
    held = [holding(job) for job in jobs]
    found = await queue.store.leases.payloads(held)
    assert {lease.id: payload for lease, payload in found.items()} == dict(
        zip(made, payloads, strict=True)
    )
    stale = [lease._replace(token=uuid4()) for lease in held]
    assert await queue.store.leases.payloads(stale) == {}
    await queue.store.leases.change(TRANSITIONS[Verb.COMPLETE], [Change(held[0])])
    await queue.store.leases.change(TRANSITIONS[Verb.RELEASE], [Change(held[1])])
    assert set(await queue.store.leases.payloads(held)) == set(held[2:])
