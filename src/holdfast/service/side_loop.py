"""A second event loop beside the worker's: it answers also while a handler blocks that one."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from holdfast.errors import DatabaseError
from holdfast.service import health
from holdfast.service.link import Link, Message, pack
from holdfast.service.probe import WorkerProbe
from holdfast.service.quarantine import Companion
from holdfast.service.stop import GRACEFUL, Stop, end_when_frozen
from holdfast.telemetry.prometheus import Sample, merge
from holdfast.worker.quarantine import Suspects

logger = logging.getLogger("holdfast.run")

_REPORT_SECONDS = 0.5
"""How often it is asked whether suspects wait."""


class Side:
    """Serves health and the parent process, from the start on and for the worker once it is made.

    A worker that no supervisor looks after has its quarantine processes here.
    """

    def __init__(
        self,
        *,
        bound: socket.socket | None,
        parent: socket.socket | None,
        supervised: bool,
        stop: Stop,
    ) -> None:
        self._bound = bound
        self._parent = parent
        self._supervised = supervised
        self._stop = stop
        self._companion: Companion | None = None
        self._link: Link | None = None
        self._worker: WorkerProbe | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = threading.Event()
        self._ending: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main()), name="holdfast-side", daemon=True
        )

    def start(self) -> None:
        self._thread.start()
        self._started.wait()

    def end(self) -> None:
        """Before the process does."""
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(1)

    async def attach(self, worker: WorkerProbe) -> None:
        """Called in the worker's event loop; the parent knows the worker when this returns."""
        await self._there(self._attach(worker))

    async def detach(self) -> None:
        """From now on the worker's database must not be used."""
        await self._there(self._detach())

    async def _there(self, step: Coroutine[Any, Any, None]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(step, self._loop))

    async def live(self) -> str | None:
        return await self._worker.live() if self._worker else None

    async def ready(self) -> str | None:
        return await self._worker.ready() if self._worker else "the worker is starting"

    async def samples(self) -> list[Sample]:
        own = await self._worker.samples() if self._worker else []
        return merge([own, await self._companion.samples()]) if self._companion else own

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        attending = None
        if self._parent is not None:
            self._link = await Link.open(self._parent)
            attending = self._loop.create_task(self._attend(self._link))
        server = None
        if self._bound is not None:
            server = await health.serve(self._bound, self)
            logger.info("health is served on %s", health.address(self._bound))
        self._started.set()
        await self._ending.wait()
        if server is not None:
            server.close()
        if attending is not None:
            attending.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attach(self, worker: WorkerProbe) -> None:
        self._worker = worker
        self._begin(worker.watch())
        self._begin(end_when_frozen(worker.max_loop_block))
        caps = {each.name: each.max_recoveries for each in worker.manager.entrypoints}
        if self._link is not None and caps:
            with suppress(ConnectionError):
                await self._link.send(hello=worker.manager.id, caps=caps)
        if worker.manager.suspects is not Suspects.run:
            if worker.manager.suspects is Suspects.leave and not self._supervised:
                self._companion = Companion(worker)
                self._stop.listen(self._loop, self._companion.stop)
            self._begin(self._report_suspects(worker))

    async def _report_suspects(self, worker: WorkerProbe) -> None:
        """While suspects wait, report so to the process that starts another one for them."""
        alone = worker.manager.suspects is Suspects.only
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            if not worker.manager.suspects_wait or (alone and not await worker.has_room()):
                continue
            if self._companion is not None:
                self._companion.suspects_wait()
            elif self._link is not None:
                with suppress(ConnectionError):
                    await self._link.send(suspects=True)

    async def _detach(self) -> None:
        if self._companion is not None:
            await self._companion.close()
        worker, self._worker = self._worker, None
        for task in self._tasks:
            task.cancel()
        if worker is None:
            return
        if self._link is not None:
            with suppress(ConnectionError):
                await self._link.send(last=pack(await worker.samples()))
        await worker.close()

    async def _attend(self, link: Link) -> None:
        """Answer the parent until it is gone. After that nobody would replace or stop this
        process."""
        async for message in link.messages():
            if "release" in message:
                self._begin(self._release(link, message))
            elif "stop" in message:
                self._stop.ask(message["stop"])
            elif "suspects" in message and self._worker is not None:
                self._worker.treat_suspects(Suspects(message["suspects"]))
            elif "ask" in message:
                self._begin(self._reply(link, message))
        logger.error("the parent process is gone, so this one stops")
        self._stop.ask(GRACEFUL)

    async def _release(self, link: Link, message: Message) -> None:
        if self._worker is None:
            return
        try:
            await self._worker.release(message["release"], message["caps"])
            await link.send(released=message["release"])
        except (DatabaseError, ConnectionError) as error:
            # Another process does it, or the sweep when the leases have run out.
            logger.warning(
                "the jobs of %s may wait for their leases: %s", message["release"], error
            )

    async def _reply(self, link: Link, message: Message) -> None:
        answer: object
        match message["ask"]:
            case "live":
                answer = await self.live()
            case "ready":
                answer = await self.ready()
            case _:
                answer = pack(await self.samples())
        with suppress(ConnectionError):
            await link.send(reply=message["number"], answer=answer)
