"""Reliability as PgQueuer's page describes it: failures, recovery, dedupe keys, the audit trail."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import DuplicateJobError, Job, JobId, Retention, RetryRequested, Status
from holdfast.executors import DatabaseRetryEntrypointExecutor
from tests.guide.steps import (
    abandon,
    drained,
    in_queue,
    log_of,
    row_of,
    run_again,
    shell,
    status_of,
)
from tests.worker.workers import eventually, working

if TYPE_CHECKING:
    from holdfast import Holdfast
    from tests.servers import Database

SECOND = timedelta(seconds=1)

EXCEPTIONS = """
select job_id, entrypoint, traceback->>'exception_type' as kind,
       traceback->>'exception_message' as message, traceback->>'traceback' as frames
from holdfast_log where status = 'exception' order by created desc limit 20
"""
STALLED = """
select id, entrypoint, status, heartbeat, updated from holdfast
where status = 'picked' and heartbeat < now() - interval '10 minutes' order by heartbeat
"""
ABANDON = """
update holdfast set status = 'picked', claim_token = gen_random_uuid(), claimed_by = 'gone',
    claimed_at = now() - $2::interval, heartbeat = now() - $2::interval, lease = $3::interval
where id = $1
"""


def breaks(hf: Holdfast, name: str = "broken", **options: Any) -> None:
    @hf.entrypoint(name, **options)
    async def broken(job: Job) -> None:
        raise LookupError("no such customer")


class TestFailure:
    async def test_an_unhandled_exception_ends_the_job_as_exception(self, hf: Holdfast) -> None:
        breaks(hf)
        job_id = await drained(hf, "broken")
        assert await status_of(hf, job_id) is Status.EXCEPTION

    async def test_type_message_and_full_traceback_are_recorded(self, hf: Holdfast) -> None:
        breaks(hf)
        [entry] = await log_of(hf, await drained(hf, "broken"))
        assert entry.traceback is not None
        assert entry.traceback["exception_type"] == "LookupError"
        assert entry.traceback["exception_message"] == "no such customer"
        assert "Traceback (most recent call last)" in entry.traceback["traceback"]
        assert 'raise LookupError("no such customer")' in entry.traceback["traceback"]

    async def test_the_record_moves_from_the_queue_to_the_log(
        self, hf: Holdfast, connection: Any
    ) -> None:
        breaks(hf)
        job_id = await drained(hf, "broken")
        assert not await in_queue(connection, job_id)
        logged = await connection.fetch("select status from holdfast_log where job_id = $1", job_id)
        assert [row["status"] for row in logged] == ["exception"]

    async def test_it_is_not_retried(self, hf: Holdfast, connection: Any) -> None:
        breaks(hf)
        job_id = await drained(hf, "broken")
        await run_again(hf, connection)
        assert len(await log_of(hf, job_id)) == 1

    async def test_failures_are_found_by_a_query(self, hf: Holdfast, connection: Any) -> None:
        breaks(hf)
        job_id = await drained(hf, "broken")
        [row] = await connection.fetch(EXCEPTIONS)
        assert (row["job_id"], row["entrypoint"]) == (job_id, "broken")
        assert (row["kind"], row["message"]) == ("LookupError", "no such customer")
        assert "raise LookupError" in row["frames"]


class TestRetries:
    async def test_a_request_keeps_the_row_with_all_it_carries(self, hf: Holdfast) -> None:
        @hf.entrypoint("limited")
        async def limited(job: Job) -> None:
            raise RetryRequested(delay=timedelta(seconds=30), reason="rate limited")

        job_id = await drained(
            hf, "limited", b"body", priority=3, dedupe_key="k", headers={"tenant": "a"}
        )
        job = await row_of(hf, job_id)
        assert (job.status, job.payload, job.priority) == (Status.QUEUED, b"body", 3)
        assert (job.dedupe_key, job.headers) == ("k", {"tenant": "a"})

    async def test_any_worker_takes_a_retried_job(
        self, hf: Holdfast, other: Holdfast, connection: Any
    ) -> None:
        @hf.entrypoint("limited")
        async def first(job: Job) -> None:
            raise RetryRequested(delay=timedelta(hours=1))

        seen: list[int] = []

        @other.entrypoint("limited")
        async def second(job: Job) -> None:
            seen.append(job.attempts)

        job_id = await drained(hf, "limited")
        await run_again(other, connection)
        assert seen == [1]
        assert await status_of(other, job_id) is Status.SUCCESSFUL

    async def test_the_executor_makes_retries_of_all_exceptions(
        self, hf: Holdfast, connection: Any
    ) -> None:
        breaks(
            hf,
            executor_factory=lambda params: DatabaseRetryEntrypointExecutor(
                parameters=params, max_attempts=5, initial_delay=SECOND
            ),
        )
        job_id = await drained(hf, "broken", b"body")
        delays = []
        for _ in range(3):
            job = await row_of(hf, job_id)
            delays.append((job.attempts, job.execute_after - job.updated))
            await run_again(hf, connection)
        assert delays == [(1, SECOND), (2, 2 * SECOND), (3, 4 * SECOND)]

    async def test_a_held_job_is_listed_and_sent_back_by_the_command(
        self, hf: Holdfast, pg: Database
    ) -> None:
        breaks(hf, on_failure="hold")
        job_id = await drained(hf, "broken", b"body", headers={"a": 1})
        job = await row_of(hf, job_id)
        assert (job.status, job.payload, job.headers, job.attempts) == (
            *(Status.FAILED, b"body"),
            *({"a": 1}, 0),
        )
        assert str(job_id) in (await shell("failed", "--dsn", pg.dsn)).out
        assert (await shell("requeue", str(job_id), "--dsn", pg.dsn)).code == 0
        assert await status_of(hf, job_id) is Status.QUEUED


class TestACrashedWorker:
    async def test_its_job_stays_picked_until_the_heartbeat_is_stale(self, hf: Holdfast) -> None:
        ran: list[JobId] = []

        @hf.entrypoint("stalls")
        async def stalls(job: Job) -> None:
            ran.append(job.id)

        [stale] = await hf.queries.enqueue("stalls")
        assert await abandon(hf, "stalls", timedelta(milliseconds=200)) == [stale]
        [fresh] = await hf.queries.enqueue("stalls")
        assert await abandon(hf, "stalls", timedelta(minutes=5)) == [fresh]
        assert await status_of(hf, stale) is Status.PICKED

        async def recovered() -> bool:
            return await status_of(hf, stale) is Status.SUCCESSFUL

        async with working(hf, heartbeat_timeout=SECOND):
            await eventually(recovered)
        assert ran == [stale]
        assert await status_of(hf, fresh) is Status.PICKED

    async def test_any_worker_runs_it_again_from_the_start(
        self, hf: Holdfast, other: Holdfast
    ) -> None:
        ran: list[tuple[bytes | None, int]] = []

        @other.entrypoint("stalls")
        async def stalls(job: Job) -> None:
            ran.append((job.payload, job.attempts))

        await hf.queries.enqueue("stalls", b"all of it")
        await abandon(hf, "stalls", timedelta(milliseconds=200))

        async def done() -> bool:
            return bool(ran)

        async with working(other, heartbeat_timeout=SECOND):
            await eventually(done)
        assert ran == [(b"all of it", 0)]

    async def test_run_takes_the_three_settings(self, hf: Holdfast) -> None:
        @hf.entrypoint("last")
        async def last(job: Job) -> None:
            hf.shutdown.set()

        [job_id] = await hf.queries.enqueue("last")
        await hf.run(
            dequeue_timeout=timedelta(seconds=5),
            batch_size=10,
            heartbeat_timeout=timedelta(minutes=5),
        )
        assert await status_of(hf, job_id) is Status.SUCCESSFUL

    async def test_the_heartbeat_timeout_is_the_lease_of_what_a_worker_claims(
        self, hf: Holdfast
    ) -> None:
        seen: list[timedelta | None] = []

        @hf.entrypoint("look")
        async def look(job: Job) -> None:
            seen.append(job.lease)

        await hf.queries.enqueue("look")
        await hf.run(mode="drain", heartbeat_timeout=timedelta(minutes=5))
        assert seen == [timedelta(minutes=5)]

    async def test_stalled_jobs_are_found_by_a_query(self, hf: Holdfast, connection: Any) -> None:
        healthy, stalled = await hf.queries.enqueue(["stalls"] * 2)
        await connection.execute(ABANDON, healthy, timedelta(0), SECOND)
        await connection.execute(ABANDON, stalled, timedelta(minutes=11), SECOND)
        assert [row["id"] for row in await connection.fetch(STALLED)] == [stalled]

    async def test_a_job_that_crashes_its_workers_again_and_again_is_put_aside(
        self, hf: Holdfast, connection: Any
    ) -> None:
        @hf.entrypoint("poison")
        async def poison(job: Job) -> None:
            pytest.fail("it is run no more")

        [job_id] = await hf.queries.enqueue("poison")
        await connection.execute("update holdfast set recoveries = 2")
        await abandon(hf, "poison", timedelta(milliseconds=200), suspects=True)

        async def held() -> bool:
            return await status_of(hf, job_id) is Status.FAILED

        async with working(hf, heartbeat_timeout=SECOND):
            await eventually(held)
        [entry] = await log_of(hf, job_id)
        assert entry.reason == "crash_loop"


class TestDedupeKeys:
    async def test_enqueue_takes_a_key_and_returns_ids(self, hf: Holdfast) -> None:
        ids = await hf.queries.enqueue(
            "send_invoice", payload=b'{"order": 7}', dedupe_key="invoice-7"
        )
        assert [(await row_of(hf, job_id)).dedupe_key for job_id in ids] == ["invoice-7"]

    @pytest.mark.parametrize("state", [Status.QUEUED, Status.PICKED])
    async def test_an_active_job_keeps_its_key(
        self, hf: Holdfast, connection: Any, state: Status
    ) -> None:
        [job_id] = await hf.queries.enqueue("a", dedupe_key="k")
        if state is Status.PICKED:
            await connection.execute(ABANDON, job_id, timedelta(0), SECOND)
        with pytest.raises(DuplicateJobError, match="'k'") as caught:
            await hf.queries.enqueue("a", dedupe_key="k")
        assert caught.value.dedupe_key == "k"

    @pytest.mark.parametrize(
        "end", [Status.SUCCESSFUL, Status.EXCEPTION, Status.CANCELED, Status.DELETED]
    )
    async def test_the_end_of_a_job_frees_its_key(self, hf: Holdfast, end: Status) -> None:
        @hf.entrypoint("a")
        async def a(job: Job) -> None:
            if end is Status.EXCEPTION:
                raise ValueError

        [job_id] = await hf.queries.enqueue("a", dedupe_key="k")
        if end is Status.CANCELED:
            await hf.queries.mark_job_as_cancelled([job_id])
        elif end is Status.DELETED:
            await hf.queries.delete_jobs([job_id])
        else:
            await hf.run(mode="drain")
        assert await status_of(hf, job_id) is end
        assert await hf.queries.enqueue("a", dedupe_key="k") != [job_id]

    async def test_the_database_itself_enforces_it_for_keys_of_active_jobs(
        self, hf: Holdfast, connection: Any
    ) -> None:
        insert = "insert into holdfast (entrypoint, dedupe_key) values ('a', $1)"
        await connection.execute(insert, "k")
        with pytest.raises(Exception, match="holdfast_dedupe_key"):
            await connection.execute(insert, "k")
        for _ in range(2):
            await connection.execute(insert, None)
        await connection.execute(
            "update holdfast set status = 'failed', held_at = now() where dedupe_key = 'k'"
        )
        await connection.execute(insert, "k")

    async def test_enqueuing_twice_is_safe(self, hf: Holdfast) -> None:
        first = await hf.queries.enqueue("a", b"1", dedupe_key="k", on_conflict="skip")
        again = await hf.queries.enqueue("a", b"1", dedupe_key="k", on_conflict="skip")
        assert (len(first), again) == (1, [None])
        assert sum(size.count for size in await hf.queries.queue_size()) == 1


class TestTheAuditTrail:
    @pytest.mark.parametrize(
        "end", [Status.SUCCESSFUL, Status.EXCEPTION, Status.CANCELED, Status.DELETED]
    )
    async def test_every_job_that_leaves_is_logged(
        self, hf: Holdfast, connection: Any, end: Status
    ) -> None:
        @hf.entrypoint("a")
        async def a(job: Job) -> None:
            if end is Status.EXCEPTION:
                raise ValueError

        [job_id] = await hf.queries.enqueue("a", priority=4)
        if end is Status.CANCELED:
            await hf.queries.mark_job_as_cancelled([job_id])
        elif end is Status.DELETED:
            await hf.queries.delete_jobs([job_id])
        else:
            await hf.run(mode="drain")
        [row] = await connection.fetch(
            "select status, entrypoint, priority, traceback, created from holdfast_log"
            " where job_id = $1",
            job_id,
        )
        assert (row["status"], row["entrypoint"], row["priority"]) == (end, "a", 4)
        assert (row["traceback"] is not None) == (end is Status.EXCEPTION)

    async def test_the_log_only_grows(self, hf: Holdfast, connection: Any) -> None:
        @hf.entrypoint("a", on_failure="hold")
        async def a(job: Job) -> None:
            raise ValueError

        job_id = await drained(hf, "a")
        [before] = await connection.fetch("select * from holdfast_log")
        await hf.queries.requeue_jobs([job_id])
        await hf.run(mode="drain")
        rows = await connection.fetch("select * from holdfast_log order by id")
        assert rows[0] == before
        assert [row["status"] for row in rows] == ["failed", "queued", "failed"]

    async def test_nothing_prunes_it_but_a_delete_of_ones_own(
        self, hf: Holdfast, connection: Any
    ) -> None:
        @hf.entrypoint("a")
        async def a(job: Job) -> None: ...

        await hf.queries.set_retention(Retention(None, None))
        await drained(hf, "a")
        await connection.execute("update holdfast_log set created = now() - interval '3 years'")
        job_id = await drained(hf, "a")
        assert await connection.fetchval("select count(*) from holdfast_log") == 2
        await connection.execute("delete from holdfast_log where created < now() - interval '30 d'")
        assert [entry.job_id for entry in await hf.queries.queue_log()] == [job_id]
        assert await status_of(hf, await drained(hf, "a")) is Status.SUCCESSFUL

    async def test_the_command_shows_it(self, hf: Holdfast, pg: Database) -> None:
        breaks(hf)
        job_id = await drained(hf, "broken")
        [row] = (await shell("log", "--json", "--dsn", pg.dsn)).json
        assert (row["job_id"], row["status"]) == (job_id, "exception")
        picture = await shell("dashboard", "--once", "--dsn", pg.dsn)
        assert picture.code == 0, picture.err
        assert "broken" in picture.out

    async def test_a_traceback_is_json_of_the_documented_shape(
        self, hf: Holdfast, connection: Any
    ) -> None:
        breaks(hf)
        job_id = await drained(hf, "broken")
        stored = json.loads(await connection.fetchval("select traceback from holdfast_log"))
        assert {"exception_type", "exception_message", "traceback"} <= set(stored)
        assert (stored["job_id"], stored["additional_context"]["entrypoint"]) == (job_id, "broken")
