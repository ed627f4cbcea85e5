"""A written number of retries counts, and a cap that ends a job says which cap it was."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from holdfast import Holdfast, InvalidInput, Job, RetryRequested, Status
from holdfast.events import Retired, Settled
from holdfast.executors import DatabaseRetryEntrypointExecutor
from holdfast.models import Failed, Held
from tests.worker.workers import Watch, ends, the_log, the_row, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from holdfast import JobId
    from tests.servers import Database

MOMENT = timedelta(milliseconds=1)
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

Play = Any


def retrying(**options: Any) -> Any:
    options.setdefault("initial_delay", MOMENT)
    return partial(DatabaseRetryEntrypointExecutor, max_delay=MOMENT, **options)


@asynccontextmanager
async def in_memory() -> AsyncIterator[Holdfast]:
    yield Holdfast.in_memory()


@asynccontextmanager
async def on_server(dsn: str) -> AsyncIterator[Holdfast]:
    async with Holdfast.connect(dsn) as hf:
        await hf.install()
        yield hf


@pytest.fixture(params=["memory", "postgres"])
def place(request: pytest.FixtureRequest) -> Any:
    if request.param == "memory":
        return in_memory
    database: Database = request.getfixturevalue("pg18")
    return partial(on_server, database.dsn)


@pytest.fixture(params=sorted(LOOPS))
def play(request: pytest.FixtureRequest, place: Any) -> Play:
    """Plays a scene with a queue of each kind, on each event loop."""

    def play(scene: Callable[[Holdfast], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(60), place() as hf:
                await scene(hf)

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(main())

    return play


async def drained(hf: Holdfast, entrypoint: str) -> tuple[JobId, Any]:
    """Enqueue one job and work until it has ended, or is held. Return its id and its log."""
    ended = asyncio.Event()

    class Ends:
        def notify(self, event: object) -> None:
            runs = event.runs if isinstance(event, (Settled, Retired)) else ()
            if any(isinstance(outcome, (Failed, Held)) for _, outcome, _ in runs):
                ended.set()

    hf.observe(Ends())
    [job_id] = await hf.queries.enqueue(entrypoint)
    async with working(hf, dequeue_timeout=timedelta(milliseconds=200)):
        await ended.wait()
    return job_id, await the_log(hf, job_id)


@pytest.mark.parametrize(("on_failure", "last"), [("delete", "exception"), ("hold", "failed")])
def test_a_written_number_of_retries_wins_over_the_default_cap(
    play: Play, on_failure: Any, last: str
) -> None:
    async def scene(hf: Holdfast) -> None:
        runs = 0

        @hf.entrypoint("flaky", executor_factory=retrying(max_attempts=30), on_failure=on_failure)
        async def flaky(job: Job) -> None:
            nonlocal runs
            runs += 1
            raise ZeroDivisionError("again")

        _, log = await drained(hf, "flaky")
        assert runs == 31
        assert [entry.status for entry in log] == ["queued"] * 30 + [last]
        assert log[-1].reason is None

    play(scene)


def test_the_default_cap_holds_a_job_that_asks_for_retries_without_end(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(hf: Holdfast) -> None:
        @hf.entrypoint("endless")
        async def endless(job: Job) -> None:
            raise RetryRequested(reason="busy")

        job_id, log = await drained(hf, "endless")
        assert [entry.status for entry in log] == ["queued"] * 24 + ["failed"]
        row = await the_row(hf, job_id)
        assert (row.status, row.attempts) == (Status.FAILED, 25)
        [line] = [text for text in caplog.messages if f"job {job_id} " in text]
        assert "default max_attempts=25 of entrypoint 'endless'" in line
        assert "max_attempts=N" in line
        assert f"holdfast requeue {job_id} --max-attempts" in line

    play(scene)


def test_a_request_for_a_retry_in_a_task_group_is_honoured(play: Play) -> None:
    async def scene(hf: Holdfast) -> None:
        @hf.entrypoint("grouped", on_failure="hold")
        async def grouped(job: Job) -> None:
            async def ask() -> None:
                raise RetryRequested(MOMENT, reason="rate limited")

            async def nest() -> None:
                async with asyncio.TaskGroup() as inner:
                    inner.create_task(ask())

            if job.attempts < 2:
                async with asyncio.TaskGroup() as outer:
                    outer.create_task(nest() if job.attempts else ask())
            raise ValueError("enough")

        _, log = await drained(hf, "grouped")
        assert [entry.status for entry in log] == ["queued", "queued", "failed"]
        assert [entry.reason for entry in log] == ["rate limited", "rate limited", None]
        assert log[1].traceback["exception_type"] == "RetryRequested"
        assert "ExceptionGroup" in log[1].traceback["traceback"]
        assert log[1].traceback["additional_context"]["retry_delay"] == str(MOMENT)

    play(scene)


def test_no_retries_and_no_delay_are_accepted(play: Play) -> None:
    async def scene(hf: Holdfast) -> None:
        @hf.entrypoint("once", executor_factory=retrying(max_attempts=0))
        async def once(job: Job) -> None:
            raise ValueError("final")

        @hf.entrypoint(
            "twice", executor_factory=retrying(max_attempts=2, initial_delay=timedelta(0))
        )
        async def twice(job: Job) -> None:
            raise ValueError("final")

        _, log = await drained(hf, "once")
        assert [entry.status for entry in log] == ["exception"]
        hf.shutdown.clear()
        _, log = await drained(hf, "twice")
        assert [entry.status for entry in log] == ["queued", "queued", "exception"]
        assert log[0].traceback["additional_context"]["retry_delay"] == "0:00:00"

    play(scene)


async def noop(job: Job) -> None: ...


def cap_of(hf: Holdfast) -> int | None:
    [entrypoint] = hf.queue_manager.entrypoints
    return entrypoint.max_attempts


@pytest.mark.parametrize(
    ("entrypoint", "executor", "cap"),
    [
        ({}, {}, 25),
        ({}, {"max_attempts": 5}, 25),
        ({}, {"max_attempts": 25}, 26),
        ({}, {"max_attempts": 30}, 31),
        ({"max_attempts": 10}, {}, 10),
        ({"max_attempts": 30}, {"max_attempts": 30}, 31),
        ({"max_attempts": None}, {"max_attempts": 30}, None),
    ],
)
async def test_of_two_caps_the_written_one_counts(
    entrypoint: dict[str, Any], executor: dict[str, Any], cap: int | None
) -> None:
    hf = Holdfast.in_memory()
    hf.entrypoint("mail", executor_factory=retrying(**executor), **entrypoint)(noop)
    assert cap_of(hf) == cap


@pytest.mark.parametrize(("ours", "theirs"), [(10, 30), (30, 10), (25, 5), (1, 0)])
async def test_two_written_caps_that_disagree_are_refused(ours: int, theirs: int) -> None:
    hf = Holdfast.in_memory()
    with pytest.raises(InvalidInput) as caught:
        hf.entrypoint("mail", max_attempts=ours, executor_factory=retrying(max_attempts=theirs))(
            noop
        )
    said = str(caught.value)
    assert "'mail'" in said
    assert f"entrypoint(max_attempts={ours})" in said
    assert f"DatabaseRetryEntrypointExecutor(max_attempts={theirs})" in said
    assert not hf.queue_manager.entrypoints


async def test_the_written_cap_of_an_entrypoint_wins_over_the_executors_default() -> None:
    hf = Holdfast.in_memory()
    runs = 0

    @hf.entrypoint("flaky", max_attempts=10, executor_factory=retrying())
    async def flaky(job: Job) -> None:
        nonlocal runs
        runs += 1
        raise ValueError("again")

    job_id, log = await drained(hf, "flaky")
    assert runs == 10
    assert (await the_row(hf, job_id)).status == Status.FAILED
    assert log[-1].traceback["exception_type"] == "ValueError"


async def test_a_retry_that_the_cap_ends_is_one_event_and_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    hf = Holdfast.in_memory()

    @hf.entrypoint("endless", max_attempts=2)
    async def endless(job: Job) -> None:
        raise RetryRequested(MOMENT, "busy") from OSError("refused")

    watch = Watch(hf)
    job_id, _ = await drained(hf, "endless")
    first, last = [event for event in watch.events if isinstance(event, (Settled, Retired))]
    assert isinstance(first, Settled)
    assert isinstance(last, Retired)
    assert (last.ids, last.reason, last.queues) == ([job_id], "max_attempts", {"endless": 1})
    [(job, outcome, _)] = last.runs
    assert job.id == job_id
    assert isinstance(outcome, Held)
    assert outcome.error == "OSError: refused"
    about = [each for each in caplog.records if f"job {job_id} " in each.getMessage()]
    assert len(about) == 2
    assert "will be retried" in about[0].getMessage()
    line = about[1].getMessage()
    assert "retried in" not in line
    assert "is held after 2 attempts by max_attempts=2 of entrypoint 'endless'" in line
    assert about[1].__dict__["entrypoint"] == "endless"
    assert about[1].__dict__["error_type"] == "OSError"


async def test_the_line_of_a_task_names_its_retry(caplog: pytest.LogCaptureFixture) -> None:
    hf = Holdfast.in_memory()

    @hf.task(name="endless", retry=1)
    async def endless() -> None:
        raise ValueError

    await endless.enqueue()
    await ends(hf.run(mode="drain"))
    [line] = [each for each in caplog.messages if "is held after" in each]
    assert "is held after 1 attempt by retry=1 of task 'endless'" in line
    assert "register the task with a larger retry" in line


async def test_the_line_names_the_cap_of_the_job_itself(caplog: pytest.LogCaptureFixture) -> None:
    hf = Holdfast.in_memory()

    @hf.entrypoint("endless")
    async def endless(job: Job) -> None:
        raise RetryRequested

    watch = Watch(hf)
    [job_id] = await hf.queries.enqueue("endless", max_attempts=1)
    async with working(hf):
        await watch.until(lambda: any(isinstance(each, Retired) for each in watch.events))
    [line] = [text for text in caplog.messages if f"job {job_id} " in text]
    assert "by its own max_attempts=1" in line


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_default_and_written_caps_go_to_the_database_together(
    pg18: Database, driver: Any
) -> None:
    async with Holdfast.connect(pg18.dsn, driver=driver) as hf:
        await hf.install()
        attempts: list[tuple[str, int]] = []

        async def once_more(job: Job) -> None:
            attempts.append((job.entrypoint, job.attempts))
            if not job.attempts:
                raise RetryRequested(MOMENT)

        hf.entrypoint("default")(once_more)
        hf.entrypoint("written", max_attempts=10)(once_more)
        watch = Watch(hf)
        await hf.queries.enqueue(["default", "written"])
        async with working(hf):
            await watch.until_settled(4)
        assert sorted(attempts) == [("default", 0), ("default", 1), ("written", 0), ("written", 1)]


async def test_the_line_names_the_number_that_the_executor_was_given(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hf = Holdfast.in_memory()

    @hf.entrypoint("endless", executor_factory=retrying(max_attempts=26))
    async def endless(job: Job) -> None:
        raise RetryRequested

    job_id, log = await drained(hf, "endless")
    assert len(log) == 27
    [line] = [text for text in caplog.messages if f"job {job_id} " in text]
    assert "is held after 27 attempts by max_attempts=26 of the executor of 'endless'" in line
