"""explain: one sentence, a code for scripts, and the command that helps."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast import Holdfast
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


def test_what_is_explained_must_be_named(pg: Database) -> None:
    asyncio.run(_enqueue(pg.dsn))
    inside("explain", "--dsn", pg.dsn).complains(2, "ID", "--entrypoint")
    inside("explain", "77", "--dsn", pg.dsn).complains(1, "77")
