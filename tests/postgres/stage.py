"""Sessions that a test steps by hand, each waiting until it sees the other wait."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.clock import ManualClock
from holdfast.lifecycle import Guard
from holdfast.models import Change, ClaimRule, LeaseKey, NewJob
from holdfast.stores.postgres import render
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.tables import render as table_render
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator

    from holdfast.lifecycle import Status, Transition
    from holdfast.models import Job, JobId, Requeued

LEASE = timedelta(seconds=30)
RULE = ClaimRule("mail", lease=LEASE)
PATIENCE = 60.0


@dataclass(frozen=True)
class Session:
    """One connection and the store over it."""

    connection: Any
    store: PostgresStore

    @property
    def pid(self) -> int:
        return int(self.connection.get_server_pid())

    async def claim(
        self, limit: int = 100, worker: str = "worker", rule: ClaimRule = RULE
    ) -> list[Job]:
        return await self.store.leases.claim([rule], limit=limit, worker=worker, sweep=True)

    async def claim_recovered(self, worker: str = "worker", suspects: bool = False) -> list[Job]:
        return await self.store.leases.claim_recovered(
            [RULE], limit=100, worker=worker, suspects=suspects
        )

    async def change(self, transition: Transition, *jobs: Job) -> set[LeaseKey]:
        changes = [change_of(transition, job) for job in jobs]
        return set(await self.store.leases.change(transition, changes))

    async def remove(self, transition: Transition, *jobs: Job) -> set[JobId]:
        ids = [job.id for job in jobs]
        return await self.store.jobs.remove(transition, ids, actor=None, reason=None)

    async def requeue(self, *ids: JobId) -> dict[JobId, Requeued]:
        return await self.store.jobs.requeue(ids, actor=None, reason=None)


@dataclass(frozen=True)
class Stage:
    """Two sessions that race, one that looks on, one that gets in the way; one clock for all."""

    a: Session
    b: Session
    observer: Any
    blocker: Any
    clock: ManualClock

    async def enqueue(
        self, number: int = 1, entrypoint: str = "mail", key: str | None = None
    ) -> None:
        jobs = [NewJob(entrypoint, dedupe_key=key) for _ in range(number)]
        await self.a.store.jobs.insert(jobs, "raise")

    async def queue(self) -> list[Job]:
        return await tables.queue(self.observer, seen=True)

    async def log_of(self, job: Job) -> list[Status]:
        return [entry.status for entry in await tables.log(self.observer) if entry.job_id == job.id]

    async def begin(self, work: Coroutine[Any, Any, Any], session: Session) -> asyncio.Task[Any]:
        """Start something in a session and return when it waits for another's lock."""
        task = asyncio.create_task(work)
        async with asyncio.timeout(PATIENCE):
            while not await self._waits(session.pid):
                assert not task.done(), f"nothing was waited for: {task.result()!r}"
        return task

    async def _waits(self, pid: int) -> bool:
        kind = await self.observer.fetchval(
            "select wait_event_type from pg_stat_activity where pid = $1", pid
        )
        return bool(kind == "Lock")


def change_of(transition: Transition, job: Job) -> Change:
    """A change that only the token can keep from happening."""
    assert job.claim_token is not None
    cap = 1 if Guard.RETRY_SPENT in transition.guards else 25
    held = LeaseKey(job.id, job.claim_token)
    return Change(held, error="late", reason="late", max_attempts=cap)


def held(*jobs: Job) -> set[LeaseKey]:
    return {LeaseKey(job.id, job.claim_token) for job in jobs if job.claim_token}


@contextmanager
def patient() -> Iterator[None]:
    """Changes wait for a row for as long as the test does, so that it can see them wait."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (render, table_render):
            patch.setattr(module, "PATIENCE", f"set_config('lock_timeout', '{PATIENCE}s', true)")
        render.statements.cache_clear()
        yield
    render.statements.cache_clear()


@asynccontextmanager
async def stage_on(dsn: str) -> AsyncIterator[Stage]:
    clock = ManualClock()
    with patient():
        async with _sessions(dsn, clock) as stage:
            yield stage


@asynccontextmanager
async def _sessions(dsn: str, clock: ManualClock) -> AsyncIterator[Stage]:
    async with (
        tables.installed(dsn, clock) as (first, a),
        tables.session(dsn) as second,
        tables.session(dsn) as observer,
        tables.session(dsn) as blocker,
    ):
        b = PostgresStore(AsyncpgDriver(second), tables.NAMES, clock=clock)
        yield Stage(Session(first, a), Session(second, b), observer, blocker, clock)
