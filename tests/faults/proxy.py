"""A TCP proxy before a server, which can fall silent for one kind of connection or for all, and can
be as slow as a server far away."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

EVERYTHING = "everything"
_ROLE = re.compile(rb"application_name\0holdfast:(\w+)\0")


class Proxy:
    """Silence closes nothing: bytes are taken and kept, as by a network that lost its way.

    A connection is known by its role, the last part of its application_name ('holdfast:main').
    """

    def __init__(self, dsn: str, *, delay: float = 0.0, rate: float = 0.0) -> None:
        """`delay`: seconds by which every answer comes later. `rate`: bytes a second of answers."""
        where = urlsplit(dsn)
        assert where.hostname is not None
        assert where.port is not None
        self._upstream = (where.hostname, where.port)
        self._dsn = dsn
        self._delay = delay
        self.rate = rate
        self._link = asyncio.Lock()
        self._silent: set[str] = set()
        self._deaf: set[str] = set()
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._links: list[_Link] = []

    @property
    def dsn(self) -> str:
        """The server's own, by way of this proxy."""
        host, port = self._upstream
        return self._dsn.replace(f"{host}:{port}", f"127.0.0.1:{self._port}")

    async def hold_replies(self, *roles: str) -> None:
        """Requests reach the server, its answers wait here."""
        await self._set(self._silent, roles or (EVERYTHING,))

    async def swallow(self, *roles: str) -> None:
        """Nothing goes through in either direction."""
        await self.hold_replies(*roles)
        await self._set(self._deaf, roles or (EVERYTHING,))

    async def strand(self, role: str) -> None:
        """What is connected under that role stays silent for ever; new connections work."""
        async with self._changed:
            for link in self._links:
                link.stranded = link.stranded or link.role == role

    async def flow(self) -> None:
        """All that was kept, and all that comes, goes through."""
        async with self._changed:
            self._silent.clear()
            self._deaf.clear()
            self._changed.notify_all()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    async def _set(self, kind: set[str], roles: Iterable[str]) -> None:
        async with self._changed:
            kind.update(roles)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # At once: a task that is cancelled before it began would leave it open.
        self._writers.append(writer)
        self._keep(self._connect(reader, writer))

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link()
        self._links.append(link)
        await self._passing(self._deaf, link)
        try:
            onward_reader, onward = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        self._writers.append(onward)
        self._keep(self._pump(reader, onward, self._deaf, link, learn=True))
        self._keep(self._pump(onward_reader, writer, self._silent, link))

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        gate: set[str],
        link: _Link,
        *,
        learn: bool = False,
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                if learn:
                    link.learn(data)
                await self._passing(gate, link)
                if self._delay and not learn:
                    await asyncio.sleep(self._delay)
                if self.rate and not learn:
                    # One link for all connections: each chunk takes its time on it.
                    async with self._link:
                        await asyncio.sleep(len(data) / self.rate)
                sink.write(data)
                await sink.drain()
        await self._passing(gate, link)
        sink.close()

    async def _passing(self, gate: set[str], link: _Link) -> None:
        async with self._changed:
            await self._changed.wait_for(
                lambda: not link.stranded and gate.isdisjoint((EVERYTHING, link.role))
            )

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Link:
    """One client's connection."""

    def __init__(self) -> None:
        self.role = ""
        self.stranded = False

    def learn(self, data: bytes) -> None:
        if not self.role and (found := _ROLE.search(data)):
            self.role = found[1].decode()
