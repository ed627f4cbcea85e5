"""Retries in the database as PgQueuer's page describes them."""

from __future__ import annotations

import inspect
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Holdfast, Job, JobId, RetryRequested, Status
from holdfast.executors import DatabaseRetryEntrypointExecutor
from tests.guide.steps import abandon, drained, in_queue, log_of, row_of, run_again, status_of
from tests.worker.workers import Watch, eventually, working

if TYPE_CHECKING:
    from tests.servers import Database

SECOND = timedelta(seconds=1)
HISTORY = """
select job_id, status, created, traceback->'additional_context'->>'attempt' as attempt,
       traceback->'additional_context'->>'reason' as reason,
       traceback->'additional_context'->>'retry_delay' as delay
from holdfast_log where job_id = $1 order by created
"""


def retries(hf: Holdfast, delay: timedelta = 30 * SECOND, **options: Any) -> None:
    @hf.entrypoint("call", **options)
    async def call(job: Job) -> None:
        raise RetryRequested(delay=delay, reason="rate limited")


def stubborn(hf: Holdfast, **executor: Any) -> None:
    """A handler that always fails, under the executor that retries."""

    @hf.entrypoint(
        "stubborn",
        executor_factory=lambda params: DatabaseRetryEntrypointExecutor(
            parameters=params, **executor
        ),
    )
    async def stubborn(job: Job) -> None:
        raise ConnectionError("down")


class TestARequest:
    async def test_updates_the_row_in_place(self, hf: Holdfast, connection: Any) -> None:
        retries(hf)
        [job_id] = await hf.queries.enqueue(
            "call", b"body", priority=2, dedupe_key="k", headers={"a": [1]}
        )
        before = await row_of(hf, job_id)
        place = await connection.fetchval("select created from holdfast where id = $1", job_id)
        await hf.run(mode="drain")
        after = await row_of(hf, job_id)
        kept = ("id", "entrypoint", "payload", "priority", "dedupe_key", "headers", "created")
        assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
        assert after.created == place

    async def test_queues_puts_off_counts_and_logs_at_once(
        self, hf: Holdfast, connection: Any
    ) -> None:
        retries(hf)
        job_id = await drained(hf, "call")
        job = await row_of(hf, job_id)
        assert (job.status, job.attempts) == (Status.QUEUED, 1)
        assert job.execute_after - job.updated == 30 * SECOND
        one = await connection.fetchval(
            "select j.xmin::text = l.xmin::text from holdfast j join holdfast_log l"
            " on l.job_id = j.id where j.id = $1",
            job_id,
        )
        assert one, "the row and its log entry were written by two transactions"

    async def test_is_run_after_the_delay_and_not_before(self, hf: Holdfast) -> None:
        ran: list[int] = []

        @hf.entrypoint("call")
        async def call(job: Job) -> None:
            ran.append(job.attempts)
            if not job.attempts:
                raise RetryRequested(delay=timedelta(milliseconds=300))

        watch = Watch(hf)
        async with working(hf):
            [job_id] = await hf.queries.enqueue("call")
            await watch.until_settled(2)
        first, second = await log_of(hf, job_id)
        assert ran == [0, 1]
        assert second.claimed_at is not None
        assert second.claimed_at - first.created >= timedelta(milliseconds=300)

    async def test_shows_the_next_run_how_many_came_before(
        self, hf: Holdfast, connection: Any
    ) -> None:
        seen: list[int] = []

        @hf.entrypoint("call")
        async def call(job: Job) -> None:
            seen.append(job.attempts)
            if job.attempts < 3:
                raise RetryRequested(delay=SECOND)

        await drained(hf, "call")
        for _ in range(3):
            await run_again(hf, connection)
        assert seen == [0, 1, 2, 3]

    async def test_has_one_id_in_the_whole_history(self, hf: Holdfast, connection: Any) -> None:
        retries(hf)
        job_id = await drained(hf, "call")
        for _ in range(3):
            await run_again(hf, connection)
        rows = await connection.fetch(HISTORY, job_id)
        assert [(row["status"], row["attempt"]) for row in rows] == [
            ("queued", str(n)) for n in range(4)
        ]

    def test_needs_neither_a_delay_nor_a_reason(self) -> None:
        plain = RetryRequested()
        assert (plain.delay, plain.reason) == (timedelta(0), None)
        parameters = inspect.signature(RetryRequested).parameters
        assert list(parameters) == ["delay", "reason"]

    async def test_lets_a_handler_give_up_by_itself(self, hf: Holdfast, connection: Any) -> None:
        @hf.entrypoint("patient")
        async def patient(job: Job) -> None:
            if job.attempts > 2:
                raise RuntimeError("tried often enough")
            raise RetryRequested(
                delay=timedelta(seconds=2**job.attempts), reason=f"attempt {job.attempts}"
            )

        job_id = await drained(hf, "patient")
        for _ in range(3):
            await run_again(hf, connection)
        *earlier, last = await log_of(hf, job_id)
        assert [entry.reason for entry in earlier] == ["attempt 0", "attempt 1", "attempt 2"]
        assert last.traceback is not None
        assert (last.status, last.traceback["exception_message"]) == (
            Status.EXCEPTION,
            "tried often enough",
        )

    async def test_outlives_the_worker_that_asked(self, pg: Database, connection: Any) -> None:
        async with Holdfast.connect(pg.dsn) as first:
            await first.install()
            retries(first)
            job_id = await drained(first, "call")
        async with Holdfast.connect(pg.dsn) as second:
            ran: list[JobId] = []

            @second.entrypoint("call")
            async def call(job: Job) -> None:
                ran.append(job.id)

            await run_again(second, connection)
            assert ran == [job_id]

    @pytest.mark.parametrize("mode", ["delete", "hold"])
    async def test_is_honoured_whatever_becomes_of_failures(self, hf: Holdfast, mode: Any) -> None:
        retries(hf, on_failure=mode)
        job = await row_of(hf, await drained(hf, "call"))
        assert (job.status, job.attempts) == (Status.QUEUED, 1)


class TestTheLogOfARetry:
    async def test_says_what_happened_and_when_it_goes_on(
        self, hf: Holdfast, connection: Any
    ) -> None:
        retries(hf)
        job_id = await drained(hf, "call")
        [row] = await connection.fetch(HISTORY, job_id)
        assert (row["job_id"], row["status"], row["attempt"]) == (job_id, "queued", "0")
        assert (row["reason"], row["delay"]) == ("rate limited", "0:00:30")

    async def test_has_the_documented_context(self, hf: Holdfast, connection: Any) -> None:
        retries(hf)
        await drained(hf, "call")
        stored = json.loads(await connection.fetchval("select traceback from holdfast_log"))
        expected = {
            "entrypoint": "call",
            "attempt": 0,
            "retry_delay": "0:00:30",
            "reason": "rate limited",
        }
        assert expected.items() <= stored["additional_context"].items()
        assert stored["exception_type"] == "RetryRequested"
        assert "raise RetryRequested" in stored["traceback"]


class TestTheExecutor:
    def test_has_the_documented_parameters(self) -> None:
        parameters = inspect.signature(DatabaseRetryEntrypointExecutor).parameters
        defaults = {
            name: parameters[name].default
            for name in ("max_attempts", "initial_delay", "max_delay", "backoff_multiplier")
        }
        assert defaults == {
            "max_attempts": 5,
            "initial_delay": SECOND,
            "max_delay": timedelta(minutes=5),
            "backoff_multiplier": 2.0,
        }

    async def test_waits_longer_each_time_up_to_the_cap(
        self, hf: Holdfast, connection: Any
    ) -> None:
        stubborn(
            hf,
            max_attempts=9,
            initial_delay=SECOND,
            backoff_multiplier=2.0,
            max_delay=60 * SECOND,
        )
        job_id = await drained(hf, "stubborn")
        delays = []
        for _ in range(8):
            job = await row_of(hf, job_id)
            delays.append((job.execute_after - job.updated).total_seconds())
            await run_again(hf, connection)
        assert delays == [1, 2, 4, 8, 16, 32, 60, 60]

    async def test_gives_up_after_its_retries_with_the_original_exception(
        self, hf: Holdfast, connection: Any
    ) -> None:
        stubborn(hf, max_attempts=2)
        job_id = await drained(hf, "stubborn")
        for _ in range(2):
            await run_again(hf, connection)
        first, second, last = await log_of(hf, job_id)
        assert (first.status, second.status) == (Status.QUEUED, Status.QUEUED)
        assert last.traceback is not None
        assert (last.status, last.traceback["exception_type"]) == (
            Status.EXCEPTION,
            "ConnectionError",
        )
        assert not await in_queue(connection, job_id)

    async def test_below_the_cap_an_exception_is_a_retry(self, hf: Holdfast) -> None:
        stubborn(hf)
        job = await row_of(hf, await drained(hf, "stubborn"))
        assert (job.status, job.attempts) == (Status.QUEUED, 1)

    async def test_leaves_a_request_of_the_handlers_own_alone(self, hf: Holdfast) -> None:
        @hf.entrypoint(
            "call",
            executor_factory=lambda params: DatabaseRetryEntrypointExecutor(parameters=params),
        )
        async def call(job: Job) -> None:
            raise RetryRequested(delay=timedelta(hours=1), reason="my own")

        job_id = await drained(hf, "call")
        job = await row_of(hf, job_id)
        [entry] = await log_of(hf, job_id)
        assert job.execute_after - job.updated == timedelta(hours=1)
        assert entry.reason == "my own"

    async def test_at_the_cap_a_job_is_held_where_failures_are(
        self, hf: Holdfast, connection: Any
    ) -> None:
        @hf.entrypoint(
            "call",
            on_failure="hold",
            executor_factory=lambda params: DatabaseRetryEntrypointExecutor(
                parameters=params, max_attempts=1
            ),
        )
        async def call(job: Job) -> None:
            raise ValueError

        job_id = await drained(hf, "call")
        await run_again(hf, connection)
        assert await status_of(hf, job_id) is Status.FAILED


class TestBesideIt:
    async def test_a_job_that_ends_well_leaves_as_successful(
        self, hf: Holdfast, connection: Any
    ) -> None:
        @hf.entrypoint("call")
        async def call(job: Job) -> None: ...

        job_id = await drained(hf, "call")
        assert not await in_queue(connection, job_id)
        assert [entry.status for entry in await log_of(hf, job_id)] == [Status.SUCCESSFUL]

    async def test_a_crash_is_the_business_of_the_heartbeat(self, hf: Holdfast) -> None:
        @hf.entrypoint("call")
        async def call(job: Job) -> None: ...

        [job_id] = await hf.queries.enqueue("call")
        assert await abandon(hf, "call", timedelta(milliseconds=200)) == [job_id]

        async def done() -> bool:
            return await status_of(hf, job_id) is Status.SUCCESSFUL

        async with working(hf, heartbeat_timeout=SECOND):
            await eventually(done)
        recovered, ended = await log_of(hf, job_id)
        assert (recovered.status, recovered.reason) == (Status.QUEUED, "lease_expired")
        assert (ended.attempt, ended.recoveries) == (0, 1)
