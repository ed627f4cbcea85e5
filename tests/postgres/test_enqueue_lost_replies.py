"""An enqueue whose reply is lost is sent again, and makes each job once."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest

from holdfast import (
    DuplicateJobError,
    Holdfast,
    Job,
    NewJob,
    OutcomeUnknown,
    Queries,
)
from holdfast.settings import Names
from holdfast.stores.postgres import idempotent_enqueue
from holdfast.stores.postgres.render import statements
from tests.postgres import tables
from tests.postgres.forgetful import MARK, Forgetful

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.postgres.forgetful import Moment
    from tests.servers import Database

KINDS = ["asyncpg", "psycopg", "pool"]
MOMENTS: tuple[Moment, ...] = ("before", "during", "after")
CALLS = int(os.environ.get("HOLDFAST_LOST_REPLIES", "500"))
"""The full proof is 10,000."""


def precious(number: object = "") -> bytes:
    return MARK + f" {number}".encode()


@asynccontextmanager
async def opened(kind: str, dsn: str, timeout: float = 9.0) -> AsyncIterator[Holdfast]:
    if kind == "pool":
        async with asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool:
            yield Holdfast.from_asyncpg_pool(pool)
        return
    async with Holdfast.connect(dsn, driver=kind, timeout=timeout) as hf:  # type: ignore[arg-type]
        yield hf


async def payloads(connection: Any) -> list[bytes]:
    return [row[0] for row in await connection.fetch("select payload from holdfast order by id")]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_job_is_there_once_however_many_replies_are_lost(
    pg: Database, kind: str
) -> None:
    async with (
        tables.installed(pg.dsn) as (connection, _),
        Forgetful(pg.dsn, *MOMENTS, seed=7, share=0.2) as proxy,
        opened(kind, proxy.dsn, 60.0) as hf,
    ):
        places = iter(range(CALLS))
        ids: dict[bytes, int] = {}

        async def produce() -> None:
            for place in places:
                [ids[precious(place)]] = await hf.queries.enqueue("mail", precious(place))

        await asyncio.gather(*(produce() for _ in range(4)))
        found = await connection.fetch("select payload, id from holdfast")
        assert len(found) == CALLS
        assert dict(found) == ids
        assert proxy.lost > CALLS / 40


async def test_a_job_that_is_done_before_the_second_try_is_not_done_again(pg18: Database) -> None:
    done: list[bytes] = []
    async with (
        tables.installed(pg18.dsn),
        Forgetful(pg18.dsn, *MOMENTS, seed=11, share=0.3) as proxy,
        Holdfast.connect(pg18.dsn) as worker,
        Holdfast.connect(proxy.dsn, timeout=60.0) as producer,
    ):

        @worker.entrypoint("mail")
        async def mail(job: Job) -> None:
            done.append(job.payload or b"")

        running = asyncio.create_task(worker.run(signals=False))
        for place in range(60):
            await producer.queries.enqueue("mail", precious(place))
        async with asyncio.timeout(30):
            while await worker.queries.queue_size():  # noqa: ASYNC110 (the worker's doing)
                await asyncio.sleep(0.01)
        worker.shutdown.set()
        await running
        assert sorted(done) == sorted(precious(place) for place in range(60))
        assert proxy.lost > 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_the_ids_of_a_lost_reply_are_those_of_the_jobs(
    pg18: Database, kind: str, moment: Moment
) -> None:
    async with (
        tables.installed(pg18.dsn) as (connection, _),
        Forgetful(pg18.dsn) as proxy,
        opened(kind, proxy.dsn) as hf,
    ):
        taken = await hf.queries.enqueue("mail", b"", dedupe_key="taken")
        proxy.plan = [moment]
        jobs = [
            NewJob("mail", precious(1)),
            NewJob("mail", precious(2), dedupe_key="taken"),
            NewJob("mail", precious(3), dedupe_key="free"),
            NewJob("mail", precious(4), dedupe_key="free"),
            NewJob("mail", precious(5)),
        ]
        ids = await hf.queries.enqueue_many(jobs, on_conflict="skip")
        rows = await connection.fetch("select id, payload from holdfast where id <> $1", *taken)
        by_payload = {payload: job_id for job_id, payload in rows}
        assert ids == [
            by_payload[precious(1)],
            None,
            by_payload[precious(3)],
            None,
            by_payload[precious(5)],
        ]
        assert len(rows) == 3
        assert proxy.lost == 1


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_dedupe_key_taken_by_the_first_try_is_no_duplicate(
    pg18: Database, moment: Moment
) -> None:
    async with (
        tables.installed(pg18.dsn) as (connection, _),
        Forgetful(pg18.dsn) as proxy,
        Holdfast.connect(proxy.dsn) as hf,
    ):
        await hf.queries.enqueue("mail")
        proxy.plan = [moment]
        [job_id] = await hf.queries.enqueue("mail", precious(), dedupe_key="mine")
        assert await connection.fetchval("select id from holdfast where dedupe_key = 'mine'") == (
            job_id
        )


async def test_a_dedupe_key_of_another_client_is_reported_also_after_a_lost_reply(
    pg18: Database,
) -> None:
    async with (
        tables.installed(pg18.dsn) as (connection, _),
        Forgetful(pg18.dsn) as proxy,
        Holdfast.connect(proxy.dsn) as hf,
    ):
        await hf.queries.enqueue("mail", dedupe_key="theirs")
        proxy.plan = ["before"]
        with pytest.raises(DuplicateJobError):
            await hf.queries.enqueue("mail", precious(), dedupe_key="theirs")
        assert await payloads(connection) == [None]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_lone_job_that_may_be_skipped_has_one_answer_however_often_it_is_sent(
    pg18: Database, moment: Moment
) -> None:
    async with (
        tables.installed(pg18.dsn) as (connection, _),
        Forgetful(pg18.dsn) as proxy,
        Holdfast.connect(proxy.dsn) as hf,
    ):
        [taken] = await hf.queries.enqueue("mail", dedupe_key="taken")
        proxy.plan = [moment, moment]
        skipped = await hf.queries.enqueue(
            "mail", precious(1), dedupe_key="taken", on_conflict="skip"
        )
        [made] = await hf.queries.enqueue(
            "mail", precious(2), dedupe_key="free", on_conflict="skip"
        )
        found = await connection.fetch("select id, dedupe_key from holdfast order by id")
        assert skipped == [None]
        assert [tuple(row) for row in found] == [(taken, "taken"), (made, "free")]
        assert proxy.lost == 2


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("enqueue:raise", idempotent_enqueue.columns([NewJob("mail", b"once")])),
        ("enqueue_one:raise", idempotent_enqueue.fields(NewJob("mail", b"once"))),
    ],
    ids=["bulk", "lone"],
)
async def test_a_statement_that_arrives_after_its_repetition_does_nothing(
    pg18: Database, name: str, values: dict[str, object]
) -> None:
    async with tables.installed(pg18.dsn) as (connection, _), tables.session(pg18.dsn) as late:
        statement = statements(Names())[name]
        key = idempotent_enqueue.new_key()
        args = statement.args({**values, "now": None, "channel": None, "soon": None, "key": key})
        await connection.fetch(statement.text, *args)
        await connection.execute("delete from holdfast")
        with pytest.raises(asyncpg.UniqueViolationError):
            await late.fetch(statement.text, *args)
        assert await payloads(connection) == []


async def test_an_outcome_that_stays_unknown_is_said_in_time(pg18: Database) -> None:
    async with (
        tables.installed(pg18.dsn),
        Forgetful(pg18.dsn, "after", share=1.0) as proxy,
        Holdfast.connect(proxy.dsn, timeout=2.0) as hf,
    ):
        async with asyncio.timeout(60):
            with pytest.raises(OutcomeUnknown, match=r"1 job\(s\)"):
                await hf.queries.enqueue("mail", precious())


async def test_in_a_callers_transaction_nothing_is_repeated(pg18: Database) -> None:
    async with (
        tables.installed(pg18.dsn) as (connection, store),
        Forgetful(pg18.dsn) as proxy,
        tables.session(proxy.dsn) as mine,
    ):
        queries = Queries(store).on(mine)
        async with mine.transaction():
            await queries.enqueue("mail", b"kept out of the keys")
        assert await connection.fetchval("select count(*) from holdfast_enqueues") == 0
        await mine.transaction().start()
        proxy.plan = ["after"]
        with pytest.raises(OutcomeUnknown):
            await queries.enqueue("mail", precious())
        assert proxy.lost == 1


async def test_keys_are_in_the_order_of_time() -> None:
    keys = [idempotent_enqueue.new_key() for _ in range(3)]
    assert len(set(keys)) == 3
    assert [key.int >> 80 for key in keys] == sorted(key.int >> 80 for key in keys)


async def test_workers_forget_keys_after_an_hour(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, store):
        old, new = idempotent_enqueue.new_key(), idempotent_enqueue.new_key()
        past = UUID(int=old.int - (2 * 3_600_000 << 80))
        await connection.execute(
            "insert into holdfast_enqueues (key, created) values "
            "($1, now() - interval '2 hours'), ($2, now())",
            past,
            new,
        )
        await store.leases.housekeep()
        assert [row[0] for row in await connection.fetch("select key from holdfast_enqueues")] == [
            new
        ]
