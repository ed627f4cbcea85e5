"""SAQ on PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from protocol import Spec, Subject, Work, act, serve
from saq import Worker  # type: ignore[import-not-found]
from saq.queue.postgres import PostgresQueue  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Sequence

SETTINGS: dict[str, dict[str, Any]] = {
    "tuned": {"concurrency": 20},
    "defaults": {},
    "slots": {"concurrency": 100},
}


class SaqSubject(Subject):
    async def install(self) -> None:
        queue = PostgresQueue.from_url(self.dsn)
        await queue.connect()
        await queue.disconnect()

    async def connect(self, connections: int) -> None:
        self._queue = PostgresQueue.from_url(
            self.dsn, min_size=max(1, connections), max_size=connections
        )
        await self._queue.connect()

    async def one(self, task: str, data: str) -> None:
        await self._queue.enqueue("handle", task=task, data=data)

    async def many(self, specs: Sequence[Spec]) -> int:
        """It has no bulk enqueue: one call after the other."""
        for spec in specs:
            delay: dict[str, Any] = (
                {"scheduled": int(time.time() + spec.delay)} if spec.delay else {}
            )
            await self._queue.enqueue(
                "handle", task=spec.task, data=spec.data, priority=spec.priority, **delay
            )
        return len(specs)

    async def work(self, work: Work) -> None:
        queue = PostgresQueue.from_url(self.dsn)
        await queue.connect()
        worker = Worker(queue, [("handle", handle)], **SETTINGS[work.mode])
        worker.SIGNALS = []
        await asyncio.gather(worker.start())


async def handle(_context: Any, *, task: str, data: str) -> None:
    await act(task, data)


if __name__ == "__main__":
    serve(SaqSubject)
