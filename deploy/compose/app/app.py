"""The handlers of the compose example: short jobs, a flaky one, and a schedule."""

from __future__ import annotations

import asyncio
import os
import random
from datetime import timedelta

from holdfast import DatabaseRetryEntrypointExecutor, Holdfast, Job, Schedule

hf = Holdfast.connect(os.environ["HOLDFAST_DSN"])


@hf.entrypoint("resize", timeout=timedelta(seconds=30))
async def resize(job: Job) -> None:
    await asyncio.sleep(random.uniform(0.01, 0.2))  # noqa: S311 - it only takes time


@hf.entrypoint(
    "webhook",
    on_failure="hold",
    executor_factory=lambda params: DatabaseRetryEntrypointExecutor(
        parameters=params, max_attempts=3, initial_delay=timedelta(seconds=2)
    ),
)
async def webhook(job: Job) -> None:
    if random.random() < 0.2:  # noqa: S311 - a receiver that answers four times of five
        raise ConnectionError("the receiver answered 503")


@hf.schedule("report", "* * * * *")
async def report(schedule: Schedule) -> None:
    await asyncio.sleep(1)
