"""What a worker recovers, and when it takes silence for an outage."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.models import ClaimRule
from holdfast.worker.leases import Contact
from tests.worker.workers import Watch, working

if TYPE_CHECKING:
    import pytest

    from holdfast import Holdfast, Job


async def test_an_idle_worker_with_a_short_lease_sees_no_outage(hf: Holdfast) -> None:
    """It hears of the database by its sweeps alone, which are farther apart than its lease."""

    @hf.entrypoint("brief", retry_timer=timedelta(seconds=0.3))
    async def brief(job: Job) -> None: ...

    await hf.queries.enqueue("brief")
    lease = timedelta(seconds=0.1)
    [lost] = await hf.store.leases.claim([ClaimRule("brief", lease)], limit=1, worker="dead")
    watch = Watch(hf)
    async with working(hf, heartbeat_timeout=timedelta(seconds=3)):
        [(job, _, _)] = await watch.until_settled()
    assert (job.id, job.recoveries) == (lost.id, 1)


def test_contact_begins_anew_after_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("holdfast.worker.leases.monotonic", lambda: now)
    contact = Contact(longest_gap=5.0)
    now += 5.0
    contact.made()
    assert contact.seconds is None
    now += 5.1
    assert contact.seconds == 0.0
    contact.made()
    now += 3.0
    contact.made()
    assert contact.seconds == 3.0
