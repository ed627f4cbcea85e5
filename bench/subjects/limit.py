"""The raw limit: the worker's own statements from a bare loop, without handlers.

For single jobs there is a lower one, whatever the queue: a bare INSERT for an enqueue, and for the
way to a handler a bare INSERT with NOTIFY, a listener, and a bare UPDATE.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
from new_jobs import new_jobs
from protocol import TALLY, Spec, Subject, Work, serve

from holdfast.lifecycle import TRANSITIONS, Verb
from holdfast.models import Change, ClaimRule, LeaseKey
from holdfast.stores.postgres.drivers import connect
from holdfast.stores.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from holdfast.models import Job

BATCH = 500
FORGOTTEN = 16
PAUSE = 0.005
LEASE = timedelta(seconds=30)
CHANNEL = "limit"
INSERT = """
insert into holdfast (entrypoint, payload, priority, execute_after, created, updated)
values ($1, $2, 0, now(), now(), now())
"""
TELL = """
with new as (
    insert into holdfast (entrypoint, payload, priority, execute_after, created, updated)
    values ($1, $2, 0, now(), now(), now())
    returning id
)
select pg_notify($3, '') from new
"""
TAKE = """
update holdfast
set status = 'picked', claim_token = gen_random_uuid(), claimed_by = 'limit', claimed_at = now(),
    heartbeat = now(), lease = interval '30 s', updated = now()
where id = (
    select id from holdfast where id > $1 and status = 'queued' order by id limit 1
    for update skip locked
)
returning id, payload
"""


class Limit(Subject):
    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._store = PostgresStore(connect(dsn))
        self._bare: Any = None

    async def install(self) -> None:
        await self._store.install()

    async def connect(self, connections: int) -> None:
        await self._store.verify()
        self._bare = await asyncpg.connect(self.dsn)

    async def one(self, task: str, data: str) -> None:
        if task == "stamp":
            await self._bare.fetch(TELL, task, data.encode(), CHANNEL)
        else:
            await self._bare.fetch(INSERT, task, data.encode())

    async def many(self, specs: Sequence[Spec]) -> int:
        return len(await self._store.jobs.insert(new_jobs(specs), "raise"))

    async def work(self, work: Work) -> None:
        """Claim on one connection while the batch before is settled on another."""
        if work.tasks == ["stamp"]:
            await _react(self.dsn)
        rules = [ClaimRule(task, LEASE) for task in work.tasks]
        claimed: asyncio.Queue[list[Job]] = asyncio.Queue(maxsize=1)
        async with asyncio.TaskGroup() as group:
            group.create_task(_claim(self._store.fork("claim"), rules, claimed))
            group.create_task(_settle(self._store.fork("settle"), claimed))


async def _react(dsn: str) -> None:
    """Take each job when told of it. As every claim, it does not wait for the disk."""
    listening, taking = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    await taking.execute("set synchronous_commit = off")
    told, last = asyncio.Event(), 0
    await listening.add_listener(CHANNEL, lambda *_: told.set())
    while await told.wait():
        told.clear()
        while row := await taking.fetchrow(TAKE, last):
            last = row["id"]
            TALLY.stamp(row["payload"].decode())


async def _claim(
    store: PostgresStore, rules: Sequence[ClaimRule], claimed: asyncio.Queue[list[Job]]
) -> None:
    while True:
        jobs = await store.leases.claim(rules, limit=BATCH, worker="limit")
        if jobs:
            await claimed.put(jobs)
        else:
            await asyncio.sleep(PAUSE)


async def _settle(store: PostgresStore, claimed: asyncio.Queue[list[Job]]) -> None:
    complete = TRANSITIONS[Verb.COMPLETE]
    ended: set[UUID] = set()
    while True:
        jobs = await claimed.get()
        changes = [Change(LeaseKey(job.id, job.claim_token)) for job in jobs if job.claim_token]
        if TALLY.first is None:
            TALLY.count()
            TALLY.done = 0
        TALLY.done += len(await store.leases.change(complete, changes))
        ended.update(change.key.token for change in changes)
        if claimed.empty() or len(ended) >= FORGOTTEN:
            await store.leases.delete_claims(list(ended))
            ended.clear()


if __name__ == "__main__":
    serve(Limit)
