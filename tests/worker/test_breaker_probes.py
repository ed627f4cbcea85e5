"""After the cooldown: how many jobs may try the dependency, and what their outcomes do."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from holdfast import Holdfast, Job, Status
from tests.worker.breakers import (
    CLOSED,
    HALF_OPEN,
    HOUR,
    OPEN,
    QUICK,
    SOON,
    Dependency,
    breaker_of,
    look_around,
    open_and_cooled,
    policy,
    serve_others,
    until_breaker,
)
from tests.worker.workers import Gauge, Watch, ends, eventually, the_row, working

if TYPE_CHECKING:
    from tests.worker.conftest import NewWorker


async def test_after_the_cooldown_a_probe_closes_the_breaker_and_all_work_goes_on(
    hf: Holdfast,
) -> None:
    dependency = Dependency()
    hf.entrypoint("pay", breaker=QUICK)(dependency)
    await hf.queries.enqueue(["pay"] * 10)
    watch = Watch(hf)
    # Only the worker itself knows when the cooldown ends.
    async with working(hf, concurrency=1, dequeue_timeout=timedelta(minutes=5)):
        await until_breaker(hf, generation=1)
        dependency.up = True
        await watch.until_settled(10)
        await until_breaker(hf, CLOSED)
    assert dependency.calls == 10


async def test_a_probe_that_fails_opens_the_breaker_for_twice_as_long(hf: Holdfast) -> None:
    dependency = Dependency()
    hf.entrypoint("pay", breaker=policy(cooldown=SOON))(dependency)
    await hf.queries.enqueue(["pay"] * 10)
    async with working(hf, concurrency=5):
        await until_breaker(hf, OPEN, generation=3)
    breaker = await breaker_of(hf)
    probes = (breaker.generation - 1) // 2
    assert breaker.cooldown == SOON * 2**probes
    assert dependency.calls <= 2 + 5 + probes


async def test_no_more_probes_run_at_once_than_permitted(new_worker: NewWorker) -> None:
    workers = [new_worker(), new_worker()]
    two = policy(cooldown=SOON, probes=2)
    gauge, release = Gauge(), asyncio.Event()
    for hf in workers:

        @hf.entrypoint("pay", breaker=two)
        async def pay(job: Job) -> None:
            with gauge:
                await release.wait()

        serve_others(hf)
    await open_and_cooled(hf, two)
    ids = await hf.queries.enqueue(["pay"] * 10)
    watch = Watch(*workers)
    async with working(workers[0], concurrency=10), working(workers[1], concurrency=10):

        async def probing() -> bool:
            return gauge.now == 2

        await eventually(probing)
        await look_around(hf, watch)
        assert len((await breaker_of(hf)).probes) == 2
        assert gauge.most == 2
        release.set()
        await watch.until(lambda: gauge.total == 10)
        await until_breaker(hf, CLOSED)

        async def all_gone() -> bool:
            return not await hf.queries.get_jobs(ids)

        await eventually(all_gone)


async def test_a_probe_does_not_wait_for_another_while_there_are_permits(hf: Holdfast) -> None:
    two = policy(cooldown=SOON, probe_lease=HOUR, probes=2)
    gauge, release = Gauge(), asyncio.Event()

    @hf.entrypoint("pay", breaker=two)
    async def pay(job: Job) -> None:
        with gauge:
            await release.wait()

    async def probing(count: int) -> bool:
        return gauge.now == count

    await open_and_cooled(hf, two)
    async with working(hf):
        for count in (1, 2):
            await hf.queries.enqueue("pay")
            await eventually(partial(probing, count))
        assert (await breaker_of(hf)).state is HALF_OPEN
        release.set()
        await until_breaker(hf, CLOSED)


async def test_the_probe_of_a_worker_that_died_expires(hf: Holdfast) -> None:
    mortal = policy(cooldown=SOON, probe_lease=2 * SOON)
    dependency = Dependency()
    dependency.up = True
    hf.entrypoint("pay", breaker=mortal)(dependency)
    await open_and_cooled(hf, mortal)
    taken = (await hf.store.breakers.admit([mortal], 1))["stripe"]
    assert taken.allowance == 1
    await hf.queries.enqueue("pay")
    watch = Watch(hf)
    async with working(hf):
        [(job, _, _)] = await watch.until_settled()
        await until_breaker(hf, CLOSED)
    assert job.claimed_at is not None
    assert taken.expires is not None
    assert job.claimed_at >= taken.expires


async def test_a_probe_that_says_nothing_makes_room_for_the_next(hf: Holdfast) -> None:
    careful = policy(cooldown=SOON, probe_lease=HOUR, ignore=(ValueError,))
    seen: list[int] = []

    @hf.entrypoint("pay", breaker=careful)
    async def pay(job: Job) -> None:
        seen.append(job.id)
        if len(seen) < 3:
            raise ValueError("an invoice without a total")

    await open_and_cooled(hf, careful)
    ids = await hf.queries.enqueue(["pay"] * 3)
    async with working(hf):
        await until_breaker(hf, CLOSED)
    assert seen == ids


async def test_permits_that_find_no_work_are_given_back(hf: Holdfast) -> None:
    patient = policy(cooldown=SOON, probe_lease=HOUR, probes=5)
    dependency = Dependency()
    dependency.up = True
    hf.entrypoint("pay", breaker=patient)(dependency)
    await open_and_cooled(hf, patient)

    async def returned() -> bool:
        breaker = await breaker_of(hf)
        return breaker.state is HALF_OPEN and breaker.probes == ()

    async with working(hf, dequeue_timeout=timedelta(minutes=5)):
        await eventually(returned)
        await hf.queries.enqueue("pay")
        await until_breaker(hf, CLOSED)
    assert dependency.calls == 1


async def test_a_probe_that_is_released_returns_its_permit(hf: Holdfast) -> None:
    patient = policy(cooldown=SOON, probe_lease=HOUR)
    running = asyncio.Event()

    @hf.entrypoint("pay", breaker=patient)
    async def pay(job: Job) -> None:
        running.set()
        await asyncio.Event().wait()

    await open_and_cooled(hf, patient)
    [job_id] = await hf.queries.enqueue("pay")
    async with working(hf, drain_timeout=timedelta(0)):
        await ends(running.wait())
        assert len((await breaker_of(hf)).probes) == 1
    breaker = await breaker_of(hf)
    assert (breaker.state, breaker.probes) == (HALF_OPEN, ())
    assert (await the_row(hf, job_id)).status is Status.QUEUED
