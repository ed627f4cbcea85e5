"""The worked example ends by itself and tells its story."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cli.command_line import environment
from tests.tables import article
from tests.tables.three_tables import session

if TYPE_CHECKING:
    from tests.servers import Database

EXAMPLE = Path(__file__).parents[2] / "examples" / "email_snoozes"
QUESTIONS = (
    "What is stuck?",
    "Who claimed it?",
    "How long has it been claimed?",
    "How many times did it fail?",
    "What was the last failure reason?",
    "When is it eligible to run again?",
)


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLE / "run.py", *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def answers(part: str) -> dict[str, list[str]]:
    """What was answered to each question."""
    found: dict[str, list[str]] = {}
    question = ""
    for line in map(str.strip, part.splitlines()):
        if line in QUESTIONS:
            question = line
            found[question] = []
        elif question and line:
            found[question].append(line)
    return found


def test_it_starts_from_the_articles_table() -> None:
    schema = (EXAMPLE / "schema.sql").read_text("utf-8")
    table = schema[schema.index("CREATE TABLE") :]
    assert article.words(table) == article.words(article.statement("table"))


def test_it_sends_what_is_due_and_makes_a_case_file_of_what_cannot_be_sent() -> None:
    before, rest = run().split("The worker starts")
    work, after = rest.split("After it has done")
    sent = {line.split()[1] for line in work.splitlines() if line.startswith("  sent")}
    assert sent == {f"{name}@example.org" for name in ("ann", "bob", "busy", "dan", "eve")}
    failed = [line for line in work.splitlines() if line.startswith("  failed")]
    assert sum("gone@" in line for line in failed) == 3
    assert sum("busy@" in line for line in failed) == 1
    assert answers(before)["What is stuck?"] == ["7: Sign the lease"]
    assert answers(before)["Who claimed it?"] == ["7: worker-that-died"]
    told = answers(after)
    assert tuple(told) == QUESTIONS
    assert told["What is stuck?"] == ["nothing"]
    assert told["How many times did it fail?"] == ["3: 1 of 5", "4: 3 of 3"]
    assert "4: NoSuchMailbox: 550 no such mailbox" in told["What was the last failure reason?"]
    assert "4: never: it is a case file" in told["When is it eligible to run again?"]


async def test_it_runs_on_a_database_of_the_readers_own(pg18: Database) -> None:
    assert "4: never: it is a case file" in run(pg18.dsn)
    async with session(pg18.dsn) as connection:
        open_rows = await connection.fetch("select id from email_snoozes where not inactive")
    assert [row["id"] for row in open_rows] == [6]
