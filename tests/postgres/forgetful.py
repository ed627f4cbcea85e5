"""A TCP proxy that loses enqueues on their way, or the replies to them, by a seeded die."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = b"precious"
"""What a request has in it that may get lost."""

Moment = Literal["before", "during", "after"]
"""The connection ends before the server has the request, while it works on it, or after it."""


class Forgetful:
    """Between a client and its server."""

    def __init__(self, dsn: str, *moments: Moment, seed: int = 0, share: float = 0.0) -> None:
        where = urlsplit(dsn)
        assert where.hostname is not None
        assert where.port is not None
        self._upstream = (where.hostname, where.port)
        self._dsn = dsn
        self._rng = random.Random(seed)
        self._moments = moments
        self._share = share
        self._tasks: set[asyncio.Task[None]] = set()
        self.plan: list[Moment] = []
        """What happens to the next requests, whatever the die says."""
        self.lost = 0

    @property
    def dsn(self) -> str:
        """The server's own, by way of this proxy."""
        host, port = self._upstream
        return self._dsn.replace(f"{host}:{port}", f"127.0.0.1:{self._port}")

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, onward = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        end: Moment | None = None

        def outward(data: bytes) -> tuple[bool, bool]:
            nonlocal end
            if MARK in data:
                end = self._draw()
            return end != "before", end in ("before", "during")

        def homeward(_data: bytes) -> tuple[bool, bool]:
            return end is None, end is not None

        pumps = [
            asyncio.ensure_future(_pump(reader, onward, outward)),
            asyncio.ensure_future(_pump(back, writer, homeward)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for stream in (writer, onward):
                stream.transport.abort()

    def _draw(self) -> Moment | None:
        if self.plan:
            moment = self.plan.pop(0)
        elif self._rng.random() < self._share:
            moment = self._rng.choice(self._moments)
        else:
            return None
        self.lost += 1
        return moment


async def _pump(
    source: asyncio.StreamReader,
    sink: asyncio.StreamWriter,
    look: Callable[[bytes], tuple[bool, bool]],
) -> None:
    """Until the end of either side; `look` says what is passed on, and whether it is the last."""
    with suppress(OSError):
        while data := await source.read(1 << 18):
            passes, last = look(data)
            if passes:
                sink.write(data)
                await sink.drain()
            if last:
                return
