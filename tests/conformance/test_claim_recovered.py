"""Jobs that a worker died with are claimed apart from the others."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast.lifecycle import Status, Verb
from holdfast.models import ClaimRule, NewJob, RecoveredWaiting
from tests.conformance.stores import LEASE, RULE, SECOND, ids

if TYPE_CHECKING:
    from holdfast.models import JobId
    from tests.conformance.stores import QueueUnderTest

NOW = timedelta(0)


async def dead(queue: QueueUnderTest, *jobs: NewJob, deaths: int = 1) -> list[JobId]:
    """Jobs whose worker has died; they wait again, beside whatever else waits."""
    job_ids = await queue.enqueue(*jobs)
    rules = [ClaimRule(name, LEASE) for name in dict.fromkeys(job.entrypoint for job in jobs)]
    for _ in range(deaths):
        taken = await queue.claim_any(*rules, worker="killed")
        assert set(job_ids) <= set(ids(taken))
        await queue.recover(*rules, worker="killed")
    return job_ids


async def test_each_claim_takes_its_own_kind(queue: QueueUnderTest) -> None:
    recovered, suspect = await dead(queue, NewJob("mail"), NewJob("mail", max_recoveries=2))
    fresh = await queue.add()
    assert ids(await queue.claim(limit=1)) == [fresh]
    assert ids(await queue.claim_recovered(suspects=False)) == [recovered]
    assert ids(await queue.claim_recovered(suspects=True)) == [suspect]


@pytest.mark.parametrize(
    ("own", "general", "deaths", "suspect"),
    [
        (None, 3, 1, False),
        (None, 3, 2, True),
        (None, 2, 1, True),
        (None, 1, 1, True),
        (5, 2, 3, False),
        (5, 2, 4, True),
    ],
)
async def test_a_job_that_one_more_death_would_retire_is_a_suspect(
    queue: QueueUnderTest, own: int | None, general: int, deaths: int, suspect: bool
) -> None:
    rule = ClaimRule("mail", LEASE, max_recoveries=general)
    job_id = await queue.add(max_recoveries=own)
    for _ in range(deaths):
        await queue.claim_any(rule)
        await queue.recover(rule, worker="w1")
    assert await queue.claim_recovered(rule, suspects=not suspect) == []
    [job] = await queue.claim_recovered(rule, suspects=suspect)
    assert (job.id, job.recoveries, job.status) == (job_id, deaths, Status.PICKED)
    recovery = await queue.recover(rule, worker="w1")
    assert bool(recovery.retired) is suspect


async def test_a_recovered_job_that_is_retried_is_claimed_as_recovered_again(
    queue: QueueUnderTest,
) -> None:
    await dead(queue, NewJob("mail"))
    [job] = await queue.claim_recovered()
    await queue.settle(Verb.RETRY, job, error="no", delay=SECOND)
    assert await queue.claim_any() == []
    queue.clock.advance(SECOND)
    assert await queue.claim() == []
    assert ids(await queue.claim_recovered()) == [job.id]


async def test_priority_first_then_the_order_of_the_queue(queue: QueueUnderTest) -> None:
    first, second, urgent = await dead(
        queue, NewJob("mail"), NewJob("mail"), NewJob("mail", priority=5)
    )
    assert ids(await queue.claim_recovered(limit=2)) == [urgent, first]
    assert ids(await queue.claim_recovered(limit=2)) == [second]


async def test_entrypoints_get_a_fair_share(queue: QueueUnderTest) -> None:
    await dead(queue, *[NewJob("mail")] * 20, *[NewJob("sms")] * 20)
    jobs = await queue.claim_recovered(RULE, ClaimRule("sms", LEASE), limit=10)
    assert sorted(job.entrypoint for job in jobs) == ["mail"] * 5 + ["sms"] * 5


async def test_a_fleet_wide_limit_holds_across_both_claims(queue: QueueUnderTest) -> None:
    await dead(queue, *[NewJob("mail")] * 3)
    await queue.enqueue(*[NewJob("mail")] * 3)
    limited = ClaimRule("mail", LEASE, concurrency_limit=2)
    assert len(await queue.claim(limited, limit=1)) == 1
    assert len(await queue.claim_recovered(limited)) == 1
    assert await queue.claim_recovered(limited) == []
    assert await queue.claim(limited) == []


async def test_without_attempts_left_it_is_retired_instead(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    await queue.settle(Verb.RETRY, job, error="no")
    await queue.claim()
    await queue.recover(worker="w1")
    spent = ClaimRule("mail", LEASE, max_attempts=1)
    assert [found.status for found in await queue.claim_recovered(spent)] == [Status.FAILED]
    assert (await queue.last_entry(job.id)).reason == "max_attempts"


async def test_what_waits_is_told_by_kind_and_time(queue: QueueUnderTest) -> None:
    leases = queue.store.leases
    await queue.add()
    assert await leases.recovered_waiting([RULE]) == RecoveredWaiting()
    await dead(queue, NewJob("mail"), NewJob("mail"))
    found = await leases.recovered_waiting([RULE])
    assert (found.recovered, found.suspects, found.suspects_leased) == (NOW, None, 0)
    assert await leases.recovered_waiting([ClaimRule("sms", LEASE)]) == RecoveredWaiting()
    for job in await queue.claim_recovered():
        await queue.settle(Verb.RETRY, job, error="no", delay=7 * SECOND)
    queue.clock.advance(SECOND)
    found = await leases.recovered_waiting([RULE])
    assert (found.recovered, found.suspects) == (6 * SECOND, None)
    low = ClaimRule("mail", LEASE, max_recoveries=2)
    found = await leases.recovered_waiting([low])
    assert (found.recovered, found.suspects, found.suspects_leased) == (None, 6 * SECOND, 0)
    queue.clock.advance(6 * SECOND)
    await queue.claim_recovered(low, limit=1, suspects=True)
    found = await leases.recovered_waiting([low])
    assert (found.recovered, found.suspects, found.suspects_leased) == (None, NOW, 1)


async def test_a_requeued_job_is_claimed_with_the_others_again(queue: QueueUnderTest) -> None:
    [job_id] = await dead(queue, NewJob("mail", max_recoveries=2))
    await queue.claim_recovered(suspects=True)
    assert (await queue.recover(worker="w1")).retired == (job_id,)
    assert await queue.claim_any() == []
    await queue.queries.requeue_jobs([job_id])
    assert ids(await queue.claim()) == [job_id]
