"""A network that takes everything and answers nothing: every call ends within ten seconds."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import asynccontextmanager
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg
import psutil
import psycopg
import pytest

from holdfast import (
    DatabaseError,
    DeadlineExceeded,
    Holdfast,
    HoldfastError,
    JobId,
    NewJob,
    Queries,
    Requeued,
    Retention,
    sync_queries,
)
from holdfast.clock import monotonic
from holdfast.db import AsyncpgDriver, AsyncpgPoolDriver, PsycopgDriver, SyncPsycopgDriver
from holdfast.stores.postgres.drivers import connect
from holdfast.stores.postgres.drivers.base import DEFAULT_TIMEOUT_SECONDS
from holdfast.stores.postgres.drivers.transactions import CANCEL_SECONDS, POLITE_END_SECONDS
from tests.faults.crew import Crew
from tests.faults.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from holdfast.stores.postgres.drivers import Driver
    from tests.servers import Database

WITHIN = 10.0
"""Seconds in which a call with the default deadline is over."""
DEADLINE = 2.0
"""Of the calls here. They differ from the default in nothing else."""
LIMIT = 12.0
"""Seconds that leave a busy machine time, and are too short for two deadlines and more in a row."""

DRIVERS = ["asyncpg", "psycopg"]
HOUR = timedelta(hours=1)

CALLS: dict[str, Callable[[Queries], Awaitable[object]]] = {
    "enqueue": lambda q: q.enqueue("a"),
    "enqueue_many": lambda q: q.enqueue_many([NewJob("a")]),
    "requeue_jobs": lambda q: q.requeue_jobs([1]),  # type: ignore[list-item]
    "mark_job_as_cancelled": lambda q: q.mark_job_as_cancelled([1]),  # type: ignore[list-item]
    "delete_jobs": lambda q: q.delete_jobs([1]),  # type: ignore[list-item]
    "move_jobs": lambda q: q.move_jobs([1], "b"),  # type: ignore[list-item]
    "release_worker": lambda q: q.release_worker("w"),
    "clear_queue": lambda q: q.clear_queue(),
    "clear_queue_log": lambda q: q.clear_queue_log(),
    "clear_statistics_log": lambda q: q.clear_statistics_log(),
    "install": lambda q: q.install(),
    "upgrade": lambda q: q.upgrade(),
    "verify": lambda q: q.verify(),
    "uninstall": lambda q: q.uninstall(),
    "get_jobs": lambda q: q.get_jobs([1]),  # type: ignore[list-item]
    "job_status": lambda q: q.job_status([1]),  # type: ignore[list-item]
    "find_statuses": lambda q: q.find_statuses([1]),  # type: ignore[list-item]
    "preview_requeue": lambda q: q.preview_requeue([1]),  # type: ignore[list-item]
    "timings": lambda q: q.timings(),
    "job_history": lambda q: q.job_history(1),  # type: ignore[arg-type]
    "list_failed_jobs": lambda q: q.list_failed_jobs(),
    "edit_job": lambda q: q.edit_job(1, b""),  # type: ignore[arg-type]
    "resolve_job": lambda q: q.resolve_job(1, "no"),  # type: ignore[arg-type]
    "list_running_jobs": lambda q: q.list_running_jobs(),
    "oldest_waiting": lambda q: q.oldest_waiting(),
    "browse_queue": lambda q: q.browse_queue(),
    "queue_size": lambda q: q.queue_size(),
    "queue_log": lambda q: q.queue_log(),
    "log_statistics": lambda q: q.log_statistics(),
    "prune_log": lambda q: q.prune_log(HOUR),
    "uncounted_log": lambda q: q.uncounted_log(HOUR),
    "uncounted_since": lambda q: q.uncounted_since(),
    "list_workers": lambda q: q.list_workers(),
    "list_breakers": lambda q: q.list_breakers(),
    "open_breaker": lambda q: q.open_breaker("b"),
    "close_breaker": lambda q: q.close_breaker("b"),
    "sees_payloads": lambda q: q.sees_payloads(),
    "now": lambda q: q.now(),
    "find_results": lambda q: q.find_results([1]),  # type: ignore[list-item]
    "find_progress": lambda q: q.find_progress([1]),  # type: ignore[list-item]
    "list_progress": lambda q: q.list_progress(),
    "retention": lambda q: q.retention(),
    "set_retention": lambda q: q.set_retention(Retention()),
    "delete_expired_log": lambda q: q.delete_expired_log(),
    "pause": lambda q: q.pause("a", reason="no"),
    "resume": lambda q: q.resume("a"),
    "list_pauses": lambda q: q.list_pauses(),
    "list_acts": lambda q: q.list_acts(),
}


@pytest.fixture
async def proxy(pg18: Database) -> AsyncIterator[Proxy]:
    async with Proxy(pg18.dsn) as made:
        async with Holdfast.connect(pg18.dsn) as hf:
            await hf.install()
        yield made


async def seconds_until_refused(work: Awaitable[object]) -> float:
    began = monotonic()
    with pytest.raises(DatabaseError):
        await work
    return monotonic() - began


async def all_end(*work: Awaitable[object]) -> None:
    took = await asyncio.gather(*map(seconds_until_refused, work))
    assert max(took) < LIMIT, took


def test_the_default_deadline_leaves_time_for_the_cancellation() -> None:
    assert DEFAULT_TIMEOUT_SECONDS + CANCEL_SECONDS + POLITE_END_SECONDS <= WITHIN


def test_every_call_of_the_queries_is_tried() -> None:
    found = {name for name, value in vars(Queries).items() if iscoroutinefunction(value)}
    public = {name for name in found if not name.startswith("_")}
    assert public == set(CALLS)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_every_call_on_a_silent_connection_ends(proxy: Proxy, driver: Any) -> None:
    apps = [Holdfast.connect(proxy.dsn, driver=driver, timeout=DEADLINE) for _ in CALLS]
    for hf in apps:
        await hf.queries.now()
    await proxy.swallow()
    await all_end(*(call(hf.queries) for hf, call in zip(apps, CALLS.values(), strict=True)))
    for hf in apps:
        await hf.store.close()


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("connected", [True, False])
async def test_calls_that_wait_for_one_another_end_together(
    proxy: Proxy, driver: Any, connected: bool
) -> None:
    async with Holdfast.connect(proxy.dsn, driver=driver, timeout=DEADLINE) as hf:
        if connected:
            await hf.queries.now()
        await proxy.swallow()
        calls = [CALLS["enqueue"], CALLS["now"], CALLS["prune_log"]] * 3
        await all_end(*(call(hf.queries) for call in calls))


@asynccontextmanager
async def callers(kind: str, dsn: str) -> AsyncIterator[Driver]:
    match kind:
        case "asyncpg":
            connection = await asyncpg.connect(dsn)
            yield AsyncpgDriver(connection, timeout=DEADLINE)
            connection.terminate()
        case "pool":
            pool = await asyncpg.create_pool(dsn, min_size=2, max_size=2)
            yield AsyncpgPoolDriver(pool, timeout=DEADLINE)
            pool.terminate()
        case _:
            aconnection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
            yield PsycopgDriver(aconnection, timeout=DEADLINE)
            await aconnection.close()


@pytest.mark.parametrize("kind", ["asyncpg", "pool", "psycopg"])
async def test_calls_on_a_callers_silent_connection_end(proxy: Proxy, kind: str) -> None:
    async with callers(kind, proxy.dsn) as driver:
        hf = Holdfast(driver)
        await hf.queries.now()
        await proxy.swallow()
        await all_end(*(hf.queries.enqueue("a") for _ in range(3)))


async def test_calls_without_an_event_loop_end_as_well(proxy: Proxy) -> None:
    def opened() -> psycopg.Connection[Any]:
        return psycopg.connect(proxy.dsn, autocommit=True)

    with await asyncio.to_thread(opened) as connection:
        queries = sync_queries(SyncPsycopgDriver(connection, timeout=DEADLINE))
        await asyncio.to_thread(queries.now)
        await proxy.swallow()
        await all_end(asyncio.to_thread(queries.enqueue, "a"), asyncio.to_thread(queries.now))


def test_a_deadline_without_an_event_loop_leaves_others_alone(pg18: Database) -> None:
    with (
        psycopg.connect(pg18.dsn, autocommit=True) as hasty,
        psycopg.connect(pg18.dsn, autocommit=True) as patient,
    ):
        late = SyncPsycopgDriver(hasty, timeout=0.3).fetch("select pg_sleep(60)")
        with pytest.raises(DeadlineExceeded):
            late.send(None)
        with pytest.raises(StopIteration):
            SyncPsycopgDriver(patient, timeout=5).fetch("select pg_sleep(0.5)").send(None)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_the_turns_of_many_calls_are_not_cut_short(pg18: Database, driver: Any) -> None:
    link = connect(pg18.dsn, driver=driver, timeout=1.0)
    answers = await asyncio.gather(*(link.fetch("select pg_sleep(0.1)") for _ in range(25)))
    await link.close()
    assert len(answers) == 25


async def test_a_script_may_take_its_time(pg18: Database) -> None:
    link = connect(pg18.dsn, timeout=0.3)
    await link.script("select pg_sleep(1)")
    await link.close()


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_command_ends_with_one_line(proxy: Proxy, driver: str) -> None:
    await proxy.swallow()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", "--dsn", proxy.dsn, "--driver", driver, "stats"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode not in (0, None)
    assert len(said.decode().splitlines()) == 1, said
    assert b"could not connect" in said


async def test_a_worker_whose_listener_fell_silent_hears_again(
    proxy: Proxy, pg18: Database, tmp_path: Path
) -> None:
    """Nothing was closed, and it does not poll: only its own question can tell it."""
    async with Crew(pg18.dsn, tmp_path) as crew:
        await crew.start(dsn=proxy.dsn, dequeue_timeout=3600.0, lease=30.0, ping_every=1.0)
        [first] = await crew.hf.queries.enqueue("nap", b"0")
        await crew.until_empty()
        await proxy.strand("listen")
        [second] = await crew.hf.queries.enqueue("nap", b"0")
        await crew.until_empty()
        [third] = await crew.hf.queries.enqueue("nap", b"0")
        await crew.until_empty()
        assert [entry.job_id for entry in await crew.log()] == [first, second, third]
        assert "polling" in crew.said


async def test_a_listener_whose_listen_was_undone_hears_again(
    pg18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a proxy that changed the server's session without a word."""
    monkeypatch.setattr("holdfast.stores.postgres.drivers.listening.PING_EVERY", 0.05)
    connection = await asyncpg.connect(pg18.dsn)
    driver, ready = AsyncpgDriver(connection), asyncio.Event()
    listening = asyncio.create_task(driver.listen("a", lambda _: None, ready.set))
    async with asyncio.timeout(30):
        await ready.wait()
        await connection.execute("unlisten *")
        with pytest.raises(HoldfastError, match="no longer in force"):
            await listening
    await connection.close()


async def test_a_great_many_jobs_are_moved_in_statements_that_end_in_time(
    pg18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.postgres.jobs._MOST_JOBS_A_STATEMENT", 3)
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()
        ids = await hf.queries.enqueue(["a"] * 10)
        unknown = JobId(max(ids) + 1)
        assert set((await hf.queries.requeue_jobs([*ids, unknown])).values()) == {
            Requeued.NOT_HELD,
            Requeued.NOT_FOUND,
        }
        assert await hf.queries.mark_job_as_cancelled([*ids, unknown, *ids]) == set(ids)
        assert await hf.queries.queue_size() == []


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_script_whose_caller_is_gone_ends(proxy: Proxy, driver: Any) -> None:
    link = connect(proxy.dsn, driver=driver, timeout=DEADLINE)

    async def work() -> None:
        async with link.transaction() as tx:
            await tx.fetch("select 1")
            await proxy.swallow()
            await tx.script("select pg_sleep(1)")

    await all_end(work())
    await link.close()


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_script_is_left_alone_while_it_runs(
    pg18: Database, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.postgres.drivers.overseer.CHECK_SECONDS", 0.2)
    link = connect(pg18.dsn, driver=driver, timeout=1.0)
    async with link.transaction() as tx:
        await tx.script("create table t (n int); insert into t values (1); select pg_sleep(2)")
    assert await link.fetch("select n from t") == [(1,)]
    await link.close()


def client_sockets(port: int) -> dict[int, int]:
    """Descriptors of this process's connections to a port."""
    found = psutil.Process().net_connections("tcp")
    return {each.fd: each.raddr.port for each in found if each.raddr and each.raddr.port == port}


@pytest.mark.parametrize("driver", DRIVERS)
async def test_connections_of_our_own_are_kept_alive(pg18: Database, driver: Any) -> None:
    port = urlsplit(pg18.server_dsn).port
    assert port is not None
    before = client_sockets(port)
    link = connect(pg18.dsn, driver=driver)
    await link.fetch("select 1")
    [number] = client_sockets(port).keys() - before.keys()
    with socket.socket(fileno=os.dup(number)) as ours:
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
    await link.close()
