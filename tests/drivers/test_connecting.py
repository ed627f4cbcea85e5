"""How a driver finds its library and its server, and how it closes them."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import db
from holdfast.errors import ConnectionFailed, ConnectionLost, InvalidInput, MissingDependency
from holdfast.stores.postgres.drivers import connect
from tests.drivers.every_driver import (
    ASYNC_KINDS,
    DSN_KINDS,
    dsn_driver,
    ends,
    eventually,
    opened,
    value,
)

if TYPE_CHECKING:
    from holdfast.stores.postgres.drivers.base import Driver
    from holdfast.stores.postgres.drivers.reconnecting import Reconnecting
    from tests.faults.proxy import Proxy
    from tests.servers import Database


def _place(dsn: str) -> str:
    return dsn.rpartition("@")[2].partition("/")[0]


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_a_refused_connection_names_the_place_but_not_the_password(kind: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for dsn in (
            f"postgresql://me:s3cret%2Fword@127.0.0.1:{port}/app",
            f"host=127.0.0.1 port={port} user=me password='s3cret word' dbname=app",
        ):
            with pytest.raises(ConnectionFailed) as caught:
                await dsn_driver(kind, dsn).fetch("select 1")
            assert f"127.0.0.1:{port}, database app" in str(caught.value)
            assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_a_server_that_never_greets_is_given_up(
    kind: str, pg18: Database, proxy: Proxy
) -> None:
    await proxy.swallow()
    driver = dsn_driver(kind, proxy.dsn, connect_timeout=0.3)
    with pytest.raises(ConnectionFailed):
        await ends(driver.fetch("select 1"))


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_the_second_host_is_tried_when_the_first_one_is_silent(
    kind: str, pg18: Database, proxy: Proxy
) -> None:
    await proxy.swallow()
    place = _place(pg18.dsn)
    dsn = pg18.dsn.replace(place, f"{_place(proxy.dsn)},{place}")
    driver = dsn_driver(kind, f"{dsn}&target_session_attrs=read-write", connect_timeout=2)
    assert await value(driver, "select 1") == 1
    await driver.close()


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_statements_are_not_compiled_on_connections_of_our_own_alone(
    kind: str, pg: Database
) -> None:
    async with opened(kind, pg.dsn) as driver:
        await driver.fetch("select 1")
        found = await value(driver, "show jit")
    assert found == ("off" if kind in DSN_KINDS else "on")


@pytest.mark.parametrize("kind", DSN_KINDS)
@pytest.mark.parametrize(
    "dsn",
    [
        "mysql://me:s3cret@host/db",
        "s3cret",
        "postgresql://me:s3/cret@host/db",
        "postgresql://me:12?s3cret@host/db",
        "postgresql://host:s3cret/db",
        "host=a,b,c port=1,2 password=s3cret",
    ],
)
def test_a_dsn_that_cannot_be_read_is_refused_without_quoting_it(kind: str, dsn: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        dsn_driver(kind, dsn)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_a_deadline_that_never_comes_is_refused(timeout: float) -> None:
    with pytest.raises(InvalidInput, match="timeout"):
        connect("postgresql://host/db", timeout=timeout)


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_a_fork_has_its_own_connection_fit_for_another_loop(
    kind: str, pg18: Database
) -> None:
    sql = "select pg_backend_pid(), current_setting('application_name')"

    async def elsewhere(sibling: Driver) -> Any:
        ((pid, name),) = await sibling.fetch(sql)
        await sibling.close()
        return pid, name

    async with opened(kind, pg18.dsn) as driver:
        assert driver.dedicated
        ((own, name),) = await driver.fetch(sql)
        assert name == "holdfast:main"
        sibling = driver.fork("renew")
        other, name = await asyncio.to_thread(asyncio.run, elsewhere(sibling))
        assert (other != own, name) == (True, "holdfast:renew")


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_a_closed_driver_opens_nothing_again(kind: str, pg18: Database, witness: Any) -> None:
    async with opened(kind, pg18.dsn) as driver:
        pid = await value(driver, "select pg_backend_pid()")
        await driver.close()
        with pytest.raises(ConnectionFailed, match="closed"):
            await driver.fetch("select 1")

    async def gone() -> bool:
        return not await witness.fetchval("select 1 from pg_stat_activity where pid = $1", pid)

    await eventually(gone)


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_closing_does_not_wait_for_a_statement_in_flight(kind: str, pg18: Database) -> None:
    async with opened(kind, pg18.dsn) as driver:
        await driver.fetch("select 1")
        task = asyncio.ensure_future(driver.fetch("select pg_sleep(60)"))
        await asyncio.sleep(0)
        await ends(driver.close())
        with pytest.raises(ConnectionLost):
            await ends(asyncio.wait_for(task, None))


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_statements_are_not_prepared_when_the_cache_is_off(kind: str, pg18: Database) -> None:
    driver = dsn_driver(kind, pg18.dsn, statement_cache_size=0)
    for number in range(10):
        assert await value(driver, "select $1::bigint", number) == number
    assert await value(driver, "select count(*) from pg_prepared_statements where name <> ''") == 0
    await driver.close()


async def library_of(driver: Reconnecting) -> str:
    async with driver._lend(10) as loan:
        library = type(loan.connection).__name__
    await driver.close()
    return library


async def test_connect_chooses_the_library(pg18: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await library_of(connect(pg18.dsn)) == "AsyncpgConnection"
    assert await library_of(connect(pg18.dsn, driver="psycopg")) == "PsycopgConnection"
    with pytest.raises(InvalidInput, match="'odbc'"):
        connect(pg18.dsn, driver="odbc")  # type: ignore[arg-type]

    monkeypatch.setitem(sys.modules, "asyncpg", None)
    assert await library_of(connect(pg18.dsn)) == "PsycopgConnection"
    with pytest.raises(MissingDependency, match=r"holdfast\[asyncpg\]"):
        connect(pg18.dsn, driver="asyncpg")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependency, match=r"holdfast\[asyncpg\]"):
        connect(pg18.dsn)


@pytest.mark.parametrize(
    ("library", "names"),
    [
        ("asyncpg", ["AsyncpgDriver", "AsyncpgPoolDriver"]),
        ("psycopg", ["PsycopgDriver", "SyncPsycopgDriver"]),
    ],
)
def test_a_driver_without_its_library_names_the_extra(
    library: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        assert getattr(db, name).__name__ == name
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"holdfast.stores.postgres.drivers.{library}")
    for name in names:
        with pytest.raises(MissingDependency, match=rf"holdfast\[{library}\]"):
            getattr(db, name)


def test_an_unknown_driver_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="OdbcDriver"):
        db.OdbcDriver  # noqa: B018 (the lookup is what is tested)
