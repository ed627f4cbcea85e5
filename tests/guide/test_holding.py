"""Holding failed jobs as PgQueuer's page describes it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Holdfast, Job, JobId, Requeued, RetryRequested, Status
from holdfast.executors import DatabaseRetryEntrypointExecutor
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from tests.guide.steps import (
    Service,
    drained,
    in_queue,
    log_of,
    row_of,
    run_again,
    shell,
    status_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.servers import Database

HELD = """
select id, entrypoint, attempts, created, octet_length(payload) as bytes
from holdfast where status = 'failed' order by created desc limit 50
"""
WHY = """
select traceback->>'exception_type' as kind, traceback->>'exception_message' as message,
       traceback->>'traceback' as frames
from holdfast_log where job_id = $1 and status = 'failed' order by created desc limit 1
"""


def orders(hf: Holdfast, **options: Any) -> None:
    @hf.entrypoint("order", **options)
    async def order(job: Job) -> None:
        raise PermissionError("card refused")


class TestAFailure:
    async def test_by_default_deletes_the_job_with_its_payload(
        self, hf: Holdfast, connection: Any
    ) -> None:
        orders(hf)
        job_id = await drained(hf, "order", b"7")
        assert not await in_queue(connection, job_id)
        assert [entry.status for entry in await log_of(hf, job_id)] == [Status.EXCEPTION]

    async def test_under_hold_keeps_the_row_with_all_it_carries(
        self, hf: Holdfast, connection: Any
    ) -> None:
        orders(hf, on_failure="hold")
        job_id = await drained(hf, "order", b"7", priority=2, headers={"tenant": "a"})
        job = await row_of(hf, job_id)
        assert (job.status, job.payload, job.headers) == (Status.FAILED, b"7", {"tenant": "a"})
        assert (job.priority, job.attempts) == (2, 0)
        assert [entry.status for entry in await log_of(hf, job_id)] == [Status.FAILED]

    async def test_under_hold_is_not_claimed_again(self, hf: Holdfast, connection: Any) -> None:
        orders(hf, on_failure="hold")
        job_id = await drained(hf, "order")
        await connection.execute("update holdfast set execute_after = now() - interval '1 day'")
        await hf.run(mode="drain")
        assert len(await log_of(hf, job_id)) == 1

    async def test_under_hold_waits_until_it_is_deleted(
        self, hf: Holdfast, connection: Any
    ) -> None:
        orders(hf, on_failure="hold")
        job_id = await drained(hf, "order")
        assert await hf.queries.delete_jobs([job_id]) == {job_id}
        assert not await in_queue(connection, job_id)
        assert await status_of(hf, job_id) is Status.DELETED

    async def test_of_a_one_shot_job_waits_for_a_person(self, hf: Holdfast) -> None:
        gateway = Service(402)

        @hf.entrypoint("charge", on_failure="hold")
        async def charge(job: Job) -> None:
            if await gateway.post(job.payload) != 200:
                raise PermissionError("card refused")

        job_id = await drained(hf, "charge", b"7")
        assert (gateway.calls, await status_of(hf, job_id)) == ([b"7"], Status.FAILED)
        gateway.status = 200
        await hf.queries.requeue_jobs([job_id])
        await hf.run(mode="drain")
        assert await status_of(hf, job_id) is Status.SUCCESSFUL

    async def test_after_the_last_retry_holds_the_job_with_its_history(
        self, hf: Holdfast, connection: Any
    ) -> None:
        orders(
            hf,
            on_failure="hold",
            executor_factory=lambda params: DatabaseRetryEntrypointExecutor(
                parameters=params,
                max_attempts=3,
                initial_delay=timedelta(seconds=2),
                max_delay=timedelta(minutes=10),
            ),
        )
        job_id = await drained(hf, "order", b"7")
        for _ in range(3):
            await run_again(hf, connection)
        history = [entry.status for entry in await log_of(hf, job_id)]
        assert history == [Status.QUEUED] * 3 + [Status.FAILED]
        assert (await row_of(hf, job_id)).payload == b"7"

    async def test_after_the_last_retry_deletes_the_job_by_default(
        self, hf: Holdfast, connection: Any
    ) -> None:
        orders(
            hf,
            executor_factory=lambda params: DatabaseRetryEntrypointExecutor(
                parameters=params, max_attempts=1
            ),
        )
        job_id = await drained(hf, "order")
        await run_again(hf, connection)
        assert not await in_queue(connection, job_id)

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (429, Status.QUEUED),
            (400, Status.FAILED),
            (500, Status.FAILED),
            (200, Status.SUCCESSFUL),
        ],
    )
    async def test_of_a_webhook_is_retried_or_held(
        self, hf: Holdfast, answer: int, expected: Status
    ) -> None:
        receiver = Service(answer)

        @hf.entrypoint("webhook", on_failure="hold")
        async def webhook(job: Job) -> None:
            status = await receiver.post(job.payload)
            if status == 429:
                raise RetryRequested(delay=timedelta(seconds=60), reason="rate limited")
            if status != 200:
                raise RuntimeError(f"answered {status}")

        assert await status_of(hf, await drained(hf, "webhook", b"{}")) is expected

    @pytest.mark.parametrize("mode", ["delete", "hold"])
    async def test_and_its_handling_cost_a_good_job_nothing(
        self, hf: Holdfast, connection: Any, mode: Any
    ) -> None:
        @hf.entrypoint("good", on_failure=mode)
        async def good(job: Job) -> None: ...

        job_id = await drained(hf, "good")
        assert not await in_queue(connection, job_id)
        assert [entry.status for entry in await log_of(hf, job_id)] == [Status.SUCCESSFUL]


class StatisticsRollup(AsyncpgDriver):
    """Knows which statements went out."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.sent: list[str] = []

    async def fetch(self, sql: str, args: Sequence[object] = (), **options: Any) -> Any:
        self.sent.append(sql)
        return await super().fetch(sql, args, **options)


async def test_many_jobs_are_held_in_few_statements(hf: Holdfast, connection: Any) -> None:
    counting = StatisticsRollup(connection)
    worker = Holdfast(counting)
    orders(worker, on_failure="hold")
    ids = await hf.queries.enqueue(["order"] * 200)
    await worker.run(mode="drain")
    holding = [sql for sql in counting.sent if "'failed'" in sql and "update" in sql.lower()]
    settling = [sql for sql in holding if "claim_token = null" in sql.lower()]
    assert {status for _, status in await hf.queries.job_status(ids)} == {Status.FAILED}
    assert 0 < len(settling) < 50


class TestLooking:
    async def test_the_command_lists_up_to_twenty_five(self, hf: Holdfast, pg: Database) -> None:
        orders(hf, on_failure="hold")
        await hf.queries.enqueue(["order"] * 30, [b"12345"] * 30)
        await hf.run(mode="drain")
        assert len((await shell("failed", "--json", "--dsn", pg.dsn)).json) == 25
        assert len((await shell("failed", "-n", "100", "--json", "--dsn", pg.dsn)).json) == 30

    async def test_the_command_names_the_documented_columns(
        self, hf: Holdfast, pg: Database
    ) -> None:
        orders(hf, on_failure="hold")
        job_id = await drained(hf, "order", b"12345")
        heading, *rows = (await shell("failed", "--dsn", pg.dsn)).out.splitlines()
        for column in ("id", "entrypoint", "attempts", "created", "payload"):
            assert column in heading
        [row] = [row for row in rows if "order" in row]
        assert str(job_id) in row
        assert "5 B" in row

    async def test_held_jobs_are_found_by_a_query(self, hf: Holdfast, connection: Any) -> None:
        orders(hf, on_failure="hold")
        job_id = await drained(hf, "order", b"12345")
        [row] = await connection.fetch(HELD)
        assert (row["id"], row["entrypoint"], row["attempts"], row["bytes"]) == (
            *(job_id, "order"),
            *(0, 5),
        )

    async def test_the_reason_is_found_by_a_query(self, hf: Holdfast, connection: Any) -> None:
        orders(hf, on_failure="hold")
        [row] = await connection.fetch(WHY, await drained(hf, "order"))
        assert (row["kind"], row["message"]) == ("PermissionError", "card refused")
        assert "raise PermissionError" in row["frames"]


class TestRequeuing:
    async def test_the_command_sends_several_back(self, hf: Holdfast, pg: Database) -> None:
        orders(hf, on_failure="hold")
        ids = await hf.queries.enqueue(["order"] * 3)
        await hf.run(mode="drain")
        assert (await shell("requeue", *map(str, ids), "--dsn", pg.dsn)).code == 0
        assert {status for _, status in await hf.queries.job_status(ids)} == {Status.QUEUED}

    async def test_the_call_takes_job_ids(self, hf: Holdfast) -> None:
        orders(hf, on_failure="hold")
        job_id = await drained(hf, "order")
        outcome = await hf.queries.requeue_jobs([JobId(job_id), JobId(10**9)])
        assert outcome == {job_id: Requeued.REQUEUED, 10**9: Requeued.NOT_FOUND}

    async def test_a_job_starts_afresh_and_at_once(self, hf: Holdfast, connection: Any) -> None:
        orders(hf, on_failure="hold")
        job_id = await drained(hf, "order")
        await connection.execute(
            "update holdfast set attempts = 4, execute_after = now() + interval '1 day'"
        )
        await hf.queries.requeue_jobs([job_id])
        job = await row_of(hf, job_id)
        assert (job.status, job.attempts) == (Status.QUEUED, 0)
        assert job.execute_after <= await hf.queries.now()
        *_, last = await log_of(hf, job_id)
        assert last.status is Status.QUEUED

    async def test_any_worker_takes_it(self, hf: Holdfast, other: Holdfast) -> None:
        orders(hf, on_failure="hold")
        ran: list[JobId] = []

        @other.entrypoint("order")
        async def order(job: Job) -> None:
            ran.append(job.id)

        job_id = await drained(hf, "order")
        await hf.queries.requeue_jobs([job_id])
        await other.run(mode="drain")
        assert ran == [job_id]

    async def test_the_executor_gives_it_all_its_retries_again(
        self, hf: Holdfast, connection: Any
    ) -> None:
        orders(
            hf,
            on_failure="hold",
            executor_factory=lambda params: DatabaseRetryEntrypointExecutor(
                parameters=params, max_attempts=2
            ),
        )
        job_id = await drained(hf, "order")
        for _ in range(2):
            await run_again(hf, connection)
        await hf.queries.requeue_jobs([job_id])
        for _ in range(3):
            await run_again(hf, connection)
        words = [entry.status.value for entry in await log_of(hf, job_id)]
        assert words == ["queued", "queued", "failed", "queued", "queued", "queued", "failed"]
