"""The raw limit: the worker's own statements from a bare loop, without handlers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from new_jobs import new_jobs
from protocol import TALLY, Spec, Subject, Work, serve

from holdfast.lifecycle import TRANSITIONS, Verb
from holdfast.models import Change, NewJob, Want
from holdfast.stores.postgres.drivers import connect
from holdfast.stores.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.models import Job

BATCH = 500
PAUSE = 0.005
LEASE = timedelta(seconds=30)


class Limit(Subject):
    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._store = PostgresStore(connect(dsn))

    async def install(self) -> None:
        await self._store.install()

    async def connect(self, connections: int) -> None:
        await self._store.verify()

    async def one(self, task: str, data: str) -> None:
        await self._store.jobs.insert([NewJob(task, data.encode())], "raise")

    async def many(self, specs: Sequence[Spec]) -> int:
        return len(await self._store.jobs.insert(new_jobs(specs), "raise"))

    async def work(self, work: Work) -> None:
        """Claim on one connection while the batch before is settled on another."""
        wants = [Want(task, LEASE) for task in work.tasks]
        claimed: asyncio.Queue[list[Job]] = asyncio.Queue(maxsize=1)
        async with asyncio.TaskGroup() as group:
            group.create_task(_claim(self._store.fork("claim"), wants, claimed))
            group.create_task(_settle(self._store.fork("settle"), claimed))


async def _claim(
    store: PostgresStore, wants: Sequence[Want], claimed: asyncio.Queue[list[Job]]
) -> None:
    while True:
        jobs = await store.leases.claim(wants, limit=BATCH, worker="limit")
        if jobs:
            await claimed.put(jobs)
        else:
            await asyncio.sleep(PAUSE)


async def _settle(store: PostgresStore, claimed: asyncio.Queue[list[Job]]) -> None:
    complete = TRANSITIONS[Verb.COMPLETE]
    while True:
        jobs = await claimed.get()
        changes = [Change(job.id, job.claim_token) for job in jobs if job.claim_token]
        if TALLY.first is None:
            TALLY.count()
            TALLY.done = 0
        TALLY.done += len(await store.leases.change(complete, changes))
        await store.leases.forget(list({change.token for change in changes}))


if __name__ == "__main__":
    serve(Limit)
