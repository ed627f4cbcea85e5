"""Awa, whose core is in Rust, on its queue storage."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from awa import AsyncClient  # type: ignore[import-not-found]
from protocol import Spec, Subject, Work, act, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

# More claimers and larger claims, which its documentation offers, were slower.
SETTINGS: dict[str, dict[str, Any]] = {
    "tuned": {"max_workers": 200},
    "defaults": {"max_workers": 50},
    "slots": {"max_workers": 100},
}
CONNECTIONS = 20
PRIORITIES = range(1, 5)
"""A lower number goes first, and there are four."""


@dataclass
class Handle:
    task: str
    data: str


class AwaSubject(Subject):
    async def install(self) -> None:
        async with AsyncClient(self.dsn) as client:
            await client.migrate()
            await client.install_queue_storage()

    async def connect(self, connections: int) -> None:
        self._client = AsyncClient(self.dsn, connections)

    async def one(self, task: str, data: str) -> None:
        await self._client.insert(Handle(task, data))

    async def many(self, specs: Sequence[Spec]) -> int:
        stored = 0
        # One call takes one priority and one time; the order within a batch does not matter here.
        alike = sorted(specs, key=lambda spec: spec[1:3])
        for (priority, delay), group in itertools.groupby(alike, lambda spec: spec[1:3]):
            options: dict[str, Any] = {"priority": PRIORITIES[-1 - min(priority, 3)]}
            if delay:
                options["run_at"] = datetime.now(UTC) + timedelta(seconds=delay)
            jobs = [Handle(spec.task, spec.data) for spec in group]
            stored += await self._client.enqueue_many_copy(jobs, **options)
        return stored

    async def work(self, work: Work) -> None:
        client = AsyncClient(self.dsn, 10 if work.mode == "defaults" else CONNECTIONS)

        @client.task(Handle)  # type: ignore[untyped-decorator]
        async def handle(job: Any) -> None:
            await act(job.args.task, job.args.data)

        await client.start([{"name": "default", **SETTINGS[work.mode]}])
        try:
            await asyncio.Event().wait()
        finally:
            await client.shutdown()


if __name__ == "__main__":
    serve(AwaSubject)
