"""However long the backlog: a claim reads what it takes, and a sweep what is claimed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from holdfast.lifecycle import CLAIM_SUSPECT, Verb
from holdfast.stores.postgres.tables.render import LOOK_AHEAD
from tests.tables.three_tables import LEASE, SNOOZES, Bench, bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Database
    from tests.tables.conftest import Link

BACKLOG = 20_000
LIMIT = 50
PARTIAL = (
    "drop index idx_email_snoozes_due;"
    "create index on email_snoozes (remind_at, id) where inactive = false and claimed_at is null"
)


async def fill(table: Bench) -> None:
    await table.witness.execute(
        "insert into email_snoozes (user_email, message_id, remind_at)"
        " select 'a', n::text, now() - n * interval '1 s' from generate_series(1, $1::int) n",
        BACKLOG,
    )
    await table.witness.execute("analyze email_snoozes")
    await table.leases.verify()


async def read_rows(table: Bench, statement: str, **values: Any) -> int:
    """How many rows of the table the statement looks at."""
    known = table.leases._statements[statement]
    given = {"now": None, "limit": LIMIT, "worker": None, "lease": LEASE} | values
    transaction = table.witness.transaction()
    await transaction.start()
    try:
        [[text]] = await table.witness.fetch(
            f"explain (analyze, format json) {known.text}", *known.args(given)
        )
    finally:
        await transaction.rollback()
    return sum(
        int(node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)))
        for node in nodes(json.loads(text)[0]["Plan"])
        if node.get("Relation Name") == "email_snoozes" and "Scan" in node["Node Type"]
    )


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


@pytest.mark.parametrize("index", ["", PARTIAL], ids=["article", "partial"])
async def test_neither_a_claim_nor_a_sweep_reads_the_backlog(
    place: Database, link: Link, index: str
) -> None:
    async with bench(SNOOZES, place.dsn, link.driver) as table:
        if index:
            await table.witness.execute(index)
        await fill(table)
        read = await read_rows(table, Verb.CLAIM, worker="w", token=uuid4())
        assert 2 * LIMIT <= read < 4 * LIMIT
        swept: dict[str, Any] = {
            "contact": None,
            "lived": None,
            "asked": None,
            "held_keys": [],
            "held_tokens": [],
        }
        assert await read_rows(table, Verb.RECOVER, **swept) < LIMIT
        assert await read_rows(table, "next_due") < LIMIT
        # Of rows that a worker died with there are none, and yet the look for them ends early.
        assert await read_rows(table, "recovered_waiting") < LOOK_AHEAD + LIMIT
        asked = {"worker": "w", "token": uuid4()}
        assert await read_rows(table, CLAIM_SUSPECT.name, **asked) < LOOK_AHEAD + LIMIT


async def test_suspects_are_found_in_a_long_backlog(snoozes: Bench) -> None:
    await snoozes.add(*range(1, LIMIT + 1), due=snoozes.clock.now() - LEASE)
    await snoozes.leases.claim([], limit=LIMIT, worker="w")
    snoozes.clock.advance(LEASE)
    await snoozes.recover()
    await snoozes.witness.execute("select setval('email_snoozes_id_seq', $1)", LIMIT)
    await snoozes.witness.execute(
        "insert into email_snoozes (user_email, message_id, remind_at)"
        " select 'a', n::text, $2::timestamptz - n * interval '1 us'"
        " from generate_series(1, $1::int) n",
        BACKLOG,
        snoozes.clock.now(),
    )
    await snoozes.witness.execute("analyze email_snoozes")
    assert (await snoozes.leases.recovered_waiting([])).suspects is not None
    asked = {"now": snoozes.clock.now(), "worker": "w", "token": uuid4()}
    # Each suspect is read three times: to be found, to be locked, to be written.
    read = await read_rows(snoozes, CLAIM_SUSPECT.name, **asked)
    assert 3 * LIMIT <= read < LOOK_AHEAD + 3 * LIMIT
    read = await read_rows(snoozes, Verb.CLAIM, **asked)
    assert read <= 4 * LIMIT, "the ordinary claim passes the suspects once"
