"""Jobs that a worker died with are claimed apart from the others."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast.lifecycle import Status, Verb
from holdfast.models import ClaimRule, NewJob, RecoveredWaiting
from tests.conformance.stores import LEASE, SECOND, WANT, ids

if TYPE_CHECKING:
    from holdfast.models import JobId
    from tests.conformance.stores import Rig

NOW = timedelta(0)


async def dead(rig: Rig, *jobs: NewJob, deaths: int = 1) -> list[JobId]:
    """Jobs whose worker has died; they wait again, beside whatever else waits."""
    job_ids = await rig.enqueue(*jobs)
    rules = [ClaimRule(name, LEASE) for name in dict.fromkeys(job.entrypoint for job in jobs)]
    for _ in range(deaths):
        taken = await rig.claim_any(*rules, worker="killed")
        assert set(job_ids) <= set(ids(taken))
        await rig.recover(*rules, worker="killed")
    return job_ids


async def test_each_claim_takes_its_own_kind(rig: Rig) -> None:
    recovered, suspect = await dead(rig, NewJob("mail"), NewJob("mail", max_recoveries=2))
    fresh = await rig.add()
    assert ids(await rig.claim(limit=1)) == [fresh]
    assert ids(await rig.claim_recovered(suspects=False)) == [recovered]
    assert ids(await rig.claim_recovered(suspects=True)) == [suspect]


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
    rig: Rig, own: int | None, general: int, deaths: int, suspect: bool
) -> None:
    rule = ClaimRule("mail", LEASE, max_recoveries=general)
    job_id = await rig.add(max_recoveries=own)
    for _ in range(deaths):
        await rig.claim_any(rule)
        await rig.recover(rule, worker="w1")
    assert await rig.claim_recovered(rule, suspects=not suspect) == []
    [job] = await rig.claim_recovered(rule, suspects=suspect)
    assert (job.id, job.recoveries, job.status) == (job_id, deaths, Status.PICKED)
    recovery = await rig.recover(rule, worker="w1")
    assert bool(recovery.retired) is suspect


async def test_a_recovered_job_that_is_retried_is_claimed_as_recovered_again(rig: Rig) -> None:
    await dead(rig, NewJob("mail"))
    [job] = await rig.claim_recovered()
    await rig.settle(Verb.RETRY, job, error="no", delay=SECOND)
    assert await rig.claim_any() == []
    rig.clock.advance(SECOND)
    assert await rig.claim() == []
    assert ids(await rig.claim_recovered()) == [job.id]


async def test_priority_first_then_the_order_of_the_queue(rig: Rig) -> None:
    first, second, urgent = await dead(
        rig, NewJob("mail"), NewJob("mail"), NewJob("mail", priority=5)
    )
    assert ids(await rig.claim_recovered(limit=2)) == [urgent, first]
    assert ids(await rig.claim_recovered(limit=2)) == [second]


async def test_entrypoints_get_a_fair_share(rig: Rig) -> None:
    await dead(rig, *[NewJob("mail")] * 20, *[NewJob("sms")] * 20)
    jobs = await rig.claim_recovered(WANT, ClaimRule("sms", LEASE), limit=10)
    assert sorted(job.entrypoint for job in jobs) == ["mail"] * 5 + ["sms"] * 5


async def test_a_fleet_wide_limit_holds_across_both_claims(rig: Rig) -> None:
    await dead(rig, *[NewJob("mail")] * 3)
    await rig.enqueue(*[NewJob("mail")] * 3)
    limited = ClaimRule("mail", LEASE, concurrency_limit=2)
    assert len(await rig.claim(limited, limit=1)) == 1
    assert len(await rig.claim_recovered(limited)) == 1
    assert await rig.claim_recovered(limited) == []
    assert await rig.claim(limited) == []


async def test_without_attempts_left_it_is_retired_instead(rig: Rig) -> None:
    job = await rig.lease()
    await rig.settle(Verb.RETRY, job, error="no")
    await rig.claim()
    await rig.recover(worker="w1")
    spent = ClaimRule("mail", LEASE, max_attempts=1)
    assert [found.status for found in await rig.claim_recovered(spent)] == [Status.FAILED]
    assert (await rig.last_entry(job.id)).reason == "max_attempts"


async def test_what_waits_is_told_by_kind_and_time(rig: Rig) -> None:
    leases = rig.store.leases
    await rig.add()
    assert await leases.recovered_waiting([WANT]) == RecoveredWaiting()
    await dead(rig, NewJob("mail"), NewJob("mail"))
    found = await leases.recovered_waiting([WANT])
    assert (found.recovered, found.suspects, found.suspects_leased) == (NOW, None, 0)
    assert await leases.recovered_waiting([ClaimRule("sms", LEASE)]) == RecoveredWaiting()
    for job in await rig.claim_recovered():
        await rig.settle(Verb.RETRY, job, error="no", delay=7 * SECOND)
    rig.clock.advance(SECOND)
    found = await leases.recovered_waiting([WANT])
    assert (found.recovered, found.suspects) == (6 * SECOND, None)
    low = ClaimRule("mail", LEASE, max_recoveries=2)
    found = await leases.recovered_waiting([low])
    assert (found.recovered, found.suspects, found.suspects_leased) == (None, 6 * SECOND, 0)
    rig.clock.advance(6 * SECOND)
    await rig.claim_recovered(low, limit=1, suspects=True)
    found = await leases.recovered_waiting([low])
    assert (found.recovered, found.suspects, found.suspects_leased) == (None, NOW, 1)


async def test_a_requeued_job_is_claimed_with_the_others_again(rig: Rig) -> None:
    [job_id] = await dead(rig, NewJob("mail", max_recoveries=2))
    await rig.claim_recovered(suspects=True)
    assert (await rig.recover(worker="w1")).retired == (job_id,)
    assert await rig.claim_any() == []
    await rig.queries.requeue_jobs([job_id])
    assert ids(await rig.claim()) == [job_id]
