"""What PgQueuer's users write works here under the same names."""

from __future__ import annotations

import asyncio
import importlib
import re
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

import holdfast
from holdfast import (
    AsyncpgDriver,
    AsyncpgPoolDriver,
    CompletionWatcher,
    Context,
    Holdfast,
    InMemoryDriver,
    InvalidInput,
    Job,
    JobId,
    JobNotFound,
    NewJob,
    PsycopgDriver,
    Queries,
    Status,
    SyncPsycopgDriver,
    SyncQueries,
    WorkerSettings,
)
from holdfast.models import LEASE_LOST, Abandoned
from tests.cli.command_line import holdfast as command
from tests.cli.command_line import inside
from tests.worker.workers import Watch, ends, eventually, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.servers import Database

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


@pytest.fixture(params=["memory", "postgres"])
async def driver(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """A driver with installed tables behind it, and no Holdfast around it."""
    if request.param == "memory":
        yield InMemoryDriver()
        return
    connection = await asyncpg.connect(request.getfixturevalue("pg18").dsn)
    made = AsyncpgDriver(connection)
    await Queries(made).install()
    yield made
    await connection.close()


@pytest.fixture
def queries(driver: Any) -> Queries:
    return Queries(driver)


@pytest.fixture
def pgq(driver: Any) -> Holdfast:
    return Holdfast(driver)


async def status_of(queries: Queries, job_id: JobId) -> Status:
    [(_, status)] = await queries.job_status([job_id])
    return status


class TestQueriesOnADriver:
    async def test_queries_need_no_application(self, queries: Queries) -> None:
        [job_id] = await queries.enqueue("mail", b"hello")
        assert await status_of(queries, job_id) is Status.QUEUED

    @pytest.mark.parametrize(
        "make",
        [
            lambda opened: Queries.from_asyncpg_connection(opened["asyncpg"]),
            lambda opened: Queries.from_asyncpg_pool(opened["pool"]),
            lambda opened: Queries.from_psycopg_connection(opened["psycopg"]),
            lambda opened: Queries(AsyncpgDriver(opened["asyncpg"])),
            lambda opened: Queries(AsyncpgPoolDriver(opened["pool"])),
            lambda opened: Queries(PsycopgDriver(opened["psycopg"])),
        ],
        ids=["connection", "pool", "psycopg", "driver", "pool driver", "psycopg driver"],
    )
    async def test_queries_are_made_of_connections_too(
        self, pg: Database, make: Callable[[dict[str, Any]], Queries]
    ) -> None:
        async with asyncpg.create_pool(pg.dsn, min_size=1, max_size=2) as pool:
            opened = {
                "pool": pool,
                "asyncpg": await asyncpg.connect(pg.dsn),
                "psycopg": await psycopg.AsyncConnection.connect(pg.dsn, autocommit=True),
            }
            try:
                made = make(opened)
                await made.install()
                await made.verify()
                [job_id] = await made.enqueue("mail")
                assert await status_of(made, job_id) is Status.QUEUED
                await made.uninstall()
            finally:
                await opened["asyncpg"].close()
                await opened["psycopg"].close()

    async def test_queries_take_the_names_of_the_tables(self, pg18: Database) -> None:
        connection = await asyncpg.connect(pg18.dsn)
        await connection.execute("create schema if not exists " + pg18.schema)
        made = Queries.from_asyncpg_connection(connection, prefix="jobs", schema=pg18.schema)
        await made.install()
        await made.enqueue("mail")
        assert await connection.fetchval(f"select count(*) from {pg18.schema}.jobs") == 1
        await connection.close()

    def test_code_without_an_event_loop_has_the_same(self, pg: Database) -> None:
        with psycopg.connect(pg.dsn, autocommit=True) as connection:
            SyncQueries(SyncPsycopgDriver(connection)).install()
            made = SyncQueries.from_psycopg_connection(connection)
            [job_id] = made.enqueue("mail", b"hello")
            assert made.job_status([job_id]) == [(job_id, Status.QUEUED)]
            assert sum(size.count for size in made.queue_size()) == 1

    def test_what_is_no_driver_is_refused_without_its_password(self) -> None:
        for make in (Queries, SyncQueries, Holdfast):
            with pytest.raises(InvalidInput, match="AsyncpgDriver") as refused:
                make("postgresql://me:secret@host/db")  # type: ignore[arg-type]
            assert "secret" not in str(refused.value)


class TestTheApplication:
    def test_the_managers_have_their_short_names(self, pgq: Holdfast) -> None:
        assert pgq.qm is pgq.queue_manager
        assert pgq.sm is pgq.scheduler_manager
        assert pgq.qm.queries is pgq.queries
        assert pgq.qm.shutdown is pgq.shutdown

    async def test_resources_are_the_callers_own_mapping(self, driver: Any) -> None:
        mine: dict[str, Any] = {}
        pgq = Holdfast(driver, resources=mine)

        @pgq.entrypoint("count")
        async def count(job: Job, context: Context) -> None:
            assert context.resources is mine
            mine["ran"] = mine.get("ran", 0) + mine["step"]

        mine["step"] = 2
        await pgq.queries.enqueue(["count"] * 3)
        await pgq.run(mode="drain")
        assert pgq.resources is mine
        assert mine["ran"] == 6

    async def test_an_empty_mapping_is_kept_as_well(self) -> None:
        mine: dict[str, Any] = {}
        assert Holdfast.in_memory(resources=mine).resources is mine

    async def test_max_concurrent_tasks_is_a_name_of_concurrency(self, pgq: Holdfast) -> None:
        running = most = 0
        pairs = asyncio.Barrier(2)

        @pgq.entrypoint("busy")
        async def busy(job: Job) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await ends(pairs.wait())
            running -= 1

        await pgq.queries.enqueue(["busy"] * 12)
        await pgq.run(mode="drain", max_concurrent_tasks=2)
        assert most == 2

    async def test_two_numbers_for_one_setting_are_refused(self, pgq: Holdfast) -> None:
        with pytest.raises(InvalidInput, match="max_concurrent_tasks=3"):
            await pgq.run(concurrency=2, max_concurrent_tasks=3)

    async def test_zero_tasks_are_no_limit_of_the_callers(self, pgq: Holdfast) -> None:
        @pgq.entrypoint("mail")
        async def mail(job: Job) -> None: ...

        [job_id] = await pgq.queries.enqueue("mail")
        await pgq.run(mode="drain", max_concurrent_tasks=0)
        assert await status_of(pgq.queries, job_id) is Status.SUCCESSFUL

    async def test_a_dequeue_timeout_of_zero_polls_and_does_not_spin(self, pgq: Holdfast) -> None:
        assert WorkerSettings(dequeue_timeout=timedelta(0)).poll_interval > timedelta(0)

        @pgq.entrypoint("mail")
        async def mail(job: Job) -> None: ...

        watch = Watch(pgq)
        async with working(pgq, dequeue_timeout=timedelta(0)):
            await pgq.queries.enqueue("mail")
            await watch.until_settled()

    def test_a_negative_dequeue_timeout_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match="dequeue_timeout"):
            WorkerSettings(dequeue_timeout=-SECOND)

    def test_the_command_knows_the_name_too(self) -> None:
        refused = inside("run", "no.such:app", "--max-concurrent-tasks", "0")
        refused.complains(2, "--max-concurrent-tasks", "greater than or equal to 1")


class TestCancelling:
    async def test_a_scope_ends_its_body_and_the_handler_cleans_up(self, pgq: Holdfast) -> None:
        started, seen = asyncio.Event(), list[str]()

        @pgq.entrypoint("long")
        async def long(job: Job, context: Context) -> None:
            with context.cancellation as scope:
                started.set()
                await asyncio.Event().wait()
                seen.append("the body went on")
            await asyncio.sleep(0)
            seen.append(f"tidied up, {scope.cancelled_caught}")

        watch = Watch(pgq)
        async with working(pgq, heartbeat_timeout=SECOND):
            [job_id] = await pgq.queries.enqueue("long")
            await ends(started.wait())
            await pgq.queries.mark_job_as_cancelled([job_id])
            [lost] = await watch.until_lost()
        assert seen == ["tidied up, True"]
        assert isinstance(lost.outcome, Abandoned)
        assert await status_of(pgq.queries, job_id) is Status.CANCELED

    async def test_a_scope_around_work_that_ends_changes_nothing(self, pgq: Holdfast) -> None:
        @pgq.entrypoint("short")
        async def short(job: Job, context: Context) -> None:
            with context.cancellation:
                await asyncio.sleep(0)
            if job.payload:
                with context.cancellation:
                    raise ValueError("an error is an error")

        good, bad = await pgq.queries.enqueue(["short"] * 2, [None, b"x"])
        await pgq.run(mode="drain")
        assert await status_of(pgq.queries, good) is Status.SUCCESSFUL
        assert await status_of(pgq.queries, bad) is Status.EXCEPTION

    async def test_a_timeout_inside_a_scope_is_a_timeout(self, pgq: Holdfast) -> None:
        @pgq.entrypoint("slow", timeout=timedelta(milliseconds=20))
        async def slow(job: Job, context: Context) -> None:
            with context.cancellation:
                await asyncio.Event().wait()

        [job_id] = await pgq.queries.enqueue("slow")
        await pgq.run(mode="drain")
        *_, last = await pgq.queries.job_history(job_id)
        assert last.traceback is not None
        assert (last.status, last.traceback["exception_type"]) == (Status.EXCEPTION, "JobTimeout")

    async def test_work_that_a_stop_cut_short_is_not_a_success(self, pgq: Holdfast) -> None:
        started = asyncio.Event()

        @pgq.entrypoint("long")
        async def long(job: Job, context: Context) -> None:
            with context.cancellation:
                started.set()
                await asyncio.Event().wait()

        [job_id] = await pgq.queries.enqueue("long")
        async with working(pgq, drain_timeout=timedelta(0)):
            await ends(started.wait())
        [job] = await pgq.queries.get_jobs([job_id])
        assert (job.status, job.attempts, job.recoveries) == (Status.QUEUED, 0, 0)

    @pytest.mark.parametrize("hears", [True, False], ids=["after it heard", "before it could hear"])
    async def test_a_cancelled_handlers_own_cancelled_error_is_canceled(
        self, pgq: Holdfast, hears: bool
    ) -> None:
        started = asyncio.Event()

        @pgq.entrypoint("own")
        async def own(job: Job, context: Context) -> None:
            started.set()
            if hears:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise asyncio.CancelledError("my own") from None
            await pgq.queries.mark_job_as_cancelled([job.id])
            raise asyncio.CancelledError("my own")

        watch = Watch(pgq)
        async with working(pgq, heartbeat_timeout=SECOND):
            [job_id] = await pgq.queries.enqueue("own")
            await ends(started.wait())
            if hears:
                await pgq.queries.mark_job_as_cancelled([job_id])
            await watch.until_lost()
        assert await status_of(pgq.queries, job_id) is Status.CANCELED
        assert len(await pgq.queries.job_history(job_id)) == 1

    async def test_a_cancelled_error_without_a_cancellation_is_a_failure(
        self, pgq: Holdfast
    ) -> None:
        @pgq.entrypoint("stray")
        async def stray(job: Job) -> None:
            raise asyncio.CancelledError

        [job_id] = await pgq.queries.enqueue("stray")
        await pgq.run(mode="drain")
        assert await status_of(pgq.queries, job_id) is Status.EXCEPTION

    def test_a_thread_may_open_a_scope(self) -> None:
        cancellation = holdfast.models.Cancellation()
        cancellation.cancel(LEASE_LOST)
        with cancellation as scope:
            pass
        assert (scope.cancel_called, scope.cancelled_caught) == (True, False)


class TestEnqueuing:
    @pytest.mark.parametrize(
        "past",
        [timedelta(seconds=-10), timedelta(days=-400), datetime(2001, 1, 1, tzinfo=UTC)],
        ids=["ten seconds ago", "a year ago", "an instant"],
    )
    async def test_a_past_execute_after_is_due_at_once_and_first(
        self, pgq: Holdfast, past: timedelta | datetime
    ) -> None:
        ran: list[bytes | None] = []

        @pgq.entrypoint("mail")
        async def mail(job: Job) -> None:
            ran.append(job.payload)

        await pgq.queries.enqueue("mail", b"now")
        await pgq.queries.enqueue("mail", b"past", execute_after=past)
        await pgq.run(mode="drain", concurrency=1)
        assert ran == [b"past", b"now"]

    async def test_a_duplicate_raises_the_priority_and_never_lowers_it(
        self, queries: Queries
    ) -> None:
        [first] = await queries.enqueue("mail", priority=1, dedupe_key="k")
        for asked, expected in [(5, 5), (2, 5), (9, 9)]:
            ids = await queries.enqueue(
                "mail", priority=asked, dedupe_key="k", on_conflict="update_priority"
            )
            [job] = await queries.get_jobs([first])
            assert (ids, job.priority) == ([first], expected)

    async def test_of_a_batch_new_keys_are_enqueued_and_taken_ones_raised(
        self, queries: Queries
    ) -> None:
        [first] = await queries.enqueue("mail", dedupe_key="taken")
        ids = await queries.enqueue(
            ["mail"] * 4,
            priority=[1, 2, 3, 4],
            dedupe_key=[None, "taken", "new", None],
            on_conflict="update_priority",
        )
        assert ids[1] == first
        assert len(set(ids)) == 4
        assert sorted(job.priority for job in await queries.browse_queue()) == [1, 2, 3, 4]

    async def test_many_at_once_make_one_job_of_the_highest_priority(self, pg: Database) -> None:
        async with Holdfast.connect(pg.dsn) as one, Holdfast.connect(pg.dsn) as other:
            await one.install()
            asked = [
                producer.queries.enqueue(
                    "mail", priority=n, dedupe_key="k", on_conflict="update_priority"
                )
                for n, producer in enumerate([one, other] * 20)
            ]
            ids = await ends(asyncio.gather(*asked))
            [job] = await one.queries.browse_queue()
        assert {found for [found] in ids} == {job.id}
        assert job.priority == 39

    async def test_a_raised_job_goes_first(self, pgq: Holdfast) -> None:
        ran: list[str | None] = []

        @pgq.entrypoint("mail")
        async def mail(job: Job) -> None:
            ran.append(job.dedupe_key)

        await pgq.queries.enqueue("mail", dedupe_key="waits")
        await pgq.queries.enqueue("mail", priority=1, dedupe_key="urgent")
        await pgq.queries.enqueue(
            "mail", priority=2, dedupe_key="waits", on_conflict="update_priority"
        )
        await pgq.run(mode="drain", concurrency=1)
        assert ran == ["waits", "urgent"]

    async def test_a_running_job_is_named_and_left_as_it_is(self, pgq: Holdfast) -> None:
        @pgq.entrypoint("mail")
        async def mail(job: Job) -> None:
            again = await pgq.queries.enqueue(
                "mail", priority=7, dedupe_key="k", on_conflict="update_priority"
            )
            [same] = await pgq.queries.get_jobs([job.id])
            assert (again, same.priority) == ([job.id], 0)

        [job_id] = await pgq.queries.enqueue("mail", dedupe_key="k")
        await pgq.run(mode="drain")
        assert await status_of(pgq.queries, job_id) is Status.SUCCESSFUL

    async def test_a_key_given_twice_is_refused(self, queries: Queries) -> None:
        with pytest.raises(ValueError, match="at most once"):
            await queries.enqueue(
                ["mail"] * 2, dedupe_key=["k", "k"], on_conflict="update_priority"
            )
        assert await queries.queue_size() == []

    async def test_a_held_job_has_given_up_its_key(self, pgq: Holdfast) -> None:
        @pgq.entrypoint("mail", on_failure="hold")
        async def mail(job: Job) -> None:
            raise ValueError

        [held] = await pgq.queries.enqueue("mail", dedupe_key="k")
        await pgq.run(mode="drain")
        [new] = await pgq.queries.enqueue_many(
            [NewJob("mail", dedupe_key="k")], on_conflict="update_priority"
        )
        assert new != held


class TestClearing:
    @pytest.fixture
    async def filled(self, pgq: Holdfast) -> Holdfast:
        @pgq.entrypoint("held", on_failure="hold")
        async def held(job: Job) -> None:
            raise ValueError

        @pgq.entrypoint("done")
        async def done(job: Job) -> None: ...

        await pgq.queries.enqueue(["held", "done", "done"])
        await pgq.run(mode="drain")

        async def counted() -> bool:
            await pgq.queries.log_statistics()
            return await pgq.queries.uncounted_log(timedelta(0)) == 0

        # Other transactions of the server have to end first.
        await eventually(counted)
        await pgq.queries.enqueue(["waits", "done"])
        return pgq

    async def test_the_queue_is_cleared_and_each_job_logged(self, filled: Holdfast) -> None:
        before = [job.id for job in await filled.queries.browse_queue()]
        assert await filled.queries.clear_queue(actor="me", reason="all over") == 3
        assert await filled.queries.queue_size() == []
        for job_id in before:
            *_, last = await filled.queries.job_history(job_id)
            assert (last.status, last.actor, last.reason) == (Status.DELETED, "me", "all over")

    @pytest.mark.parametrize(
        ("entrypoint", "left"),
        [
            ("waits", {"held", "done"}),
            (["waits", "held"], {"done"}),
            ([], {"held", "done", "waits"}),
        ],
        ids=["one", "two", "none"],
    )
    async def test_a_part_of_the_queue_is_cleared(
        self, filled: Holdfast, entrypoint: Any, left: set[str]
    ) -> None:
        await filled.queries.clear_queue(entrypoint)
        assert {size.entrypoint for size in await filled.queries.queue_size()} == left

    async def test_a_job_that_runs_is_cancelled(self, pgq: Holdfast) -> None:
        started = asyncio.Event()

        @pgq.entrypoint("long")
        async def long(job: Job) -> None:
            started.set()
            await asyncio.Event().wait()

        watch = Watch(pgq)
        async with working(pgq, heartbeat_timeout=SECOND):
            [job_id] = await pgq.queries.enqueue("long")
            await ends(started.wait())
            assert await pgq.queries.clear_queue() == 1
            await watch.until_lost()
        assert await status_of(pgq.queries, job_id) is Status.CANCELED

    async def test_the_log_is_cleared_and_stays_counted(self, filled: Holdfast) -> None:
        assert await filled.queries.clear_queue_log("done") == 2
        assert [entry.entrypoint for entry in await filled.queries.queue_log()] == ["held"]
        counted = await filled.queries.log_statistics()
        assert sum(one.count for one in counted if one.entrypoint == "done") == 2

    async def test_the_statistics_are_cleared_and_the_log_stays(self, filled: Holdfast) -> None:
        await filled.queries.clear_statistics_log("held")
        assert {one.entrypoint for one in await filled.queries.log_statistics()} == {"done"}
        await filled.queries.clear_statistics_log()
        assert await filled.queries.log_statistics() == []
        assert len(await filled.queries.queue_log()) == 3

    def test_the_command_clears_what_it_is_told(self, pg: Database) -> None:
        inside("install", "--dsn", pg.dsn)
        for entrypoint in ("mail", "mail", "report"):
            inside("enqueue", entrypoint, "--dsn", pg.dsn)
        done = inside("clear", "queue", "mail", "--yes", "--json", "--dsn", pg.dsn)
        assert (done.code, done.json) == (0, {"deleted": 2})
        _count_log(pg.dsn)
        done = inside("clear", "log", "--yes", "--dsn", pg.dsn)
        assert (done.code, done.out) == (0, "2 log rows deleted\n")
        done = inside("clear", "statistics", "--yes", "--json", "--dsn", pg.dsn)
        assert (done.code, done.json) == (0, {"deleted": 1})
        assert [row["entrypoint"] for row in _queue(pg.dsn)] == ["report"]

    @pytest.mark.parametrize("what", ["queue", "log", "statistics"])
    def test_the_command_asks_first(self, pg18: Database, what: str) -> None:
        inside("install", "--dsn", pg18.dsn)
        inside("enqueue", "mail", "--dsn", pg18.dsn)
        refused = command("clear", what, dsn=pg18.dsn, stdin=b"n\n")
        assert (refused.code, refused.out) == (1, "")
        assert "of every entrypoint" in refused.err
        assert len(_queue(pg18.dsn)) == 1


def _count_log(dsn: str) -> None:
    """Until the log is counted, which waits for every transaction of the server."""
    deadline = time.monotonic() + 30
    with psycopg.connect(dsn, autocommit=True) as connection:
        queries = SyncQueries.from_psycopg_connection(connection)
        while queries.log_statistics() and queries.uncounted_log(timedelta(0)):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def _queue(dsn: str) -> list[dict[str, Any]]:
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        return connection.execute("select * from holdfast").fetchall()


class TestCompletionWatcher:
    async def test_every_end_is_told(self, pgq: Holdfast, driver: Any) -> None:
        @pgq.entrypoint("mail")
        async def mail(job: Job) -> None:
            if job.payload == b"bad":
                raise ValueError

        good, bad, gone, stopped = await pgq.queries.enqueue(
            ["mail", "mail", "later", "later"], [None, b"bad", None, None]
        )
        async with CompletionWatcher(driver, queries=pgq.queries) as watcher:
            waiting = [watcher.wait_for(job_id) for job_id in (good, bad, gone, stopped)]
            await pgq.queries.delete_jobs([gone])
            await pgq.queries.mark_job_as_cancelled([stopped])
            await pgq.run(mode="drain")
            ended = await ends(asyncio.gather(*waiting))
        assert ended == [Status.SUCCESSFUL, Status.EXCEPTION, Status.DELETED, Status.CANCELED]

    async def test_leaving_the_block_waits_for_the_rest(self, pgq: Holdfast, driver: Any) -> None:
        [job_id] = await pgq.queries.enqueue("mail")

        async def cancel() -> None:
            await pgq.queries.mark_job_as_cancelled([job_id])

        async with CompletionWatcher(driver, refresh_interval=None) as watcher:
            waiting = watcher.wait_for(job_id)
            cancelling = asyncio.create_task(cancel())
        await cancelling
        assert waiting.result() is Status.CANCELED

    async def test_an_exception_in_the_block_cancels_the_waiting(self, queries: Queries) -> None:
        [job_id] = await queries.enqueue("mail")
        waiting: list[asyncio.Future[Status]] = []

        async def fail() -> None:
            async with CompletionWatcher(queries) as watcher:
                waiting.append(watcher.wait_for(job_id))
                raise KeyError

        with pytest.raises(KeyError):
            await ends(fail())
        assert waiting[0].cancelled()

    async def test_a_held_job_ends_the_wait(self, pgq: Holdfast, driver: Any) -> None:
        @pgq.entrypoint("mail", on_failure="hold")
        async def mail(job: Job) -> None:
            raise ValueError

        [job_id] = await pgq.queries.enqueue("mail")
        await pgq.run(mode="drain")
        async with CompletionWatcher(driver) as watcher:
            assert await ends(watcher.wait_for(job_id)) is Status.FAILED

    async def test_a_held_job_may_be_waited_for_until_an_operator_decides(
        self, pgq: Holdfast, driver: Any
    ) -> None:
        @pgq.entrypoint("mail", on_failure="hold")
        async def mail(job: Job) -> None:
            raise ValueError

        [job_id] = await pgq.queries.enqueue("mail")
        await pgq.run(mode="drain")
        async with CompletionWatcher(driver, held=False) as watcher:
            waiting, others = watcher.wait_for(job_id), watcher.wait_for(job_id)
            others.cancel()
            await pgq.queries.delete_jobs([job_id])
            assert await ends(waiting) is Status.DELETED

    async def test_an_unknown_job_is_said_to_be_unknown(self, queries: Queries) -> None:
        [known] = await queries.enqueue("mail")
        async with CompletionWatcher(queries) as watcher:
            unknown, waiting = watcher.wait_for(JobId(10**9)), watcher.wait_for(known)
            with pytest.raises(JobNotFound):
                await ends(unknown)
            await queries.delete_jobs([known])
            assert await ends(waiting) is Status.DELETED

    async def test_it_survives_a_lost_connection(self, pg18: Database) -> None:
        async with Holdfast.connect(pg18.dsn) as hf:
            await hf.install()
            [job_id] = await hf.queries.enqueue("mail")
            [[pid]] = await hf.store.driver.fetch("select pg_backend_pid()")  # type: ignore[attr-defined]
            async with CompletionWatcher(hf.queries) as watcher:
                waiting = watcher.wait_for(job_id)
                with psycopg.connect(pg18.dsn, autocommit=True) as other:
                    other.execute("select pg_terminate_backend(%s)", (pid,))
                    SyncQueries(SyncPsycopgDriver(other)).delete_jobs([job_id])
                assert await ends(waiting) is Status.DELETED

    async def test_it_is_used_as_a_block_and_with_real_ids(self, queries: Queries) -> None:
        with pytest.raises(InvalidInput, match="async with"):
            CompletionWatcher(queries).wait_for(JobId(1))
        async with CompletionWatcher(queries) as watcher:
            with pytest.raises(InvalidInput, match="job id"):
                watcher.wait_for(None)  # type: ignore[arg-type]


STAR = """
import sys
for missing in sys.argv[1:]:
    sys.modules[missing] = None
from holdfast import *
print(*sorted(name for name in dir() if not name.startswith("_")))
"""


@pytest.mark.parametrize("missing", [(), ("asyncpg",), ("psycopg",)], ids=str)
def test_everything_can_be_imported_at_once(missing: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STAR, *missing], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    drivers = {
        "asyncpg": {"AsyncpgDriver", "AsyncpgPoolDriver"},
        "psycopg": {"PsycopgDriver", "SyncPsycopgDriver"},
    }
    without = set().union(*(drivers[library] for library in missing))
    assert set(done.stdout.split()) - {"missing", "sys"} == set(holdfast.__all__) - without


def test_the_public_names_are_sorted_and_there() -> None:
    assert sorted(holdfast.__all__) == holdfast.__all__
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None


_TEXT = (Path(__file__).parents[2] / "docs" / "from-pgqueuer.md").read_text("utf-8")
PAGE = re.sub(r"^```.*?^```", "", _TEXT, flags=re.M | re.S)
"""The page without its program."""

THEIRS = {
    "pgqueuer": "AsyncpgDriver AsyncpgPoolDriver DatabaseRetryEntrypointExecutor InMemoryDriver"
    " InMemoryQueries Job JobId PgQueuer PsycopgDriver Queries QueueManager RetryRequested"
    " SchedulerManager pgqueuer.run",
    "db": "Driver SyncDriver SyncPsycopgDriver",
    "errors": "DuplicateJobError FailingListenerError PgqException RetryException SchemaDriftError",
    "executors": "AbstractEntrypointExecutor AbstractScheduleExecutor AsyncContextCrontab"
    " AsyncContextEntrypoint AsyncCrontab AsyncEntrypoint Entrypoint EntrypointExecutor"
    " EntrypointExecutorParameters EntrypointTypeVar ScheduleCrontab ScheduleExecutor"
    " ScheduleExecutorFactoryParameters is_async_callable wants_context",
    "models": "AnyEvent CancellationEvent Channel Context CronEntrypoint CronExpression"
    " CronExpressionEntrypoint EVENT_TYPES Event HealthCheckEvent JOB_STATUS HealthCheckId Log"
    " LogStatistics OPERATIONS QueueEntrypoint QueueManagerId QueueStatistics Schedule"
    " ScheduleContext ScheduleId Slot TableChangedEvent TracebackRecord OnConflict OnFailure"
    " QueueExecutionMode",
    "other modules": "EntrypointExecutionParameter SyncQueries is_unique_violation load_factory"
    " validate_factory_result create_web_app create_web_router CompletionWatcher"
    " pgqueuer.core.completion MetricNames collect_metrics create_metrics_router LogfireTracing"
    " OpenTelemetryTracing SentryTracing TracingProtocol set_tracing_class DBSettings"
    " ConnectionSettings Durability",
    "queries": "from_asyncpg_connection from_asyncpg_pool from_psycopg_connection install uninstall"
    " schema_is_installed plan_upgrade schema_lock apply_upgrade upgrade alter_durability"
    " optimize_autovacuum optimize_autovacuum_rollback table_has_column table_has_index"
    " has_user_defined_enum has_table has_function has_trigger dequeue enqueue queued_work"
    " eligible_queued_work clear_queue mark_job_as_cancelled queue_size log_jobs retry_job"
    " requeue_jobs list_failed_jobs clear_statistics_log clear_queue_log aggregate_logs"
    " log_statistics notify_job_cancellation notify_health_check update_heartbeat insert_schedule"
    " fetch_schedule set_schedule_queued update_schedule_heartbeat peek_schedule delete_schedule"
    " clear_schedule queue_log job_status next_deferred_eta queue_age job_duration_percentiles"
    " throughput_summary throughput_timeseries active_workers stale_jobs exception_logs"
    " browse_queue queue_job_by_id job_log_history unaggregated_log_count schema_info",
    "application": "in_memory queries qm sm shutdown resources concurrency_limit accepts_context"
    " on_failure executor_factory clean_old dequeue_timeout batch_size mode max_concurrent_tasks"
    " shutdown_on_listener_failure heartbeat_timeout log_aggregation_interval listener_healthy"
    " register_executor entrypoint_registry verify_structure",
    "commands": "install verify uninstall upgrade dashboard run schedules failed requeue workers"
    " sql --restart-delay --restart-on-failure --factory --pg-dsn --prefix --schema --widen-id"
    " --create-schema",
    "settings": "PGDSN PGQUEUER_DSN PGQUEUER_PREFIX PGQUEUER_SCHEMA PGQUEUER_POOL_MIN_SIZE"
    " PGQUEUER_POOL_MAX_SIZE PGQUEUER_CONNECT_TIMEOUT PGQUEUER_APPLICATION_NAME"
    " PGQUEUER_DURABILITY PGQUEUER_WIDEN_ID PGQUEUER_CHANNEL PGQUEUER_FUNCTION"
    " PGQUEUER_STATISTICS_TABLE PGQUEUER_QUEUE_STATUS_TYPE PGQUEUER_QUEUE_TABLE"
    " PGQUEUER_QUEUE_TABLE_LOG PGQUEUER_TRIGGER PGQUEUER_SCHEDULES_TABLE PGQUEUER_WEB_HOST"
    " PGQUEUER_WEB_PORT PGQUEUER_WEB_USER PGQUEUER_WEB_PASSWORD PGQUEUER_TABLEFMT",
}
"""What PgQueuer 1.6 exports, by where it does."""

COMMANDS = ("web", "listen", "queue", "stale", "backlog", "durability", "autovac")


class TestThePage:
    @pytest.mark.parametrize("where", THEIRS)
    def test_names_everything_that_pgqueuer_has(self, where: str) -> None:
        spans = re.findall(r"`([^`]+)`", PAGE)
        known = {word for span in spans for word in re.findall(r"-{0,2}[\w.][\w.-]*", span)}
        assert set(THEIRS[where].split()) - known == set()

    @pytest.mark.parametrize("name", COMMANDS)
    def test_names_every_command_that_is_another(self, name: str) -> None:
        assert f"`pgq {name}" in PAGE

    def test_says_the_same_only_of_what_is_there(self) -> None:
        same = PAGE[PAGE.index("## The same") : PAGE.index("## Under another name")]
        for module, names in re.findall(r"^\| `(holdfast[.\w]*)` \| (.*) \|$", same, flags=re.M):
            found = importlib.import_module(module)
            for name in re.findall(r"`(\w+)`", names):
                assert hasattr(found, name), f"{module}.{name}"
        calls = same[same.index("- `Queries(driver)`") : same.index("- `with context")]
        for name in re.findall(r"`([a-z]\w+)`", calls):
            if name not in ("execute_after", "on_conflict", "raise", "skip", "update_priority"):
                assert hasattr(Queries, name), name
                assert hasattr(SyncQueries, name), name
