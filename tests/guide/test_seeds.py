"""Every block of the source documents does what the text around it says."""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

from holdfast import (
    AsyncpgDriver,
    DuplicateJobError,
    Holdfast,
    InMemoryDriver,
    Job,
    JobId,
    PsycopgDriver,
    RetryRequested,
    Status,
    SyncPsycopgDriver,
)
from tests.guide import seeds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import Database

pytestmark = pytest.mark.skipif(
    not seeds.DIRECTORY.is_dir(), reason="the source documents are not beside this checkout"
)

Names = dict[str, Any]


class Http:
    """An HTTP client whose answer a test decides."""

    def __init__(self) -> None:
        self.status = 200
        self.sent: list[bytes | None] = []

    async def post(self, url: str, data: bytes | None) -> Http:
        self.sent.append(data)
        return self

    def raise_for_status(self) -> None:
        if self.status >= 400:
            raise RuntimeError(f"status {self.status}")


@pytest.fixture
async def connection(pg: Database) -> AsyncIterator[Any]:
    found = await asyncpg.connect(pg.dsn)
    yield found
    await found.close()


@pytest.fixture
async def names(connection: Any) -> Names:
    """What the blocks expect around them."""
    hf = Holdfast(AsyncpgDriver(connection))
    await hf.install()
    return {
        "pgq": hf,
        "driver": AsyncpgDriver(connection),
        "queries": hf.queries,
        "http_client": Http(),
        "url": "http://127.0.0.1/hook",
        "API_URL": "http://127.0.0.1/api",
        "Job": Job,
        "JobId": JobId,
        "RetryRequested": RetryRequested,
        "timedelta": timedelta,
    }


async def drained(names: Names, *args: Any, **kwargs: Any) -> JobId:
    [job_id] = await names["queries"].enqueue(*args, **kwargs)
    await names["pgq"].run(mode="drain")
    return JobId(job_id)


async def status_of(names: Names, job_id: JobId) -> Status:
    [(_, status)] = await names["queries"].job_status([job_id])
    return Status(status)


class TestReliability:
    async def test_the_exception_query_shows_type_message_and_traceback(
        self, names: Names, connection: Any
    ) -> None:
        hf: Holdfast = names["pgq"]

        @hf.entrypoint("broken")
        async def broken(job: Job) -> None:
            raise ValueError("no such thing")

        job_id = await drained(names, "broken")
        [row] = await connection.fetch(seeds.block(0, "SELECT job_id, entrypoint,", "LIMIT 20;"))
        assert row["job_id"] == job_id
        assert (row["exception_type"], row["exception_message"]) == ("ValueError", "no such thing")
        assert "raise ValueError" in row["traceback_text"]
        assert await status_of(names, job_id) is Status.EXCEPTION

    async def test_a_rate_limited_call_is_queued_again(self, names: Names) -> None:
        await seeds.run(
            seeds.block(0, "from datetime import timedelta", 'reason="rate limited")'), names
        )
        names["http_client"].status = 429
        job_id = await drained(names, "call_api", b"body")
        assert names["http_client"].sent == [b"body"]
        assert await status_of(names, job_id) is Status.QUEUED
        [job] = await names["queries"].get_jobs([job_id])
        assert job.attempts == 1
        assert job.execute_after - job.updated == timedelta(seconds=30)

    async def test_the_retry_executor_turns_an_exception_into_a_retry(self, names: Names) -> None:
        async def call_unreliable_service(payload: bytes) -> None:
            raise ConnectionError("down")

        names["call_unreliable_service"] = call_unreliable_service
        await seeds.run(
            seeds.block(0, "from holdfast.executors", "call_unreliable_service(job.payload)"), names
        )
        job_id = await drained(names, "flaky_api", b"body")
        [job] = await names["queries"].get_jobs([job_id])
        assert (job.status, job.attempts) == (Status.QUEUED, 1)
        assert job.execute_after - job.updated == timedelta(seconds=1)

    async def test_run_takes_the_three_settings(self, names: Names) -> None:
        pgq: Holdfast = names["pgq"]

        @pgq.entrypoint("stop")
        async def stop(job: Job) -> None:
            pgq.shutdown.set()

        [job_id] = await names["queries"].enqueue("stop")
        await seeds.run(seeds.block(0, "await pgq.run(", ")", nth=1), names)
        assert await status_of(names, job_id) is Status.SUCCESSFUL

    async def test_a_dedupe_key_is_free_again_when_its_job_has_ended(self, names: Names) -> None:
        enqueue = seeds.block(0, "job_ids = await queries.enqueue(", ")")
        await seeds.run(enqueue, names)
        [first] = names["job_ids"]
        with pytest.raises(DuplicateJobError, match="invoice-order-42"):
            await seeds.run(enqueue, names)
        await names["queries"].mark_job_as_cancelled([first])
        await seeds.run(enqueue, names)
        assert names["job_ids"] != [first]

    async def test_the_unique_constraint_is_the_one_promised(
        self, names: Names, connection: Any
    ) -> None:
        promised = seeds.block(0, "UNIQUE (dedupe_key)", "dedupe_key IS NOT NULL")
        _, _, condition = promised.partition("WHERE")
        await names["queries"].enqueue("a", dedupe_key="k")
        rows = await connection.fetch(
            f"select dedupe_key, ({condition}) as held, held_at is null as indexed from holdfast"
        )
        assert [(row["held"], row["indexed"]) for row in rows] == [(True, True)]

    async def test_the_poison_query_finds_stalled_jobs(self, names: Names, connection: Any) -> None:
        [job_id] = await names["queries"].enqueue("stalls")
        await connection.execute(
            "update holdfast set status = 'picked', claim_token = gen_random_uuid(), "
            "claimed_by = 'gone', claimed_at = now(), lease = interval '30 seconds', "
            "heartbeat = now() - interval '11 minutes'"
        )
        query = seeds.block(0, "-- Jobs that have been re-picked", "ORDER BY heartbeat ASC;")
        assert [row["id"] for row in await connection.fetch(query)] == [job_id]


class TestDatabaseLevelRetry:
    async def test_basic_usage_and_the_retry_history_query(
        self, names: Names, connection: Any
    ) -> None:
        await seeds.run(
            seeds.block(1, "from datetime import timedelta", "response.raise_for_status()"), names
        )
        names["http_client"].status = 429
        job_id = await drained(names, "call_api", b"body")
        query = seeds.block(1, "SELECT job_id, status, created,", "ORDER BY created;")
        [row] = await connection.fetch(query.replace("42", str(job_id)))
        assert (row["status"], row["attempt"], row["reason"], row["delay"]) == (
            "queued",
            "0",
            "rate limited",
            "0:00:30",
        )

    async def test_the_additional_context_is_the_documented_one(
        self, names: Names, connection: Any
    ) -> None:
        await seeds.run(
            seeds.block(1, "from datetime import timedelta", "response.raise_for_status()"), names
        )
        names["http_client"].status = 429
        job_id = await drained(names, "call_api", b"body")
        stored = await connection.fetchval(
            "select traceback -> 'additional_context' from holdfast_log where job_id = $1", job_id
        )
        documented = json.loads(seeds.block(1, "{", "}"))
        assert documented.items() <= json.loads(stored).items()

    async def test_a_handler_reads_its_attempts_and_gives_up(self, names: Names) -> None:
        class TransientError(Exception):
            pass

        seen: list[int] = []

        async def do_work(payload: bytes) -> None:
            raise TransientError

        names |= {"TransientError": TransientError, "do_work": do_work}
        source = seeds.block(1, '@pgq.entrypoint("resilient_task")', '{job.attempts}",')
        await seeds.run(source + "        )\n", names)
        job_id = await drained(names, "resilient_task")
        for _ in range(6):
            await names["pgq"].store.driver.fetch("update holdfast set execute_after = now()")
            [job] = await names["queries"].get_jobs([job_id])
            seen.append(job.attempts)
            await names["pgq"].run(mode="drain")
        assert seen == [1, 2, 3, 4, 5, 6]
        assert await status_of(names, job_id) is Status.EXCEPTION
        *_, last = await names["queries"].job_history(job_id)
        assert last.traceback["exception_message"] == "Too many retries, giving up"

    async def test_the_executor_gives_up_after_its_retries(self, names: Names) -> None:
        async def call_unreliable_service(payload: bytes) -> None:
            raise ConnectionError("down")

        names["call_unreliable_service"] = call_unreliable_service
        await seeds.run(
            seeds.block(
                1,
                "from datetime import timedelta",
                "call_unreliable_service(job.payload)",
                nth=2,
            ),
            names,
        )
        job_id = await drained(names, "flaky_api")
        delays = []
        for _ in range(5):
            [job] = await names["queries"].get_jobs([job_id])
            delays.append((job.execute_after - job.updated).total_seconds())
            await names["pgq"].store.driver.fetch("update holdfast set execute_after = now()")
            await names["pgq"].run(mode="drain")
        assert delays == [1, 2, 4, 8, 16]
        assert await status_of(names, job_id) is Status.EXCEPTION


class TestCoreConcepts:
    async def test_a_schedule_gets_its_schedule(self, names: Names) -> None:
        source = seeds.block(2, "from holdfast.models import Schedule", 'report...")')
        lines = source.splitlines()
        lines[-1] = "    " + lines[-1].strip()
        await seeds.run("\n".join(lines) + "\n", names)
        pgq = names["pgq"]
        await pgq.scheduler_manager.register()
        job_id = await pgq.schedules.run_now("hourly_report")
        await pgq.run(mode="drain")
        assert await status_of(names, job_id) is Status.SUCCESSFUL
        [stored] = await pgq.schedules.list()
        assert (stored.name, stored.expression) == ("hourly_report", "0 * * * *")

    async def test_every_factory_gives_a_working_instance(self, pg: Database) -> None:
        source = seeds.block(2, "# asyncpg single connection", "Holdfast.in_memory()")
        pool = await asyncpg.create_pool(pg.dsn, min_size=1, max_size=2)
        single = await asyncpg.connect(pg.dsn)
        other = await psycopg.AsyncConnection.connect(pg.dsn)
        try:
            for conn in (single, other):
                for piece in source.split("\n# "):
                    scope: Names = {"Holdfast": Holdfast, "conn": conn, "pool": pool}
                    wants_psycopg = "psycopg" in piece
                    if wants_psycopg != (conn is other) and "conn" in piece:
                        continue
                    await seeds.run(piece.partition("\n")[2], scope)
                    await self.works(scope["pgq"])
        finally:
            await pool.close()
            await single.close()
            await other.close()

    async def works(self, pgq: Holdfast) -> None:
        await pgq.install()
        seen = []

        @pgq.entrypoint("echo")
        async def echo(job: Job) -> None:
            seen.append(job.payload)

        await pgq.queries.enqueue("echo", b"hello")
        await pgq.run(mode="drain")
        assert seen == [b"hello"]

    def test_the_drivers_of_the_table_exist(self) -> None:
        for driver in (AsyncpgDriver, PsycopgDriver, SyncPsycopgDriver, InMemoryDriver):
            assert f"{driver.__name__} |" in seeds.text(2)

    async def test_the_four_tables_exist(self, names: Names, connection: Any) -> None:
        listed = seeds.text(2).partition("Database Tables")[2]
        for table in ("holdfast", "holdfast_log", "holdfast_statistics", "holdfast_schedules"):
            assert f"{table} |" in listed
            assert await connection.fetchval("select to_regclass($1)::text", table) == table

    async def test_the_enum_has_the_words_of_the_status_table(
        self, names: Names, connection: Any
    ) -> None:
        words = await connection.fetchval("select enum_range(null::holdfast_status)::text[]")
        table = seeds.text(2).partition("| Status | Meaning |")[2].partition("Once a job")[0]
        documented = [line.removesuffix(" |") for line in table.splitlines() if line.endswith(" |")]
        assert [word for word in documented if word in words] == words


class TestHoldingFailedJobs:
    async def test_a_failed_payment_is_parked_with_its_payload(
        self, names: Names, connection: Any
    ) -> None:
        async def charge(payload: bytes) -> None:
            raise RuntimeError("card refused")

        names["payment_gateway"] = SimpleNamespace(charge=charge)
        await seeds.run(
            seeds.block(3, '@pgq.entrypoint("process_order"', "charge(job.payload)"), names
        )
        job_id = await drained(names, "process_order", b"order 7", headers={"tenant": "a"})
        [held] = await names["queries"].list_failed_jobs()
        assert (held.id, held.payload, held.headers) == (job_id, b"order 7", {"tenant": "a"})

        [row] = await connection.fetch(
            seeds.block(3, "SELECT id, entrypoint, attempts, created,", "LIMIT 50;")
        )
        assert (row["id"], row["payload_bytes"]) == (job_id, 7)
        query = seeds.block(3, "SELECT traceback->>'exception_type' AS type,", "LIMIT 1;")
        [row] = await connection.fetch(query.replace("42", str(job_id)))
        assert (row["type"], row["message"]) == ("RuntimeError", "card refused")
        assert "raise RuntimeError" in row["tb"]

    async def test_retries_end_in_a_held_job_with_its_history(self, names: Names) -> None:
        async def sync(payload: bytes) -> None:
            raise ConnectionError("inventory is down")

        names["inventory_api"] = SimpleNamespace(sync=sync)
        await seeds.run(
            seeds.block(3, "from datetime import timedelta", "inventory_api.sync(job.payload)"),
            names,
        )
        job_id = await drained(names, "sync_inventory", b"sku")
        for _ in range(5):
            await names["pgq"].store.driver.fetch("update holdfast set execute_after = now()")
            await names["pgq"].run(mode="drain")
        assert await status_of(names, job_id) is Status.FAILED
        history = [entry.status for entry in await names["queries"].job_history(job_id)]
        assert history == [Status.QUEUED] * 5 + [Status.FAILED]

    @pytest.mark.parametrize(
        ("http_status", "expected"),
        [(429, Status.QUEUED), (400, Status.FAILED), (200, Status.SUCCESSFUL)],
    )
    async def test_a_webhook_retries_or_waits_for_a_person(
        self, names: Names, http_status: int, expected: Status
    ) -> None:
        await seeds.run(
            seeds.block(3, '@pgq.entrypoint("deliver_webhook"', "response.raise_for_status()"),
            names,
        )
        names["http_client"].status = http_status
        job_id = await drained(names, "deliver_webhook", b"{}")
        assert await status_of(names, job_id) is expected

    async def test_requeued_jobs_start_afresh(self, names: Names) -> None:
        hf: Holdfast = names["pgq"]

        @hf.entrypoint("fails", on_failure="hold")
        async def fails(job: Job) -> None:
            raise RuntimeError

        ids = [await drained(names, "fails") for _ in range(2)]
        source = seeds.block(3, "await queries.requeue_jobs(", ")")
        for documented, real in zip((42, 43), ids, strict=True):
            source = source.replace(f"JobId({documented})", f"JobId({real})")
        await seeds.run(source, names)
        for job in await names["queries"].get_jobs(ids):
            assert (job.status, job.attempts) == (Status.QUEUED, 0)
            *_, last = await names["queries"].job_history(job.id)
            assert last.status is Status.QUEUED
