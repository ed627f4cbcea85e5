"""The memory store says what a table queue has to do: random lives of rows, side by side."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from holdfast.clock import ManualClock
from holdfast.lifecycle import LIFECYCLE, RETIRE_LAST_RETRY, Guard, Status, Verb
from holdfast.models import Change, Held, NewJob, Want
from holdfast.stores.memory import MemoryStore
from tests.tables.rig import KINDS, LEASE, SECOND, Bench, Kind, bench

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.models import Job, JobId
    from holdfast.stores.postgres.render import Statement
    from tests.servers import Database

LIVES = 100
STEPS = 25
CAP = 3
CHANGES = [row for row in LIFECYCLE if Guard.OWNED in row.guards and row.verb is not Verb.RENEW]

SORTED_KEYS: dict[str, Callable[[int], Any]] = {
    "email_snoozes": lambda number: number,
    "outbox": lambda number: UUID(int=number << 64),
    "chores": lambda number: f"é{number:04}",
}
"""Where two rows are due together, both stores have to put them into one order."""


def in_order(kind: Kind) -> Kind:
    demands = dict(kind.demands)
    if kind.name != "outbox":
        demands["max_attempts"] = CAP
        return replace(kind, key=SORTED_KEYS[kind.name], demands=demands)
    queue = replace(kind.queue, max_attempts=CAP)
    return replace(kind, key=SORTED_KEYS[kind.name], queue=queue)


@dataclass
class Twins:
    """A table and the memory store, on which the same is done."""

    table: Bench
    dice: random.Random
    leases: list[tuple[Held, Held]] = field(default_factory=list)
    count: int = 0
    ended: dict[int, Status] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.memory = MemoryStore(self.table.clock)
        self.state = self.memory.jobs._state
        self.want = Want("row", lease=LEASE, max_attempts=CAP, max_recoveries=3)
        self.counts_recoveries = self.table.kind.name == "outbox"

    async def live(self, steps: int) -> None:
        acts: list[Callable[[], Awaitable[None]]] = [
            self.add,
            self.claim,
            self.claim,
            self.renew,
            self.change,
            self.change,
            self.change,
            self.recover,
            self.recover,
            self.advance,
            self.advance,
        ]
        await self.add()
        for _ in range(steps):
            await self.dice.choice(acts)()
            expected, found = self.expected(), await self.found()
            assert found == expected

    async def add(self) -> None:
        after = self.dice.choice((0, 0, 1, 60)) * SECOND
        spent = self.dice.randint(0, CAP - 1)
        [job_id] = await self.memory.jobs.insert([NewJob("row", execute_after=after)], "raise")
        assert job_id is not None
        self.state.rows[job_id] = self.state.rows[job_id]._replace(attempts=spent)
        self.count += 1
        due = self.table.clock.now() + after
        await self.table.add(self.count, due=due, attempts=spent)

    async def claim(self) -> None:
        limit, worker = self.dice.randint(1, 3), f"w{self.dice.randint(1, 2)}"
        here = await self.memory.leases.claim([self.want], limit=limit, worker=worker)
        there = await self.table.claim(limit, worker)
        assert [self.table.kind.key(job.id) for job in here] == [job.id for job in there]
        assert [job.attempts for job in here] == [job.attempts for job in there]
        # Where nobody counts them, a row on its last chance is shown as one.
        if self.counts_recoveries:
            assert [job.recoveries for job in here] == [job.recoveries for job in there]
        self.leases += [
            (_held(mine), _held(theirs)) for mine, theirs in zip(here, there, strict=True)
        ]

    def some(self) -> list[tuple[Held, Held]]:
        """A few leases, old ones among them."""
        return self.dice.sample(self.leases, min(len(self.leases), self.dice.randint(1, 4)))

    async def renew(self) -> None:
        some = self.some()
        here = await self.memory.leases.renew([mine for mine, _ in some])
        there = await self.table.leases.renew([theirs for _, theirs in some])
        assert {theirs for mine, theirs in some if mine in here} == there

    async def change(self) -> None:
        some, transition = self.some(), self.dice.choice(CHANGES)
        values = {"delay": self.dice.choice((None, SECOND)), "error": self.dice.choice("ab")}
        here = await self.memory.leases.change(
            transition,
            [Change(mine, max_attempts=CAP, **values) for mine, _ in some],  # type: ignore[arg-type]
        )
        there = await self.table.leases.change(
            transition,
            [Change(theirs, **values) for _, theirs in some],  # type: ignore[arg-type]
        )
        assert {theirs[:2] for mine, theirs in some if mine in here} == {one[:2] for one in there}
        if transition.leaves:
            self.ended |= {mine.id: transition.target for mine in here}

    async def recover(self) -> None:
        worker = self.dice.choice((None, None, "w1")) if self.table.kind.name != "outbox" else None
        if not self.counts_recoveries:
            self._rows(lambda row: row._replace(max_recoveries=max(1, CAP - row.attempts)))
        here = await self.memory.leases.recover([self.want], worker=worker)
        if not self.counts_recoveries:
            self._rows(lambda row: row._replace(attempts=row.attempts + row.recoveries))
            self._rows(lambda row: row._replace(recoveries=0))
        there = await self.table.recover(worker=worker)
        assert set(self._keys(here.recovered)) == set(there.recovered)
        assert set(self._keys(here.retired)) == set(there.retired)

    async def advance(self) -> None:
        self.table.clock.advance(self.dice.choice((SECOND, 60 * SECOND, LEASE - SECOND, LEASE)))

    def _rows(self, become: Callable[[Job], Job]) -> None:
        self.state.rows = {job_id: become(row) for job_id, row in self.state.rows.items()}

    def _keys(self, ids: tuple[JobId, ...]) -> list[Any]:
        return [self.table.kind.key(job_id) for job_id in ids]

    def expected(self) -> dict[Any, dict[str, Any]]:
        """The memory store in the words of the table."""
        tokens = dict(self.leases)
        rows: dict[Any, dict[str, Any]] = {}
        for number in range(1, self.count + 1):
            job = self.state.rows.get(number)  # type: ignore[call-overload]
            if job is None:
                rows[number] = {
                    "inactive": True,
                    "claim_token": None,
                    "outcome": self.ended[number],
                }
                continue
            mine = job.claim_token and tokens[Held(job.id, job.claim_token)].token
            rows[number] = {
                "inactive": job.status is Status.FAILED,
                "outcome": job.status if job.status is Status.FAILED else None,
                "due": job.execute_after,
                "claim_token": mine,
                "claimed_by": job.claimed_by,
                "heartbeat": job.heartbeat,
                "attempts": job.attempts,
                "recoveries": job.recoveries,
                "last_error": job.last_error,
                "last_error_at": job.last_error_at,
            }
        return rows

    async def found(self) -> dict[Any, dict[str, Any]]:
        """As much of each row as the memory store knows of it."""
        rows, known = {}, await self.table.rows()
        for number, expected in self.expected().items():
            row = known[self.table.kind.key(number)]
            row["attempts"] = row["attempts"] or 0
            if "recoveries" in row:
                row["recoveries"] = row["recoveries"] or 0
            row.setdefault("heartbeat", row["claimed_at"])
            if row["claim_token"] is None:
                assert row["claimed_at"] is None
                assert row["heartbeat"] is None
            rows[number] = {part: row.get(part, value) for part, value in expected.items()}
        return rows


def _held(job: Job) -> Held:
    assert job.claim_token is not None
    return Held(job.id, job.claim_token)


async def lives(table: Bench, seeds: range) -> None:
    for seed in seeds:
        await table.witness.execute(f"truncate {table.kind.name}")
        table.clock.set(ManualClock().now())
        # Retiring is looked at once a minute; here it has nothing to find.
        twins = Twins(table, random.Random(seed))
        try:
            await twins.live(STEPS)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("name", KINDS)
async def test_a_table_does_what_the_memory_store_does(pg18: Database, name: str) -> None:
    async with bench(in_order(KINDS[name]), pg18.dsn, "asyncpg") as table:
        await lives(table, range(LIVES))


@pytest.mark.parametrize(
    ("statement", "right", "faulty"),
    [
        (Verb.COMPLETE, 'j."claim_token" = (', 'j."claim_token" is not null or null = ('),
        (Verb.RENEW, 'j."claim_token" = (', 'j."claim_token" is not null or null = ('),
        (Verb.RETRY, "+ 1 < ", "< "),
        (Verb.RETRY, "greatest(j.", "coalesce(j."),
        (RETIRE_LAST_RETRY.name, '"inactive" = true, ', ""),
        (Verb.RELEASE, '"claim_token" = null, ', ""),
        (Verb.HOLD, "::uuid[])[width_bucket(", "::uuid[])[1 + 0 * width_bucket("),
        (Verb.CLAIM, "<= (select now", "- interval '1 s' <= (select now"),
        (Verb.CLAIM, "order by d.place", "order by d.place desc"),
        (Verb.RECOVER, "case when", "case when false and"),
        (Verb.RECOVER, "+ 1 >= ", ">= "),
        (Verb.RECOVER, "::interval", "::interval + interval '2 s'"),
    ],
)
async def test_a_fault_in_a_statement_is_noticed(
    pg18: Database, statement: str, right: str, faulty: str
) -> None:
    async with bench(in_order(KINDS["email_snoozes"]), pg18.dsn, "asyncpg") as table:
        await table.leases.verify()
        known: dict[str, Statement] = table.leases._statements
        assert right in known[statement].text
        text = known[statement].text.replace(right, faulty)
        known[statement] = replace(known[statement], text=text)
        with pytest.raises(AssertionError):
            await lives(table, range(LIVES))
