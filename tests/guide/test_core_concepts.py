"""Jobs, entrypoints, states, schedules, drivers and tables as PgQueuer's page describes them."""

from __future__ import annotations

import asyncio
import inspect
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

from holdfast import (
    AbstractEntrypointExecutor,
    AsyncpgDriver,
    AsyncpgPoolDriver,
    Context,
    Holdfast,
    InMemoryDriver,
    InvalidInput,
    Job,
    JobId,
    PsycopgDriver,
    QueueManager,
    RetryRequested,
    SchedulerManager,
    Status,
    SyncPsycopgDriver,
    SyncQueries,
)
from holdfast.lifecycle import LIFECYCLE
from tests.cli.command_line import holdfast as command
from tests.guide.steps import drained, in_queue, log_of, row_of, status_of
from tests.worker.workers import Gauge, Watch, ends, eventually, working

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast import Schedule
    from tests.servers import Database

SECOND = timedelta(seconds=1)


class TestAJob:
    async def test_is_a_row_with_the_documented_fields(self, hf: Holdfast, connection: Any) -> None:
        later = datetime(2090, 1, 1, tzinfo=UTC)
        [job_id] = await hf.queries.enqueue(
            "mail", b"\0body", priority=3, execute_after=later, dedupe_key="k"
        )
        row = await connection.fetchrow(
            "select id, entrypoint, payload, priority, status::text, execute_after, attempts,"
            " heartbeat, dedupe_key from holdfast"
        )
        assert tuple(row) == (job_id, "mail", b"\0body", 3, "queued", later, 0, None, "k")

    async def test_has_fields_of_the_documented_types(self, hf: Holdfast) -> None:
        seen: list[Job] = []

        @hf.entrypoint("mail")
        async def mail(job: Job) -> None:
            seen.append(job)

        await drained(hf, "mail")
        [job] = seen
        assert isinstance(job.id, int)
        assert (job.entrypoint, job.payload, job.priority) == ("mail", None, 0)
        assert (job.status, job.attempts, job.dedupe_key) == (Status.PICKED, 0, None)
        assert isinstance(job.execute_after, datetime)
        assert isinstance(job.heartbeat, datetime)

    async def test_has_an_id_above_those_before(self, hf: Holdfast) -> None:
        ids = [(await hf.queries.enqueue("mail"))[0] for _ in range(3)]
        assert ids == sorted(ids)
        assert len(set(ids)) == 3

    async def test_of_a_higher_priority_goes_first(self, hf: Holdfast) -> None:
        ran: list[int] = []

        @hf.entrypoint("mail")
        async def mail(job: Job) -> None:
            ran.append(job.priority)

        await hf.queries.enqueue(["mail"] * 3, priority=[0, 9, 4])
        await hf.run(mode="drain", concurrency=1)
        assert ran == [9, 4, 0]

    async def test_is_not_picked_up_before_its_time(self, hf: Holdfast) -> None:
        @hf.entrypoint("mail")
        async def mail(job: Job) -> None: ...

        [later] = await hf.queries.enqueue("mail", execute_after=timedelta(hours=1))
        await hf.run(mode="drain")
        assert await status_of(hf, later) is Status.QUEUED

    async def test_has_a_heartbeat_while_its_worker_lives(self, hf: Holdfast) -> None:
        release, started = asyncio.Event(), asyncio.Event()

        @hf.entrypoint("long")
        async def long(job: Job) -> None:
            started.set()
            await release.wait()

        async with working(hf, heartbeat_timeout=SECOND):
            [job_id] = await hf.queries.enqueue("long")
            await ends(started.wait())
            first = (await row_of(hf, job_id)).heartbeat
            assert first is not None

            async def beats() -> bool:
                now = (await row_of(hf, job_id)).heartbeat
                return now is not None and now > first

            await eventually(beats)
            release.set()


class TestAnEntrypoint:
    async def test_gets_the_jobs_that_are_enqueued_under_its_name(self, hf: Holdfast) -> None:
        sent: list[bytes | None] = []

        @hf.entrypoint("send_email")
        async def send(job: Job) -> None:
            sent.append(job.payload)

        mine, others = await hf.queries.enqueue(["send_email", "send_fax"], [b"a", b"b"])
        await hf.run(mode="drain")
        assert sent == [b"a"]
        assert await status_of(hf, mine) is Status.SUCCESSFUL
        assert await status_of(hf, others) is Status.QUEUED

    def test_is_an_async_def(self) -> None:
        hf = Holdfast.in_memory()

        def plain(job: Job) -> None: ...

        with pytest.raises(InvalidInput, match="plain def; make it `async def`"):
            hf.entrypoint("plain")(plain)

    async def test_may_wait_for_blocking_code_in_a_thread(self, hf: Holdfast) -> None:
        threads: list[int] = []

        def blocking(payload: bytes | None) -> None:
            threads.append(threading.get_ident())

        @hf.entrypoint("blocks")
        async def blocks(job: Job) -> None:
            await asyncio.to_thread(blocking, job.payload)

        assert await status_of(hf, await drained(hf, "blocks")) is Status.SUCCESSFUL
        assert threads != [threading.get_ident()]

    def test_has_the_documented_parameters_and_defaults(self) -> None:
        parameters = inspect.signature(Holdfast.in_memory().entrypoint).parameters
        assert parameters["name"].default is inspect.Parameter.empty
        expected = {
            "concurrency_limit": 0,
            "serialized_dispatch": False,
            "retry_timer": timedelta(0),
            "on_failure": "delete",
            "executor_factory": None,
        }
        assert {name: parameters[name].default for name in expected} == expected
        # False and None differ for a handler whose second parameter is annotated Context.
        assert parameters["accepts_context"].default is None

    @pytest.mark.parametrize(
        ("options", "most"),
        [({"concurrency_limit": 3}, 3), ({"serialized_dispatch": True}, 1), ({}, 9)],
        ids=["limited", "serialized", "unlimited"],
    )
    async def test_runs_as_many_at_once_as_it_says(
        self, hf: Holdfast, options: dict[str, Any], most: int
    ) -> None:
        gauge, together = Gauge(), asyncio.Barrier(most)

        @hf.entrypoint("busy", **options)
        async def busy(job: Job) -> None:
            with gauge:
                await ends(together.wait())

        await hf.queries.enqueue(["busy"] * 9)
        await hf.run(mode="drain")
        assert (gauge.total, gauge.most) == (9, most)

    async def test_may_have_a_retry_timer_for_stale_heartbeats(
        self, hf: Holdfast, connection: Any
    ) -> None:
        leases: list[timedelta | None] = []

        @hf.entrypoint("timed", retry_timer=timedelta(milliseconds=500))
        async def timed(job: Job) -> None:
            leases.append(job.lease)

        @hf.entrypoint("plain")
        async def plain(job: Job) -> None:
            leases.append(job.lease)

        await hf.queries.enqueue("timed")
        await hf.run(mode="drain", heartbeat_timeout=timedelta(minutes=1))
        await hf.queries.enqueue("plain")
        await hf.run(mode="drain", heartbeat_timeout=timedelta(minutes=1))
        assert leases == [timedelta(milliseconds=500), timedelta(minutes=1)]

    @pytest.mark.parametrize("asked", [None, True, False])
    async def test_gets_a_context_as_its_second_argument_where_it_asks(
        self, hf: Holdfast, asked: bool | None
    ) -> None:
        seen: list[object] = []

        if asked is False:

            @hf.entrypoint("look", accepts_context=False)
            async def alone(job: Job) -> None:
                seen.append(None)

        else:

            @hf.entrypoint("look", accepts_context=asked)
            async def look(job: Job, context: Context) -> None:
                seen.append(context)

        await drained(hf, "look")
        assert [isinstance(one, Context) for one in seen] == [asked is not False]

    async def test_may_have_an_executor_of_ones_own(self, hf: Holdfast) -> None:
        ran: list[str] = []

        class Loud(AbstractEntrypointExecutor):
            async def execute(self, job: Job, context: Context) -> None:
                ran.append("before")
                await self.parameters.func(job)
                ran.append("after")

        @hf.entrypoint("mail", executor_factory=Loud)
        async def mail(job: Job) -> None:
            ran.append("handler")

        await drained(hf, "mail")
        assert ran == ["before", "handler", "after"]


class TestTheStates:
    async def test_are_the_seven_words_of_the_enum(self, hf: Holdfast, connection: Any) -> None:
        words = await connection.fetchval("select enum_range(null::holdfast_status)::text[]")
        assert set(words) == {
            *("queued", "picked", "successful", "exception", "failed", "canceled", "deleted"),
        }
        assert set(words) == {status.value for status in Status}

    def test_are_joined_by_the_documented_arrows(self) -> None:
        arrows = {(source.value, row.target.value) for row in LIFECYCLE for source in row.sources}
        assert {
            ("queued", "picked"),
            ("queued", "deleted"),
            ("picked", "successful"),
            ("picked", "exception"),
            ("picked", "failed"),
            ("picked", "canceled"),
            ("picked", "queued"),
            ("failed", "queued"),
        } <= arrows
        # Besides: jobs are cancelled and deleted wherever they wait, retired, renewed, edited and
        # moved to another entrypoint.
        assert arrows - {
            ("queued", "picked"),
            ("queued", "deleted"),
            ("picked", "successful"),
            ("picked", "exception"),
            ("picked", "failed"),
            ("picked", "canceled"),
            ("picked", "queued"),
            ("failed", "queued"),
        } == {
            ("queued", "canceled"),
            ("failed", "canceled"),
            ("failed", "deleted"),
            ("queued", "failed"),
            ("picked", "picked"),
            ("failed", "failed"),
            ("queued", "queued"),
        }

    async def test_of_a_job_that_runs_is_picked(self, hf: Holdfast) -> None:
        seen: list[Status] = []

        @hf.entrypoint("look")
        async def look(job: Job) -> None:
            seen.append(await status_of(hf, job.id))

        [job_id] = await hf.queries.enqueue("look")
        assert await status_of(hf, job_id) is Status.QUEUED
        await hf.run(mode="drain")
        assert seen == [Status.PICKED]

    async def test_after_a_cancellation_is_canceled(self, hf: Holdfast) -> None:
        [job_id] = await hf.queries.enqueue("mail")
        await hf.queries.mark_job_as_cancelled([job_id])
        assert await status_of(hf, job_id) is Status.CANCELED

    @pytest.mark.parametrize(
        ("raised", "mode", "end"),
        [
            (None, "delete", Status.SUCCESSFUL),
            (ValueError(), "delete", Status.EXCEPTION),
            (ValueError(), "hold", Status.FAILED),
            (RetryRequested(delay=timedelta(hours=1)), "delete", Status.QUEUED),
        ],
        ids=["returns", "raises", "is held", "asks again"],
    )
    async def test_decide_where_the_row_is(
        self, hf: Holdfast, connection: Any, raised: Exception | None, mode: Any, end: Status
    ) -> None:
        @hf.entrypoint("mail", on_failure=mode)
        async def mail(job: Job) -> None:
            if raised is not None:
                raise raised

        job_id = await drained(hf, "mail")
        assert await status_of(hf, job_id) is end
        assert await in_queue(connection, job_id) == (end in (Status.FAILED, Status.QUEUED))
        assert [entry.status for entry in await log_of(hf, job_id)] == [end]

    async def test_of_a_job_deleted_before_it_ran_is_deleted(
        self, hf: Holdfast, connection: Any
    ) -> None:
        [job_id] = await hf.queries.enqueue("mail")
        await hf.queries.delete_jobs([job_id])
        assert not await in_queue(connection, job_id)
        assert await status_of(hf, job_id) is Status.DELETED


class TestASchedule:
    async def test_is_stored_and_its_function_gets_it(self, hf: Holdfast, connection: Any) -> None:
        seen: list[Schedule] = []

        @hf.schedule("hourly_report", "0 * * * *")
        async def report(schedule: Schedule) -> None:
            seen.append(schedule)

        await hf.sm.register()
        [row] = await connection.fetch("select name, expression, last_run from holdfast_schedules")
        assert tuple(row) == ("hourly_report", "0 * * * *", None)
        await hf.schedules.run_now("hourly_report")
        await hf.run(mode="drain")
        assert [(one.entrypoint, one.expression) for one in seen] == [
            ("hourly_report", "0 * * * *")
        ]

    @pytest.mark.parametrize(
        ("expression", "seconds"),
        [("* * * * *", {0}), ("* * * * * 15,45", {15, 45})],
        ids=["five fields", "a sixth for seconds, last"],
    )
    async def test_has_five_fields_or_six(
        self, hf: Holdfast, connection: Any, expression: str, seconds: set[int]
    ) -> None:
        @hf.schedule("tick", expression)
        async def tick(schedule: Schedule) -> None: ...

        await hf.sm.register()
        first = await connection.fetchval("select next_run from holdfast_schedules")
        assert first.second in seconds

    async def test_is_run_by_one_of_many_workers(
        self, hf: Holdfast, other: Holdfast, connection: Any
    ) -> None:
        ran: list[datetime | None] = []
        for worker in (hf, other):

            @worker.schedule("tick", "* * * * * */1")
            async def tick(schedule: Schedule) -> None:
                ran.append(schedule.slot)

        async def ticked() -> bool:
            return len(ran) >= 3

        async with working(hf), working(other):
            await eventually(ticked)
        assert len(ran) == len(set(ran))
        last = await connection.fetchval("select last_run from holdfast_schedules")
        assert last is not None


class TestTheDrivers:
    @pytest.mark.parametrize(
        "make",
        [
            lambda opened: Holdfast(AsyncpgDriver(opened["asyncpg"])),
            lambda opened: Holdfast(AsyncpgPoolDriver(opened["pool"])),
            lambda opened: Holdfast(PsycopgDriver(opened["psycopg"])),
            lambda opened: Holdfast(InMemoryDriver()),
            lambda opened: Holdfast.from_asyncpg_connection(opened["asyncpg"]),
            lambda opened: Holdfast.from_asyncpg_pool(opened["pool"]),
            lambda opened: Holdfast.from_psycopg_connection(opened["psycopg"]),
            lambda opened: Holdfast.in_memory(),
        ],
        ids=[
            *("AsyncpgDriver", "AsyncpgPoolDriver", "PsycopgDriver", "InMemoryDriver"),
            *("connection", "pool", "psycopg", "in memory"),
        ],
    )
    async def test_each_serves_a_worker(self, pg: Database, make: Any) -> None:
        async with asyncpg.create_pool(pg.dsn, min_size=1, max_size=2) as pool:
            opened = {
                "pool": pool,
                "asyncpg": await asyncpg.connect(pg.dsn),
                "psycopg": await psycopg.AsyncConnection.connect(pg.dsn),
            }
            try:
                pgq: Holdfast = make(opened)
                await pgq.install()
                seen: list[bytes | None] = []

                @pgq.entrypoint("echo")
                async def echo(job: Job) -> None:
                    seen.append(job.payload)

                await pgq.queries.enqueue("echo", b"hello")
                await pgq.run(mode="drain")
                assert seen == [b"hello"]
            finally:
                await opened["asyncpg"].close()
                await opened["psycopg"].close()

    async def test_a_script_without_an_event_loop_enqueues(
        self, hf: Holdfast, pg: Database
    ) -> None:
        def script() -> JobId:
            with psycopg.connect(pg.dsn, autocommit=True) as connection:
                [job_id] = SyncQueries(SyncPsycopgDriver(connection)).enqueue("mail", b"1")
                return job_id

        job_id = await asyncio.to_thread(script)
        assert (await row_of(hf, job_id)).payload == b"1"


APP = """
import asyncio
from holdfast import Holdfast

async def main():
    hf = Holdfast.connect("{dsn}")
    loops = []

    @hf.entrypoint("mail")
    async def mail(job):
        loops.append(asyncio.get_running_loop())
        finish()

    @hf.schedule("tick", "* * * * * */1")
    async def tick(schedule):
        loops.append(asyncio.get_running_loop())
        finish()

    def finish():
        if len(loops) >= 2 and len(set(map(id, loops))) == 1:
            hf.shutdown.set()

    return hf
"""


class TestTheTwoManagers:
    def test_are_parts_of_the_application(self) -> None:
        hf = Holdfast.in_memory()
        assert isinstance(hf.qm, QueueManager)
        assert isinstance(hf.sm, SchedulerManager)

    async def test_one_wakes_claims_in_batches_and_settles(self, hf: Holdfast) -> None:
        @hf.entrypoint("mail")
        async def mail(job: Job) -> None: ...

        watch = Watch(hf)
        # A poll would come after an hour only.
        async with working(hf, dequeue_timeout=timedelta(hours=1), batch_size=4):
            await eventually(lambda: _listens(hf))
            ids = await hf.queries.enqueue(["mail"] * 12)
            await watch.until_settled(12)
        assert max(len(claim.jobs) for claim in watch.claims) <= 4
        assert {status for _, status in await hf.queries.job_status(ids)} == {Status.SUCCESSFUL}

    async def test_the_other_finds_what_is_due_in_the_table(
        self, hf: Holdfast, connection: Any
    ) -> None:
        ran = asyncio.Event()

        @hf.schedule("yearly", "0 0 1 1 *")
        async def yearly(schedule: Schedule) -> None:
            ran.set()

        await hf.sm.register()
        await connection.execute("update holdfast_schedules set next_run = now() - interval '1 s'")
        async with working(hf):
            await ends(ran.wait())
        assert await connection.fetchval("select last_run from holdfast_schedules") is not None

    async def test_both_run_in_one_event_loop_under_the_command(
        self, hf: Holdfast, pg: Database, tmp_path: Path
    ) -> None:
        (tmp_path / "myapp.py").write_text(APP.replace("{dsn}", pg.dsn), "utf-8")
        await hf.queries.enqueue("mail")
        done = await asyncio.to_thread(command, "run", "myapp:main", PYTHONPATH=str(tmp_path))
        assert done.code == 0, done.err


async def _listens(hf: Holdfast) -> bool:
    return hf.queue_manager.state == "running" and hf.queue_manager.listening


class TestTheTables:
    async def test_are_there_after_install(self, hf: Holdfast, connection: Any) -> None:
        for table in ("holdfast", "holdfast_log", "holdfast_statistics", "holdfast_schedules"):
            assert await connection.fetchval("select to_regclass($1)::text", table) == table

    async def test_take_rows_that_producers_insert(self, hf: Holdfast, connection: Any) -> None:
        seen: list[tuple[bytes | None, int]] = []

        @hf.entrypoint("mail")
        async def mail(job: Job) -> None:
            seen.append((job.payload, job.priority))

        await connection.execute("insert into holdfast (entrypoint) values ('mail')")
        await connection.execute(
            "insert into holdfast (entrypoint, payload, priority) values ('mail', 'raw', 2)"
        )
        await hf.run(mode="drain", concurrency=1)
        assert seen == [(b"raw", 2), (None, 0)]

    async def test_count_what_became_of_jobs_by_entrypoint(
        self, hf: Holdfast, connection: Any
    ) -> None:
        @hf.entrypoint("mail")
        async def mail(job: Job) -> None:
            if job.payload:
                raise ValueError

        await hf.queries.enqueue(["mail"] * 3, [None, None, b"bad"])
        await hf.run(mode="drain")

        async def counted() -> bool:
            await hf.queries.log_statistics()
            rows = await connection.fetch(
                "select status::text, sum(count)::int as n from holdfast_statistics"
                " where entrypoint = 'mail' group by status"
            )
            return {row["status"]: row["n"] for row in rows} == {"successful": 2, "exception": 1}

        await eventually(counted)
