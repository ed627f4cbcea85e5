"""Runs suspects in a process of their own, so that they delay and endanger no other job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from holdfast.errors import DatabaseError
from holdfast.service.child import Restarts, Worker, in_words
from holdfast.service.link import ProcessRole, unpack
from holdfast.service.probe import WorkerProbe
from holdfast.service.stop import FAST, FAST_STOP_SECONDS
from holdfast.telemetry.prometheus import Sample, cumulative, merge
from holdfast.worker.quarantine import Suspects

logger = logging.getLogger("holdfast.run")

_MOST_FAILED_STARTS = 3
"""After this many quarantine processes in a row that could not start, workers run suspects."""

_RELEASE_SECONDS = 0.5


class Keeper:
    """Starts a quarantine process when suspects wait, and again for as long as they do.

    `attend` stays with the process until its end, releases its leases and returns its exit code.
    `treat` says to the workers whether they run suspects.
    """

    def __init__(
        self,
        attend: Callable[[Worker], Awaitable[int]],
        treat: Callable[[Suspects], Awaitable[None]],
    ) -> None:
        self._attend = attend
        self._treat = treat
        self._wanted = asyncio.Event()
        self._stopping = asyncio.Event()
        self._failed_starts = 0
        self.treatment = Suspects.leave

    def suspects_wait(self) -> None:
        """Have a process started, unless one runs."""
        self._wanted.set()

    def stop(self) -> None:
        """Start no other process."""
        self._stopping.set()
        self._wanted.set()

    async def run(self) -> int:
        """Until stopped. Return the exit code of the process that ran then, 0 if none did."""
        restarts = Restarts()
        while True:
            await self._wanted.wait()
            if self._stopping.is_set():
                return 0
            code, lived, words = await self._run_one()
            if self._stopping.is_set():
                return max(0, code)
            self._wanted.clear()
            if not code:
                restarts = Restarts()
                continue
            pause = restarts.pause(lived)
            logger.error("%s; if suspects wait, another starts in %.1f s", words, pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    async def _run_one(self) -> tuple[int, float, str]:
        """Run one process. Return its exit code, its age in seconds and its end in words."""
        try:
            worker = await Worker.start(ProcessRole.quarantine)
        except OSError as error:
            await self._judge(started=False)
            return 1, 0.0, f"a quarantine process could not be started ({error})"
        logger.info("suspects wait, so process %d starts to run them alone", worker.child.pid)
        code = await self._attend(worker)
        if not self._stopping.is_set():
            await self._judge(started=worker.id is not None)
        words = f"quarantine process {worker.child.pid} {in_words(code)} and its jobs are freed"
        return code, worker.child.age, words

    async def _judge(self, *, started: bool) -> None:
        """Have the workers run suspects while no quarantine process can start."""
        self._failed_starts = 0 if started else self._failed_starts + 1
        failing = self._failed_starts >= _MOST_FAILED_STARTS
        treatment = Suspects.run if failing else Suspects.leave
        if treatment is self.treatment:
            return
        self.treatment = treatment
        if failing:
            logger.error(
                "%d quarantine processes could not start, so workers run suspects themselves and "
                "claim nothing else meanwhile; see why above, and let the target be loaded by "
                "several processes",
                self._failed_starts,
            )
        await self._treat(treatment)


class Companion:
    """The quarantine process beside a worker that has no supervisor."""

    def __init__(self, probe: WorkerProbe) -> None:
        self._probe = probe
        self._worker: Worker | None = None
        self._level = 0
        self._carried: list[Sample] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper = Keeper(self._attend, self._treat)
        self._keeping = asyncio.get_running_loop().create_task(self._keeper.run())

    def suspects_wait(self) -> None:
        self._keeper.suspects_wait()

    def stop(self, level: int) -> None:
        """Pass a stop of the worker on to the process."""
        self._level = max(level, self._level)
        self._keeper.stop()
        if self._worker is not None:
            self._begin(self._send_stop(self._worker))

    async def close(self) -> None:
        """Wait until the process has stopped. Without a stop of the worker that is at once."""
        if not self._level:
            self.stop(FAST)
            asyncio.get_running_loop().call_later(2 * FAST_STOP_SECONDS, self._kill)
        await asyncio.wait([self._keeping])
        if self._tasks:
            # The first attempt to release its leases is made at once.
            await asyncio.wait(self._tasks, timeout=_RELEASE_SECONDS)
        for task in self._tasks:
            task.cancel()

    async def samples(self) -> list[Sample]:
        """Sums over all processes that there were."""
        worker = self._worker
        if worker is None or worker.id is None:
            return self._carried
        with suppress(TimeoutError, ConnectionError):
            worker.samples = unpack(await worker.child.ask("samples"))
        return merge([self._carried, worker.samples])

    async def _attend(self, worker: Worker) -> int:
        self._worker = worker
        listening = asyncio.create_task(_listen(worker))
        if self._level:
            await self._send_stop(worker)
        code = await worker.ended(listening)
        self._worker = None
        self._carried = merge([self._carried, cumulative(worker.samples)])
        if code and worker.id is not None:
            self._begin(self._release(worker, worker.id))
        return code

    async def _send_stop(self, worker: Worker) -> None:
        await worker.child.send(stop=self._level)

    async def _release(self, worker: Worker, dead: str) -> None:
        try:
            await self._probe.release(dead, worker.caps)
        except DatabaseError as error:
            logger.warning("the jobs of %s may wait for their leases: %s", dead, error)

    async def _treat(self, suspects: Suspects) -> None:
        self._probe.treat_suspects(suspects)

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _kill(self) -> None:
        if self._worker is not None:
            self._worker.child.kill()


async def _listen(worker: Worker) -> None:
    async for _ in worker.messages():
        # The worker records the messages of use. Unread ones would block it.
        continue
