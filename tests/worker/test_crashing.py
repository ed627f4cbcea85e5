"""An unexpected error in a step of the worker restarts the step, and is not charged to jobs."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
from collections import Counter
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from holdfast import Holdfast, InvalidInput, Job, RetryRequested, Status
from holdfast.telemetry import gauges
from holdfast.telemetry.otel import OpenTelemetry
from holdfast.telemetry.prometheus import Metrics, render
from holdfast.worker import status, steps, write
from holdfast.worker.canceled import Cancellations
from holdfast.worker.claim import Claimer
from holdfast.worker.listen import Listener
from holdfast.worker.renew import Renewer
from holdfast.worker.settle import Settler
from holdfast.worker.slots import Slots
from holdfast.worker.sweep import CleanUp, Housekeeper, Sweeper
from holdfast.worker.work_signal import WorkSignal
from tests.worker.workers import Watch, ending, ends, eventually, the_row, working

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.worker.leases import Lease


class Broken(Exception):
    pass


def breaking(when: asyncio.Event) -> Callable[..., Any]:
    async def run(*_: object) -> None:
        await when.wait()
        raise Broken

    return run


def breaking_once(part: type, method: str, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Make the next call of a part's method raise. The event says that it has."""
    original, broken = getattr(part, method), asyncio.Event()

    async def instead(self: Any, *arguments: Any) -> Any:
        if broken.is_set():
            return await original(self, *arguments)
        broken.set()
        raise Broken

    monkeypatch.setattr(part, method, instead)
    return broken


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step may fail for a moment only."""
    monkeypatch.setattr(steps, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(steps, "LONGEST_PAUSE_SECONDS", 0.1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("part", [Claimer, Settler, Renewer])
async def test_a_vital_step_that_fails_without_end_ends_the_run_and_releases_its_jobs(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, part: type
) -> None:
    crash, started, stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @hf.entrypoint("endless")
    async def endless(job: Job) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    if part is Settler:
        monkeypatch.setattr(part, "_woken", breaking(crash))
    run = asyncio.create_task(hf.run(heartbeat_timeout=timedelta(seconds=1)))
    [job_id] = await hf.queries.enqueue("endless")
    await ends(started.wait())
    if part is Claimer:
        monkeypatch.setattr(part, "_wait", breaking(crash))
        monkeypatch.setattr(part, "_claim", breaking(crash))
        await hf.queries.enqueue("endless")
    if part is Renewer:

        async def broken(*_: object) -> None:
            raise Broken

        monkeypatch.setattr(part, "_renew", broken)
    crash.set()
    with pytest.raises(Broken):
        await ends(run)

    assert stopped.is_set()
    assert hf.queue_manager.state == "stopped"
    assert sum(hf.queue_manager.step_failures.values()) >= steps.MOST_IN_A_ROW
    job = await the_row(hf, job_id)
    assert (job.status, job.recoveries) == (Status.QUEUED, 0)


@pytest.mark.parametrize(
    ("part", "method", "step"),
    [
        (Claimer, "_claim", "claim"),
        (Settler, "_write", "settle"),
        (Renewer, "_renew_all", "renew"),
        (Renewer, "_watch", "distrust"),
        (Sweeper, "sweep", "sweep"),
        (Housekeeper, "run", "housekeep"),
        (CleanUp, "run", "clean_up"),
        (Cancellations, "run", "cancel"),
        (Listener, "run", "listen"),
    ],
)
async def test_a_step_that_fails_once_is_restarted_and_its_jobs_are_kept(
    hf: Holdfast,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: type,
    method: str,
    step: str,
) -> None:
    runs: Counter[int] = Counter()
    started, finish = asyncio.Event(), asyncio.Event()
    metrics = Metrics(["steady", "quick"], lambda: 0)
    hf.observe(metrics)

    @hf.entrypoint("steady")
    async def steady(job: Job) -> None:
        runs[job.id] += 1
        started.set()
        await finish.wait()

    @hf.entrypoint("quick")
    async def quick(job: Job) -> None:
        runs[job.id] += 1

    watch = Watch(hf)
    broken = breaking_once(part, method, monkeypatch)
    async with working(hf, heartbeat_timeout=timedelta(seconds=1)):
        ids = await hf.queries.enqueue(["steady", "quick"])
        await ends(broken.wait())
        await ends(started.wait())
        await watch.until_settled(1)
        finish.set()
        await watch.until_settled(2)

    assert hf.queue_manager.step_failures == {step: 1}
    assert f'holdfast_worker_errors_total{{step="{step}"}} 1' in render(metrics.samples())
    assert "Broken" in caplog.text
    assert runs == dict.fromkeys(ids, 1)
    for job_id in ids:
        entry = await ending(hf, job_id)
        assert (entry.status, entry.recoveries) == (Status.SUCCESSFUL, 0)


@pytest.mark.usefixtures("impatient")
async def test_a_step_that_is_not_vital_never_ends_the_worker(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = asyncio.Event()
    crash.set()
    monkeypatch.setattr(Housekeeper, "run", breaking(crash))
    watch = Watch(hf)

    @hf.entrypoint("one")
    async def one(job: Job) -> None: ...

    async def failed_often() -> bool:
        return hf.queue_manager.step_failures.get("housekeep", 0) > 2 * steps.MOST_IN_A_ROW

    async with working(hf):
        await eventually(failed_often)
        await hf.queries.enqueue("one")
        await watch.until_settled()


async def test_an_outcome_that_cannot_be_written_is_held_and_the_others_are_written(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = write._move

    async def change(table: Any, transition: Any, endings: Any, changes: Any = None) -> Any:
        if transition.name == "complete" and any(end[0].job.payload == b"bad" for end in endings):
            raise Broken
        return await original(table, transition, endings, changes)

    monkeypatch.setattr(write, "_move", change)
    watch = Watch(hf)

    @hf.entrypoint("one")
    async def one(job: Job) -> None: ...

    ids = await hf.queries.enqueue(["one"] * 5, [b"", b"", b"bad", b"", b""])
    async with working(hf):
        await watch.until_settled(5)

    bad = ids.pop(2)
    job = await the_row(hf, bad)
    assert (job.status, job.last_error) == (Status.FAILED, "outcome could not be stored")
    for job_id in ids:
        assert (await ending(hf, job_id)).status == Status.SUCCESSFUL


async def test_an_error_after_the_outcomes_are_written_does_not_stop_the_claims(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, failures = WorkSignal.set_in, 0

    def set_in(self: WorkSignal, delay: timedelta) -> None:
        nonlocal failures
        original(self, delay)
        failures += 1
        raise Broken

    monkeypatch.setattr(WorkSignal, "set_in", set_in)
    ran: Counter[int] = Counter()
    everything = asyncio.Event()

    @hf.entrypoint("again")
    async def again(job: Job) -> None:
        ran[job.id] += 1
        if job.attempts < 2:
            raise RetryRequested
        if ran.total() == 9:
            everything.set()

    ids = await hf.queries.enqueue(["again"] * 3)
    async with working(hf):
        await ends(everything.wait())

    assert ran == dict.fromkeys(ids, 3)
    assert hf.queue_manager.step_failures == {"settle": failures}


async def test_a_heartbeat_that_fails_does_not_cost_the_leases(
    pg_hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, finish, failures = asyncio.Event(), asyncio.Event(), 0

    def no_metadata(name: str) -> str:
        raise FileNotFoundError(name)

    def no_descriptors() -> None:
        nonlocal failures
        failures += 1
        raise OSError(24, "Too many open files")

    @pg_hf.entrypoint("long")
    async def long(job: Job) -> None:
        started.set()
        await finish.wait()

    async def outlived_its_lease() -> bool:
        job = await the_row(pg_hf, job_id)
        assert job.heartbeat is not None
        assert job.claimed_at is not None
        return job.heartbeat > job.claimed_at + timedelta(seconds=2)

    [job_id] = await pg_hf.queries.enqueue("long")
    async with working(pg_hf, heartbeat_timeout=timedelta(seconds=1)):
        await ends(started.wait())
        # Read once: the package may be replaced beside a running worker.
        monkeypatch.setattr(status, "version", no_metadata)
        assert status._version()
        monkeypatch.setattr(platform, "node", no_descriptors)
        await eventually(outlived_its_lease)
        finish.set()

    entry = await ending(pg_hf, job_id)
    assert (entry.status, entry.recoveries) == (Status.SUCCESSFUL, 0)
    assert failures > 1
    assert pg_hf.queue_manager.step_failures["heartbeat"] >= failures - 1


async def test_a_worker_without_descriptors_renews_over_the_connection_it_has(
    pg_hf: Holdfast,
) -> None:
    """A handler takes them all before the connection of the renewals is opened."""
    lease = timedelta(seconds=0.6)

    @pg_hf.entrypoint("greedy")
    async def greedy(job: Job) -> None:
        with without_descriptors():
            await asyncio.sleep(3 * lease.total_seconds())

    [job_id] = await pg_hf.queries.enqueue("greedy")
    async with working(pg_hf, heartbeat_timeout=lease):

        async def ended() -> bool:
            return not await pg_hf.queries.queue_size()

        await eventually(ended)

    [entry] = await pg_hf.queries.job_history(job_id)
    assert (entry.status, entry.recoveries) == (Status.SUCCESSFUL, 0)


@contextmanager
def without_descriptors() -> Iterator[None]:
    """Nothing can be opened in this process, but what is open works."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_lease_without_a_handler_is_released_with_an_error(
    hf: Holdfast,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever loses it between claim and start: it must not be renewed for ever."""
    original, lost = Slots.add, False

    def lose(self: Slots, leases: list[Lease], until: float) -> Any:
        nonlocal lost
        if leases and not lost:
            lost = True
            raise Broken
        return original(self, leases, until)

    monkeypatch.setattr(Slots, "add", lose)
    watch, ran = Watch(hf), asyncio.Event()

    @hf.entrypoint("one", concurrency_limit=0)
    async def one(job: Job) -> None:
        ran.set()

    [job_id] = await hf.queries.enqueue("one")
    async with working(hf, heartbeat_timeout=timedelta(seconds=1), concurrency=1):
        await watch.until_settled(2)
        assert hf.queue_manager.running == 0

    assert ran.is_set()
    assert f"jobs ['{job_id}'] are leased but neither wait, run nor are settled" in caplog.text
    released, done = await hf.queries.job_history(job_id)
    assert (released.status, done.status) == (Status.QUEUED, Status.SUCCESSFUL)
    assert done.recoveries == 0


async def test_a_worker_without_handlers_is_refused(hf: Holdfast) -> None:
    with pytest.raises(InvalidInput, match="no entrypoint is registered"):
        await hf.run()


async def test_an_observer_that_raises_does_not_disturb_the_work(hf: Holdfast) -> None:
    @hf.entrypoint("one")
    async def one(job: Job) -> None:
        await asyncio.sleep(0)

    class Grumpy:
        def notify(self, event: object) -> None:
            raise Broken

    hf.observe(Grumpy())
    await hf.queries.enqueue(["one"] * 3)
    await ends(hf.run(mode="drain"))

    async def done() -> bool:
        return await hf.queries.queue_size() == []

    await eventually(done)


class Unsteady(OpenTelemetry):
    """Its gauges cannot be set the first time."""

    def __init__(self) -> None:
        super().__init__(meter_provider=MeterProvider([InMemoryMetricReader()]))
        self.again = asyncio.Event()
        self._looks = 0

    def gauge(self, *found: Any) -> None:
        self._looks += 1
        if self._looks == 1:
            raise Broken
        super().gauge(*found)
        self.again.set()


async def test_gauges_that_fail_once_are_set_again_and_do_not_fail_the_run(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gauges, "_FIRST", 0.0)
    monkeypatch.setattr(gauges, "INTERVAL", 0.05)
    monkeypatch.setattr(gauges, "pause", lambda _: 0.05)
    telemetry = Unsteady()
    hf.instrument(telemetry)

    @hf.entrypoint("one")
    async def one(job: Job) -> None: ...

    async with working(hf):
        await ends(telemetry.again.wait())
    [record] = [record for record in caplog.records if record.name == "holdfast.telemetry"]
    assert "the gauges" in record.message
    assert record.exc_info is not None
