"""What `holdfast run chaos.figures.target:main` works on: handlers that do not end by themselves.

Each start, of a process and of a handler, is a line in the file that CHAOS_JOURNAL names.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from chaos.files import Journal
from holdfast import Holdfast, Job

if TYPE_CHECKING:
    from collections.abc import Callable

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

    _register_suspects(hf, note)
    return hf


def _register_suspects(hf: Holdfast, note: Callable[[Job], None]) -> None:
    """What runs as a suspect, and what runs beside."""

    @hf.entrypoint("work")
    async def work(job: Job) -> None:
        note(job)

    @hf.entrypoint("naps")
    async def naps(job: Job) -> None:
        note(job)
        await asyncio.sleep(float(job.payload or b"0"))

    @hf.entrypoint("kills")
    async def kills(job: Job) -> None:
        note(job)
        await asyncio.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)

    @hf.entrypoint("quick")
    async def quick(job: Job) -> None:
        pass


async def _program() -> None:
    hf = await main()
    print(f"worker {hf.queue_manager.id} runs in a program", flush=True)
    await hf.run()


if __name__ == "__main__":
    uvloop.run(_program())
