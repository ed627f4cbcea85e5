"""The messages between a parent process and its children: JSON lines over a socket that ends with
either."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Sequence
from enum import StrEnum
from typing import Any

from holdfast.telemetry.prometheus import Sample

_VARIABLE = "HOLDFAST_PARENT"
_LONGEST_LINE = 2**25

Message = dict[str, Any]


class ProcessRole(StrEnum):
    """The purpose of a child process."""

    worker = "worker"
    """One of several workers under a supervisor."""
    quarantine = "quarantine"
    """Runs suspects, one at a time, and nothing else, beside one worker or several."""
    reloaded = "reloaded"
    """Everything, under a parent that starts it again when a file changes."""


def environment(role: ProcessRole, theirs: socket.socket) -> dict[str, str]:
    """For a child that inherits its end of a socket pair."""
    return {**os.environ, _VARIABLE: f"{role}:{theirs.fileno()}"}


def inherited() -> tuple[ProcessRole, socket.socket] | None:
    """Return this process's parent if it is a child of ours. Only the first call answers, so that a
    grandchild does not take it for its own."""
    role, _, number = os.environ.pop(_VARIABLE, "").partition(":")
    if not number:
        return None
    ours = socket.socket(fileno=int(number))
    ours.set_inheritable(False)
    return ProcessRole(role), ours


class Link:
    """One end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, ours: socket.socket) -> Link:
        ours.setblocking(False)
        return cls(*await asyncio.open_connection(sock=ours, limit=_LONGEST_LINE))

    async def send(self, **message: Any) -> None:
        """ConnectionError when the other end is gone."""
        self._writer.write(json.dumps(message).encode() + b"\n")
        await self._writer.drain()

    async def messages(self) -> AsyncIterator[Message]:
        """Until the other end is gone."""
        try:
            while line := await self._reader.readline():
                yield json.loads(line)
        except ConnectionError:
            return

    def close(self) -> None:
        self._writer.close()


def pack(samples: Sequence[Sample]) -> list[Any]:
    return [list(sample) for sample in samples]


def unpack(packed: Sequence[Any]) -> list[Sample]:
    return [
        Sample(name, tuple((key, text) for key, text in labels), value)
        for name, labels, value in packed
    ]
