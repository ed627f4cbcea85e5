"""explain: one sentence, a code for scripts, and the command that helps."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.cli.explain import explanation_lines
from holdfast.explanation import Code, Explanation
from tests.cli.command_line import inside

if TYPE_CHECKING:
    from tests.servers import Database


async def _enqueue(dsn: str) -> None:
    async with Holdfast.connect(dsn) as hf:
        await hf.install()
        await hf.queries.enqueue("mail")
        await hf.queries.pause("mail", reason="smtp is down", actor="ann")


def test_a_job_is_explained_in_words_and_as_json(pg: Database) -> None:
    asyncio.run(_enqueue(pg.dsn))
    told = inside("explain", "1", "--dsn", pg.dsn)
    assert told.code == 0
    assert told.out.splitlines() == [
        "paused  mail is paused by ann: smtp is down.",
        "  try  holdfast resume mail",
    ]
    found = inside("explain", "--entrypoint", "mail", "--json", "--dsn", pg.dsn).json
    assert (found["code"], found["until"]) == ("paused", None)
    assert found["details"]["reason"] == "smtp is down"
    shown = inside("show", "1", "--dsn", pg.dsn).out
    assert shown.splitlines()[-2:] == told.out.splitlines()
    assert inside("show", "1", "--json", "--dsn", pg.dsn).json["explanation"] == found


def test_what_may_change_is_never_in_the_past() -> None:
    now = datetime.now(UTC)
    found = Explanation(Code.WORKER_SILENT, "Its worker w1 looks dead.", until=now)
    words = [text.plain for text in explanation_lines(found, now + timedelta(milliseconds=4))]
    assert words[-1] == "  may change at any moment"


def test_what_is_explained_must_be_named(pg: Database) -> None:
    asyncio.run(_enqueue(pg.dsn))
    inside("explain", "--dsn", pg.dsn).complains(2, "ID", "--entrypoint")
    inside("explain", "77", "--dsn", pg.dsn).complains(1, "77")


@pytest.mark.parametrize(
    ("change", "word", "command"),
    [
        ("drop table holdfast_migrations", "not installed", "holdfast install"),
        ("delete from holdfast_migrations where version > 2", "version 2", "holdfast upgrade"),
        (
            "insert into holdfast_migrations values (9999, 'future')",
            "future",
            "pip install --upgrade holdfast",
        ),
        ("alter table holdfast drop column priority cascade", "priority", "holdfast doctor"),
        ("drop table holdfast_log cascade", "holdfast_log", "holdfast doctor"),
    ],
)
@pytest.mark.parametrize("asked", [("1",), ("--entrypoint", "mail")])
def test_refused_tables_are_the_reason(
    asked: tuple[str, ...], change: str, word: str, command: str, pg18: Database
) -> None:
    asyncio.run(_enqueue(pg18.dsn))
    with psycopg.connect(pg18.dsn, autocommit=True) as connection:
        connection.execute(change.encode())
    told = inside("explain", *asked, "--dsn", pg18.dsn)
    assert (told.code, told.err) == (4, ""), told
    first, last = told.out.splitlines()
    assert first.startswith("schema  ")
    assert word in first
    assert last == f"  try  {command}"
    done = inside("explain", *asked, "--json", "--dsn", pg18.dsn)
    assert (done.code, done.err) == (4, "")
    assert (done.json["code"], done.json["command"]) == ("schema", command)
