"""A worker relies on a lease only as long as it can be sure of it."""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast import Context, Holdfast, InMemoryDriver, Job, Status
from holdfast.clock import monotonic
from holdfast.events import Observers
from holdfast.models import ClaimRule, LeaseKey
from holdfast.settings import WorkerSettings
from holdfast.worker.leases import TRUST, Lease, LeaseSet
from holdfast.worker.renew import Renewer
from holdfast.worker.status import Reporter, WorkerStatus
from holdfast.worker.steps import Steps
from holdfast.worker.upkeep import UpkeepDuty
from tests.faults.proxy import Proxy
from tests.worker.desk import Desk
from tests.worker.workers import (
    ClaimBrake,
    Gauge,
    Watch,
    ending,
    ends,
    eventually,
    the_log,
    the_row,
    working,
)

if TYPE_CHECKING:
    from tests.servers import Database
    from tests.worker.conftest import NewWorker

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


async def test_no_handler_starts_under_a_lease_that_is_too_old(
    pg_hf: Holdfast, witness: Any
) -> None:
    """The claim's answer comes later than the lease would have lasted."""
    tokens: list[object] = []

    @pg_hf.entrypoint("one")
    async def one(job: Job) -> None:
        tokens.append(job.claim_token)

    watch = Watch(pg_hf)
    async with ClaimBrake(witness) as brake, working(pg_hf, heartbeat_timeout=SECOND):
        [job_id] = await pg_hf.queries.enqueue("one")
        await brake.until_braked()
        await asyncio.sleep(1.5 * SECOND.total_seconds())
        await brake.release()
        await watch.until(lambda: len(tokens) > 0 and len(watch.claims) > 1)

    first, *_, last = watch.claims
    [late], [fresh] = first.jobs, last.jobs
    assert late.claim_token != fresh.claim_token
    assert tokens == [fresh.claim_token]
    # Released, or found stale by a sweep that was faster.
    assert [entry.status for entry in await the_log(pg_hf, job_id)] == ["queued", "successful"]


class Tied:
    """A handler that runs until its lease is in doubt, and asks the database when that was."""

    def __init__(self, hf: Holdfast, witness: Any) -> None:
        self.gauge = Gauge()
        self.started = asyncio.Event()
        self.stopped_in_time: bool | None = None
        self.release = asyncio.Event()
        self.context: Context | None = None

        @hf.entrypoint("tied")
        async def tied(job: Job, context: Context) -> None:
            self.context = context
            with self.gauge:
                self.started.set()
                try:
                    await self.release.wait()
                except asyncio.CancelledError:
                    self.stopped_in_time = await witness.fetchval(
                        "select clock_timestamp() < heartbeat + lease from holdfast where id = $1",
                        job.id,
                    )
                    raise


async def test_a_handler_is_stopped_before_a_lease_ends_that_cannot_be_renewed(
    pg18: Database, witness: Any
) -> None:
    async with Proxy(pg18.dsn) as proxy, Holdfast.connect(proxy.dsn) as hf:
        await hf.install()
        handler, watch = Tied(hf, witness), Watch(hf)
        async with working(hf, heartbeat_timeout=8 * SECOND):
            [job_id] = await hf.queries.enqueue("tied")
            await ends(handler.started.wait())
            await proxy.swallow("renew")
            await watch.until_settled()
            assert handler.stopped_in_time is True
            assert handler.context is not None
            assert handler.context.lease_lost
            await proxy.flow()
            handler.release.set()
            await watch.until_settled(2)

        log = await the_log(hf, job_id)
        assert [entry.status for entry in log] == ["queued", "successful"]
        assert (log[0].reason, log[1].recoveries) == ("lease could not be renewed", 0)


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_renewal_that_hangs_does_not_put_off_the_end_of_trust() -> None:
    """A server refuses at first, then takes connections and says nothing, as when it starts."""
    hf, lease_time = Holdfast(InMemoryDriver()), timedelta(seconds=30)

    @hf.entrypoint("one")
    async def one(job: Job) -> None: ...

    await hf.queries.enqueue("one")
    [job] = await hf.store.leases.claim([ClaimRule("one", lease_time)], limit=1, worker="me")
    assert job.claim_token is not None
    entrypoint = hf.queue_manager._registry.get("one")
    assert entrypoint is not None
    soon = monotonic() + 0.1
    lease = Lease(job, LeaseKey(job.id, job.claim_token), entrypoint, 30.0, trusted_until=soon)
    lease.task = handler = asyncio.create_task(forever())
    lease_set = LeaseSet()
    lease_set.add([lease])
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        dsn = f"postgresql://me@127.0.0.1:{server.getsockname()[1]}/nowhere"
        asyncio.get_running_loop().call_later(0.05, server.listen)
        async with Holdfast.connect(dsn) as away:
            renewer = Renewer(
                lease_set,
                shortest=lease_time.total_seconds(),
                reporter=Reporter(WorkerStatus("me"), ["one"], WorkerSettings(), Desk().dispatcher),
                duty=UpkeepDuty(None, lease_set, WorkerSettings(), "me"),
                steps=Steps(Observers(), "me"),
            )
            renewing = asyncio.create_task(renewer.keep(away.sources))
            # Until the lease ends; that renewal takes longer.
            async with asyncio.timeout(lease_time.total_seconds() * (1 - TRUST)):
                await asyncio.wait([handler])
            assert handler.cancelled()
            renewing.cancel()
            await asyncio.wait([renewing])


async def test_renewal_goes_on_over_a_new_connection_when_the_old_one_stays_silent(
    pg18: Database, witness: Any
) -> None:
    async with Proxy(pg18.dsn) as proxy, Holdfast.connect(proxy.dsn) as hf:
        await hf.install()
        handler, watch = Tied(hf, witness), Watch(hf)
        async with working(hf, heartbeat_timeout=2 * SECOND):
            [job_id] = await hf.queries.enqueue("tied")
            await ends(handler.started.wait())
            await proxy.strand("renew")

            async def renewed_after_that() -> bool:
                job = await the_row(hf, job_id)
                return (
                    job.heartbeat is not None
                    and job.claimed_at is not None
                    and job.heartbeat > job.claimed_at + 3 * SECOND
                )

            await eventually(renewed_after_that)
            handler.release.set()
            await watch.until_settled()

        assert handler.gauge.total == 1
        assert (await ending(hf, job_id)).status == Status.SUCCESSFUL


async def test_an_outcome_whose_answer_was_lost_is_asked_for_again_and_written_once(
    pg18: Database,
) -> None:
    async with Proxy(pg18.dsn) as proxy, Holdfast.connect(proxy.dsn, timeout=2) as hf:
        await hf.install()
        release = asyncio.Event()

        @hf.entrypoint("one")
        async def one(job: Job) -> None:
            if job.payload == b"second":
                await release.wait()

        watch = Watch(hf)
        # By one claim, after whose first job the connection knows the statement and is idle.
        _, job_id = await hf.queries.enqueue(["one", "one"], [b"first", b"second"])
        async with working(hf, connections=7):
            await watch.until_settled()
            await proxy.hold_replies("settle")
            release.set()

            async def gone() -> bool:
                return await hf.queries.get_jobs([job_id]) == []

            await eventually(gone)
            await proxy.flow()
            await watch.until(lambda: len(watch.settled) + len(watch.lost) == 2)

        assert (await ending(hf, job_id)).status == Status.SUCCESSFUL


async def test_a_lease_whose_outcome_cannot_be_written_is_given_up(
    pg18: Database, new_pg_worker: NewWorker
) -> None:
    """Renewing it for ever would hide the job: another worker must be able to recover it."""
    other = new_pg_worker()
    ran: list[str] = []

    async with Proxy(pg18.dsn) as proxy, Holdfast.connect(proxy.dsn, timeout=0.3) as stuck:
        for name, hf in (("stuck", stuck), ("other", other)):

            async def one(job: Job, name: str = name) -> None:
                ran.append(name)
                if name == "stuck":
                    await proxy.swallow("settle")

            hf.entrypoint("one", accepts_context=False)(one)

        watch = Watch(other)
        async with working(
            stuck, heartbeat_timeout=SECOND, drain_timeout=timedelta(0), connections=7
        ):
            [job_id] = await stuck.queries.enqueue("one")

            async def ran_once() -> bool:
                return ran == ["stuck"]

            await eventually(ran_once)
            # Its own sweep leaves to it what it may still record.
            async with working(other, heartbeat_timeout=SECOND):
                await watch.until_settled()
            await proxy.flow()

        log = await the_log(other, job_id)
        assert ran == ["stuck", "other"]
        assert [entry.status for entry in log] == ["queued", "successful"]
        assert log[-1].claimed_by == other.queue_manager.id
        assert log[-1].recoveries == 1
