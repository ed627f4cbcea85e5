"""Oban for Python, the edition that is free."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from oban import Oban, schema, worker  # type: ignore[import-not-found]
from protocol import Spec, Subject, Work, act, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

# It has no default number of slots; its documentation shows ten.
SLOTS = {"tuned": 200, "defaults": 10, "slots": 100}
POOL = 10


class Handle:
    async def process(self, job: Any) -> None:
        await act(job.args["task"], job.args["data"])


TASK: Any = worker(queue="default")(Handle)


class ObanSubject(Subject):
    async def install(self) -> None:
        pool = await Oban.create_pool(self.dsn)
        await schema.install(pool)
        await pool.close()

    async def connect(self, connections: int) -> None:
        pool = await Oban.create_pool(self.dsn, min_size=connections, max_size=connections)
        self._oban = Oban(pool=pool, name="producer")

    async def one(self, task: str, data: str) -> None:
        await self._oban.enqueue(job_of(Spec(task, 0, 0.0, data)))

    async def many(self, specs: Sequence[Spec]) -> int:
        return len(await self._oban.enqueue_many([job_of(spec) for spec in specs]))

    async def work(self, work: Work) -> None:
        pool = await Oban.create_pool(self.dsn, min_size=POOL, max_size=POOL)
        async with Oban(pool=pool, queues={"default": SLOTS[work.mode]}):
            await asyncio.Event().wait()


def job_of(spec: Spec) -> Any:
    later = {"schedule_in": spec.delay} if spec.delay else {}
    # A lower number goes first, and there are ten.
    priority = max(0, 9 - spec.priority)
    return TASK.new({"task": spec.task, "data": spec.data}, priority=priority, **later)


if __name__ == "__main__":
    serve(ObanSubject)
