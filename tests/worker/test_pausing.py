"""A running fleet learns of a pause within a second, also when nothing wakes it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast import Holdfast, Job, TableQueue
from holdfast.models import ClaimRule, NewJob
from holdfast.pauses import LATE_SECONDS, RELEASED_BY_PAUSE
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from holdfast.stores.postgres.store import PostgresStore
from tests.postgres import tables
from tests.worker.workers import eventually, working

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.servers import Database

SECOND = timedelta(seconds=1)
RULE = ClaimRule("mail", lease=timedelta(seconds=30))


async def test_a_busy_worker_claims_nothing_a_second_after_a_pause(pg: Database) -> None:
    async with (
        Holdfast.connect(pg.dsn, notify=False) as hf,
        Holdfast.connect(pg.dsn, notify=False) as operator,
    ):
        await hf.install()
        ran: list[str] = []

        async def handle(job: Job) -> None:
            ran.append(job.entrypoint)

        for name in ("mail", "sms"):
            hf.entrypoint(name)(handle)
        async with working(hf, batch_size=2, concurrency=2):
            await operator.queries.enqueue_many([NewJob("mail"), NewJob("sms")])

            async def both_ran() -> bool:
                return {"mail", "sms"} <= set(ran)

            await eventually(both_ran)
            pause = await operator.queries.pause("mail", reason="smtp is down")

            async def view_is_old() -> bool:
                await operator.queries.enqueue_many([NewJob("mail"), NewJob("sms")])
                return await operator.queries.now() > pause.created + 3 * SECOND

            await eventually(view_is_old)
            waiting = [size.count for size in await operator.queries.queue_size(["mail"])]
            assert sum(waiting) > 0
            entries = await operator.queries.queue_log(entrypoint="mail", limit=1000)
            started = [e.claimed_at for e in entries if e.reason != RELEASED_BY_PAUSE]
            assert max(at for at in started if at is not None) < pause.created + SECOND
            await operator.queries.resume("mail")

            async def all_ran() -> bool:
                return await operator.queries.queue_size() == []

            await eventually(all_ran)


class SlowClaims(AsyncpgDriver):
    """An operator pauses while the claim is on its way, and the reply takes long."""

    operator: Any = None

    async def fetch(
        self, sql: str, args: Sequence[object] = (), *, timeout: float | None = None
    ) -> Sequence[Sequence[Any]]:
        found = await super().fetch(sql, args, timeout=timeout)
        if "picked as" in sql and self.operator is not None:
            operator, self.operator = self.operator, None
            await operator.pauses.pause("mail", until=None, lasts=None, actor="ann", reason="x")
            await asyncio.sleep(LATE_SECONDS)
        return found


async def test_what_was_claimed_by_a_late_reply_does_not_start(pg: Database) -> None:
    async with tables.session(pg.dsn) as connection, tables.session(pg.dsn) as other:
        driver = SlowClaims(connection)
        store = PostgresStore(driver, tables.NAMES)
        await store.install()
        driver.operator = PostgresStore(AsyncpgDriver(other), tables.NAMES)
        [job_id] = await store.jobs.insert([NewJob("mail")], "raise")
        assert job_id is not None
        assert await store.leases.claim([RULE], limit=10, worker="w") == []
        [entry] = await store.jobs.history(job_id)
        assert (entry.status, entry.reason) == ("queued", RELEASED_BY_PAUSE)


async def test_a_table_queue_is_paused_by_its_name(pg: Database) -> None:
    async with tables.session(pg.dsn) as connection, Holdfast.connect(pg.dsn) as hf:
        await connection.execute(
            "create table chores (id bigint primary key, run_at timestamptz not null,"
            " claim_token uuid, claimed_at timestamptz, attempts integer not null default 0,"
            " max_attempts integer, inactive boolean not null default false)"
        )
        await hf.install()
        await hf.queries.pause("chores", reason="not now")
        done: list[Any] = []

        @hf.table(TableQueue("chores", due="run_at"))
        async def chore(row: dict[str, Any]) -> None:
            done.append(row["id"])

        await connection.execute("insert into chores values (1, now())")
        await hf.run(mode="drain", signals=False)
        assert done == []
        await hf.queries.resume("chores")
        await hf.run(mode="drain", signals=False)
        assert done == [1]
