"""What the tests of the documented behaviours share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.models import ClaimRule
from tests.cli.command_line import Done, inside

if TYPE_CHECKING:
    from datetime import timedelta

    from holdfast import Holdfast, Job, JobId, LogEntry, Status


async def shell(*arguments: str) -> Done:
    """The command, which has an event loop of its own."""
    return await asyncio.to_thread(inside, *arguments)


async def abandon(
    hf: Holdfast, entrypoint: str, lease: timedelta, *, suspects: bool = False
) -> list[JobId]:
    """Claim what waits, as a worker that is heard of no more."""
    rules, leases = [ClaimRule(entrypoint, lease)], hf.store.leases
    if suspects:
        jobs = await leases.claim_recovered(rules, limit=1, worker="gone", suspects=True)
    else:
        jobs = await leases.claim(rules, limit=100, worker="gone", sweep=True)
    return [job.id for job in jobs]


async def drained(hf: Holdfast, *args: Any, **kwargs: Any) -> JobId:
    """Enqueue one job and work until nothing is claimable."""
    [job_id] = await hf.queries.enqueue(*args, **kwargs)
    await hf.run(mode="drain")
    return job_id


async def run_again(hf: Holdfast, connection: Any) -> None:
    """As if every delay were over."""
    await connection.execute("update holdfast set execute_after = now() where status = 'queued'")
    await hf.run(mode="drain")


async def status_of(hf: Holdfast, job_id: JobId) -> Status:
    [(_, status)] = await hf.queries.job_status([job_id])
    return status


async def row_of(hf: Holdfast, job_id: JobId) -> Job:
    [job] = await hf.queries.get_jobs([job_id])
    return job


async def log_of(hf: Holdfast, job_id: JobId) -> list[LogEntry]:
    return await hf.queries.job_history(job_id)


async def in_queue(connection: Any, job_id: JobId) -> bool:
    found = await connection.fetchval("select exists (select from holdfast where id = $1)", job_id)
    return bool(found)


class Service:
    """Something that handlers call, whose answer a test decides."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.calls: list[bytes | None] = []

    async def post(self, body: bytes | None) -> int:
        self.calls.append(body)
        return self.status
