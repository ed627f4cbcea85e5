"""The memory store and PostgreSQL side by side: the same calls, the same answers, the same rows."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import asyncpg

from holdfast.clock import ManualClock
from holdfast.errors import HoldfastError
from holdfast.models import JobId, LeaseKey
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from holdfast.stores.postgres.store import PostgresStore
from tests import servers
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from uuid import UUID

    from holdfast.models import Job, LogEntry, Schedule
    from holdfast.ports import Store


class JobPair(NamedTuple):
    """One job: its id here and there, which differ because an identity column has gaps."""

    memory: JobId
    postgres: JobId


class LeasePair(NamedTuple):
    """One lease, here and there; `number` stands for its token in comparisons."""

    number: int
    job: JobPair
    memory: LeaseKey
    postgres: LeaseKey


class Raised(NamedTuple):
    """A call ended in this error."""

    kind: str
    message: str


@dataclass(frozen=True)
class World:
    """What all examples share: a loop, a connection, and tables that each example finds empty."""

    runner: asyncio.Runner
    connection: Any


@contextmanager
def world_on(dsn: str) -> Iterator[World]:
    servers.prepare(dsn)
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(dsn))
        try:
            runner.run(PostgresStore(AsyncpgDriver(connection)).install())
            yield World(runner, connection)
        finally:
            connection.terminate()


class Seen(NamedTuple):
    """Full state in the terms of the memory store."""

    queue: list[Job]
    log: dict[JobId, list[LogEntry]]
    schedules: list[Schedule]


@dataclass
class Pair:
    """Both stores under one clock."""

    world: World
    clock: ManualClock = field(default_factory=ManualClock)
    jobs: list[JobPair] = field(default_factory=list)
    leases: list[LeasePair] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory = MemoryStore(self.clock)
        driver = AsyncpgDriver(self.world.connection)
        self.postgres = PostgresStore(driver, tables.NAMES, clock=self.clock)
        self.world.runner.run(tables.empty(self.world.connection))
        self._here: dict[JobId, JobId] = {}

    def both(
        self,
        memory: Callable[[Store], Awaitable[Any]],
        postgres: Callable[[Store], Awaitable[Any]] | None = None,
    ) -> tuple[Any, Any]:
        """The answers of both stores; an error is an answer."""
        here = self.world.runner.run(_answer(memory, self.memory))
        there = self.world.runner.run(_answer(postgres or memory, self.postgres))
        return here, there

    def same(self, call: Callable[[Store], Awaitable[Any]]) -> Any:
        """The answer that both gave."""
        here, there = self.both(call)
        assert here == there
        return here

    def met(self, here: Sequence[JobId | None], there: Sequence[JobId | None]) -> list[JobPair]:
        """New jobs, which both made in the same places."""
        assert [job is None for job in here] == [job is None for job in there]
        pairs = [
            JobPair(mine, other)
            for mine, other in zip(here, there, strict=True)
            if mine is not None and other is not None
        ]
        self.jobs += pairs
        self._here |= {pair.postgres: pair.memory for pair in pairs}
        return pairs

    def leased(self, here: Sequence[Job], there: Sequence[Job]) -> list[LeasePair]:
        """New leases; jobs that were retired on the way have none."""
        fresh: list[LeasePair] = []
        for mine, other in zip(here, there, strict=True):
            assert mine.id == self._here[other.id]
            assert mine.status is other.status
            if mine.claim_token is None or other.claim_token is None:
                continue
            fresh.append(
                LeasePair(
                    len(self.leases) + len(fresh),
                    JobPair(mine.id, other.id),
                    LeaseKey(mine.id, mine.claim_token),
                    LeaseKey(other.id, other.claim_token),
                )
            )
        self.leases += fresh
        return fresh

    def here(self, ids: Iterable[JobId]) -> list[JobId]:
        """PostgreSQL's ids as the memory store has them."""
        return [self._here[job_id] for job_id in ids]

    def states(self) -> tuple[Seen, Seen]:
        """Both stores' rows, comparable."""
        return self._memory_state(), self.world.runner.run(self._postgres_state())

    def _memory_state(self) -> Seen:
        state = self.memory.jobs._state
        numbers = {lease.memory: lease.number for lease in self.leases}
        queue = [_numbered(job, numbers, job.id) for job in state.rows.values()]
        schedules = self.world.runner.run(self.memory.schedules.all())
        return Seen(queue, _by_job(state.log), _without_ids(schedules))

    async def _postgres_state(self) -> Seen:
        numbers = {lease.postgres: lease.number for lease in self.leases}
        found = await tables.queue(self.world.connection, seen=True)
        queue = [_numbered(job, numbers, self._here[job.id]) for job in found]
        log = [
            entry._replace(job_id=self._here[entry.job_id])
            for entry in await tables.log(self.world.connection)
        ]
        return Seen(queue, _by_job(log), _without_ids(await self.postgres.schedules.all()))


async def _answer(call: Callable[[Store], Awaitable[Any]], store: Store) -> Any:
    try:
        return await call(store)
    except HoldfastError as error:
        return Raised(type(error).__name__, str(error))


def _numbered(job: Job, numbers: dict[LeaseKey, int], known_as: JobId) -> Job:
    token: UUID | None = job.claim_token
    number: Any = None if token is None else numbers[LeaseKey(job.id, token)]
    return job._replace(id=known_as, claim_token=number)


def _by_job(log: Iterable[LogEntry]) -> dict[JobId, list[LogEntry]]:
    """Rows of one statement have no order between jobs, so each job's rows stand alone."""
    entries: dict[JobId, list[LogEntry]] = {}
    for entry in log:
        entries.setdefault(entry.job_id, []).append(entry._replace(id=0))
    return entries


def _without_ids(schedules: Iterable[Schedule]) -> list[Schedule]:
    return [schedule._replace(id=0) for schedule in schedules]
