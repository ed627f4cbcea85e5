"""Every statement that the article prints, run by hand while workers work on the table."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from holdfast import Context, Holdfast, TableQueue, linear
from tests.tables import article
from tests.tables.three_tables import session
from tests.worker.workers import Watch, eventually, working

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.servers import Database

ROWS = 300
ROUNDS = 200
PERSON = "a person at a terminal"
QUEUE = TableQueue(
    "email_snoozes",
    lease=timedelta(seconds=30),
    backoff=linear(timedelta(milliseconds=20)),
)

ILLEGAL = """
    select id from email_snoozes
    where (claimed_at is null) <> (claim_token is null)
       or (claimed_at is null) <> (claimed_by is null)
       or (last_error is null) and attempts > 0 and not rerun
       or attempts < 0
"""


class Ledger:
    """What handlers did, and what was done to rows by hand."""

    def __init__(self) -> None:
        self.effects: Counter[int] = Counter()
        self.by_hand: defaultdict[int, list[str]] = defaultdict(list)
        self.finished_by_hand: set[int] = set()
        self.acts: Counter[str] = Counter()
        self.calm = False

    def note(self, act: str, rows: list[Any]) -> None:
        self.acts[act] += 1
        for row in rows:
            self.by_hand[row[0]].append(act)

    def unexplained(self) -> dict[int, tuple[int, list[str]]]:
        """Rows that succeeded more often than their owner made them run again."""
        chances = {"unclaim", "recover", "recover soon", "re-run", "resume"}
        return {
            number: (count, self.by_hand[number])
            for number, count in self.effects.items()
            if count > 1 + sum(act in chances for act in self.by_hand[number])
        }


class Person:
    """Types statements into a terminal."""

    def __init__(self, connection: Any, ledger: Ledger, dice: random.Random) -> None:
        self._connection = connection
        self._ledger = ledger
        self._dice = dice
        self._claims: dict[int, Any] = {}
        self.acts: list[Callable[[], Awaitable[None]]] = [
            self.claim,
            self.unclaim,
            self.finalise,
            self.finalise_with_a_wrong_token,
            self.recover,
            self.recover_soon,
            self.retire,
            self.pause,
            self.resume,
            self.rerun,
            self.put_off,
        ]

    async def _run(self, act: str, sql: str, *values: Any) -> list[Any]:
        statement = sql.strip().rstrip(";")
        if "returning" not in statement.lower():
            statement += " RETURNING id"
        rows = await self._connection.fetch(statement, *values)
        self._ledger.note(act, rows)
        return list(rows)

    async def claim(self) -> None:
        rows = await self._run("claim", article.statement("claim"), 2, PERSON)
        self._claims |= {row["id"]: row["claim_token"] for row in rows}

    async def unclaim(self) -> None:
        """Of whosever it is: the printed statement asks for no token."""
        number = self._dice.randint(1, ROWS)
        found = await self._connection.fetchval(
            "select id from email_snoozes where claimed_at is not null and id >= $1 limit 1", number
        )
        await self._run("unclaim", article.statement("unclaim"), found or number, "by hand", 0)

    async def finalise(self) -> None:
        for number, token in self._claims.items():
            rows = await self._run("finalise", article.statement("finalise"), number, token)
            self._ledger.finished_by_hand |= {row["id"] for row in rows}
        self._claims.clear()

    async def finalise_with_a_wrong_token(self) -> None:
        number = self._dice.randint(1, ROWS)
        assert await self._run("finalise", article.statement("finalise"), number, uuid4()) == []

    async def recover(self) -> None:
        await self._connection.execute(
            "update email_snoozes set claimed_at = claimed_at - interval '10 minutes'"
            " where claimed_by = $1 and id % 2 = 0",
            PERSON,
        )
        await self._run("recover", article.statement("recover"))

    async def recover_soon(self) -> None:
        """With a threshold that live claims have passed: the workers lose them."""
        statement = article.statement("recover").replace("5 minutes", "20 milliseconds")
        await self._run("recover soon", statement)

    async def retire(self) -> None:
        await self._run("retire", article.statement("retire"))

    async def pause(self) -> None:
        await self._run("pause", "update email_snoozes set inactive = true where " + self._class())

    async def resume(self) -> None:
        await self._run(
            "resume", "update email_snoozes set inactive = false where " + self._class()
        )

    async def rerun(self) -> None:
        await self._run(
            "re-run",
            "update email_snoozes set attempts = 0, last_error = null, last_error_at = null,"
            " inactive = false, rerun = true where " + self._class(),
        )

    async def put_off(self) -> None:
        await self._run(
            "put off",
            "update email_snoozes set remind_at = now() + interval '50 milliseconds' where "
            + self._class(),
        )

    async def leave(self) -> None:
        """Release everything, and let what has not succeeded yet run again."""
        await self._run(
            "unclaim",
            "update email_snoozes set claimed_at = null, claimed_by = null, claim_token = null"
            " where claimed_by = $1",
            PERSON,
        )
        done = [*self._ledger.effects, *self._ledger.finished_by_hand]
        await self._run(
            "re-run",
            "update email_snoozes set attempts = 0, inactive = false, rerun = true,"
            " remind_at = now() where id <> all($1::bigint[])",
            done,
        )

    def _class(self) -> str:
        return f"id % 30 = {self._dice.randint(0, 29)}"


async def fill(connection: Any) -> None:
    await connection.execute(article.statement("table"))
    # Not the queue's business: it tells the checker which rows had their history erased by hand.
    await connection.execute("alter table email_snoozes add rerun boolean not null default false")
    await connection.execute(
        "insert into email_snoozes (user_email, message_id, remind_at)"
        " select 'ann@example.org', n::text, now() from generate_series(1, $1::int) n",
        ROWS,
    )


def worker(dsn: str, ledger: Ledger, dice: random.Random) -> Holdfast:
    hf = Holdfast.connect(dsn)

    @hf.table(QUEUE)
    async def handle(row: dict[str, Any], context: Context) -> None:
        await asyncio.sleep(dice.uniform(0, 0.03))
        if not ledger.calm and dice.random() < 0.2:
            raise ValueError("no luck")
        ledger.effects[row["id"]] += 1

    return hf


async def test_the_table_is_legal_whatever_is_done_by_hand(pg18: Database) -> None:
    ledger, dice = Ledger(), random.Random(11)
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(session(pg18.dsn))
        await fill(connection)
        crew = [worker(pg18.dsn, ledger, dice) for _ in range(2)]
        watch = Watch(*crew)
        settings = {"dequeue_timeout": timedelta(milliseconds=50), "concurrency": 10}
        for hf in crew:
            await stack.enter_async_context(hf)
            await stack.enter_async_context(working(hf, signals=False, **settings))
        person = Person(connection, ledger, dice)
        for n in range(ROUNDS):
            await person.acts[n % len(person.acts) if n < 22 else dice.randrange(11)]()
            assert await connection.fetch(ILLEGAL) == []
        ledger.calm = True

        async def all_done() -> bool:
            await person.leave()
            return len({*ledger.effects, *ledger.finished_by_hand}) == ROWS

        await eventually(all_done)
        await eventually(lambda: settled(connection))
    async with session(pg18.dsn) as connection:
        assert await connection.fetch(ILLEGAL) == []
        assert await connection.fetchval("select count(claimed_at) from email_snoozes") == 0
    assert ledger.unexplained() == {}
    assert len(watch.settled) >= ROWS - len(ledger.finished_by_hand)
    assert len(ledger.acts) == 10
    assert watch.lost, "no row was ever taken from a worker, so nothing was tried"


async def settled(connection: Any) -> bool:
    """Nothing is claimed and nothing waits."""
    open_rows = "select count(*) from email_snoozes where claimed_at is not null or not inactive"
    return await connection.fetchval(open_rows) == 0
