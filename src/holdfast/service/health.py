"""`/livez`, `/readyz` and `/metrics` over HTTP, in as little as that takes."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from holdfast.errors import HoldfastError
from holdfast.repeated import RepeatedLog
from holdfast.telemetry.prometheus import CONTENT_TYPE, Sample, render

_HEAD_SECONDS = 2.0
"""A client that has not sent its request after this is disconnected."""

_ANSWER_SECONDS = 5.0
_ACCEPT_AGAIN_SECONDS = 1.0
_MOST_CONNECTIONS = 32
_LONGEST_HEAD = 8192
_PLAIN = "text/plain; charset=utf-8"

_refused = RepeatedLog(logging.getLogger("holdfast.run"))


class Probe(Protocol):
    """The questions about a worker, or about several together."""

    async def live(self) -> str | None:
        """Why it should be started again. None means that it lives."""
        ...

    async def ready(self) -> str | None:
        """Why it does no work. None means that it is ready."""
        ...

    async def samples(self) -> Sequence[Sample]: ...


@dataclass(frozen=True, slots=True)
class Answer:
    status: HTTPStatus
    body: str = ""
    content_type: str = _PLAIN

    def encode(self, *, head: bool) -> bytes:
        body = (self.body or f"{self.status.phrase}\n").encode()
        lines = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if head else body)


def bind(host: str, port: int) -> socket.socket:
    """Take the port before anything else is started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HoldfastError(
            f"--health-port {port} on {host} cannot be used: {reason}; "
            f"choose another port, or stop what listens there"
        ) from None


def address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(bound: socket.socket, probe: Probe) -> HealthServer:
    """Answer until the server is closed."""
    return HealthServer(bound, probe)


class HealthServer:
    """Holds at most `_MOST_CONNECTIONS` connections, so that strangers cannot take the worker's.

    A connection that comes when all are taken replaces the oldest one.
    """

    def __init__(self, bound: socket.socket, probe: Probe) -> None:
        self._bound = bound
        self._probe = probe
        self._local = ipaddress.ip_address(bound.getsockname()[0]).is_loopback
        self._conversations: dict[asyncio.Task[None], None] = {}
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        self._accepting.cancel()
        for conversation in self._conversations:
            conversation.cancel()
        self._bound.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        self._bound.setblocking(False)
        while True:
            try:
                connection, _ = await loop.sock_accept(self._bound)
            except OSError as error:
                # The process has no descriptor left, or the client has hung up again.
                _refused.warning("a health connection could not be accepted: %s", error)
                await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)
                continue
            if len(self._conversations) >= _MOST_CONNECTIONS:
                oldest = next(iter(self._conversations))
                oldest.cancel()
                await asyncio.wait([oldest])
            conversation = loop.create_task(self._converse(connection))
            self._conversations[conversation] = None
            conversation.add_done_callback(lambda task: self._conversations.pop(task, None))

    async def _converse(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=_LONGEST_HEAD)
        except BaseException:
            connection.close()
            raise
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                writer.write(await _respond(reader, self._probe, local=self._local))
                writer.close()
                await writer.wait_closed()
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            # The client has gone, or was too slow.
            return
        finally:
            # One that does not read its answer would keep the connection for ever.
            writer.transport.abort()


async def _respond(reader: asyncio.StreamReader, probe: Probe, *, local: bool) -> bytes:
    try:
        async with asyncio.timeout(_HEAD_SECONDS):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError:
        return Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE).encode(head=False)
    first, *fields = head.split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        return Answer(HTTPStatus.BAD_REQUEST).encode(head=False)
    method, path, _ = words
    if method not in ("GET", "HEAD"):
        return Answer(HTTPStatus.METHOD_NOT_ALLOWED).encode(head=False)
    # A web page could reach a loopback port under a name of its own that resolves to it.
    if local and not _is_local(_host(fields)):
        return Answer(HTTPStatus.MISDIRECTED_REQUEST).encode(head=False)
    return (await _answer(path.partition("?")[0], probe)).encode(head=method == "HEAD")


async def _answer(path: str, probe: Probe) -> Answer:
    match path:
        case "/livez":
            return _verdict(await probe.live())
        case "/readyz":
            return _verdict(await probe.ready())
        case "/metrics":
            return Answer(HTTPStatus.OK, render(await probe.samples()), CONTENT_TYPE)
        case _:
            return Answer(HTTPStatus.NOT_FOUND, "try /livez, /readyz or /metrics\n")


def _verdict(fault: str | None) -> Answer:
    if fault is None:
        return Answer(HTTPStatus.OK, "ok\n")
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{fault}\n")


def _host(fields: Sequence[str]) -> str:
    for field in fields:
        name, _, value = field.partition(":")
        if name.strip().lower() == "host":
            return value.strip()
    return ""


def _is_local(host: str) -> bool:
    if not host:
        return True
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"
