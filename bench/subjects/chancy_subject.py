"""Chancy with its asyncio executor; its defaults run jobs in a pool of processes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from chancy import Chancy, Job, Queue, Worker  # type: ignore[import-not-found]
from chancy.plugin import Plugin  # type: ignore[import-not-found]
from protocol import TALLY, Spec, Subject, Work, act, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

ASYNC = "chancy.executors.asyncex.AsyncExecutor"
QUEUES = {
    "tuned": Queue(
        "default", concurrency=100, executor=ASYNC, polling_interval=1, eager_polling=True
    ),
    "defaults": Queue("default"),
    "slots": Queue(
        "default", concurrency=100, executor=ASYNC, polling_interval=1, eager_polling=True
    ),
}


async def handle(task: str, data: str) -> None:
    await act(task, data)


class Count(Plugin):  # type: ignore[misc]
    """Counts in the worker's own process what its child processes have run."""

    @staticmethod
    def get_identifier() -> str:
        return "benchmark.count"

    async def on_job_completed(self, *, job: Any, **_: Any) -> Any:
        TALLY.count()
        return job


class ChancySubject(Subject):
    async def install(self) -> None:
        async with Chancy(self.dsn) as chancy:
            await chancy.migrate()

    async def connect(self, connections: int) -> None:
        self._chancy = Chancy(
            self.dsn, min_connection_pool_size=connections, max_connection_pool_size=connections
        )
        await self._chancy.pool.open()

    async def one(self, task: str, data: str) -> None:
        await self._chancy.push(job_of(Spec(task, 0, 0.0, data)))

    async def many(self, specs: Sequence[Spec]) -> int:
        stored = 0
        async for references in self._chancy.push_many([job_of(spec) for spec in specs]):
            stored += len(references)
        return stored

    async def work(self, work: Work) -> None:
        plugins = [Count()] if work.mode == "defaults" else []
        async with Chancy(self.dsn, plugins=plugins) as chancy:
            await chancy.declare(QUEUES[work.mode], upsert=True)
            async with Worker(chancy, register_signal_handlers=False) as worker:
                if work.mode != "defaults":
                    # Outcomes are written that often, which its documentation says to change.
                    worker.send_outgoing_interval = 0.05
                await worker.wait_for_shutdown()


def job_of(spec: Spec) -> Any:
    return Job(
        func="chancy_subject.handle",
        kwargs={"task": spec.task, "data": spec.data},
        priority=spec.priority,
        scheduled_at=datetime.now(UTC) + timedelta(seconds=spec.delay),
    )


if __name__ == "__main__":
    serve(ChancySubject)
