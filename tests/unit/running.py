"""A job, and what it takes to run its handler without a worker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from holdfast.executors import EntrypointExecutorParameters
from holdfast.lifecycle import Status
from holdfast.models import Context, Job, JobId

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.task import Kind

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DEADLINE = 100.0


def make_job(payload: bytes | None = None, attempts: int = 0) -> Job:
    return Job(
        id=JobId(42),
        entrypoint="mail",
        payload=payload,
        priority=0,
        status=Status.PICKED,
        execute_after=NOW,
        attempts=attempts,
        recoveries=0,
        max_attempts=None,
        max_recoveries=None,
        dedupe_key=None,
        headers=None,
        created=NOW,
        updated=NOW,
        heartbeat=NOW,
        claim_token=None,
        claimed_by=None,
        claimed_at=NOW,
        lease=timedelta(seconds=30),
        last_error=None,
        last_error_at=None,
        held_at=None,
    )


def parameters(
    func: Callable[..., Any],
    kind: Kind = "async",
    *,
    accepts_context: bool = False,
    concurrency_limit: int = 0,
) -> EntrypointExecutorParameters:
    return EntrypointExecutorParameters(
        func, accepts_context, concurrency_limit, name="mail", kind=kind
    )


async def run(executor: Any, job: Job | None = None) -> Context:
    job = job or make_job()
    context = Context(job, {})
    async with asyncio.timeout(DEADLINE):
        await executor.execute(job, context)
    return context


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE):
        # Threads, files and other processes have no event to await.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def succeed(job: Job) -> None:
    pass


def fail(job: Job) -> None:
    raise ValueError("boom")
