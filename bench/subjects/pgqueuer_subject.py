"""PgQueuer on an asyncpg pool, as its performance guide advises."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
from pgqueuer import PgQueuer, Queries  # type: ignore[import-not-found]
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver  # type: ignore[import-not-found]
from protocol import TALLY, Spec, Subject, Work, act, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

SETTINGS: dict[str, dict[str, Any]] = {
    "tuned": {"batch_size": 500},
    "defaults": {},
    "slots": {"batch_size": 50, "max_concurrent_tasks": 100},
}


class PgQueuerSubject(Subject):
    async def install(self) -> None:
        connection = await asyncpg.connect(self.dsn)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def connect(self, connections: int) -> None:
        if connections == 1:
            driver = AsyncpgDriver(await asyncpg.connect(self.dsn))
        else:
            pool = await asyncpg.create_pool(self.dsn, min_size=connections, max_size=connections)
            driver = AsyncpgPoolDriver(pool)
        self._queries = Queries(driver)

    async def one(self, task: str, data: str) -> None:
        await self._queries.enqueue(task, data.encode())

    async def many(self, specs: Sequence[Spec]) -> int:
        ids = await self._queries.enqueue(
            [spec.task for spec in specs],
            [spec.data.encode() for spec in specs],
            [spec.priority for spec in specs],
            [timedelta(seconds=spec.delay) for spec in specs],
        )
        return len(ids)

    async def work(self, work: Work) -> None:
        if work.mode == "defaults":
            pgq = PgQueuer.from_asyncpg_connection(await asyncpg.connect(self.dsn))
        else:
            pool = await asyncpg.create_pool(self.dsn, min_size=5, max_size=20)
            pgq = PgQueuer.from_asyncpg_pool(pool)
        for task in work.tasks:
            register(pgq, task)
        await pgq.run(**SETTINGS[work.mode])


def register(pgq: Any, task: str) -> None:
    async def noop(_job: Any) -> None:
        TALLY.count()

    async def other(job: Any) -> None:
        await act(task, (job.payload or b"").decode())

    plain = task not in ("nap", "stamp", "fail")
    pgq.entrypoint(task, on_failure="hold")(noop if plain else other)


if __name__ == "__main__":
    serve(PgQueuerSubject)
