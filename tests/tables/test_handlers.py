"""What a handler of a table queue gets, and what its failures lead to."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping  # noqa: TC003 - the reader of rows resolves it
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from holdfast import (
    Context,
    Holdfast,
    InvalidInput,
    Job,
    RetryRequested,
    TableQueue,
    exponential,
    linear,
)
from holdfast.events import Retired
from tests.tables import rows
from tests.tables.rows import Address, Demanding, Named, Outgoing, Picky, Snooze
from tests.tables.three_tables import KINDS, SNOOZES, session
from tests.worker.workers import Watch, ends

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.servers import Database

QUEUE = TableQueue("email_snoozes")


@pytest.fixture
async def hf(pg18: Database, witness: Any) -> AsyncIterator[Holdfast]:
    """A worker on the article's table, in a database that has nothing else."""
    await witness.execute(SNOOZES.ddl)
    async with Holdfast.connect(pg18.dsn) as found:
        yield found


async def remind(witness: Any, *subjects: str | None, **values: Any) -> list[int]:
    """Reminders that are due."""
    columns = {"user_email": "ann@example.org", "message_id": "<1>", **values}
    places = ", ".join(f"${n}" for n in range(2, len(columns) + 2))
    return [
        await witness.fetchval(
            f"insert into email_snoozes (remind_at, subject, {', '.join(columns)})"
            f" values (now(), $1, {places}) returning id",
            subject,
            *columns.values(),
        )
        for subject in subjects
    ]


async def the_row(witness: Any) -> dict[str, Any]:
    return dict(await witness.fetchrow("select * from email_snoozes"))


async def drain(hf: Holdfast) -> None:
    await ends(hf.run(mode="drain", signals=False))


class TestTheRow:
    async def test_comes_as_a_mapping_of_all_columns(self, hf: Holdfast, witness: Any) -> None:
        seen: list[Mapping[str, Any]] = []

        @hf.table("email_snoozes")
        async def handle(row: Mapping[str, Any]) -> None:
            seen.append(row)

        await remind(witness, "hello")
        await drain(hf)
        [row] = seen
        assert set(row) == set(await the_row(witness))
        assert (row["subject"], row["attempts"], row["inactive"]) == ("hello", 0, False)
        assert (await the_row(witness))["inactive"] is True

    async def test_comes_as_a_mapping_without_an_annotation(
        self, hf: Holdfast, witness: Any
    ) -> None:
        seen: list[Any] = []

        @hf.table(QUEUE)
        async def handle(row) -> None:  # type: ignore[no-untyped-def]
            seen.append(row["subject"])

        await remind(witness, "hello")
        await drain(hf)
        assert seen == ["hello"]

    async def test_comes_as_a_dataclass(self, hf: Holdfast, witness: Any) -> None:
        seen: list[Snooze] = []

        @hf.table(QUEUE)
        async def handle(row: Snooze) -> None:
            seen.append(row)

        [number] = await remind(witness, "hello")
        due = (await the_row(witness))["remind_at"]
        await drain(hf)
        assert seen == [Snooze(number, "ann@example.org", "hello", due)]

    async def test_comes_as_a_pydantic_model(self, hf: Holdfast, witness: Any) -> None:
        seen: list[Address] = []

        @hf.table(QUEUE)
        async def handle(row: Address) -> None:
            seen.append(row)

        [number] = await remind(witness, None)
        await drain(hf)
        assert seen == [Address(id=number, user_email="ann@example.org")]

    async def test_comes_as_a_typed_dict(self, hf: Holdfast, witness: Any) -> None:
        seen: list[str] = []

        @hf.table(QUEUE)
        async def handle(row: Named) -> None:
            seen.append(row["user_email"])

        await remind(witness, None)
        await drain(hf)
        assert seen == ["ann@example.org"]

    @pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
    async def test_has_its_json_read(self, pg18: Database, witness: Any, driver: Any) -> None:
        kind = KINDS["outbox"]
        await witness.execute(kind.ddl)
        await witness.execute(
            "insert into outbox (item, send_after, body) values ($1, now(), $2)",
            UUID(int=5),
            '{"to": "ann@example.org"}',
        )
        seen: list[Outgoing] = []
        async with Holdfast.connect(pg18.dsn, driver=driver) as hf:

            @hf.table(kind.queue)
            async def handle(row: Outgoing) -> None:
                seen.append(row)

            await drain(hf)
        assert [(row.item, row.body.to) for row in seen] == [(UUID(int=5), "ann@example.org")]

    async def test_comes_with_the_context_that_the_handler_asks_for(
        self, hf: Holdfast, witness: Any
    ) -> None:
        seen: list[Any] = []
        hf.resources["mailer"] = "a mailer"

        @hf.table(QUEUE)
        async def handle(row: Snooze, context: Context) -> None:
            job = context.job
            seen.extend([row.id, job.id, job.entrypoint, job.attempts, context.resources["mailer"]])
            assert job.row is not None
            assert job.row["subject"] == "hello"

        [number] = await remind(witness, "hello", attempts=2)
        await drain(hf)
        assert seen == [number, number, "email_snoozes", 2, "a mailer"]

    @pytest.mark.parametrize(
        ("handler", "error"),
        [(rows.fail_with_process, r"row 1 ran in (\d+)"), (rows.fail_with_model, r"Snooze 1")],
    )
    @pytest.mark.parametrize("executor", ["thread", "process"])
    async def test_goes_to_a_thread_or_a_process(
        self, hf: Holdfast, witness: Any, handler: Any, error: str, executor: Any
    ) -> None:
        hf.table(QUEUE, executor=executor)(handler)
        await remind(witness, "hello")
        await drain(hf)
        row = await the_row(witness)
        assert row["attempts"] == 1
        said = re.fullmatch(f"ValueError: {error}", row["last_error"])
        assert said is not None, row["last_error"]
        if said.groups():
            assert (said[1] == str(os.getpid())) == (executor == "thread")


class TestARowThatBreaksItsModel:
    """It is a case file at once: trying again cannot mend it."""

    async def test_is_put_aside_while_the_others_run(self, hf: Holdfast, witness: Any) -> None:
        seen: list[int] = []

        @hf.table(QUEUE)
        async def handle(row: Address) -> None:
            seen.append(row.id)

        [good] = await remind(witness, None)
        [bad] = await remind(witness, None, user_email="nobody")
        await drain(hf)
        assert seen == [good]
        row = dict(await witness.fetchrow("select * from email_snoozes where id = $1", bad))
        assert (row["inactive"], row["attempts"], row["claim_token"]) == (True, 0, None)
        assert row["last_error"].startswith(f"InvalidRow: row {bad} of 'email_snoozes'")
        assert "user_email" in row["last_error"]
        assert row["last_error_at"] is not None

    @pytest.mark.parametrize(
        ("model", "words"),
        [(Demanding, "no_such_column"), (Picky, "a reminder needs a subject")],
    )
    @pytest.mark.parametrize("executor", ["async", "thread"])
    async def test_says_why(
        self, hf: Holdfast, witness: Any, model: Any, words: str, executor: Any
    ) -> None:
        ran: list[Any] = []
        if executor == "async":

            async def handle(row: Any) -> None:
                ran.append(row)

        else:

            def handle(row: Any) -> None:  # type: ignore[misc]
                ran.append(row)

        handle.__annotations__["row"] = model
        hf.table(QUEUE, executor=executor)(handle)
        await remind(witness, "")
        await drain(hf)
        row = await the_row(witness)
        assert (row["inactive"], row["attempts"], ran) == (True, 0, [])
        assert words in row["last_error"]


class Busy(Exception):
    """A dependency that says how long to wait."""


def by_dependency(attempts: int, error: BaseException) -> timedelta:
    return timedelta(hours=attempts + 1) if isinstance(error, Busy) else timedelta(seconds=7)


class TestAFailure:
    @pytest.mark.parametrize(
        ("backoff", "error", "attempts", "delay"),
        [
            (linear(timedelta(seconds=30)), ValueError(), 0, 30),
            (linear(timedelta(seconds=30)), ValueError(), 3, 120),
            (exponential(timedelta(seconds=10)), ValueError(), 0, 10),
            (exponential(timedelta(seconds=10)), ValueError(), 3, 80),
            (by_dependency, Busy(), 2, 3 * 3600),
            (by_dependency, ValueError(), 2, 7),
            (exponential(timedelta(seconds=10)), RetryRequested(timedelta(seconds=4)), 3, 4),
        ],
    )
    async def test_puts_the_row_off_by_the_backoff(
        self,
        hf: Holdfast,
        witness: Any,
        backoff: Any,
        error: Exception,
        attempts: int,
        delay: float,
    ) -> None:
        @hf.table(TableQueue("email_snoozes", backoff=backoff))
        async def handle(row: Snooze) -> None:
            raise error

        await remind(witness, None, attempts=attempts)
        await drain(hf)
        row = await the_row(witness)
        assert row["remind_at"] - row["last_error_at"] == timedelta(seconds=delay)
        assert (row["attempts"], row["inactive"]) == (attempts + 1, False)

    async def test_at_the_cap_retires_the_row_and_is_told_of(
        self, hf: Holdfast, witness: Any
    ) -> None:
        @hf.table(QUEUE)
        async def handle(row: Snooze) -> None:
            raise ValueError("no such mailbox")

        watch = Watch(hf)
        [number] = await remind(witness, None, attempts=4)
        await drain(hf)
        row = await the_row(witness)
        assert (row["inactive"], row["attempts"], row["claimed_at"]) == (True, 5, None)
        assert row["last_error"] == "ValueError: no such mailbox"
        retired = [event for event in watch.events if isinstance(event, Retired)]
        assert [(event.ids, event.reason) for event in retired] == [([number], "max_attempts")]
        assert len(watch.settled) == 1

    async def test_by_time_is_a_failure_like_any_other(self, hf: Holdfast, witness: Any) -> None:
        @hf.table(QUEUE, timeout=timedelta(milliseconds=50))
        async def handle(row: Snooze) -> None:
            await asyncio.Event().wait()

        await remind(witness, None)
        await drain(hf)
        row = await the_row(witness)
        assert row["attempts"] == 1
        assert row["last_error"].startswith("JobTimeout: ")

    async def test_in_a_backoff_of_ones_own_puts_the_row_aside(
        self, hf: Holdfast, witness: Any
    ) -> None:
        def broken(attempts: int, error: BaseException) -> timedelta:
            raise ZeroDivisionError("the backoff is wrong")

        @hf.table(TableQueue("email_snoozes", backoff=broken))
        async def handle(row: Snooze) -> None:
            raise ValueError("no such mailbox")

        await remind(witness, None)
        await drain(hf)
        row = await the_row(witness)
        assert (row["inactive"], row["attempts"]) == (True, 0)
        assert "the backoff is wrong" in row["last_error"]


class TestWhatCannotBeAHandler:
    def refuses(self, hf: Holdfast, handler: Callable[..., Any], *words: str) -> None:
        with pytest.raises(InvalidInput) as refusal:
            hf.table(QUEUE)(handler)
        for word in words:
            assert word in str(refusal.value)

    def test_a_plain_def_on_the_event_loop(self) -> None:
        def handle(row: Snooze) -> None: ...

        self.refuses(Holdfast.in_memory(), handle, "email_snoozes", "plain def")

    def test_a_row_as_something_else(self) -> None:
        async def handle(row: Job) -> None: ...

        self.refuses(Holdfast.in_memory(), handle, "Job", "dataclass")

    def test_an_annotation_that_names_nothing(self) -> None:
        async def handle(row: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

        self.refuses(Holdfast.in_memory(), handle, "'Missing'", "top level")

    def test_a_local_function_for_another_process(self) -> None:
        def handle(row: Snooze) -> None: ...

        with pytest.raises(InvalidInput, match="top level"):
            Holdfast.in_memory().table(QUEUE, executor="process")(handle)

    async def test_any_without_a_database(self) -> None:
        hf = Holdfast.in_memory()

        @hf.table(QUEUE)
        async def handle(row: Snooze) -> None: ...

        with pytest.raises(InvalidInput, match="needs PostgreSQL"):
            await hf.run(mode="drain", signals=False)


async def test_nothing_of_holdfast_is_left_in_the_database(hf: Holdfast, pg18: Database) -> None:
    @hf.table(QUEUE)
    async def handle(row: Snooze) -> None: ...

    async with session(pg18.dsn) as other:
        await remind(other, "hello")
        await drain(hf)
        names = await other.fetch(
            "select relname from pg_class where relnamespace = current_schema()::regnamespace"
        )
        assert {row[0].partition("_id_")[0] for row in names} == {
            "email_snoozes",
            "email_snoozes_pkey",
            "idx_email_snoozes_claimed",
            "idx_email_snoozes_due",
        }
        assert (await the_row(other))["inactive"] is True
