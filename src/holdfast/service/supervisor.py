"""Looks after several worker processes: replaces the dead, and frees their jobs at once."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from holdfast.clock import monotonic
from holdfast.service import health
from holdfast.service.child import Restarts, Worker, in_words
from holdfast.service.link import Link, ProcessRole, unpack
from holdfast.service.quarantine import Keeper
from holdfast.service.stop import FAST, FAST_STOP_SECONDS, GRACE_SECONDS, GRACEFUL, signals
from holdfast.telemetry.prometheus import Sample, cumulative, merge
from holdfast.worker.quarantine import Suspects

logger = logging.getLogger("holdfast.run")

_START_SECONDS = 60.0
_KILL_SECONDS = 2.0
"""How much longer than its own deadline a child may take to end."""


class Supervisor:
    """Keeps `count` workers running until it is asked to stop, or in drain mode until all are done.

    It neither loads the target nor talks to the database, so that nothing of that can harm it. The
    jobs of a worker that died are freed by the others, or by its replacement.
    """

    def __init__(self, count: int, *, drains: bool, patience: float) -> None:
        self._count = count
        self._drains = drains
        self._patience = patience
        self._workers: set[Worker] = set()
        self._dead: dict[str, Mapping[str, int]] = {}
        self._level = 0
        self._signals = 0
        self._stopping = asyncio.Event()
        self._proven = asyncio.Event()
        """Set when a worker has greeted: the target loads and the database answers."""
        self._keeper = Keeper(self._attend, self._treat_suspects)
        self._carried: list[Sample] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def run(self, bound: socket.socket | None, parent: socket.socket | None) -> int:
        """The exit code: of a first worker that cannot start, else the worst at the end."""
        async with self._serving(bound), self._told_by(parent), self._handling_signals():
            try:
                return await self._keep_all()
            finally:
                self._kill()

    async def _keep_all(self) -> int:
        first = asyncio.create_task(self._keep())
        proven = asyncio.create_task(self._proven.wait())
        await asyncio.wait((first, proven), return_when=asyncio.FIRST_COMPLETED)
        proven.cancel()
        if not self._proven.is_set():
            return await first
        others = [asyncio.create_task(self._keep()) for _ in range(self._count - 1)]
        # A drain ends when its workers have run the suspects, too.
        others += [] if self._drains else [asyncio.create_task(self._keeper.run())]
        return max(await asyncio.gather(first, *others))

    async def _keep(self) -> int:
        """One worker after another, until the last one that is needed has ended."""
        restarts = Restarts()
        while True:
            began = monotonic()
            code, words = await self._run_one()
            done = self._drains and code == 0
            if self._level or done or not self._proven.is_set():
                return 0 if self._level and code < 0 else _exit_code(code)
            pause = restarts.pause(monotonic() - began)
            logger.error("%s; another starts in %.1f s", words, pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
                    return 0

    async def _run_one(self) -> tuple[int, str]:
        """Run a worker to its end. Return its exit code and the end in words."""
        try:
            worker = await Worker.start(ProcessRole.worker)
        except OSError as error:
            # The machine has no room for a process now; it may have some later.
            return 1, f"a worker process could not be started ({error})"
        code = await self._attend(worker)
        return code, f"worker process {worker.child.pid} {in_words(code)} and its jobs are freed"

    async def _attend(self, worker: Worker) -> int:
        """Listen to a worker until it is dead and its leases are taken care of."""
        self._workers.add(worker)
        listening = asyncio.create_task(self._listen(worker))
        if self._level:
            await worker.child.send(stop=self._level)
        code = await worker.ended(listening)
        self._workers.discard(worker)
        self._carried = merge([self._carried, cumulative(worker.samples)])
        if worker.id is not None:
            self._dead[worker.id] = worker.caps
            for other in list(self._workers):
                await self._free(worker.id, by=other)
        return code

    async def _listen(self, worker: Worker) -> None:
        async for message in worker.messages():
            if "hello" in message:
                self._proven.set()
                if self._keeper.treatment is not Suspects.leave:
                    await self._treat_suspects(self._keeper.treatment)
                for dead in list(self._dead):
                    await self._free(dead, by=worker)
            elif "released" in message:
                self._dead.pop(message["released"], None)
            elif "suspects" in message:
                self._suspects_wait(worker)

    def _suspects_wait(self, worker: Worker) -> None:
        if worker.role is ProcessRole.quarantine:
            self._keeper.more_wait(worker)
        else:
            self._keeper.suspects_wait()

    async def _treat_suspects(self, suspects: Suspects) -> None:
        for worker in self._ordinary:
            await worker.child.send(suspects=suspects)

    @property
    def _ordinary(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.role is ProcessRole.worker]

    async def _free(self, dead: str, *, by: Worker) -> None:
        if by.id is not None:
            await by.child.send(release=dead, caps=dict(self._dead[dead]))

    @asynccontextmanager
    async def _serving(self, bound: socket.socket | None) -> AsyncIterator[None]:
        if bound is None:
            yield
            return
        server = await health.serve(bound, self)
        logger.info("health of %d workers is served on %s", self._count, health.address(bound))
        try:
            yield
        finally:
            server.close()

    @asynccontextmanager
    async def _told_by(self, parent: socket.socket | None) -> AsyncIterator[None]:
        """A parent may ask for the stop, or cause it by its death."""
        if parent is None:
            yield
            return
        link = await Link.open(parent)

        async def listen() -> None:
            async for message in link.messages():
                self._stop(message.get("stop", 0))
            self._stop(GRACEFUL)

        listening = asyncio.create_task(listen())
        try:
            yield
        finally:
            listening.cancel()
            link.close()

    @asynccontextmanager
    async def _handling_signals(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        for number in signals():
            loop.add_signal_handler(number, self._handle_signal)
        loop.add_signal_handler(signal.SIGQUIT, self._quit)
        yield

    def _handle_signal(self) -> None:
        """Counted by themselves: a parent may have asked for the same stop already."""
        self._signals += 1
        self._stop(self._signals)

    def _stop(self, level: int) -> None:
        """Pass it on, and see to it that it comes to an end."""
        if level <= self._level:
            return
        self._level = level
        self._stopping.set()
        self._keeper.stop()
        how = "" if level < FAST else " at once"
        logger.info("stopping %d workers%s", len(self._workers), how)
        loop = asyncio.get_running_loop()
        for worker in self._workers:
            sending = loop.create_task(worker.child.send(stop=level))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
        left = self._patience + GRACE_SECONDS if level < FAST else FAST_STOP_SECONDS
        loop.call_later(left + _KILL_SECONDS, self._kill)

    def _quit(self) -> None:
        """Stop at once, as one process would: no worker drains, and none is replaced."""
        self._level = FAST
        self._stopping.set()
        self._keeper.stop()
        self._kill()

    def _kill(self) -> None:
        for worker in self._workers:
            worker.child.kill()

    async def live(self) -> str | None:
        """None while every worker that has started lives; a dead one is being replaced."""
        late = [w.silence() for w in self._ordinary if w.child.age > _START_SECONDS]
        faults = [*late, *await self._ask_all("live")]
        return next((fault for fault in faults if fault is not None), None)

    async def ready(self) -> str | None:
        """None while at least one worker does its work."""
        faults = await self._ask_all("ready")
        return None if None in faults else next(iter(faults), "no worker runs")

    async def samples(self) -> list[Sample]:
        """The sums over all workers. Counts of workers that are gone stay in them."""
        asked = [worker for worker in self._workers if worker.id is not None]
        for worker, packed in zip(asked, await self._ask_each(asked, "samples"), strict=True):
            if isinstance(packed, list):
                worker.samples = unpack(packed)
        return merge([self._carried, *(worker.samples for worker in asked)])

    async def _ask_all(self, what: str) -> list[str | None]:
        asked = [worker for worker in self._ordinary if worker.id is not None]
        answers = await self._ask_each(asked, what)
        return [
            f"worker process {worker.child.pid} does not answer"
            if isinstance(answer, BaseException)
            else answer
            for worker, answer in zip(asked, answers, strict=True)
        ]

    async def _ask_each(self, workers: Iterable[Worker], what: str) -> list[Any]:
        return await asyncio.gather(
            *(worker.child.ask(what) for worker in workers), return_exceptions=True
        )


def _exit_code(code: int) -> int:
    """As a shell would report it."""
    return code if code >= 0 else 128 - code
