"""The memory store says what a table queue has to do: random lives of rows, side by side."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from holdfast.clock import ManualClock
from holdfast.lifecycle import (
    CLAIM_SUSPECT,
    LIFECYCLE,
    RETIRE_LAST_RETRY,
    Effect,
    Guard,
    Status,
    Verb,
)
from holdfast.models import Change, ClaimRule, LeaseKey, NewJob
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.tables.fit import Deaths
from holdfast.stores.postgres.tables.render import DEATH_ERROR
from tests.tables.three_tables import KINDS, LEASE, SECOND, Bench, Kind, bench

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


DEATHS = {
    "email_snoozes": Deaths.DERIVED,
    "outbox": Deaths.COUNTED,
    "chores": Deaths.UNKNOWN,
}


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
    leases: list[tuple[LeaseKey, LeaseKey]] = field(default_factory=list)
    count: int = 0
    ended: dict[int, Status] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.memory = MemoryStore(self.table.clock)
        self.state = self.memory.jobs._state
        self.deaths = DEATHS[self.table.kind.name]
        caps = {Deaths.COUNTED: 3, Deaths.DERIVED: 2, Deaths.UNKNOWN: 1000}
        self.rule = ClaimRule(
            "row", lease=LEASE, max_attempts=CAP, max_recoveries=caps[self.deaths]
        )

    async def live(self, steps: int) -> None:
        acts: list[Callable[[], Awaitable[None]]] = [
            self.add,
            self.claim,
            self.claim,
            self.claim_recovered,
            self.claim_recovered,
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
        here = await self.memory.leases.claim([self.rule], limit=limit, worker=worker)
        there = await self.table.claim(limit, worker)
        self.compare(here, there)

    async def claim_recovered(self) -> None:
        suspects = self.dice.choice((True, True, False))
        # A suspect alone is what the memory store expects of every worker.
        limit, worker = 1 if suspects else self.dice.randint(1, 3), f"w{self.dice.randint(1, 2)}"
        here = await self.memory.leases.claim_recovered(
            [self.rule], limit=limit, worker=worker, suspects=suspects
        )
        there = await self.table.leases.claim_recovered(
            [], limit=limit, worker=worker, suspects=suspects
        )
        self.compare(here, there)

    def compare(self, here: list[Job], there: list[Job]) -> None:
        assert [self.table.kind.key(job.id) for job in here] == [job.id for job in there]
        assert [job.attempts for job in here] == [job.attempts for job in there]
        assert [job.recoveries for job in here] == [job.recoveries for job in there]
        self.leases += [
            (_held(mine), _held(theirs)) for mine, theirs in zip(here, there, strict=True)
        ]

    def some(self) -> list[tuple[LeaseKey, LeaseKey]]:
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
        if self.deaths is Deaths.DERIVED and Effect.NOTE_ERROR in transition.effects:
            self._clear({mine.id for mine in here})
        if transition.leaves:
            self.ended |= {mine.id: transition.target for mine in here}

    async def recover(self) -> None:
        worker = self.dice.choice((None, None, "w1")) if self.table.kind.name != "outbox" else None
        # Two instants that are equal tell nothing.
        self.table.clock.advance(timedelta(microseconds=1))
        contact = self.dice.choice((None, None, SECOND, 2 * LEASE))
        here = await self.memory.leases.recover([self.rule], worker=worker, contact=contact)
        if self.deaths is Deaths.UNKNOWN:
            self._clear({*self.state.rows})
        there = await self.table.recover(worker=worker, contact=contact)
        assert set(self._keys(here.recovered)) == set(there.recovered)
        assert set(self._keys(here.excused)) == set(there.excused)
        assert set(self._keys(here.retired)) == set(there.retired)

    async def advance(self) -> None:
        self.table.clock.advance(self.dice.choice((SECOND, 60 * SECOND, LEASE - SECOND, LEASE)))

    def _clear(self, ids: set[JobId]) -> None:
        """No death of these is known any more."""
        for job_id in ids & {*self.state.rows}:
            self.state.rows[job_id] = self.state.rows[job_id]._replace(recoveries=0)

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
            mine = job.claim_token and tokens[LeaseKey(job.id, job.claim_token)].token
            died = job.status is Status.FAILED and job.recoveries >= self.rule.max_recoveries
            rows[number] = {
                "inactive": job.status is Status.FAILED,
                "outcome": job.status if job.status is Status.FAILED else None,
                "due": self._due(job),
                "claim_token": mine,
                "claimed_by": job.claimed_by,
                "heartbeat": job.heartbeat,
                "attempts": job.attempts,
                "recoveries": job.recoveries,
                "last_error": f"{DEATH_ERROR}; before that: {job.last_error}"
                if died
                else job.last_error,
                "last_error_at": job.last_error_at,
            }
        return rows

    def _due(self, job: Job) -> datetime:
        """A failure leaves it no earlier than last_error_at, where that tells deaths apart."""
        failed = job.status is Status.FAILED and not job.recoveries and job.last_error_at
        if failed and self.deaths is Deaths.DERIVED:
            return max(job.execute_after, failed)
        return job.execute_after

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


def _held(job: Job) -> LeaseKey:
    assert job.claim_token is not None
    return LeaseKey(job.id, job.claim_token)


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
        (Verb.RECOVER, "= '8'", "<> '8'"),
        (Verb.RECOVER, ', "last_error_at" = clock.now', ""),
        (Verb.RECOVER, 'set "last_error"', 'set "attempts" = 1 + j."attempts", "last_error"'),
        (Verb.CLAIM, 'j."remind_at") is not true', 'j."remind_at" and false) is not true'),
        (CLAIM_SUSPECT.name, '"last_error_at" > j', '"last_error_at" < j'),
        (Verb.HOLD, '"remind_at" = greatest', '"remind_at" = least'),
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
