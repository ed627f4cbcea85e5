"""A child process that runs this very command again, and the link to it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from holdfast.cli.link import Link, Message, Role, environment
from holdfast.clock import monotonic

_PATIENCE = 3.0


class Child:
    """Started with the same arguments: by its environment it knows what it is to be."""

    def __init__(self, process: asyncio.subprocess.Process, link: Link) -> None:
        self._process = process
        self._link = link
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._asked = 0
        self._began = monotonic()

    @classmethod
    async def start(cls, role: Role) -> Child:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "holdfast", *sys.argv[1:]),
                stdin=asyncio.subprocess.DEVNULL,
                env=environment(role, theirs),
                pass_fds=[theirs.fileno()],
            )
        return cls(process, await Link.open(ours))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def age(self) -> float:
        return monotonic() - self._began

    async def messages(self) -> AsyncIterator[Message]:
        """What it says of itself, until it is gone; answers go to those who asked."""
        async for message in self._link.messages():
            if "reply" not in message:
                yield message
            elif (answer := self._answers.pop(message["reply"], None)) and not answer.done():
                answer.set_result(message["answer"])
        for answer in self._answers.values():
            answer.set_exception(ConnectionResetError(f"process {self.pid} is gone"))

    async def send(self, **message: Any) -> None:
        """Without effect on a child that is gone."""
        with suppress(ConnectionError):
            await self._link.send(**message)

    async def ask(self, what: str) -> Any:
        """TimeoutError when it does not answer, ConnectionError when it dies over it."""
        self._asked += 1
        number, answer = self._asked, asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._link.send(ask=what, number=number)
                return await answer
        finally:
            self._answers.pop(number, None)

    async def ended(self) -> int:
        """Its exit code, negative where a signal killed it."""
        code = await self._process.wait()
        self._link.close()
        return code

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()


def in_words(code: int) -> str:
    """What an exit code means."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
