"""Worker processes of a test: started, watched through their journal, and ended for sure."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import uvloop

from holdfast import Holdfast, JobId
from tests import servers
from tests.faults.apps import Plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast import LogEntry

PATIENCE = 120.0
"""Seconds after which a test gives up; no test is meant to need them."""

_ROOT = Path(__file__).parents[2]


class Line(NamedTuple):
    """Of the journal."""

    event: str
    job: int
    pid: int


async def eventually(true: Callable[[], Awaitable[bool]], seconds: float = PATIENCE) -> None:
    """Ask until it holds: other processes raise no event here."""
    async with asyncio.timeout(seconds):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class Crew:
    """The workers on one queue, and a view of it from outside."""

    def __init__(self, dsn: str, directory: Path) -> None:
        self.hf = Holdfast.connect(dsn)
        self._dsn = dsn
        self._journal = directory / "journal"
        self._errors = directory / "errors"
        self._journal.touch()
        self._processes: list[subprocess.Popen[bytes]] = []

    async def __aenter__(self) -> Self:
        servers.prepare(self._dsn)
        await self.hf.install()
        return self

    async def __aexit__(self, *failure: object) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        await self.hf.store.close()

    async def start(self, *, dsn: str | None = None, **settings: object) -> subprocess.Popen[bytes]:
        """Start a worker on a loop like that of the test. It may have claimed nothing yet."""
        on_uvloop = isinstance(asyncio.get_running_loop(), uvloop.Loop)
        journal = str(self._journal)
        plan = Plan(dsn=dsn or self._dsn, journal=journal, uvloop=on_uvloop, **settings)  # type: ignore[arg-type]
        process = self._spawn(plan)
        await self.until(lambda: any(line.pid == process.pid for line in self.lines("ready")))
        return process

    def _spawn(self, plan: Plan) -> subprocess.Popen[bytes]:
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self._errors.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.apps", plan.dumps()],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )
        self._processes.append(process)
        return process

    async def until(self, true: Callable[[], bool]) -> None:
        async def asked() -> bool:
            return true()

        try:
            await eventually(asked)
        except TimeoutError:
            raise AssertionError(f"it never came to that; the workers said:\n{self.said}") from None

    @property
    def said(self) -> str:
        return self._errors.read_text(errors="replace")[-4000:]

    def lines(self, *events: str) -> list[Line]:
        lines = [line.split() for line in self._journal.read_text().splitlines()]
        return [Line(word, int(job), int(pid)) for word, job, pid in lines if word in events]

    def runs(self, job: int) -> list[int]:
        """The processes that started the job."""
        return [line.pid for line in self.lines("start") if line.job == job]

    async def until_started(self, count: int) -> None:
        await self.until(lambda: len(self.lines("start")) >= count)

    async def ends(self, process: subprocess.Popen[bytes], seconds: float = PATIENCE) -> int:
        """The exit code; TimeoutExpired when it does not come in time."""
        return await asyncio.to_thread(process.wait, seconds)

    async def until_empty(self) -> None:
        async def empty() -> bool:
            return await self.hf.queries.queue_size() == []

        await eventually(empty)

    async def log(self) -> list[LogEntry]:
        """Oldest first."""
        return sorted(await self.hf.queries.queue_log(limit=100_000), key=lambda entry: entry.id)

    async def excused(self, job: int) -> int:
        """Deaths that were not counted, because the heir itself had stood still for a lease."""
        history = await self.hf.queries.job_history(JobId(job))
        return sum(entry.reason == "outage" for entry in history)

    async def worker_id(self, process: subprocess.Popen[bytes]) -> str:
        """As it signs its leases, once it has reported itself."""

        async def reported() -> bool:
            return any(w.pid == process.pid for w in await self.hf.queries.list_workers())

        await eventually(reported)
        workers = await self.hf.queries.list_workers()
        return next(worker.id for worker in workers if worker.pid == process.pid)
