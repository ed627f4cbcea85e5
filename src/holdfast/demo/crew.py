"""The worker processes of the demo, each in its place: one that dies is replaced."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

SIZE = 2
_PATIENCE_SECONDS = 15.0


class WorkerFailed(HoldfastError):
    """A worker ended by itself, which only a fault can make it do."""


class Crew:
    """Workers are numbered from 1. A replacement has the number of the one it replaces."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stopping = False
        self._processes: dict[int, Process] = {}
        self._numbers: dict[int, int] = {}
        self.deaths = 0
        self.on_death: Callable[[int], None] = lambda number: None

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Both work while the block runs; none is left when it ends."""
        async with asyncio.TaskGroup() as group:
            keepers = [group.create_task(self._keep(n)) for n in range(1, SIZE + 1)]
            try:
                yield
            finally:
                self._stopping = True
                # Shielded: whatever ends the demo, its workers are not left behind.
                await asyncio.shield(self._stop())
                for keeper in keepers:
                    keeper.cancel()

    def pid(self, number: int) -> int:
        return self._processes[number].pid

    def number_of(self, worker: str | None) -> int | None:
        """Which of ours wrote this `claimed_by`; a replacement has another pid."""
        with suppress(AttributeError, IndexError, ValueError):
            return self._numbers.get(int((worker or "").split(":")[-2]))
        return None

    def signal(self, number: int, sent: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._processes[number].send_signal(sent)

    async def _keep(self, number: int) -> None:
        while not self._stopping:
            with (self._directory / f"worker-{number}.log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "holdfast.demo.worker",
                    str(self._directory),
                    str(number),
                    stdin=PIPE,
                    stdout=log,
                    stderr=log,
                    # Ctrl-C at the terminal is for the demo, which then stops its workers.
                    start_new_session=True,
                )
            self._processes[number] = process
            self._numbers[process.pid] = number
            code = await process.wait()
            if self._stopping:
                return
            if code >= 0:
                raise WorkerFailed(
                    f"worker {number} ended with exit code {code}; "
                    f"see {self._directory / f'worker-{number}.log'}"
                )
            self.deaths += 1
            self.on_death(number)

    async def _stop(self) -> None:
        for number in self._processes:
            # A frozen process does not hear that it should stop.
            self.signal(number, signal.SIGCONT)
            self.signal(number, signal.SIGTERM)
        waiting = [process.wait() for process in self._processes.values()]
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await asyncio.gather(*waiting)
        except TimeoutError:
            for number in self._processes:
                self.signal(number, signal.SIGKILL)
