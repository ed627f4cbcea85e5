"""What a handler writes in ctx.transaction() and the end of its job are one commit."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker

from holdfast import Context, Holdfast, InvalidInput, LeaseLost, RetryRequested, Status
from holdfast.models import Succeeded
from holdfast.stores.memory.transaction import InMemoryTransaction
from tests.carriers.callers import async_engine, engine
from tests.worker.workers import Watch, ending, ends, the_log, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast import Job
    from tests.servers import Database, SharedServers

ADD = "insert into counts values (1)"


@pytest.fixture(params=["asyncpg", "psycopg", "pool"])
async def counting(request: pytest.FixtureRequest, pg18: Database) -> AsyncIterator[Holdfast]:
    """A queue beside an application's table of counts, through each driver."""
    async with asyncpg.create_pool(pg18.dsn, min_size=1, max_size=6) as pool:
        await pool.execute("create table counts (n integer)")
        if request.param == "pool":
            hf = Holdfast.from_asyncpg_pool(pool)
        else:
            hf = Holdfast.connect(pg18.dsn, driver=request.param)
        await hf.install()
        yield hf
        await hf.store.close()


@pytest.fixture
async def counts(pg18: Database) -> AsyncIterator[Any]:
    """Another session that reads the table."""
    connection = await asyncpg.connect(pg18.dsn)
    yield connection
    await connection.close()


async def total(counts: Any) -> int:
    return int(await counts.fetchval("select count(*) from counts"))


async def test_the_block_commits_the_writes_and_the_job(counting: Holdfast, counts: Any) -> None:
    seen: list[object] = []

    @counting.entrypoint("count")
    async def count(job: Job, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(ADD)
            seen.append(await total(counts))
        seen.append(await total(counts))
        seen.append(await counting.queries.job_status([job.id]))

    watch = Watch(counting)
    [job_id] = await counting.queries.enqueue("count")
    await ends(counting.run(mode="drain"))
    assert seen == [0, 1, [(job_id, Status.SUCCESSFUL)]]
    # Reported once, and logged once.
    assert [run[0].id for run in watch.settled] == [job_id]
    assert (await ending(counting, job_id)).status is Status.SUCCESSFUL
    assert not watch.lost


async def test_an_exception_rolls_back_and_the_job_fails(counting: Holdfast, counts: Any) -> None:
    @counting.entrypoint("count", on_failure="hold")
    async def count(job: Job, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(ADD)
            raise ValueError("no")

    [job_id] = await counting.queries.enqueue("count")
    await ends(counting.run(mode="drain"))
    assert await total(counts) == 0
    assert (await ending(counting, job_id)).status is Status.FAILED


@pytest.mark.parametrize("keep", [True, False])
async def test_a_retry_keeps_the_writes_only_where_that_is_asked_for(
    counting: Holdfast, counts: Any, keep: bool
) -> None:
    @counting.entrypoint("count")
    async def count(job: Job, ctx: Context) -> None:
        async with ctx.transaction(keep_on_retry=keep) as tx:
            await tx.execute(ADD)
            if job.attempts < 2:
                raise RetryRequested(reason="again")

    [job_id] = await counting.queries.enqueue("count")
    await ends(counting.run(mode="drain"))
    assert await total(counts) == (3 if keep else 1)
    statuses = [entry.status for entry in await the_log(counting, job_id)]
    assert statuses == [Status.QUEUED, Status.QUEUED, Status.SUCCESSFUL]


async def test_a_kept_retry_at_the_cap_is_held_with_the_writes(
    counting: Holdfast, counts: Any
) -> None:
    @counting.entrypoint("count", max_attempts=1)
    async def count(job: Job, ctx: Context) -> None:
        async with ctx.transaction(keep_on_retry=True) as tx:
            await tx.execute(ADD)
            raise RetryRequested

    watch = Watch(counting)
    [job_id] = await counting.queries.enqueue("count")
    await ends(counting.run(mode="drain"))
    assert await total(counts) == 1
    assert await counting.queries.job_status([job_id]) == [(job_id, Status.FAILED)]
    assert len(watch.settled) == 1


async def test_a_lost_lease_rolls_everything_back(counting: Holdfast, counts: Any) -> None:
    caught: list[BaseException] = []
    runs: list[int] = []

    @counting.entrypoint("count")
    async def count(job: Job, ctx: Context) -> None:
        try:
            async with ctx.transaction() as tx:
                await tx.execute(ADD)
                runs.append(len(runs))
                if runs == [0]:
                    await counts.execute(
                        "update holdfast set status = 'queued', claim_token = null,"
                        " claimed_by = null, claimed_at = null, lease = null, heartbeat = null"
                    )
        except LeaseLost as error:
            caught.append(error)
            raise

    [job_id] = await counting.queries.enqueue("count")
    await ends(counting.run(mode="drain"))
    assert len(caught) == 1
    # The job ran again, and counted once.
    assert await total(counts) == 1
    assert (await ending(counting, job_id)).status is Status.SUCCESSFUL


async def test_other_jobs_are_enqueued_in_the_same_commit(counting: Holdfast, counts: Any) -> None:
    @counting.entrypoint("count")
    async def count(job: Job, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await counting.queries.on(tx).enqueue("next", dedupe_key="n")
            if job.attempts == 0:
                raise RetryRequested

    await counting.queries.enqueue("count")
    await ends(counting.run(mode="drain"))
    assert [job.entrypoint for job in await counting.queries.browse_queue()] == ["next"]


async def test_what_is_used_wrongly_says_so(counting: Holdfast, counts: Any) -> None:
    said: list[str] = []
    kept: list[Context] = []

    @counting.entrypoint("count")
    async def count(job: Job, ctx: Context) -> None:
        kept.append(ctx)
        with pytest.raises(InvalidInput, match="needs `async with`"), ctx.transaction():
            pass
        with pytest.raises(InvalidInput, match="called before in this run") as caught:
            async with ctx.transaction():
                pass
        said.append(str(caught.value))

    @counting.entrypoint("wrong")
    async def wrong(job: Job, ctx: Context) -> None:
        async with ctx.transaction("postgresql://ann:secret@host/db"):
            pass

    await counting.queries.enqueue("count")
    [wrong_id] = await counting.queries.enqueue("wrong")
    await ends(counting.run(mode="drain"))
    with pytest.raises(InvalidInput, match="run has ended"):
        kept[0].transaction()
    assert len(said) == 1
    record = (await ending(counting, wrong_id)).traceback
    assert record is not None
    assert "AsyncEngine" in record["exception_message"]
    assert "secret" not in str(record)


async def test_a_commit_inside_the_block_is_found_out(counting: Holdfast, counts: Any) -> None:
    @counting.entrypoint("count", on_failure="hold")
    async def count(job: Job, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute("commit")

    [job_id] = await counting.queries.enqueue("count")
    await ends(counting.run(mode="drain"))
    # Either way the job and its end are told apart: it is held, with a reason, and runs no more.
    assert [status for _, status in await counting.queries.job_status([job_id])] == [Status.FAILED]
    assert counts is not None


async def test_cancelled_in_its_block_a_handler_leaves_nothing(
    counting: Holdfast, counts: Any
) -> None:
    begun = asyncio.Event()

    @counting.entrypoint("count")
    async def count(job: Job, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(ADD)
            begun.set()
            await asyncio.Event().wait()

    watch = Watch(counting)
    [job_id] = await counting.queries.enqueue("count")
    async with working(counting):
        await ends(begun.wait())
        await counting.queries.mark_job_as_cancelled([job_id])
        await watch.until_lost()
    assert await total(counts) == 0
    assert (await ending(counting, job_id)).status is Status.CANCELED


async def test_more_handlers_than_connections_take_turns(counting: Holdfast, counts: Any) -> None:
    @counting.entrypoint("count")
    async def count(job: Job, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(ADD)

    await counting.queries.enqueue(["count"] * 40)
    await ends(counting.run(mode="drain"))
    assert await total(counts) == 40
    assert await counting.queries.queue_size() == []


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("makes", ["sessions", "connections"])
async def test_sqlalchemy_joins_the_end_of_the_job(
    counting: Holdfast, counts: Any, pg18: Database, driver: str, makes: str
) -> None:
    pool = async_engine(pg18, driver)
    target = async_sessionmaker(pool) if makes == "sessions" else pool

    @counting.entrypoint("count", on_failure="hold")
    async def count(job: Job, ctx: Context) -> None:
        async with ctx.transaction(target) as session:
            # The first run has sent nothing of its own.
            if job.payload != b"nothing":
                await session.execute(text(ADD))
            if job.payload == b"fails":
                raise ValueError
            if job.payload == b"commits":
                await session.commit()

    payloads = [b"nothing", b"adds", b"fails", b"commits"]
    ids = await counting.queries.enqueue(["count"] * 4, payloads)
    await ends(counting.run(mode="drain"))
    await pool.dispose()
    found = [status for _, status in await counting.queries.job_status(ids)]
    assert found == [Status.SUCCESSFUL, Status.SUCCESSFUL, Status.FAILED, Status.FAILED]
    assert await total(counts) == 2  # the one that commits by itself gives up the promise


async def test_an_engine_of_another_holdfast_is_refused(
    pg18: Database, pg_servers: SharedServers
) -> None:
    with pg_servers.schema(pg18.name) as other:
        async with Holdfast.connect(other.dsn) as theirs, Holdfast.connect(pg18.dsn) as hf:
            await theirs.install()
            await hf.install()
            pool = async_engine(other, "asyncpg")

            @hf.entrypoint("count", on_failure="hold")
            async def count(job: Job, ctx: Context) -> None:
                async with ctx.transaction(pool):
                    pass

            [job_id] = await hf.queries.enqueue("count")
            await ends(hf.run(mode="drain"))
            await pool.dispose()
            last = await ending(hf, job_id)
    assert last.status is Status.FAILED
    assert "is connected to other tables than this Holdfast" in str(last.traceback)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
async def test_a_handler_in_a_thread_uses_a_sync_session(
    counting: Holdfast, counts: Any, pg18: Database, driver: str
) -> None:
    pool = engine(pg18, driver)
    sessions = sessionmaker(pool)

    @counting.entrypoint("count", executor="thread", on_failure="hold")
    def count(job: Job, ctx: Context) -> None:
        with ctx.transaction(sessions) as session:
            session.execute(text(ADD))
            if job.payload == b"fails":
                raise ValueError

    ids = await counting.queries.enqueue(["count"] * 2, [b"adds", b"fails"])
    await ends(counting.run(mode="drain"))
    pool.dispose()
    found = [status for _, status in await counting.queries.job_status(ids)]
    assert found == [Status.SUCCESSFUL, Status.FAILED]
    assert await total(counts) == 1


@pytest.mark.parametrize("inside", [True, False])
async def test_a_task_commits_with_its_result(
    counting: Holdfast, counts: Any, inside: bool
) -> None:
    seen: list[int] = []

    @counting.task(store_result=True)
    async def count(ctx: Context, n: int) -> int:
        async with ctx.transaction() as tx:
            await tx.execute(ADD)
            if inside:
                return n + 1
        seen.append(await total(counts))
        return n + 1

    watch = Watch(counting)
    await count.enqueue(1)
    await ends(counting.run(mode="drain"))
    [(_, outcome, _)] = watch.settled
    assert isinstance(outcome, Succeeded)
    assert outcome.result is not None
    assert outcome.result.value == "2"
    assert await total(counts) == 1
    assert seen == ([] if inside else [0])


async def test_a_task_that_raises_behind_its_block_leaves_nothing(
    counting: Holdfast, counts: Any
) -> None:
    @counting.task(store_result=True, retry=1)
    async def count(ctx: Context, n: int) -> int:
        async with ctx.transaction() as tx:
            await tx.execute(ADD)
        raise ValueError

    handle = await count.enqueue(1)
    await ends(counting.run(mode="drain"))
    assert await total(counts) == 0
    assert await counting.queries.job_status([handle.id]) == [(handle.id, Status.FAILED)]


async def test_what_a_handler_raises_behind_its_block_is_logged(
    counting: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    @counting.entrypoint("count")
    async def count(job: Job, ctx: Context) -> None:
        async with ctx.transaction():
            pass
        raise LookupError("behind the block")

    [job_id] = await counting.queries.enqueue("count")
    await ends(counting.run(mode="drain"))
    assert (await ending(counting, job_id)).status is Status.SUCCESSFUL
    [record] = [each for each in caplog.records if each.levelname == "WARNING"]
    assert f"job {job_id} (count) is committed with its transaction" in record.getMessage()
    assert "LookupError: behind the block" in record.getMessage()
    assert "Traceback" in (record.exc_text or "")


async def test_in_memory_jobs_are_enqueued_with_the_end_of_the_job() -> None:
    hf = Holdfast.in_memory()

    @hf.entrypoint("count")
    async def count(job: Job, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            assert isinstance(tx, InMemoryTransaction)
            await hf.queries.on(tx).enqueue("next")
            if job.attempts == 0:
                raise RetryRequested(timedelta(0))

    [job_id] = await hf.queries.enqueue("count")
    await ends(hf.run(mode="drain"))
    assert [job.entrypoint for job in await hf.queries.browse_queue()] == ["next"]
    assert await hf.queries.job_status([job_id]) == [(job_id, Status.SUCCESSFUL)]
