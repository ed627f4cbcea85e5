"""Large payloads are not in the reply to a claim: they are fetched when their jobs are to run."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import psycopg

from holdfast import Holdfast, Job, NewJob, Status
from holdfast.events import Claimed
from holdfast.models import LargePayload
from holdfast.stores.postgres.binding import LARGE_PAYLOAD
from tests.faults.proxy import Proxy
from tests.worker.workers import PATIENCE, Watch, ends, working

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from holdfast.events import Event
    from tests.servers import Database

LARGE = LARGE_PAYLOAD + 1


async def test_handlers_get_payloads_of_every_size(hf: Holdfast) -> None:
    sizes = [0, 1, LARGE_PAYLOAD, LARGE, 1024 * 1024]
    payloads = [os.urandom(size) for size in sizes]
    ran: dict[int, bytes | None] = {}

    @hf.entrypoint("mail")
    async def mail(job: Job) -> None:
        assert type(job.payload) in (bytes, type(None))
        ran[job.id] = job.payload

    jobs = [NewJob("mail", payload) for payload in (None, *payloads)]
    ids = await hf.queries.enqueue_many(jobs)
    await ends(hf.run(mode="drain"))

    assert ran == dict(zip(ids, [None, *payloads], strict=True))


async def test_a_claim_says_only_the_size_of_a_large_payload(pg_hf: Holdfast) -> None:
    @pg_hf.entrypoint("mail")
    async def mail(job: Job) -> None:
        assert len(job.payload or b"") == LARGE

    watch = Watch(pg_hf)
    await pg_hf.queries.enqueue(["mail"] * 30, [bytes(LARGE)] * 30)
    await ends(pg_hf.run(mode="drain"))

    claimed = [job.payload for claim in watch.claims for job in claim.jobs]
    assert [type(payload) for payload in claimed] == [LargePayload] * 30
    assert {payload.size for payload in claimed if isinstance(payload, LargePayload)} == {LARGE}
    assert len(watch.settled) == 30


class AtClaim:
    """Does something after a claim, before its jobs start."""

    def __init__(self, worker: Holdfast, act: Callable[[], object]) -> None:
        self._act = act
        worker.observe(self)

    def notify(self, event: Event) -> None:
        if isinstance(event, Claimed) and event.jobs:
            self._act()


async def test_a_job_that_was_taken_away_before_its_payload_came_does_not_run(
    pg_hf: Holdfast, pg18: Database
) -> None:
    ran: list[int] = []

    @pg_hf.entrypoint("mail")
    async def mail(job: Job) -> None:
        ran.append(job.id)

    def take_away() -> None:
        with psycopg.connect(pg18.dsn) as meddler:
            meddler.execute("delete from holdfast")

    watch = Watch(pg_hf)
    AtClaim(pg_hf, take_away)
    async with working(pg_hf, signals=False):
        await pg_hf.queries.enqueue("mail", bytes(LARGE))
        await watch.until(lambda: len(watch.lost) == 1)
    assert ran == []


async def test_a_job_that_waits_for_its_payload_at_a_stop_is_released(pg18: Database) -> None:
    async with Holdfast.connect(pg18.dsn) as near, Proxy(pg18.dsn) as proxy:
        await near.install()
        [job] = await near.queries.enqueue("mail", bytes(LARGE))
        async with Holdfast.connect(proxy.dsn) as far:

            @far.entrypoint("mail")
            async def mail(job: Job) -> None:
                raise AssertionError("its payload cannot have come")

            watch, tasks = Watch(far), set[asyncio.Task[None]]()
            AtClaim(far, lambda: tasks.add(asyncio.create_task(proxy.hold_replies("claim"))))
            # Each purpose has a connection of its own, so outcomes get through.
            run = asyncio.create_task(far.run(signals=False, connections=7))
            await watch.until(lambda: len(watch.claims) == 1)
            far.shutdown.set()
            far.queue_manager.fast_stop.set()
            await ends(run)
            await proxy.flow()
        [found] = await near.queries.get_jobs([job])
    assert (found.status, found.attempts, found.recoveries) == (Status.QUEUED, 0, 0)


async def test_a_payload_that_the_link_does_not_carry_in_time_stops_no_other_job(
    pg18: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Holdfast.connect(pg18.dsn) as near,
        Proxy(pg18.dsn, rate=2e6) as proxy,
        Holdfast.connect(proxy.dsn, timeout=0.4) as far,
    ):
        await near.install()
        done = asyncio.Queue[int]()

        @far.entrypoint("mail")
        async def mail(job: Job) -> None:
            done.put_nowait(len(job.payload or b""))

        async with working(far, signals=False):
            await near.queries.enqueue("mail", bytes(1024 * 1024))
            async with asyncio.timeout(PATIENCE):
                while "no payload can be fetched" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await near.queries.enqueue(["mail"] * 3, [b"small", bytes(LARGE), b"small"])
            sizes = sorted([await ends(done.get()) for _ in range(3)])
            assert sizes == [5, 5, LARGE]
            proxy.rate = 0.0
            assert await ends(done.get()) == 1024 * 1024
