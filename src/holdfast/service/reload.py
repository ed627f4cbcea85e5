"""For development: starts the command anew whenever a Python file changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from holdfast.errors import MissingDependency
from holdfast.service.child import Child, in_words
from holdfast.service.link import ProcessRole
from holdfast.service.stop import FAST, GRACE_SECONDS, GRACEFUL, signals

logger = logging.getLogger("holdfast.run")

_RELEASE_SECONDS = 2.0
"""How long a change waits for running jobs before they are released."""

_KILL_SECONDS = 4.0


class Reloader:
    """Keeps one child, which does the same as the command without `--reload`."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._level = 0
        self._stopping = asyncio.Event()
        self._risen = asyncio.Event()

    async def run(self) -> int:
        """Until a signal; then the exit code of the last child."""
        changes = _changes(Path.cwd(), self._stopping)
        loop = asyncio.get_running_loop()
        for number in signals():
            loop.add_signal_handler(number, self._signalled)
        while True:
            child = await Child.start(ProcessRole.reloaded)
            ended = asyncio.create_task(_ended(child))
            change = asyncio.create_task(_next(changes))
            await asyncio.wait((ended, change), return_when=asyncio.FIRST_COMPLETED)
            if not change.done():
                logger.warning("it %s; waiting for a change of a file", in_words(await ended))
            path = await change
            if path is None:
                return await self._stop(child, ended)
            logger.info("%s has changed, so everything starts anew", path)
            await self._end(child, ended)

    def _signalled(self) -> None:
        self._level += 1
        self._stopping.set()
        self._risen.set()

    async def _stop(self, child: Child, ended: asyncio.Task[int]) -> int:
        """Pass on every signal until the child has ended."""
        asyncio.get_running_loop().call_later(
            self._patience + GRACE_SECONDS + _KILL_SECONDS, child.kill
        )
        while not ended.done():
            self._risen.clear()
            await child.send(stop=self._level)
            risen = asyncio.create_task(self._risen.wait())
            await asyncio.wait((ended, risen), return_when=asyncio.FIRST_COMPLETED)
            risen.cancel()
        return max(0, await ended)

    async def _end(self, child: Child, ended: asyncio.Task[int]) -> None:
        for level, seconds in ((GRACEFUL, _RELEASE_SECONDS), (FAST, _KILL_SECONDS)):
            await child.send(stop=level)
            await asyncio.wait([ended], timeout=seconds)
        child.kill()
        await ended


async def _ended(child: Child) -> int:
    async for _ in child.messages():
        # Its messages are for a supervisor. Unread they would block it.
        continue
    return await child.ended()


async def _next(changes: AsyncIterator[str]) -> str | None:
    return await anext(changes, None)


async def _changes(root: Path, stopping: asyncio.Event) -> AsyncIterator[str]:
    """A changed file of each batch of changes, until stopping."""
    from watchfiles import PythonFilter, awatch

    async for batch in awatch(root, watch_filter=PythonFilter(), stop_event=stopping):
        yield min(path for _, path in batch).removeprefix(f"{root}/")


def require_watchfiles() -> None:
    """Raise at the start if a package is missing."""
    try:
        import watchfiles  # noqa: F401 - only whether it is there
    except ImportError:
        raise MissingDependency(
            "--reload needs the package watchfiles, which is not installed; "
            "run: pip install 'holdfast[reload]'"
        ) from None
