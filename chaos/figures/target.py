"""What `holdfast run chaos.figures.target:main` works on: handlers that do not end by themselves.

Each start, of a process and of a handler, is a line in the file that CHAOS_JOURNAL names.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from chaos.files import Journal
from holdfast import Holdfast, Job

FOREVER = 3600.0


async def main() -> Holdfast:
    hf = Holdfast.connect(os.environ["HOLDFAST_DSN"], prefix=os.environ["HOLDFAST_PREFIX"])
    journal = Journal(Path(os.environ["CHAOS_JOURNAL"]))
    journal.note("made", pid=os.getpid())

    def note(job: Job) -> None:
        journal.note("start", j=job.id, pid=os.getpid(), rec=job.recoveries, ep=job.entrypoint)

    @hf.entrypoint("waits")
    async def waits(job: Job) -> None:
        note(job)
        await asyncio.sleep(FOREVER)

    @hf.entrypoint("stubborn")
    async def stubborn(job: Job) -> None:
        note(job)
        while True:
            try:
                await asyncio.sleep(FOREVER)
            except asyncio.CancelledError:
                continue

    @hf.entrypoint("blocks")
    async def blocks(job: Job) -> None:
        note(job)
        time.sleep(FOREVER)  # noqa: ASYNC251 - that is the fault

    @hf.entrypoint("thread", executor="thread")
    def thread(job: Job) -> None:
        note(job)
        time.sleep(FOREVER)

    @hf.entrypoint("hangs-once")
    async def hangs_once(job: Job) -> None:
        note(job)
        if not job.recoveries:
            await asyncio.sleep(FOREVER)

    return hf
