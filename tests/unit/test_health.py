"""The health port keeps no connection for a client that does not read its answer."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

from holdfast.service import health
from holdfast.telemetry.prometheus import Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

LABEL = "x" * 2**24
"""More than the two sockets of a connection hold."""


class Loaded:
    """A worker with much to say."""

    async def live(self) -> str | None:
        return None

    async def ready(self) -> str | None:
        return None

    async def samples(self) -> Sequence[Sample]:
        return [Sample("holdfast_queue_depth", (("entrypoint", LABEL),), 1)]


async def test_an_answer_that_is_not_read_is_given_up_with_its_connection() -> None:
    bound = health.bind("127.0.0.1", 0)
    address = bound.getsockname()
    server = await health.serve(bound, Loaded())
    loop = asyncio.get_running_loop()
    with ExitStack() as connections:

        async def connect() -> socket.socket:
            client = connections.enter_context(socket.socket())
            client.setblocking(False)
            await loop.sock_connect(client, address)
            return client

        slow = await connect()
        await loop.sock_sendall(slow, b"GET /metrics HTTP/1.1\r\n\r\n")
        received = len(await loop.sock_recv(slow, 1024))
        for _ in range(health._MOST_CONNECTIONS):
            await connect()
        try:
            while chunk := await loop.sock_recv(slow, 2**20):
                received += len(chunk)
        except ConnectionError:
            pass
        assert received < len(LABEL)
    server.close()
