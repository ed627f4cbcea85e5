"""A worker of a released version: `python -m chaos.old_worker PLAN`.

It runs the statements of that release as they were printed then, against tables of any version. It
recovers nothing: that is left to the workers of this version.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from chaos import leash
from chaos.files import SECOND
from chaos.handlers import Handlers, Ledger
from chaos.plans import OldPlan
from chaos.worker import Watchman
from holdfast import Job, JobId, Status
from tests.postgres.released import OldClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.postgres.drivers.base import Row

_ENTRYPOINT = "work"
_POLL = 0.05
_RENEWALS = 3
"""Renewals within a lease."""

_TRUSTED = 0.9
"""The part of a lease after which a handler is cancelled unless the lease was renewed."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OldWorker:
    """Claims, renews and completes jobs, on a connection each, until it is killed."""

    def __init__(self, plan: OldPlan) -> None:
        self._plan = plan
        self._ledger = Ledger(Path(plan.directory), plan.name)
        self._handlers = Handlers(self._ledger, plan.lease)
        self._name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._running: dict[JobId, tuple[Job, asyncio.Task[None]]] = {}
        self._sure: dict[JobId, float] = {}
        """Until when each lease is known to last, by the clock of the event loop."""
        self._done: list[Job] = []
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Run until killed."""
        self._ledger.note("spawned", worker=self._plan.name, pid=os.getpid())
        watchman = Watchman(self._ledger, None, self._plan.lease)
        watchman.start()
        async with asyncio.TaskGroup() as group:
            for work in (self._claim, self._renew, self._settle):
                group.create_task(work(await self._connect()))
            group.create_task(watchman.watch_loop())

    async def _connect(self) -> OldClient:
        client = await OldClient.connect(self._plan.release, self._plan.dsn)
        client.name = self._name
        client.lease = timedelta(seconds=self._plan.lease)
        return client

    async def _claim(self, client: OldClient) -> None:
        while True:
            free = self._plan.concurrency - len(self._running) - len(self._done)
            sent = _now()
            rows: Sequence[Row] = []
            if free > 0:
                token, rows = await client.claim_rows(_ENTRYPOINT, free)
                for row in rows:
                    self._start(_job(row, token, self._name, client.lease), sent)
            if not rows:
                await asyncio.sleep(_POLL)

    def _start(self, job: Job, sent: float) -> None:
        self._sure[job.id] = sent + _TRUSTED * self._plan.lease
        self._running[job.id] = job, asyncio.create_task(self._perform(job))

    async def _perform(self, job: Job) -> None:
        try:
            async with asyncio.timeout_at(self._sure[job.id]) as fence:
                watch = asyncio.create_task(self._extend(job, fence))
                try:
                    await self._handlers.perform(job)
                finally:
                    watch.cancel()
        except (asyncio.CancelledError, TimeoutError):
            self._running.pop(job.id, None)
            return
        self._running.pop(job.id, None)
        self._done.append(job)
        self._ended.set()

    async def _extend(self, job: Job, fence: asyncio.Timeout) -> None:
        """Cancel the handler when the lease is over, and not before."""
        while True:
            await asyncio.sleep(_POLL)
            fence.reschedule(self._sure[job.id])

    async def _renew(self, client: OldClient) -> None:
        while True:
            await asyncio.sleep(self._plan.lease / _RENEWALS)
            for token, jobs in _by_token([job for job, _ in self._running.values()]).items():
                sent = _now()
                renewed = set(await client.renew(token, [job.id for job in jobs]))
                for job in jobs:
                    if job.id in renewed:
                        self._sure[job.id] = sent + _TRUSTED * self._plan.lease
                    elif job.id in self._running:
                        self._running[job.id][1].cancel()

    async def _settle(self, client: OldClient) -> None:
        while True:
            await self._ended.wait()
            self._ended.clear()
            done, self._done = self._done, []
            for token, jobs in _by_token(done).items():
                ended = set(await client.complete(token, [job.id for job in jobs]))
                for job in jobs:
                    event = "settled" if job.id in ended else "lost"
                    self._ledger.lease(event, job, how="Succeeded")


def _by_token(jobs: Sequence[Job]) -> dict[uuid.UUID, list[Job]]:
    found: dict[uuid.UUID, list[Job]] = {}
    for job in jobs:
        assert job.claim_token is not None
        found.setdefault(job.claim_token, []).append(job)
    return found


def _job(row: Row, token: uuid.UUID, worker: str, lease: timedelta) -> Job:
    """A row of the old claim as the handlers of the harness take it."""
    key, entrypoint, payload, priority, due, attempts, recoveries = row[:7]
    most_attempts, most_recoveries, dedupe_key, headers, created, updated = row[7:13]
    claimed = _instant(updated)
    return Job(
        id=key,
        entrypoint=entrypoint,
        payload=payload,
        priority=priority,
        status=Status.PICKED,
        execute_after=_instant(due),
        attempts=attempts,
        recoveries=recoveries,
        max_attempts=most_attempts,
        max_recoveries=most_recoveries,
        dedupe_key=dedupe_key,
        headers=json.loads(headers) if isinstance(headers, str) else headers,
        created=_instant(created),
        updated=claimed,
        heartbeat=claimed,
        claim_token=token,
        claimed_by=worker,
        claimed_at=claimed,
        lease=lease,
        last_error=None,
        last_error_at=None,
        held_at=None,
    )


def _instant(epoch: float) -> datetime:
    return _EPOCH + timedelta(microseconds=round(epoch * SECOND))


def _now() -> float:
    return asyncio.get_running_loop().time()


if __name__ == "__main__":
    leash.tie()
    asyncio.run(OldWorker(OldPlan.loads(sys.argv[1])).run())
