"""What the tests of table queues share: three very different tables, and a bench to lease on."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import asyncpg

from holdfast import TableQueue
from holdfast.clock import ManualClock
from holdfast.lifecycle import TRANSITIONS, Transition, Verb
from holdfast.models import Change, LeaseKey
from holdfast.stores.postgres.drivers import connect
from holdfast.stores.postgres.tables.leases import TableLeases
from tests.tables import article

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from holdfast.models import Job, Recovery
    from holdfast.stores.postgres.drivers import Driver

DriverName = Literal["asyncpg", "psycopg"]

LEASE = timedelta(minutes=5)
SECOND = timedelta(seconds=1)
COMPLETE, RETRY, FAIL, HOLD, RELEASE = (
    TRANSITIONS[verb] for verb in (Verb.COMPLETE, Verb.RETRY, Verb.FAIL, Verb.HOLD, Verb.RELEASE)
)

OUTBOX = """
create table outbox (
    item       uuid primary key,
    send_after timestamptz not null,
    lock_token uuid,
    locked_at  timestamptz,
    beat       timestamptz,
    tries      smallint not null default 0,
    crashes    integer,
    done       boolean not null default false,
    result     text,
    body       jsonb
);
create index on outbox (send_after);
create index on outbox (locked_at);
"""

CHORES = """
create table chores (
    code         text primary key,
    priority     integer not null default 0,
    run_at       timestamptz not null,
    claimed_at   timestamptz,
    claimed_by   varchar(12),
    claim_token  uuid,
    attempts     integer,
    max_attempts integer,
    inactive     boolean not null default false,
    last_error   varchar(30),
    "we:ird ""x" integer default 7
);
create index on chores (priority desc, run_at);
create index on chores (claimed_at) where claimed_at is not null;
"""

NAMES = (
    "Zoe",
    "ärger",
    "zoe",
    "Ärger",
    "aa",
    "AA",
    "ß",
    "a-b",
    "a b",
    "ab",
    "日本",
    "🙂",
    "É",
    "e",
)
"""No two collations agree on the order of these."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A table that is a queue, and how to fill it."""

    name: str
    ddl: str
    queue: TableQueue
    key: Callable[[int], Any]
    demands: dict[str, Any] = field(default_factory=dict)
    """Columns that are not the queue's business and must have a value."""

    def column(self, part: str) -> str:
        return str(getattr(self.queue, part))


def text_key(number: int) -> str:
    return f"{NAMES[number % len(NAMES)]}{number // len(NAMES) or ''}"


SNOOZES = Kind(
    "email_snoozes",
    article.statement("table"),
    TableQueue("email_snoozes", lease=LEASE),
    key=lambda number: number,
    demands={"user_email": "ann@example.org", "message_id": "<1@example.org>"},
)

KINDS = {
    kind.name: kind
    for kind in (
        SNOOZES,
        Kind(
            "outbox",
            OUTBOX,
            TableQueue(
                "outbox",
                key="item",
                due="send_after",
                lease=LEASE,
                claim_token="lock_token",  # noqa: S106 - a column
                claimed_at="locked_at",
                heartbeat="beat",
                attempts="tries",
                max_attempts=5,
                recoveries="crashes",
                inactive="done",
                outcome="result",
            ),
            key=lambda number: UUID(int=(0x9E3779B97F4A7C15F39CC0605CEDC834 * number) % 2**128),
        ),
        Kind(
            "chores",
            CHORES,
            TableQueue(
                "chores", key="code", due="run_at", order=("priority  desc", "run_at"), lease=LEASE
            ),
            key=text_key,
            demands={"max_attempts": 5},
        ),
    )
}


class Bench:
    """One table, its leases under a clock that the test moves, and a session to look on with."""

    def __init__(self, kind: Kind, witness: Any, driver: Driver, clock: ManualClock) -> None:
        self.kind = kind
        self.witness = witness
        self.driver = driver
        self.clock = clock
        self.leases = self.using()

    def using(self, **changes: Any) -> TableLeases:
        """Leases of another worker, or of a queue that differs in this."""
        return TableLeases(self.driver, replace(self.kind.queue, **changes), self.clock)

    async def add(self, *numbers: int, **parts: Any) -> None:
        """Rows that are due now unless told; values are given by their part."""
        for number in numbers:
            values = {
                self.kind.queue.key: self.kind.key(number),
                self.kind.queue.due: self.clock.now(),
                **self.kind.demands,
                **{self._column(part): value for part, value in parts.items()},
            }
            places = ", ".join(f"${n}" for n in range(1, len(values) + 1))
            await self.witness.execute(
                f"insert into {self.kind.name} ({', '.join(values)}) values ({places})",
                *values.values(),
            )

    def _column(self, part: str) -> str:
        return self.kind.column(part) if hasattr(self.kind.queue, part) else part

    async def row(self, number: int) -> dict[str, Any]:
        """A row by the parts that its columns play, and by their own names."""
        return (await self.rows())[self.kind.key(number)]

    async def rows(self) -> dict[Any, dict[str, Any]]:
        """All of them, by their keys."""
        found = map(dict, await self.witness.fetch(f"select * from {self.kind.name}"))
        parts = self.kind.queue.columns().items()
        return {
            row[self.kind.queue.key]: row
            | {part: row[column] for part, column in parts if column in row}
            for row in found
        }

    async def lock(self, number: int) -> None:
        """For as long as the witness is in its transaction."""
        await self.witness.fetch(
            f"select from {self.kind.name} where {self.kind.queue.key} = $1 for update",
            self.kind.key(number),
        )

    async def dump(self) -> list[str]:
        """Equal dumps mean that no row was written at all."""
        found = await self.witness.fetch(
            f"select t::text || ' ' || t.xmin::text from {self.kind.name} t order by 1"
        )
        return [row[0] for row in found]

    async def claim(self, limit: int = 100, worker: str = "worker-1") -> list[Job]:
        return await self.leases.claim([], limit=limit, worker=worker)

    async def claim_suspects(self, limit: int = 100, worker: str = "worker-1") -> list[Job]:
        """As a worker does that holds nothing."""
        return await self.leases.claim_recovered([], limit=limit, worker=worker, suspects=True)

    async def claim_recovered(self, limit: int = 100, worker: str = "worker-1") -> list[Job]:
        return await self.leases.claim_recovered([], limit=limit, worker=worker, suspects=False)

    async def claim_one(self) -> LeaseKey:
        [job] = await self.claim()
        return held(job)

    async def claim_again(self, worker: str = "worker-1") -> LeaseKey:
        """The one row that a worker died with, however its table tells."""
        claims = (self.claim, self.claim_recovered, self.claim_suspects)
        [job] = [job for claim in claims for job in await claim(worker=worker)]
        return held(job)

    async def change(
        self,
        transition: Transition,
        *leases: LeaseKey,
        delay: timedelta | None = None,
        error: str = "",
    ) -> set[LeaseKey]:
        changes = [Change(lease, delay=delay, error=error or None) for lease in leases]
        return set(await self.leases.change(transition, changes))

    async def recover(self, **options: Any) -> Recovery:
        return await self.leases.recover([], **options)

    def numbers(self, jobs: list[Job]) -> list[int]:
        """Which rows these are."""
        by_key = {self.kind.key(number): number for number in range(200)}
        return [by_key[job.id] for job in jobs]


def held(job: Job) -> LeaseKey:
    assert job.claim_token is not None
    return LeaseKey(job.id, job.claim_token)


@asynccontextmanager
async def session(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close(timeout=5)


@asynccontextmanager
async def bench(kind: Kind, dsn: str, driver: DriverName) -> AsyncIterator[Bench]:
    """A bench on a new table of that kind."""
    async with session(dsn) as witness:
        await witness.execute(kind.ddl)
        link = connect(dsn, driver=driver)
        try:
            yield Bench(kind, witness, link, ManualClock())
        finally:
            await link.close()
