"""Keeping a lease, and learning that it is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from holdfast.lifecycle import Verb
from holdfast.models import LeaseKey, NewJob, Recovery
from tests.conformance.stores import INSTANT, LEASE, SECOND, holding

if TYPE_CHECKING:
    from tests.conformance.stores import Rig


async def test_renewing_moves_the_heartbeat_and_nothing_else(rig: Rig) -> None:
    job = await rig.lease()
    rig.clock.advance(SECOND)
    assert await rig.store.leases.renew([holding(job)]) == {holding(job)}
    assert await rig.row(job.id) == job._replace(heartbeat=rig.clock.now())
    assert (await rig.rows()).log == []


async def test_each_lease_of_a_batch_is_judged_by_itself(rig: Rig) -> None:
    await rig.enqueue(*[NewJob("mail")] * 4)
    kept, settled, cancelled, recovered = await rig.claim()
    await rig.settle(Verb.COMPLETE, settled)
    await rig.cancel(cancelled.id)
    rig.clock.advance(LEASE)
    assert await rig.store.leases.renew([holding(kept)]) == {holding(kept)}
    assert (await rig.recover()).recovered == (recovered.id,)
    leases = [holding(job) for job in (recovered, cancelled, settled, kept)]
    assert await rig.store.leases.renew([*leases, LeaseKey(kept.id, uuid4())]) == {holding(kept)}


async def test_of_two_leases_on_one_job_only_the_second_is_kept(rig: Rig) -> None:
    first = await rig.lease()
    rig.clock.advance(LEASE)
    await rig.recover()
    [second] = await rig.claim_recovered()
    both = [holding(second), holding(first), holding(second)]
    assert await rig.store.leases.renew(both) == {holding(second)}


async def test_a_lease_that_nobody_took_back_can_be_renewed_late(rig: Rig) -> None:
    job = await rig.lease()
    rig.clock.advance(3 * LEASE)
    assert await rig.store.leases.renew([holding(job)]) == {holding(job)}
    assert await rig.recover() == Recovery()


async def test_a_renewed_lease_lasts_for_its_full_length(rig: Rig) -> None:
    job = await rig.lease()
    rig.clock.advance(LEASE - INSTANT)
    await rig.store.leases.renew([holding(job)])
    rig.clock.advance(LEASE - INSTANT)
    assert await rig.recover() == Recovery()
    rig.clock.advance(INSTANT)
    assert (await rig.recover()).recovered == (job.id,)


@pytest.mark.parametrize("number", [0, 1, 300])
async def test_any_number_of_leases_is_renewed_at_once(rig: Rig, number: int) -> None:
    await rig.enqueue(*[NewJob("mail")] * number)
    leases = {holding(job) for job in await rig.claim(limit=1000)}
    assert len(leases) == number
    assert await rig.store.leases.renew(list(leases)) == leases
