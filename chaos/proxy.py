"""A TCP proxy between the processes and the server, which delays, cuts, swallows and forgets.

Every process has a port of its own, so that a fault can be aimed at one of them; within it, a
connection is known by its role, the last part of its application_name ('holdfast:main').
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from devtools.cluster import HOST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

_ROLE = re.compile(rb"application_name\0holdfast:(\w+)\0")
_CHUNK = 1 << 16


@dataclass(slots=True)
class Rule:
    """What happens to the links of one process, by role; an empty set of roles means all."""

    silent: set[str] | None = None
    delay: float = 0.0
    delayed: set[str] = field(default_factory=set)
    rate: float = 0.0
    """Bytes a second that a connection brings home; 0 means no bound."""

    def holds(self, role: str) -> bool:
        return self.silent is not None and (not self.silent or role in self.silent)

    def delay_of(self, role: str) -> float:
        return self.delay if not self.delayed or role in self.delayed else 0.0


@dataclass(slots=True)
class Trap:
    """Drops the next reply that fits, and the connection with it."""

    role: str
    request: bytes
    replies: tuple[bytes, ...]
    sprung: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class Link:
    """One client's connection and its way onward."""

    process: str
    client: asyncio.StreamWriter
    role: str = ""
    local_port: int = 0
    onward: asyncio.StreamWriter | None = None
    stranded: bool = False
    armed: Trap | None = None

    def learn(self, data: bytes) -> None:
        if not self.role and (found := _ROLE.search(data)):
            self.role = found[1].decode()

    def abort(self) -> None:
        for writer in (self.client, self.onward):
            if writer is not None:
                writer.transport.abort()


class Proxy:
    """Silence closes nothing: bytes are taken and kept, as by a network that lost its way."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        """The server's port; after a failover another's."""
        self._rules: dict[str, Rule] = {}
        self._traps: dict[str, list[Trap]] = {}
        self._links: set[Link] = set()
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    async def open(self, process: str) -> int:
        """A port for one process."""
        self._rules[process] = Rule()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._keep(self._connect(Link(process, writer), reader))

        server = await asyncio.start_server(accept, HOST, 0)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def links(self, process: str, roles: Iterable[str] = ()) -> list[Link]:
        wanted = set(roles)
        return [
            link
            for link in self._links
            if link.process == process and (not wanted or link.role in wanted)
        ]

    def cut(self, process: str, roles: Iterable[str] = ()) -> int:
        """End connections without a word; how many."""
        doomed = self.links(process, roles)
        for link in doomed:
            link.abort()
        return len(doomed)

    def strand(self, process: str, roles: Iterable[str] = ()) -> int:
        """What is connected now stays silent for ever; new connections work."""
        lost = self.links(process, roles)
        for link in lost:
            link.stranded = True
        return len(lost)

    async def silence(self, process: str, roles: Iterable[str] = ()) -> None:
        """Nothing goes through in either direction, new connections included."""
        async with self._changed:
            self._rules[process].silent = set(roles)

    def slow(self, process: str, seconds: float, roles: Iterable[str] = ()) -> None:
        rule = self._rules[process]
        rule.delay, rule.delayed = seconds, set(roles)

    def throttle(self, process: str, rate: float) -> None:
        """Let each connection bring home no more than this many bytes a second."""
        self._rules[process].rate = rate

    async def flow(self, process: str) -> None:
        """All that was kept, and all that comes, goes through."""
        async with self._changed:
            self._rules[process] = Rule()
            self._changed.notify_all()

    def trap(
        self, process: str, role: str, *, request: bytes = b"", replies: tuple[bytes, ...] = (b"",)
    ) -> Trap:
        """Forward the next request that fits, then drop its reply and the connection."""
        trap = Trap(role, request, replies)
        self._traps.setdefault(process, []).append(trap)
        return trap

    def disarm(self, process: str, trap: Trap) -> None:
        with suppress(ValueError):
            self._traps[process].remove(trap)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in list(self._links):
            link.abort()

    async def _connect(self, link: Link, reader: asyncio.StreamReader) -> None:
        self._links.add(link)
        await self._passing(link)
        try:
            back, link.onward = await asyncio.open_connection(HOST, self.upstream)
        except OSError:
            self._forget(link)
            return
        link.local_port = link.onward.get_extra_info("sockname")[1]
        pumps = [
            asyncio.ensure_future(self._pump(link, reader, link.onward, self._outward)),
            asyncio.ensure_future(self._pump(link, back, link.client, self._homeward)),
        ]
        try:
            await asyncio.wait(pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            self._forget(link)

    async def _pump(
        self,
        link: Link,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        look: Callable[[Link, bytes], Awaitable[bool]],
    ) -> None:
        with suppress(OSError):
            while data := await source.read(_CHUNK):
                if not await look(link, data):
                    link.abort()
                    return
                await self._passing(link)
                sink.write(data)
                await sink.drain()
        await self._passing(link)
        sink.close()

    async def _outward(self, link: Link, data: bytes) -> bool:
        link.learn(data)
        for trap in self._traps.get(link.process, ()):
            if trap.role == link.role and trap.request in data:
                link.armed = trap
        if delay := self._rules[link.process].delay_of(link.role):
            await asyncio.sleep(delay)
        return True

    async def _homeward(self, link: Link, data: bytes) -> bool:
        if rate := self._rules[link.process].rate:
            await asyncio.sleep(len(data) / rate)
        trap = link.armed
        if trap is None or trap not in self._traps.get(link.process, ()):
            return True
        if not any(reply in data for reply in trap.replies):
            return True
        self.disarm(link.process, trap)
        trap.sprung.set()
        return False

    async def _passing(self, link: Link) -> None:
        if not link.stranded and not self._rules[link.process].holds(link.role):
            return
        async with self._changed:
            await self._changed.wait_for(
                lambda: not link.stranded and not self._rules[link.process].holds(link.role)
            )

    def _forget(self, link: Link) -> None:
        self._links.discard(link)
        link.abort()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
