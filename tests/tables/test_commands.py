"""`holdfast table check|sql|adopt|inspect` as processes."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from tests.cli.command_line import EVIL, holdfast
from tests.tables import article
from tests.tables.three_tables import KINDS, session

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.cli.command_line import Done
    from tests.servers import Database

T = TypeVar("T")

BARE = """
create table reminders (nr bigint not null, text text, send_at timestamptz not null);
insert into reminders select n, 'hello', now() from generate_series(1, 3) n;
"""
BARE_OPTIONS = ("--due", "send_at", "--key", "nr")
OUTBOX_OPTIONS = (
    *("--due", "send_after", "--key", "item"),
    *("--column", "claim_token=lock_token", "--column", "claimed_at=locked_at"),
    *("--column", "heartbeat=beat", "--column", "attempts=tries", "--column", "inactive=done"),
    *("--column", "recoveries=crashes", "--column", "outcome=result"),
    *("--column", "max_attempts=5"),
)


def sql(database: Database, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    async def main() -> T:
        async with session(database.dsn) as connection:
            return await work(connection)

    return asyncio.run(main())


def execute(database: Database, *statements: str) -> None:
    async def work(connection: Any) -> None:
        for statement in statements:
            await connection.execute(statement)

    sql(database, work)


async def prepare(statements: list[str], connection: Any) -> None:
    for statement in statements:
        await connection.prepare(statement)


@pytest.fixture
def database(pg18: Database) -> Database:
    execute(pg18, article.statement("table"), KINDS["outbox"].ddl, BARE)
    return pg18


def table(database: Database, *arguments: str) -> Done:
    return holdfast("table", *arguments, dsn=database.dsn)


def test_the_articles_table_is_ready_as_it_stands(database: Database) -> None:
    done = table(database, "check", "email_snoozes")
    assert (done.code, done.out.strip()) == (0, "email_snoozes is ready to be a queue")


def test_a_table_under_other_names_is_ready_when_it_is_told_them(database: Database) -> None:
    done = table(database, "check", "outbox", *OUTBOX_OPTIONS)
    assert (done.code, done.out.strip()) == (0, "outbox is ready to be a queue")


def test_each_thing_that_is_missing_is_named_with_its_ddl(database: Database) -> None:
    done = table(database, "check", "reminders", *BARE_OPTIONS)
    assert done.code == 1
    lines = done.out.splitlines()
    for column, kind in (
        ("claim_token", "uuid"),
        ("claimed_at", "timestamptz"),
        ("attempts", "integer not null default 0"),
        ("max_attempts", "integer not null default 5"),
        ("inactive", "boolean not null default false"),
    ):
        place = next(n for n, line in enumerate(lines) if f"{column!r} ({column})" in line)
        assert lines[place + 1].strip() == f'alter table "reminders" add column "{column}" {kind};'
    assert "create unique index concurrently" in done.out
    assert '("send_at", "nr") where "inactive" = false and "claimed_at" is null;' in done.out


def test_a_check_can_be_read_by_a_program(database: Database) -> None:
    faults = table(database, "check", "reminders", *BARE_OPTIONS, "--json").json
    assert {fault["subject"] for fault in faults if fault["required"]} == {
        *("claim_token", "claimed_at", "attempts", "inactive", "max_attempts", "nr")
    }
    assert table(database, "check", "email_snoozes", "--json").json == []


def test_an_adopted_table_is_ready(database: Database) -> None:
    done = table(database, "adopt", "reminders", *BARE_OPTIONS, "--yes")
    assert done.code == 0, done
    assert "changed" in done.out
    again = table(database, "check", "reminders", *BARE_OPTIONS)
    assert (again.code, again.out.strip()) == (0, "reminders is ready to be a queue")
    rows = sql(
        database, lambda c: c.fetch("select attempts, inactive, claimed_at, text from reminders")
    )
    assert [tuple(row) for row in rows] == [(0, False, None, "hello")] * 3


def test_nothing_is_adopted_without_a_yes(database: Database) -> None:
    before = sql(database, lambda c: c.fetch("select * from reminders"))
    done = table(database, "adopt", "reminders", *BARE_OPTIONS)
    assert done.code != 0
    assert sql(database, lambda c: c.fetch("select * from reminders")) == before


def test_there_is_nothing_to_adopt_in_a_table_that_is_ready(database: Database) -> None:
    done = table(database, "adopt", "email_snoozes")
    assert (done.code, done.out.strip()) == (0, "email_snoozes is ready to be a queue")


def test_every_statement_that_will_run_is_printed_and_prepares(database: Database) -> None:
    for name, options in (("email_snoozes", ("--where", "id > 3")), ("outbox", OUTBOX_OPTIONS)):
        done = table(database, "sql", name, *options)
        assert done.code == 0, done
        printed = dict(part.split("\n", 1) for part in done.out.split("-- ") if part)
        assert {"claim", "renew", "complete", "retry", "hold", "release", "recover"} <= set(printed)
        assert "retire:last_retry" in printed
        sql(database, partial(prepare, list(printed.values())))
        fenced = ("renew", "complete", "retry", "hold", "release", "fail", "retire:last_retry")
        token = '"claim_token"' if name == "email_snoozes" else '"lock_token"'
        assert all(f"j.{token} = (" in printed[verb] for verb in fenced)


def test_the_six_questions_are_answered(database: Database) -> None:
    execute(
        database,
        "insert into email_snoozes (user_email, message_id, remind_at, claimed_at, claimed_by,"
        " claim_token, attempts, inactive, last_error, last_error_at) values"
        " ('a', '1', now(), now() - interval '1 hour', 'worker-7', gen_random_uuid(), 1, false,"
        "  'ValueError: late', now()),"
        " ('a', '2', now(), now(), 'worker-8', gen_random_uuid(), 0, false, null, null),"
        " ('a', '3', '2035-05-05 05:05Z', null, null, null, 2, false, 'TimeoutError', now()),"
        " ('a', '4', now(), null, null, null, 5, true, 'no such mailbox', now()),"
        " ('a', '5', now(), null, null, null, 0, true, null, null),"
        " ('a', '6', now(), null, null, null, 0, false, null, null),"
        " ('a', '7', now() - interval '1 s', null, null, null, 0, false,"
        "  'stale claim recovered', now())",
    )
    done = table(database, "inspect", "email_snoozes")
    assert done.code == 0, done
    head, titles, *lines = done.out.splitlines()
    assert head.split("  ") == ["due 2", "later 1", "claimed 2", "retired 1", "done 1"]
    for title in ("key", "state", "claimed by", "for", "failed", "next", "last error"):
        assert title in titles
    stuck, claimed, *rest = [line.split() for line in lines if line.strip()]
    assert stuck[:3] == ["1", "stuck", "worker-7"]
    assert claimed[:3] == ["2", "claimed", "worker-8"]
    states = {"3": "retrying", "4": "retired", "7": "suspect"}
    assert {line[0]: line[1] for line in rest} == states
    assert "no such mailbox" in done.out
    assert "2035-05-05 05:05:00Z" in done.out
    found = table(database, "inspect", "email_snoozes", "--json", "-n", "1").json
    assert found["counts"] == {"due": 2, "later": 1, "claimed": 2, "retired": 1, "done": 1}
    assert [row["last_error"] for row in found["rows"]] == ["ValueError: late"]


def test_a_lease_that_is_renewed_is_not_stuck_however_long_it_lasts(database: Database) -> None:
    execute(
        database,
        "insert into outbox (item, send_after, locked_at, beat, lock_token)"
        " values (gen_random_uuid(), now(), now() - interval '1 hour', now(), gen_random_uuid())",
    )
    found = table(database, "inspect", "outbox", *OUTBOX_OPTIONS, "--json").json
    assert [row["state"] for row in found["rows"]] == ["claimed"]


def test_what_a_row_says_cannot_command_the_terminal(database: Database) -> None:
    async def work(connection: Any) -> None:
        await connection.execute(
            "insert into email_snoozes (user_email, message_id, remind_at, attempts, last_error)"
            " values ('a', '1', now(), 1, $1)",
            EVIL,
        )

    sql(database, work)
    for options in ((), ("--json",)):
        done = table(database, "inspect", "email_snoozes", *options)
        assert done.code == 0
        assert not set(done.out) & set("\x1b\x07\x9b\u202e")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("check", "nowhere"), 2, ("there is no table 'nowhere'",)),
        (("check", "a;b"), 2, ("'a;b'", "schema.table")),
        (("check", "email_snoozes", "--column", "colour=red"), 2, ("'colour=red'", "claim_token")),
        (("check", "email_snoozes", "--column", "key="), 2, ("'key='", "claim_token")),
        (("sql", "reminders", *BARE_OPTIONS), 2, ("'claim_token'", "holdfast table check")),
        (("inspect", "email_snoozes", "--where", "1 +"), 2, ("where '1 +'",)),
        (("inspect", "email_snoozes", "--lease", "soon"), 2, ("soon",)),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    database: Database, arguments: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    table(database, *arguments).complains(code, *words)
