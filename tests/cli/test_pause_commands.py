"""pause, resume and pauses: what they change and say."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from holdfast import Holdfast
from tests.cli.command_line import inside

if TYPE_CHECKING:
    from tests.servers import Database


async def _enqueue(dsn: str, *names: str) -> None:
    async with Holdfast.connect(dsn) as hf:
        await hf.install()
        for name in names:
            await hf.queries.enqueue(name)


def test_a_pause_is_listed_with_its_actor_and_reason_until_it_is_resumed(pg: Database) -> None:
    asyncio.run(_enqueue(pg.dsn, "mail"))
    paused = inside("pause", "mail", "--reason", "smtp is down", "--dsn", pg.dsn)
    assert (paused.code, paused.err) == (0, "")
    assert paused.out == "mail is paused until `holdfast resume mail`\n"
    [found] = inside("pauses", "--json", "--dsn", pg.dsn).json
    assert (found["name"], found["reason"], found["until"]) == ("mail", "smtp is down", None)
    assert found["actor"].startswith("cli:")
    assert "smtp is down" in inside("stats", "--dsn", pg.dsn).out
    assert inside("stats", "--json", "--dsn", pg.dsn).json["pauses"] == [found]
    assert inside("resume", "mail", "--dsn", pg.dsn).out == "mail goes on\n"
    assert inside("pauses", "--dsn", pg.dsn).out == "nothing is paused\n"
    inside("resume", "mail", "--dsn", pg.dsn).complains(1, "'mail' is not paused")


def test_everything_is_paused_for_a_while(pg: Database) -> None:
    asyncio.run(_enqueue(pg.dsn))
    options = ("--all", "--until", "30m", "--reason", "move", "--json", "--dsn", pg.dsn)
    found = inside("pause", *options).json
    assert (found["everything"], found["name"]) == (True, "")
    assert found["until"] is not None
    assert inside("resume", "--all", "--dsn", pg.dsn).code == 0


def test_a_mistyped_name_is_noticed(pg: Database) -> None:
    asyncio.run(_enqueue(pg.dsn, "send_mail"))
    out = inside("pause", "send_mial", "--reason", "x", "--dsn", pg.dsn).out
    assert "did you mean send_mail?" in out


def test_a_pause_needs_a_name_and_a_reason(pg: Database) -> None:
    asyncio.run(_enqueue(pg.dsn))
    inside("pause", "mail", "--dsn", pg.dsn).complains(2, "reason")
    inside("pause", "--reason", "x", "--dsn", pg.dsn).complains(2, "NAME", "--all")
    inside("pause", "mail", "--reason", "x", "--until", "soon", "--dsn", pg.dsn).complains(
        2, "'soon'"
    )


def test_who_did_what_is_listed(pg: Database) -> None:
    asyncio.run(_enqueue(pg.dsn))
    assert "nobody" in inside("acts", "--dsn", pg.dsn).out
    inside("pause", "mail", "--reason", "smtp is down", "--dsn", pg.dsn)
    inside("resume", "mail", "--dsn", pg.dsn)
    inside("breaker", "open", "stripe", "--reason", "maintenance", "--dsn", pg.dsn)
    inside("breaker", "close", "stripe", "--dsn", pg.dsn)
    found = inside("acts", "--json", "--dsn", pg.dsn).json
    assert [(each["act"], each["subject"], each["reason"]) for each in found] == [
        ("close breaker", "stripe", None),
        ("open breaker", "stripe", "maintenance"),
        ("resume", "mail", None),
        ("pause", "mail", "smtp is down"),
    ]
    assert {each["actor"][:4] for each in found} == {"cli:"}
    shown = inside("acts", "--limit", "1", "--dsn", pg.dsn).out
    assert "close breaker" in shown
    assert "open breaker" not in shown


@pytest.mark.parametrize(
    "words", [["pause", "--reason", "x"], ["resume"], ["resume", "a", "--all"]]
)
def test_a_pause_without_a_name_is_told_what_to_write(words: list[str]) -> None:
    inside(*words).complains(2, "NAME", "--all")
