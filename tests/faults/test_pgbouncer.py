"""Through PgBouncer in transaction mode: everything works, and what cannot work is said once."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

from holdfast import Context, Holdfast, Job, RetryRequested, Status, TableQueue
from holdfast.db import AsyncpgDriver, AsyncpgPoolDriver, PsycopgDriver
from holdfast.errors import DatabaseError
from holdfast.stores.postgres.drivers import connect
from holdfast.table import linear
from tests.faults.crew import Crew, eventually
from tests.faults.pgbouncer import Pooler, keeps_prepared_statements, pooler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from holdfast.stores.postgres.drivers import Driver
    from tests.servers import Database

DRIVERS = ["asyncpg", "psycopg"]
HOUR = timedelta(hours=1)
WARNING = "no wake-ups arrive"


@pytest.fixture
def pooled(pg18: Database, server_directory: Path) -> Iterator[Pooler]:
    with pooler(pg18, server_directory) as made:
        yield made


@pytest.fixture(params=DRIVERS)
async def hf(request: pytest.FixtureRequest, pooled: Pooler) -> AsyncIterator[Holdfast]:
    async with Holdfast.connect(pooled.dsn, driver=request.param) as made:
        await made.install()
        yield made


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("holdfast") and record.levelname in ("WARNING", "ERROR")
    ]


def register(hf: Holdfast, running: Counter[str], most: Counter[str]) -> None:
    @hf.entrypoint("plain")
    async def plain(job: Job) -> None:
        await asyncio.sleep(0)

    @hf.entrypoint("again")
    async def again(job: Job) -> None:
        if job.attempts < 2:
            raise RetryRequested(timedelta(milliseconds=20))

    @hf.entrypoint("held", on_failure="hold")
    async def held(job: Job) -> None:
        raise ValueError("not today")

    @hf.entrypoint("limited", concurrency_limit=2)
    async def limited(job: Job) -> None:
        running["limited"] += 1
        most["limited"] = max(most["limited"], running["limited"])
        await asyncio.sleep(0.01)
        running["limited"] -= 1


async def test_the_pools_connections_are_left_as_they_were(pooled: Pooler) -> None:
    """As far as it is ours: asyncpg itself turns `jit` off to learn of types."""
    async with Holdfast.connect(pooled.dsn, driver="psycopg") as hf:
        await hf.install()
        await hf.queries.enqueue("plain")
    connection = await psycopg.AsyncConnection.connect(pooled.dsn, autocommit=True)
    async with connection:
        found = await (await connection.execute("show jit")).fetchone()
    assert found == ("on",)


async def test_workers_drain_every_kind_of_job(hf: Holdfast, pooled: Pooler) -> None:
    async with Holdfast.connect(pooled.dsn, driver="asyncpg") as second:
        running: Counter[str] = Counter()
        most: Counter[str] = Counter()
        for each in (hf, second):
            register(each, running, most)
        counts = {"plain": 200, "again": 20, "held": 10, "limited": 20}
        names = [name for name, count in counts.items() for _ in range(count)]
        ids = await hf.queries.enqueue(names)
        while {str(size.status) for size in await hf.queries.queue_size()} - {"failed"}:
            # Again, because a drain does not wait for what was put off.
            await asyncio.gather(*(each.run(mode="drain", signals=False) for each in (hf, second)))

        ended = Counter(str(status) for _, status in await hf.queries.job_status(ids))
        assert ended == {"successful": 240, "failed": 10}
        assert most["limited"] <= 2
        log = await hf.queries.queue_log(limit=10_000)
        assert Counter(
            entry.job_id for entry in log if entry.status == "successful"
        ) == dict.fromkeys(
            [job_id for job_id, name in zip(ids, names, strict=True) if name != "held"], 1
        )

        failed = [job.id for job in await hf.queries.list_failed_jobs(limit=100)]
        outcomes = await hf.queries.requeue_jobs(failed, reason="another try")
        assert {str(outcome) for outcome in outcomes.values()} == {"requeued"}
        assert await hf.queries.mark_job_as_cancelled(failed) == set(failed)


async def test_nothing_stays_behind_in_the_shared_sessions(hf: Holdfast, pooled: Pooler) -> None:
    """Neither prepared statements nor settings, for strangers share them."""
    register(hf, Counter(), Counter())
    await hf.queries.enqueue(["plain"] * 30 + ["limited"] * 10)
    await hf.run(mode="drain", signals=False)

    async with await psycopg.AsyncConnection.connect(
        pooled.dsn, autocommit=True, prepare_threshold=None
    ) as connection:
        for _ in range(12):
            found = await connection.execute(
                "select current_setting('synchronous_commit'), current_setting('lock_timeout'),"
                " (select count(*) from pg_prepared_statements where name <> ''),"
                " (select count(*) from pg_listening_channels() c where c like 'ch_%'),"
                " (select count(*) from pg_locks"
                "  where locktype = 'advisory' and pid = pg_backend_pid())"
            )
            row = await found.fetchone()
            assert row is not None
            assert row[1:] == ("0", 0, 0, 0)


async def test_a_worker_that_hears_nothing_says_so_once_and_polls(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    done = asyncio.Event()

    @hf.entrypoint("plain")
    async def plain(job: Job) -> None:
        done.set()

    working = asyncio.create_task(hf.run(dequeue_timeout=HOUR, signals=False))
    async with asyncio.timeout(60):
        while not warnings(caplog):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        # By now it sleeps, and only the poll can wake it.
        for _ in range(3):
            done.clear()
            await hf.queries.enqueue("plain")
            await done.wait()
        hf.shutdown.set()
        await working
    said = warnings(caplog)
    assert len(said) == 1, said
    assert WARNING in said[0]
    assert "session mode" in said[0]


async def test_a_running_job_that_is_cancelled_hears_of_it_by_its_lease(hf: Holdfast) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @hf.entrypoint("endless", accepts_context=True)
    async def endless(job: Job, context: Context) -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    working = asyncio.create_task(hf.run(heartbeat_timeout=timedelta(seconds=3), signals=False))
    [job_id] = await hf.queries.enqueue("endless")
    async with asyncio.timeout(60):
        await started.wait()
        assert await hf.queries.mark_job_as_cancelled([job_id]) == {job_id}
        await stopped.wait()
        hf.shutdown.set()
        await working
    assert [str(status) for _, status in await hf.queries.job_status([job_id])] == ["canceled"]


async def test_ticks_and_triggers_become_jobs(hf: Holdfast) -> None:
    seen: list[str] = []
    ticked = asyncio.Event()

    @hf.schedule("sweep", "* * * * * *")
    async def sweep(tick: Any) -> None:
        seen.append(tick.name)
        ticked.set()

    working = asyncio.create_task(hf.run(signals=False))
    async with asyncio.timeout(60):
        await ticked.wait()
        hf.shutdown.set()
        await working
    assert set(seen) == {"sweep"}
    log = await hf.queries.queue_log(limit=1000)
    slots = Counter(entry.job_id for entry in log if entry.status == "successful")
    assert slots
    assert set(slots.values()) == {1}


LETTERS = """
create table letters (
    id bigint generated always as identity primary key,
    remind_at timestamptz not null default now(),
    claim_token uuid,
    claimed_at timestamptz,
    attempts integer not null default 0,
    max_attempts integer not null default 3,
    inactive boolean not null default false
);
create index on letters (remind_at);
create index on letters (claimed_at);
insert into letters select from generate_series(1, 60);
"""


async def test_rows_of_a_users_table_are_worked_off(hf: Holdfast, pg18: Database) -> None:
    connection = await asyncpg.connect(pg18.dsn)
    try:
        await connection.execute(LETTERS)
        tries: Counter[int] = Counter()

        @hf.table(TableQueue("letters", backoff=linear(timedelta(milliseconds=10))))
        async def send(row: Mapping[str, Any]) -> None:
            tries[row["id"]] += 1
            if row["id"] % 10 == 0 and tries[row["id"]] == 1:
                raise OSError("the post office is closed")

        # A drain does not wait for what was put off.
        while not await connection.fetchval("select bool_and(inactive) from letters"):
            await hf.run(mode="drain", signals=False)
        assert tries == {number: 1 + (number % 10 == 0) for number in range(1, 61)}
    finally:
        await connection.close()


async def test_the_jobs_of_a_killed_worker_are_finished_by_another(
    pooled: Pooler, tmp_path: Path
) -> None:
    async with Crew(pooled.dsn, tmp_path) as crew:
        jobs = await crew.hf.queries.enqueue(["hang_once"] * 20)
        victim = await crew.start(lease=2.0, driver="psycopg")
        await crew.until_started(20)
        await crew.start(lease=2.0)
        victim.kill()
        await crew.until_empty()
        log = await crew.log()
        assert Counter((entry.job_id, str(entry.status)) for entry in log) == {
            (job, status): 1 for job in jobs for status in ("queued", "successful")
        }


@pytest.mark.parametrize("driver", DRIVERS)
async def test_many_clients_share_few_sessions(
    driver: str, pg18: Database, server_directory: Path
) -> None:
    with pooler(pg18, server_directory, size=2) as made:
        first = connect(made.dsn, driver=driver)  # type: ignore[arg-type]
        clients = [first, *(connect(made.dsn, driver=driver) for _ in range(9))]  # type: ignore[arg-type]

        async def ask(number: int) -> None:
            for turn in range(30):
                [[answer]] = await clients[number].fetch(
                    f"select $1::bigint + {number}", [turn * 100]
                )
                assert answer == turn * 100 + number

        try:
            await asyncio.gather(*(ask(number) for number in range(len(clients))))
        finally:
            for client in clients:
                await client.close()


class Listener:
    """A listener through a driver."""

    def __init__(self, driver: Driver, channel: str) -> None:
        self.ready, self.heard = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(
            driver.listen(channel, lambda _: self.heard.set(), self.ready.set)
        )


@asynccontextmanager
async def listening(driver: Driver, channel: str) -> AsyncIterator[Listener]:
    listener = Listener(driver, channel)
    try:
        yield listener
    finally:
        listener.task.cancel()
        await asyncio.wait([listener.task])
        await driver.close()


@pytest.mark.parametrize("library", DRIVERS)
async def test_through_a_pool_in_session_mode_notifications_arrive(
    library: Any, pg18: Database, server_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pooler(pg18, server_directory, "session", size=20) as made:
        driver = connect(made.dsn, driver=library)
        async with listening(driver, pg18.schema) as listener, asyncio.timeout(60):
            await listener.ready.wait()
            other = driver.fork("settle")
            await other.fetch("select pg_notify($1, '')", [pg18.schema])
            await other.close()
            await listener.heard.wait()
    assert warnings(caplog) == []


@asynccontextmanager
async def connection_of_asyncpg(dsn: str) -> AsyncIterator[Driver]:
    connection = await asyncpg.connect(dsn, statement_cache_size=0)
    yield AsyncpgDriver(connection)
    connection.terminate()


@asynccontextmanager
async def pool_of_asyncpg(dsn: str) -> AsyncIterator[Driver]:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=3, statement_cache_size=0) as pool:
        yield AsyncpgPoolDriver(pool)


@asynccontextmanager
async def connection_of_psycopg(dsn: str) -> AsyncIterator[Driver]:
    async with await psycopg.AsyncConnection.connect(
        dsn, autocommit=True, prepare_threshold=None
    ) as connection:
        yield PsycopgDriver(connection)


@asynccontextmanager
async def own(dsn: str) -> AsyncIterator[Driver]:
    yield connect(dsn)


@asynccontextmanager
async def own_without_prepared_statements(dsn: str) -> AsyncIterator[Driver]:
    yield connect(dsn, statement_cache_size=0)


@pytest.mark.parametrize(
    "make",
    [
        connection_of_asyncpg,
        pool_of_asyncpg,
        connection_of_psycopg,
        own,
        own_without_prepared_statements,
    ],
)
async def test_whoever_would_hear_nothing_is_never_told_that_it_listens(
    make: Callable[[str], AbstractAsyncContextManager[Driver]],
    pooled: Pooler,
    pg18: Database,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with make(pooled.dsn) as driver, listening(driver, pg18.schema) as listener:

        async def said() -> bool:
            return bool(warnings(caplog))

        await eventually(said)
        assert not listener.ready.is_set()
        assert not listener.task.done()
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("library", DRIVERS)
async def test_a_dsn_may_name_the_pooler_itself(library: Any, pooled: Pooler) -> None:
    driver = connect(f"{pooled.dsn}?pgbouncer=true", driver=library)
    for number in range(12):
        assert await driver.fetch("select $1::bigint", [number]) == [(number,)]
    await driver.close()


async def test_prepared_statements_of_the_callers_own_are_named_in_the_error(
    pooled: Pooler,
) -> None:
    connection = await asyncpg.connect(pooled.dsn)

    async def ask() -> None:
        for number in range(20):
            await AsyncpgDriver(connection).fetch("select $1::bigint", [number])

    try:
        if keeps_prepared_statements():
            await ask()
            return
        with pytest.raises(DatabaseError, match="statement_cache_size=0") as caught:
            await ask()
        assert caught.value.sqlstate == "26000"
    finally:
        connection.terminate()


@pytest.mark.parametrize("library", DRIVERS)
async def test_a_direct_address_for_listen_wakes_a_worker_behind_the_pooler(
    library: Any, pooled: Pooler, pg18: Database, caplog: pytest.LogCaptureFixture
) -> None:
    done = asyncio.Event()
    async with Holdfast.connect(pooled.dsn, listen_dsn=pg18.dsn, driver=library) as hf:
        await hf.install()

        @hf.entrypoint("mail")
        async def mail(job: Job) -> None:
            done.set()

        run = asyncio.create_task(hf.run(signals=False, dequeue_timeout=HOUR))
        async with asyncio.timeout(60):
            for _ in range(3):
                # After the first the worker sleeps: nothing but a notification wakes it.
                await hf.queries.enqueue("mail")
                await done.wait()
                done.clear()
        hf.shutdown.set()
        await run
    assert warnings(caplog) == []


async def test_an_address_for_listen_in_another_database_is_noticed(
    pooled: Pooler, pg18: Database, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = f"{pg18.server_dsn.rpartition('/')[0]}/postgres"
    async with Holdfast.connect(pooled.dsn, listen_dsn=elsewhere) as hf:
        await hf.install()

        @hf.entrypoint("mail")
        async def mail(job: Job) -> None: ...

        run = asyncio.create_task(hf.run(signals=False))

        async def said() -> bool:
            return any("must name the same database" in line for line in warnings(caplog))

        await eventually(said)
        hf.shutdown.set()
        await run
    assert len(warnings(caplog)) == 1


async def test_fifty_workers_share_twenty_server_connections(
    pg18: Database, server_directory: Path
) -> None:
    """Each listens directly, so every one of them is woken."""
    jobs = 1000
    sessions = "select count(*) from pg_stat_activity where application_name = $1"
    async with AsyncExitStack() as stack:
        made = stack.enter_context(pooler(pg18, server_directory, size=20))
        witness = await asyncpg.connect(pg18.server_dsn)
        stack.push_async_callback(witness.close)
        fleet = []
        for _ in range(50):
            hf = Holdfast.connect(made.dsn, listen_dsn=pg18.dsn)
            fleet.append(await stack.enter_async_context(hf))
        await fleet[0].install()
        for hf in fleet:

            @hf.entrypoint("mail")
            async def mail(job: Job) -> None:
                await asyncio.sleep(0.01)

        runs = [
            asyncio.create_task(hf.run(signals=False, concurrency=5, dequeue_timeout=HOUR))
            for hf in fleet
        ]
        async with asyncio.timeout(600):
            while len(await fleet[0].queries.list_workers()) < len(fleet):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            ids = await fleet[0].queries.enqueue(["mail"] * jobs)
            while await fleet[0].queries.queue_size():
                assert await witness.fetchval(sessions, pg18.schema) <= 20
                await asyncio.sleep(0.05)
        for hf in fleet:
            hf.shutdown.set()
        await asyncio.gather(*runs)
        log = await fleet[0].queries.queue_log(limit=3 * jobs)
    # A job that was claimed ahead of its slot may have been released once.
    ended = Counter(entry.job_id for entry in log if entry.status is not Status.QUEUED)
    assert ended == dict.fromkeys(ids, 1)
    assert len({entry.claimed_by for entry in log}) > 1
