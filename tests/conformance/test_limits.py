"""Limits of the whole fleet, and caps on attempts that are met at a claim."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from holdfast.lifecycle import Status, Verb
from holdfast.models import Capacity, ClaimRule, LogEntry, NewJob
from tests.conformance.stores import LEASE, RULE, SECOND, ids, ledger

if TYPE_CHECKING:
    from holdfast.models import Job
    from tests.conformance.stores import QueueUnderTest


def limited(limit: int, entrypoint: str = "mail") -> ClaimRule:
    return ClaimRule(entrypoint, LEASE, concurrency_limit=limit)


@pytest.mark.parametrize(("limit", "batch", "claimed"), [(1, 10, 1), (2, 10, 2), (3, 2, 2)])
async def test_a_limit_caps_a_claim(
    queue: QueueUnderTest, limit: int, batch: int, claimed: int
) -> None:
    job_ids = await queue.enqueue(*[NewJob("mail")] * 5)
    assert ids(await queue.claim(limited(limit), limit=batch)) == job_ids[:claimed]


async def test_a_limit_holds_for_all_workers_together(queue: QueueUnderTest) -> None:
    await queue.enqueue(*[NewJob("mail")] * 9)
    claims = [queue.claim(limited(3), limit=2, worker=f"w{number}") for number in range(5)]
    assert sum(map(len, await asyncio.gather(*claims))) == 3
    assert await queue.claim(limited(3)) == []


@pytest.mark.parametrize(
    "verb", [Verb.COMPLETE, Verb.FAIL, Verb.HOLD, Verb.RETRY, Verb.RELEASE, Verb.CANCEL]
)
async def test_every_end_of_a_lease_makes_room(queue: QueueUnderTest, verb: Verb) -> None:
    await queue.enqueue(*[NewJob("mail")] * 3)
    [job] = await queue.claim(limited(1))
    if verb is Verb.CANCEL:
        await queue.cancel(job.id)
    else:
        await queue.settle(verb, job, error="no")
    assert len(await queue.claim(limited(1))) == 1
    assert await queue.claim(limited(1)) == []


async def test_a_stale_lease_counts_until_it_is_ended(queue: QueueUnderTest) -> None:
    await queue.enqueue(*[NewJob("mail")] * 2)
    [job] = await queue.claim(limited(1))
    queue.clock.advance(10 * LEASE)
    assert await queue.claim(limited(1)) == []
    assert (await queue.recover(limited(1))).recovered == (job.id,)
    assert ids(await queue.claim_recovered(limited(1))) == [job.id]
    assert await queue.claim(limited(1)) == []


async def test_a_limit_spans_priorities(queue: QueueUnderTest) -> None:
    *_, high = await queue.enqueue(*[NewJob("mail", priority=priority) for priority in range(4)])
    [job] = await queue.claim(limited(1))
    assert job.id == high
    assert len(await queue.claim(limited(3))) == 2
    assert await queue.claim(limited(3)) == []


async def test_the_slots_a_limit_leaves_go_to_the_others(queue: QueueUnderTest) -> None:
    await queue.enqueue(*[NewJob("mail")] * 6, *[NewJob("sms")] * 6)
    jobs = await queue.claim(limited(1, "sms"), RULE, limit=6)
    assert sorted(job.entrypoint for job in jobs) == ["mail"] * 5 + ["sms"]


async def test_limits_of_two_entrypoints_are_independent(queue: QueueUnderTest) -> None:
    await queue.enqueue(*[NewJob("mail")] * 4, *[NewJob("sms")] * 4)
    jobs = await queue.claim(limited(1), limited(2, "sms"), limit=8)
    assert sorted(job.entrypoint for job in jobs) == ["mail", "sms", "sms"]


def roomy(left: int, entrypoint: str = "mail", limit: int = 0) -> ClaimRule:
    return ClaimRule(entrypoint, LEASE, concurrency_limit=limit, capacity=Capacity(left))


@pytest.mark.parametrize(
    ("left", "batch", "limit", "claimed"),
    [(0, 10, 0, 0), (2, 10, 0, 2), (3, 2, 0, 2), (3, 10, 1, 1)],
)
async def test_a_claim_takes_no_more_than_there_is_room_for_and_counts_it_down(
    queue: QueueUnderTest, left: int, batch: int, limit: int, claimed: int
) -> None:
    job_ids = await queue.enqueue(*[NewJob("mail")] * 5)
    rule = roomy(left, limit=limit)
    assert ids(await queue.claim(rule, limit=batch)) == job_ids[:claimed]
    assert rule.capacity is not None
    assert rule.capacity.left == left - claimed


async def test_room_is_shared_by_all_priorities_and_the_highest_has_it_first(
    queue: QueueUnderTest,
) -> None:
    *_, third, second, first = await queue.enqueue(*[NewJob("mail", priority=n) for n in range(5)])
    assert ids(await queue.claim(roomy(3))) == [first, second, third]


async def test_what_one_entrypoint_has_no_room_for_goes_to_the_others(
    queue: QueueUnderTest,
) -> None:
    await queue.enqueue(*[NewJob("mail")] * 6, *[NewJob("sms")] * 6)
    jobs = await queue.claim(roomy(1, "sms"), RULE, limit=6)
    assert sorted(job.entrypoint for job in jobs) == ["mail"] * 5 + ["sms"]


async def test_a_store_asked_again_goes_by_the_room_there_is_then(queue: QueueUnderTest) -> None:
    first, second, *_ = await queue.enqueue(*[NewJob("mail")] * 5)
    rule, leases = roomy(1), queue.worker().leases
    assert rule.capacity is not None
    assert ids(await leases.claim([rule], limit=10, worker="w1")) == [first]
    assert await leases.claim([rule], limit=10, worker="w1") == []
    rule.capacity.left = 1
    assert ids(await leases.claim([rule], limit=10, worker="w1")) == [second]


async def tried(queue: QueueUnderTest, times: int, max_attempts: int | None = None) -> Job:
    """A job that waits after so many retries."""
    job = await queue.lease(max_attempts=max_attempts)
    for number in range(times):
        await queue.settle(Verb.RETRY, job, error=f"try {number}")
        if number + 1 < times:
            [job] = await queue.claim()
    return await queue.row(job.id)


@pytest.mark.parametrize(
    ("own", "general", "status"),
    [
        (None, 1, Status.FAILED),
        (None, 2, Status.PICKED),
        (None, None, Status.PICKED),
        (2, 1, Status.PICKED),
        (3, None, Status.PICKED),
    ],
)
async def test_the_cap_of_a_row_goes_before_that_of_its_entrypoint(
    queue: QueueUnderTest, own: int | None, general: int | None, status: Status
) -> None:
    job = await tried(queue, 1, own)
    assert job.attempts == 1
    [claimed] = await queue.claim(ClaimRule("mail", LEASE, max_attempts=general))
    assert (claimed.id, claimed.status) == (job.id, status)


async def test_a_job_without_attempts_left_is_held_instead_of_claimed(
    queue: QueueUnderTest,
) -> None:
    job = await tried(queue, 2)
    queue.clock.advance(SECOND)
    [retired] = await queue.claim(ClaimRule("mail", LEASE, max_attempts=2))
    now = queue.clock.now()
    assert retired == job._replace(status=Status.FAILED, updated=now, held_at=now)
    assert await queue.row(job.id) == retired
    entry = await queue.last_entry(job.id)
    assert entry == LogEntry(
        id=entry.id,
        job_id=job.id,
        status=Status.FAILED,
        entrypoint="mail",
        priority=0,
        attempt=2,
        recoveries=0,
        claimed_by=None,
        claimed_at=None,
        actor=None,
        reason="max_attempts",
        traceback=None,
        created=now,
        **ledger(job),
    )


async def test_a_retired_job_uses_up_its_place_in_the_batch(queue: QueueUnderTest) -> None:
    job = await tried(queue, 1)
    other = await queue.add()
    capped = ClaimRule("mail", LEASE, max_attempts=1)
    assert [(found.id, found.status) for found in await queue.claim(capped, limit=1)] == [
        (job.id, Status.FAILED)
    ]
    assert [(found.id, found.status) for found in await queue.claim(capped, limit=1)] == [
        (other, Status.PICKED)
    ]


async def test_a_job_that_is_not_due_is_not_retired_either(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    await queue.settle(Verb.RETRY, job, delay=SECOND, error="no")
    before = await queue.rows()
    assert await queue.claim(ClaimRule("mail", LEASE, max_attempts=1)) == []
    assert await queue.rows() == before
