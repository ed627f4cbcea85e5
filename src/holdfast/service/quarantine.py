"""Runs suspects in processes of their own, so that they delay and endanger no other job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError
from holdfast.service.cgroup import ends_as_one
from holdfast.service.child import Restarts, Worker, in_words
from holdfast.service.link import ProcessRole, unpack
from holdfast.service.probe import WorkerProbe
from holdfast.service.stop import FAST, FAST_STOP_SECONDS
from holdfast.telemetry.prometheus import Sample, cumulative, merge
from holdfast.worker.quarantine import MOST_PROCESSES, Suspects

logger = logging.getLogger("holdfast.run")

_MOST_FAILED_STARTS = 3
"""After this many quarantine processes in a row that could not start, workers run suspects."""

_NO_MORE_SECONDS = 60.0
"""After a further process could not start, one process must do for this long."""

_RELEASE_SECONDS = 0.5


class Keeper:
    """Starts a quarantine process when suspects wait, and more of them for as long as they do.

    Each suspect runs alone in its process. The newest process says when suspects wait beside its
    own, so none is started that finds nothing to do. `attend` stays with a process until its end,
    releases its leases and returns its exit code. `treat` says to the workers whether they run
    suspects.
    """

    def __init__(
        self,
        attend: Callable[[Worker], Awaitable[int]],
        treat: Callable[[Suspects], Awaitable[None]],
    ) -> None:
        self._attend = attend
        self._treat = treat
        self.most = 1 if ends_as_one() else MOST_PROCESSES
        self._processes: list[Worker] = []
        """Those that run, the newest last."""
        self._wanted = asyncio.Event()
        self._stopping = asyncio.Event()
        self._restarts = Restarts()
        self._not_before = 0.0
        self._no_more_before = 0.0
        self._failed_starts = 0
        self._code = 0
        self.treatment = Suspects.leave

    def suspects_wait(self) -> None:
        """Have a process started, unless one runs."""
        if not self._processes:
            self._wanted.set()

    def more_wait(self, worker: Worker) -> None:
        """Have one more process started, if this quarantine process is the newest."""
        if len(self._processes) >= self.most or monotonic() < self._no_more_before:
            return
        if self._processes and self._processes[-1] is worker:
            self._wanted.set()

    def stop(self) -> None:
        """Start no other process."""
        self._stopping.set()
        self._wanted.set()

    async def run(self) -> int:
        """Until stopped. Return the worst exit code of the processes that ran then, or 0."""
        async with asyncio.TaskGroup() as watching:
            while True:
                await self._wanted.wait()
                await self._pause()
                if self._stopping.is_set():
                    break
                if worker := await self._start():
                    self._processes.append(worker)
                    watching.create_task(self._watch(worker))
                self._wanted.clear()
        return self._code

    async def _pause(self) -> None:
        """Wait after a process that failed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._not_before - monotonic())):
                await self._stopping.wait()

    async def _start(self) -> Worker | None:
        try:
            worker = await Worker.start(ProcessRole.quarantine)
        except OSError as error:
            await self._judge(started=False)
            self._failed(f"a quarantine process could not be started ({error})", 0.0)
            return None
        logger.info("suspects wait, so process %d starts to run them alone", worker.child.pid)
        return worker

    async def _watch(self, worker: Worker) -> None:
        """Stay with a process until its end."""
        code = await self._attend(worker)
        self._processes.remove(worker)
        if self._stopping.is_set():
            self._code = max(self._code, code)
            return
        await self._judge(started=worker.id is not None)
        if not code:
            self._restarts = Restarts()
            return
        words = f"quarantine process {worker.child.pid} {in_words(code)} and its jobs are freed"
        self._failed(words, worker.child.age)

    def _failed(self, words: str, lived: float) -> None:
        pause = self._restarts.pause(lived)
        self._not_before = monotonic() + pause
        logger.error("%s; if suspects wait, another starts in %.1f s", words, pause)

    async def _judge(self, *, started: bool) -> None:
        """Have the workers run suspects while no quarantine process can start."""
        if not started and self._processes:
            self._no_more_before = monotonic() + _NO_MORE_SECONDS
            return
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
    """The quarantine processes beside a worker that has no supervisor."""

    def __init__(self, probe: WorkerProbe) -> None:
        self._probe = probe
        self._workers: list[Worker] = []
        self._level = 0
        self._carried: list[Sample] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper = Keeper(self._attend, self._treat)
        self._keeping = asyncio.get_running_loop().create_task(self._keeper.run())

    def suspects_wait(self) -> None:
        self._keeper.suspects_wait()

    def stop(self, level: int) -> None:
        """Pass a stop of the worker on to the processes."""
        self._level = max(level, self._level)
        self._keeper.stop()
        for worker in self._workers:
            self._begin(self._send_stop(worker))

    async def close(self) -> None:
        """Wait until the processes have stopped. Without a stop of the worker that is at once."""
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
        greeted = [worker for worker in self._workers if worker.id is not None]
        await asyncio.gather(*map(_ask_samples, greeted))
        # A process that has ended meanwhile is among the carried ones.
        here = [worker.samples for worker in greeted if worker in self._workers]
        return merge([self._carried, *here])

    async def _attend(self, worker: Worker) -> int:
        self._workers.append(worker)
        listening = asyncio.create_task(self._listen(worker))
        if self._level:
            await self._send_stop(worker)
        code = await worker.ended(listening)
        self._workers.remove(worker)
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
        for worker in self._workers:
            worker.child.kill()

    async def _listen(self, worker: Worker) -> None:
        async for message in worker.messages():
            if "suspects" in message:
                self._keeper.more_wait(worker)


async def _ask_samples(worker: Worker) -> None:
    with suppress(TimeoutError, ConnectionError):
        worker.samples = unpack(await worker.child.ask("samples"))
