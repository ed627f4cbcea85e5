"""What is counted, summed and printed for Prometheus; and when a worker counts as alive."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast import Holdfast, WorkerSettings
from holdfast.events import Recovered, Retired
from holdfast.models import JobId
from holdfast.service import probe
from holdfast.service.probe import WorkerProbe
from holdfast.telemetry.prometheus import FAMILIES, Metrics, Sample, cumulative, merge, render

if TYPE_CHECKING:
    import pytest

    from devtools.cluster import Cluster

QUICK = timedelta(milliseconds=50)


def test_label_values_are_escaped() -> None:
    text = render(Metrics(['a"b\\c\nd'], lambda: 0).samples())

    assert r'holdfast_jobs_claimed_total{entrypoint="a\"b\\c\nd"} 0' in text.splitlines()


def test_every_series_belongs_to_a_family_with_help_and_type() -> None:
    lines = render(Metrics(["x"], lambda: 0).samples()).splitlines()

    for family in FAMILIES:
        assert f"# HELP {family.name} {family.help}" in lines
        assert f"# TYPE {family.name} {family.kind}" in lines
    assert len(lines) == len(set(lines))


def test_recovered_and_retired_jobs_are_counted() -> None:
    metrics = Metrics([], lambda: 0)

    metrics.notify(Recovered("w", [JobId(1), JobId(2)], {"mail": 2}))
    metrics.notify(Retired("w", [JobId(3)], "crash_loop", {"mail": 1}))

    lines = render(metrics.samples()).splitlines()
    assert 'holdfast_jobs_recovered_total{entrypoint="mail"} 2' in lines
    assert 'holdfast_jobs_retired_total{entrypoint="mail",reason="crash_loop"} 1' in lines


def test_samples_of_several_workers_are_summed_by_series() -> None:
    first = [Sample("holdfast_running", (), 1), Sample("x_total", (("entrypoint", "a"),), 2)]
    second = [Sample("holdfast_running", (), 2), Sample("x_total", (("entrypoint", "b"),), 3)]

    assert set(merge([first, second])) == {
        Sample("holdfast_running", (), 3),
        Sample("x_total", (("entrypoint", "a"),), 2),
        Sample("x_total", (("entrypoint", "b"),), 3),
    }
    assert cumulative(first) == first[1:]


def test_what_all_workers_see_alike_is_not_added_up() -> None:
    first, second = Metrics([], lambda: 0), Metrics([], lambda: 0)
    first.gauge([("mail", "queued", 7)], {"mail": 1.5}, {"stripe": "open"})
    second.gauge([("mail", "queued", 9)], {"mail": 1.0}, {"stripe": "closed"})

    lines = render(merge([first.samples(), second.samples()])).splitlines()

    assert 'holdfast_queue_depth{entrypoint="mail",status="queued"} 9' in lines
    assert 'holdfast_queue_oldest_age_seconds{entrypoint="mail"} 1.5' in lines
    assert 'holdfast_breaker_state{breaker="stripe"} 2' in lines


async def test_outcomes_and_durations_of_real_jobs_are_counted() -> None:
    holdfast = Holdfast.in_memory()

    @holdfast.entrypoint("fine")
    async def fine(job: object) -> None:
        pass

    @holdfast.entrypoint("held", on_failure="hold")
    async def held(job: object) -> None:
        raise ValueError

    metrics = Metrics(["fine", "held"], lambda: holdfast.queue_manager.running)
    holdfast.observe(metrics)
    await holdfast.queries.enqueue(["fine", "fine", "held"], [None] * 3, [0] * 3)
    await holdfast.run(mode="drain")

    lines = render(metrics.samples()).splitlines()
    assert 'holdfast_jobs_succeeded_total{entrypoint="fine"} 2' in lines
    assert 'holdfast_jobs_held_total{entrypoint="held"} 1' in lines
    assert 'holdfast_job_duration_seconds_bucket{entrypoint="fine",le="+Inf"} 2' in lines
    assert 'holdfast_job_duration_seconds_count{entrypoint="held"} 1' in lines


async def test_a_worker_whose_slots_are_all_taken_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_LIVE_SECONDS", 0.0)
    settings = WorkerSettings(concurrency=1, dequeue_timeout=QUICK)
    holdfast = Holdfast.in_memory()
    running, finish = asyncio.Event(), asyncio.Event()

    @holdfast.entrypoint("long")
    async def long(job: object) -> None:
        running.set()
        await finish.wait()

    worker = WorkerProbe(holdfast, settings)
    await holdfast.queries.enqueue("long")
    work = asyncio.create_task(
        holdfast.run(concurrency=1, dequeue_timeout=settings.dequeue_timeout, signals=False)
    )
    await running.wait()
    silent_for_long = 4 * QUICK.total_seconds()
    await asyncio.sleep(silent_for_long)

    assert worker.manager.seconds_since_claim > 3 * QUICK.total_seconds()
    assert await worker.live() is None
    holdfast.shutdown.set()
    finish.set()
    await work


async def until_live(worker: WorkerProbe, wanted: bool) -> None:
    async with asyncio.timeout(30):
        while (await worker.live() is None) is not wanted:  # noqa: ASYNC110 - asked, as by HTTP
            await asyncio.sleep(0.05)


async def test_a_worker_whose_claims_are_not_answered_is_not_alive(
    monkeypatch: pytest.MonkeyPatch, controlled_server: Cluster
) -> None:
    monkeypatch.setattr(probe, "_LIVE_SECONDS", 0.5)
    settings = WorkerSettings(dequeue_timeout=QUICK)
    async with Holdfast.connect(controlled_server.dsn) as holdfast:
        await holdfast.install()
        works = asyncio.Event()

        @holdfast.entrypoint("any")
        async def handle(job: object) -> None:
            works.set()

        worker = WorkerProbe(holdfast, settings)
        work = asyncio.create_task(holdfast.run(dequeue_timeout=QUICK, signals=False))
        # One that has yet to start is taken for alive, but does not outlive its database.
        await holdfast.queries.enqueue("any")
        await works.wait()
        await until_live(worker, True)

        await asyncio.to_thread(controlled_server.stop)
        await until_live(worker, False)

        await asyncio.to_thread(controlled_server.start)
        await until_live(worker, True)
        holdfast.shutdown.set()
        await work
