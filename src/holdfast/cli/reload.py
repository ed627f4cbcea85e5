"""For development: starts the command anew whenever a Python file changes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

from holdfast.cli.child import Child, in_words
from holdfast.cli.link import Role
from holdfast.cli.stopping import FAST, GRACEFUL, signals
from holdfast.errors import MissingDependency

logger = logging.getLogger("holdfast.run")

_GRACE = 2.0
"""Seconds for running jobs before they are handed back, which costs them nothing."""


class Reloader:
    """Keeps one child, which is all that the command would be without `--reload`."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._level = 0
        self._stopping = asyncio.Event()
        self._child: Child | None = None

    async def run(self) -> int:
        """Until a signal; the exit code of the last child."""
        changes = _changes(self._stopping)
        loop = asyncio.get_running_loop()
        for number in signals():
            loop.add_signal_handler(number, self._signalled)
        code = 0
        changed = asyncio.create_task(anext(changes, None))
        while not self._stopping.is_set():
            code = await self._run_until(changed)
            if (path := await changed) is None:
                break
            logger.info("%s has changed: starting again", path)
            changed = asyncio.create_task(anext(changes, None))
        return code
