"""Keeping a lease, and learning that it is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from holdfast.lifecycle import Verb
from holdfast.models import LeaseKey, NewJob, Recovery
from tests.conformance.stores import INSTANT, LEASE, SECOND, holding

if TYPE_CHECKING:
    from tests.conformance.stores import QueueUnderTest


async def test_renewing_moves_the_heartbeat_and_nothing_else(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    queue.clock.advance(SECOND)
    assert await queue.store.leases.renew([holding(job)]) == {holding(job)}
    assert await queue.row(job.id) == job._replace(heartbeat=queue.clock.now())
    assert (await queue.rows()).log == []


async def test_each_lease_of_a_batch_is_judged_by_itself(queue: QueueUnderTest) -> None:
    await queue.enqueue(*[NewJob("mail")] * 4)
    kept, settled, cancelled, recovered = await queue.claim()
    await queue.settle(Verb.COMPLETE, settled)
    await queue.cancel(cancelled.id)
    queue.clock.advance(LEASE)
    assert await queue.store.leases.renew([holding(kept)]) == {holding(kept)}
    assert (await queue.recover()).recovered == (recovered.id,)
    leases = [holding(job) for job in (recovered, cancelled, settled, kept)]
    assert await queue.store.leases.renew([*leases, LeaseKey(kept.id, uuid4())]) == {holding(kept)}


async def test_of_two_leases_on_one_job_only_the_second_is_kept(queue: QueueUnderTest) -> None:
    first = await queue.lease()
    queue.clock.advance(LEASE)
    await queue.recover()
    [second] = await queue.claim_recovered()
    both = [holding(second), holding(first), holding(second)]
    assert await queue.store.leases.renew(both) == {holding(second)}


async def test_an_expired_lease_that_was_not_recovered_can_be_renewed(
    queue: QueueUnderTest,
) -> None:
    job = await queue.lease()
    queue.clock.advance(3 * LEASE)
    assert await queue.store.leases.renew([holding(job)]) == {holding(job)}
    assert await queue.recover() == Recovery()


async def test_a_renewed_lease_lasts_for_its_full_length(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    queue.clock.advance(LEASE - INSTANT)
    await queue.store.leases.renew([holding(job)])
    queue.clock.advance(LEASE - INSTANT)
    assert await queue.recover() == Recovery()
    queue.clock.advance(INSTANT)
    assert (await queue.recover()).recovered == (job.id,)


@pytest.mark.parametrize("number", [0, 1, 300])
async def test_any_number_of_leases_is_renewed_at_once(queue: QueueUnderTest, number: int) -> None:
    await queue.enqueue(*[NewJob("mail")] * number)
    leases = {holding(job) for job in await queue.claim(limit=1000)}
    assert len(leases) == number
    assert await queue.store.leases.renew(list(leases)) == leases
