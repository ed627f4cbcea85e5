"""A server that takes no changes any more: whoever is connected to it goes on with the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from holdfast import ConnectionLost, Holdfast, HoldfastError, Job
from holdfast.stores.postgres.drivers import connect
from holdfast.stores.postgres.drivers.dsn import parse
from tests.faults.crew import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from devtools.cluster import Cluster
    from holdfast.stores.postgres.drivers import Driver
    from tests.servers import SharedServers

DRIVERS = ["asyncpg", "psycopg"]


@pytest.fixture(scope="module")
def pair(pg_servers: SharedServers) -> Iterator[tuple[Cluster, Cluster]]:
    with pg_servers.private() as first, pg_servers.private() as second:
        yield first, second


@pytest.fixture
async def dsn(pair: tuple[Cluster, Cluster]) -> AsyncIterator[str]:
    """Names both servers; the first takes changes for now."""
    for server in pair:
        set_read_only(server, on=False)
        async with Holdfast.connect(server.dsn) as hf:
            await hf.install()
    places = ",".join(f"127.0.0.1:{server.port}" for server in pair)
    yield f"postgresql://postgres@{places}/postgres"
    for server in pair:
        set_read_only(server, on=False)
        async with Holdfast.connect(server.dsn) as hf:
            await hf.uninstall()


def set_read_only(server: Cluster, *, on: bool) -> None:
    """As a primary that was replaced: its sessions stay, and their changes are refused."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("set default_transaction_read_only = off")
        word = b"on" if on else b"off"
        connection.execute(b"alter system set default_transaction_read_only = " + word)
        connection.execute("select pg_reload_conf()")


async def until_read_only(driver: Driver) -> None:
    async def refuses() -> bool:
        [[found]] = await driver.fetch("select current_setting('transaction_read_only')")
        return bool(found == "on")

    await eventually(refuses)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_producer_goes_on_with_the_server_that_takes_changes(
    dsn: str,
    pair: tuple[Cluster, Cluster],
    driver: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = pair
    link = connect(dsn, driver=driver)
    hf = Holdfast(link)
    await hf.queries.enqueue("before")
    set_read_only(first, on=True)
    await until_read_only(link)
    await hf.queries.enqueue("after")
    await link.close()

    assert "takes no changes" in caplog.text
    async with Holdfast.connect(second.dsn) as there:
        assert [size.entrypoint for size in await there.queries.queue_size()] == ["after"]


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_worker_goes_on_with_the_server_that_takes_changes(
    dsn: str, pair: tuple[Cluster, Cluster], driver: Any
) -> None:
    first, second = pair
    ran: asyncio.Queue[bytes | None] = asyncio.Queue()
    async with (
        Holdfast.connect(dsn, driver=driver) as hf,
        Holdfast.connect(second.dsn) as there,
    ):

        @hf.entrypoint("note")
        async def note(job: Job) -> None:
            ran.put_nowait(job.payload)

        working = asyncio.create_task(hf.run(signals=False))
        async with asyncio.timeout(60):
            await hf.queries.enqueue("note", b"first")
            assert await ran.get() == b"first"
            set_read_only(first, on=True)
            await there.queries.enqueue("note", b"second")
            assert await ran.get() == b"second"
            hf.shutdown.set()
            await working
        assert await there.queries.queue_size() == []


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_listener_leaves_the_server_that_takes_no_changes(
    dsn: str,
    pair: tuple[Cluster, Cluster],
    driver: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.stores.postgres.drivers.listening.PING_EVERY", 0.05)
    link, ready = connect(dsn, driver=driver), asyncio.Event()
    listening = asyncio.create_task(link.listen("news", lambda _: None, ready.set))
    async with asyncio.timeout(60):
        await ready.wait()
        set_read_only(pair[0], on=True)
        with pytest.raises(ConnectionLost, match="takes no changes"):
            await listening
        [[port]] = await link.fetch("select current_setting('port')")
    assert port == str(pair[1].port)
    await link.close()


@pytest.mark.parametrize("driver", DRIVERS)
async def test_where_no_server_takes_changes_the_error_says_that_nothing_was_sent(
    dsn: str, pair: tuple[Cluster, Cluster], driver: Any
) -> None:
    for server in pair:
        set_read_only(server, on=True)
    link = connect(dsn, driver=driver)
    with pytest.raises(HoldfastError, match="could not connect"):
        await link.fetch("create table t ()")
    await link.close()


def test_several_hosts_mean_the_one_that_takes_changes_unless_said_otherwise() -> None:
    assert "target_session_attrs=read-write" in parse("postgresql://a,b/c").dsn
    assert "target_session_attrs" not in parse("postgresql://a/c").dsn
    asked = parse("postgresql://a,b/c?target_session_attrs=any").dsn
    assert asked.count("target_session_attrs") == 1
