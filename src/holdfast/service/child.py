"""A child process that runs this very command again, and the link to it."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from holdfast.clock import monotonic
from holdfast.service.link import Link, Message, ProcessRole, environment, unpack
from holdfast.telemetry.prometheus import Sample

_PATIENCE = 3.0
_LAST_WORDS_SECONDS = 0.5
_LONG_ENOUGH = 10.0
"""A process that lived for at least this many seconds did not fail at its start."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0


class Child:
    """Started with the same arguments. The environment says what it is for."""

    def __init__(self, process: subprocess.Popen[bytes], link: Link) -> None:
        self._process = process
        self._link = link
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # Not asyncio's own watcher: it depends on the policy, which a target may have replaced.
        threading.Thread(target=self._wait, name="holdfast-child", daemon=True).start()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._asked = 0
        self._began = monotonic()

    @classmethod
    async def start(cls, role: ProcessRole) -> Child:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = subprocess.Popen(  # noqa: ASYNC220, S603 - as asyncio does it
                    # -P keeps a secrets.py beside the target from replacing the standard library's.
                    [sys.executable, "-P", "-m", "holdfast", *sys.argv[1:]],
                    stdin=subprocess.DEVNULL,
                    env=environment(role, theirs),
                    pass_fds=[theirs.fileno()],
                    # A suspect that kills its process group kills nothing else.
                    process_group=0 if role is ProcessRole.quarantine else None,
                )
        except OSError:
            ours.close()
            raise
        return cls(process, await Link.open(ours))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def age(self) -> float:
        return monotonic() - self._began

    async def messages(self) -> AsyncIterator[Message]:
        """Receive its messages until it is gone. Answers go to those who asked."""
        async for message in self._link.messages():
            if "reply" not in message:
                yield message
            elif (answer := self._answers.pop(message["reply"], None)) and not answer.done():
                answer.set_result(message["answer"])
        for answer in self._answers.values():
            answer.set_exception(ConnectionResetError(f"process {self.pid} is gone"))

    async def send(self, **message: Any) -> None:
        """It has no effect on a child that is gone."""
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
        code = await asyncio.shield(self._code)
        self._link.close()
        return code

    def kill(self) -> None:
        self._process.kill()

    def _wait(self) -> None:
        code = self._process.wait()
        with suppress(RuntimeError):
            # The event loop may be closed by now.
            self._code.get_loop().call_soon_threadsafe(self._end, code)

    def _end(self, code: int) -> None:
        if not self._code.done():
            self._code.set_result(code)


class Worker:
    """A worker in a child process, and its reports."""

    def __init__(self, child: Child, role: ProcessRole) -> None:
        self.child = child
        self.role = role
        self.id: str | None = None
        """Sent before its first claim, and only if it can work."""
        self.caps: Mapping[str, int] = {}
        self.samples: list[Sample] = []

    @classmethod
    async def start(cls, role: ProcessRole) -> Worker:
        return cls(await Child.start(role), role)

    async def messages(self) -> AsyncIterator[Message]:
        """Yield its messages until it is gone."""
        async for message in self.child.messages():
            if "hello" in message:
                self.id, self.caps = message["hello"], message["caps"]
            elif "last" in message:
                self.samples = unpack(message["last"])
            yield message

    async def ended(self, listening: asyncio.Task[None]) -> int:
        """Wait for its end and for its last messages. Return its exit code."""
        code = await self.child.ended()
        await asyncio.wait([listening], timeout=_LAST_WORDS_SECONDS)
        listening.cancel()
        return code

    def silence(self) -> str | None:
        """Why it cannot be asked; None once it has greeted."""
        if self.id is not None:
            return None
        return f"worker process {self.child.pid} has not started after {self.child.age:.0f} s"


class Restarts:
    """How long to wait before a process that has ended is started again."""

    def __init__(self) -> None:
        self._quick = 0

    def pause(self, lived: float) -> float:
        """Return the seconds to wait after a process that lived for `lived` seconds."""
        self._quick = 0 if lived > _LONG_ENOUGH else self._quick + 1
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 4.0 ** max(0, min(self._quick, 9) - 1))


def in_words(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
