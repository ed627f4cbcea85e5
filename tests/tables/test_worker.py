"""A worker that serves tables of the user's own, alone or beside its own jobs."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from holdfast import Context, Holdfast, Job, TableQueue, linear
from holdfast.events import Claimed
from tests.tables.three_tables import KINDS
from tests.worker.workers import Gauge, Watch, ends, eventually, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import Database

NEVER = timedelta(hours=1)
SNOOZE = TableQueue("email_snoozes")
OUTBOX = KINDS["outbox"].queue
CHORES = KINDS["chores"].queue


@pytest.fixture
async def hf(pg18: Database, witness: Any) -> AsyncIterator[Holdfast]:
    """A worker on a database with three tables and nothing else."""
    for kind in KINDS.values():
        await witness.execute(kind.ddl)
    async with Holdfast.connect(pg18.dsn) as found:
        yield found


async def add_snoozes(witness: Any, count: int = 1, after: timedelta = timedelta(0)) -> None:
    await witness.execute(
        "insert into email_snoozes (user_email, message_id, remind_at)"
        " select 'ann@example.org', n::text, now() + $2 from generate_series(1, $1) n",
        count,
        after,
    )


async def add_items(witness: Any, count: int = 1) -> None:
    items = [(uuid4(),) for _ in range(count)]
    await witness.executemany("insert into outbox (item, send_after) values ($1, now())", items)


async def add_chores(witness: Any, *codes: str) -> None:
    await witness.executemany(
        "insert into chores (code, run_at) values ($1, now())", [(code,) for code in codes]
    )


async def count(witness: Any, table: str, condition: str) -> int:
    return await witness.fetchval(f"select count(*) from {table} where {condition}")


class Journal:
    """Handlers that write down what they saw, each under its own word."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Any]] = []

    def serve(self, hf: Holdfast, *queues: TableQueue) -> None:
        for queue in queues:
            hf.table(queue)(self._handler(queue))

    def _handler(self, queue: TableQueue) -> Any:
        async def handle(row: dict[str, Any]) -> None:
            self.lines.append((queue.queue, row[queue.key]))

        return handle

    def of(self, name: str) -> list[Any]:
        return [key for word, key in self.lines if word == name]


class TestSeveralTables:
    async def test_and_ordinary_entrypoints_are_served_by_one_worker(
        self, hf: Holdfast, witness: Any
    ) -> None:
        await hf.install()
        journal = Journal()
        journal.serve(hf, SNOOZE, OUTBOX, CHORES)

        @hf.entrypoint("greet")
        async def greet(job: Job) -> None:
            journal.lines.append(("greet", job.id))

        await add_snoozes(witness, 20)
        await add_items(witness, 20)
        await add_chores(witness, "wäsche", "Abwasch")
        ids = await hf.queries.enqueue(["greet"] * 20, [None] * 20)
        await ends(hf.run(mode="drain", signals=False))
        assert sorted(journal.of("greet")) == sorted(ids)
        assert sorted(journal.of("email_snoozes")) == list(range(1, 21))
        assert len(set(journal.of("outbox"))) == len(journal.of("outbox")) == 20
        assert sorted(journal.of("chores")) == ["Abwasch", "wäsche"]
        for table, done in (("email_snoozes", "inactive"), ("outbox", "done")):
            assert await count(witness, table, f"not {done}") == 0

    async def test_all_get_their_turn_where_there_is_room_for_one(
        self, hf: Holdfast, witness: Any
    ) -> None:
        journal = Journal()
        journal.serve(hf, SNOOZE, OUTBOX, CHORES)
        await add_chores(witness, "wäsche", "Abwasch")
        await ends(hf.run(mode="drain", concurrency=1, signals=False))
        assert sorted(journal.of("chores")) == ["Abwasch", "wäsche"]

    async def test_two_queues_share_a_table_by_their_conditions(
        self, hf: Holdfast, witness: Any
    ) -> None:
        journal = Journal()
        odd = TableQueue("email_snoozes", name="odd", where="id % 2 = 1")
        even = TableQueue("email_snoozes", name="even", where="id % 2 = 0")
        journal.serve(hf, odd, even)
        await add_snoozes(witness, 9)
        await ends(hf.run(mode="drain", signals=False))
        assert sorted(journal.of("odd")) == [1, 3, 5, 7, 9]
        assert sorted(journal.of("even")) == [2, 4, 6, 8]

    async def test_one_that_breaks_costs_the_others_nothing(
        self, hf: Holdfast, witness: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        journal = Journal()
        journal.serve(hf, SNOOZE, OUTBOX)
        watch = Watch(hf)
        async with working(hf, dequeue_timeout=timedelta(milliseconds=20), signals=False):
            await add_snoozes(witness, 1)
            await watch.until_settled(1)
            await witness.execute("alter table outbox rename column tries to times")
            await add_items(witness, 3)
            await add_snoozes(witness, 30)
            await watch.until_settled(31)
        assert sorted(journal.of("email_snoozes")) == list(range(1, 32))
        assert await count(witness, "email_snoozes", "not inactive or attempts > 0") == 0
        said = [text for text in caplog.messages if "outbox" in text and "tries" in text]
        assert len(said) == 1

    async def test_an_outcome_is_told_once_though_another_table_refuses_its_own(
        self, hf: Holdfast, witness: Any
    ) -> None:
        go = asyncio.Event()
        began = Gauge()
        for queue in (OUTBOX, SNOOZE, CHORES):

            @hf.table(queue)
            async def handle(row: dict[str, Any]) -> None:
                with began:
                    await go.wait()

        watch = Watch(hf)
        await add_snoozes(witness, 5)
        await add_items(witness, 5)
        await add_chores(witness, *"abcde")
        async with working(hf, signals=False):
            await eventually(lambda: _is(began.total == 15))
            await witness.execute("alter table outbox add constraint no check (not done)")
            go.set()
            await watch.until(lambda: len(watch.settled) + len(watch.lost) == 15)
        settled = [job.entrypoint for job, _, _ in watch.settled]
        assert sorted(settled) == ["chores"] * 5 + ["email_snoozes"] * 5
        assert {event.job.entrypoint for event in watch.lost} == {"outbox"}

    @pytest.mark.parametrize(
        "locking",
        [
            "select from email_snoozes for update",
            "lock table email_snoozes in access exclusive mode",
        ],
    )
    async def test_a_lock_on_one_costs_the_others_neither_leases_nor_outcomes(
        self, hf: Holdfast, witness: Any, locking: str
    ) -> None:
        await hf.install()
        go, began = asyncio.Event(), Gauge()

        async def until_told() -> None:
            with began:
                await go.wait()

        @hf.table(SNOOZE)
        async def snooze(row: dict[str, Any]) -> None:
            await until_told()

        @hf.entrypoint("greet")
        async def greet(job: Job) -> None:
            await until_told()

        watch, lease = Watch(hf), timedelta(seconds=2)
        await add_snoozes(witness, 1)
        [job_id] = await hf.queries.enqueue("greet")
        async with working(hf, heartbeat_timeout=lease, signals=False):
            await eventually(lambda: _is(began.total == 2))
            async with witness.transaction():
                await witness.execute(locking)
                since = await hf.queries.now()

                async def outlived_a_lease() -> bool:
                    [job] = await hf.queries.get_jobs([job_id])
                    return job.heartbeat is not None and job.heartbeat > since + 1.5 * lease

                await eventually(outlived_a_lease)
                go.set()
                [(settled, _, _)] = await watch.until_settled()
                assert (settled.id, settled.recoveries) == (job_id, 0)
            await watch.until_settled(2)
        assert await count(witness, "email_snoozes", "inactive") == 1


async def _is(truth: bool) -> bool:
    return truth


class TestWaiting:
    async def test_a_row_is_taken_when_it_becomes_due(self, hf: Holdfast, witness: Any) -> None:
        journal = Journal()
        journal.serve(hf, SNOOZE)
        watch = Watch(hf)
        await add_snoozes(witness, 1, after=timedelta(seconds=0.5))
        async with working(hf, dequeue_timeout=NEVER, signals=False):
            await watch.until_settled()
        assert journal.of("email_snoozes") == [1]

    async def test_a_row_that_is_never_due_disturbs_no_other(
        self, hf: Holdfast, witness: Any
    ) -> None:
        journal = Journal()
        journal.serve(hf, SNOOZE)
        watch = Watch(hf)
        await add_snoozes(witness, 3)
        await witness.execute("update email_snoozes set remind_at = 'infinity' where id = 1")
        await witness.execute("update email_snoozes set remind_at = '-infinity' where id = 3")
        async with working(hf, dequeue_timeout=NEVER, signals=False):
            await watch.until_settled(2)
        assert journal.of("email_snoozes") == [3, 2]
        assert await count(witness, "email_snoozes", "claimed_at is null and not inactive") == 1

    async def test_a_notification_wakes_the_worker(self, hf: Holdfast, witness: Any) -> None:
        journal = Journal()
        journal.serve(hf, SNOOZE)
        watch = Watch(hf)
        async with working(hf, dequeue_timeout=NEVER, signals=False):
            for settled in range(1, 4):
                await add_snoozes(witness, 1)
                await witness.execute("notify ch_holdfast")
                await watch.until_settled(settled)
        assert journal.of("email_snoozes") == [1, 2, 3]

    async def test_polling_alone_finds_it_too(self, hf: Holdfast, witness: Any) -> None:
        journal = Journal()
        journal.serve(hf, SNOOZE)
        watch = Watch(hf)
        async with working(hf, dequeue_timeout=timedelta(milliseconds=50), signals=False):
            await add_snoozes(witness, 1)
            await watch.until_settled()
        assert journal.of("email_snoozes") == [1]

    async def test_a_failed_row_is_run_again_after_its_backoff(
        self, hf: Holdfast, witness: Any
    ) -> None:
        attempts: list[int] = []

        @hf.table(TableQueue("email_snoozes", backoff=linear(timedelta(milliseconds=50))))
        async def handle(row: dict[str, Any]) -> None:
            attempts.append(row["attempts"])
            raise ValueError("no luck")

        watch = Watch(hf)
        await add_snoozes(witness, 1)
        async with working(hf, dequeue_timeout=NEVER, signals=False):
            await watch.until_settled(5)
        assert attempts == [0, 1, 2, 3, 4]
        assert await count(witness, "email_snoozes", "inactive and attempts = 5") == 1


class TestStopping:
    async def test_releases_what_is_not_finished(self, hf: Holdfast, witness: Any) -> None:
        began = asyncio.Event()

        @hf.table(SNOOZE)
        async def handle(row: dict[str, Any]) -> None:
            began.set()
            await asyncio.Event().wait()

        await add_snoozes(witness, 3)
        async with working(hf, drain_timeout=timedelta(0), signals=False):
            await ends(began.wait())
        free = "claimed_at is null and claim_token is null and claimed_by is null"
        assert await count(witness, "email_snoozes", f"{free} and attempts = 0") == 3

    async def test_lets_what_runs_finish(self, hf: Holdfast, witness: Any) -> None:
        began = asyncio.Event()

        @hf.table(OUTBOX)
        async def handle(row: dict[str, Any], context: Context) -> None:
            began.set()
            await hf.shutdown.wait()

        await add_items(witness, 1)
        async with working(hf, signals=False):
            await ends(began.wait())
        assert await count(witness, "outbox", "done and result = 'successful'") == 1


class TestTheLease:
    async def test_is_renewed_while_the_handler_runs(self, hf: Holdfast, witness: Any) -> None:
        go = asyncio.Event()
        runs = Gauge()

        @hf.table(TableQueue("email_snoozes", lease=timedelta(seconds=1)))
        async def handle(row: dict[str, Any]) -> None:
            with runs:
                await go.wait()

        claimed: set[Any] = set()

        async def moved() -> bool:
            claimed.add(await witness.fetchval("select claimed_at from email_snoozes"))
            return len(claimed - {None}) > 5

        await add_snoozes(witness, 1)
        watch = Watch(hf)
        async with working(hf, signals=False):
            await eventually(moved)
            go.set()
            await watch.until_settled()
        assert runs.total == 1
        assert await count(witness, "email_snoozes", "inactive and attempts = 0") == 1

    @pytest.mark.parametrize("queue", [SNOOZE, OUTBOX, CHORES], ids=lambda queue: queue.queue)
    async def test_that_was_taken_away_stops_the_handler_and_is_reported_as_information(
        self, hf: Holdfast, witness: Any, caplog: pytest.LogCaptureFixture, queue: TableQueue
    ) -> None:
        began = asyncio.Event()
        short = replace(queue, lease=timedelta(seconds=1))

        @hf.table(short)
        async def handle(row: dict[str, Any]) -> None:
            began.set()
            await asyncio.Event().wait()

        await add_snoozes(witness, 1)
        await add_items(witness, 1)
        await add_chores(witness, "ß")
        watch = Watch(hf)
        caplog.set_level(logging.INFO, "holdfast")
        free = f"{queue.claim_token} = null, {queue.claimed_at} = null, {queue.due} = 'infinity'"
        async with working(hf, signals=False):
            await ends(began.wait())
            await witness.execute(f"update {queue.table} set {free}")
            await watch.until_lost()
        told = [record for record in caplog.records if "lease lost" in record.getMessage()]
        assert {record.levelno for record in told} == {logging.INFO}

    async def test_of_a_row_is_not_ended_by_the_end_of_a_job_with_its_number(
        self, hf: Holdfast, witness: Any
    ) -> None:
        await hf.install()
        go, both = asyncio.Event(), Gauge()

        @hf.entrypoint("job")
        async def job(job: Job) -> None:
            with both:
                await asyncio.Event().wait()

        @hf.table(SNOOZE)
        async def handle(row: dict[str, Any]) -> None:
            with both:
                await go.wait()

        [job_id] = await hf.queries.enqueue("job")
        await add_snoozes(witness, 1)
        assert await witness.fetchval("select id from email_snoozes") == job_id
        watch = Watch(hf)
        async with working(hf, signals=False):
            await eventually(lambda: _is(both.now == 2))
            await hf.queries.mark_job_as_cancelled([job_id])
            await watch.until_lost()
            go.set()
            await watch.until_settled()
        assert [event.job.entrypoint for event in watch.lost] == ["job"]
        assert await count(witness, "email_snoozes", "inactive and attempts = 0") == 1


async def test_no_more_rows_are_leased_than_the_worker_can_run(hf: Holdfast, witness: Any) -> None:
    go, gauge = asyncio.Event(), Gauge()

    @hf.table(SNOOZE)
    async def handle(row: dict[str, Any]) -> None:
        with gauge:
            await go.wait()

    await add_snoozes(witness, 10)
    watch = Watch(hf)
    async with working(hf, concurrency=3, signals=False):
        await eventually(lambda: _is(gauge.now == 3))
        assert await count(witness, "email_snoozes", "claimed_at is not null") == 3
        go.set()
        await watch.until_settled(10)
    assert gauge.most == 3
    assert sum(len(event.jobs) for event in watch.events if isinstance(event, Claimed)) == 10


async def test_rows_come_to_the_handlers_in_their_order(hf: Holdfast, witness: Any) -> None:
    journal = Journal()
    journal.serve(hf, CHORES)
    await witness.executemany(
        "insert into chores (code, priority, run_at) values ($1, $2, now() - $3::interval)",
        [
            (f"{priority} {age}", priority, timedelta(minutes=age))
            for priority in (1, 3, 2)
            for age in (5, 9, 7)
        ],
    )
    await ends(hf.run(mode="drain", concurrency=2, signals=False))
    assert journal.of("chores") == [f"{p} {age}" for p in (3, 2, 1) for age in (9, 7, 5)]
