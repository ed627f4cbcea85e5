"""Applications with a transaction of their own, one for each library that `.on()` joins."""

from __future__ import annotations

import inspect
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import asyncpg
import psycopg
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlmodel import Session as SqlmodelSession
from sqlmodel.ext.asyncio.session import AsyncSession as SqlmodelAsyncSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import Database


class Caller(Protocol):
    """What a test does as the application."""

    joined: Any
    """What is given to `.on()`."""

    def transaction(self) -> AbstractAsyncContextManager[object]: ...
    def savepoint(self) -> AbstractAsyncContextManager[object]: ...
    async def execute(self, sql: str) -> object: ...


async def settled(value: Any) -> Any:
    """The result of a call, whether it has to be awaited or not."""
    return await value if inspect.isawaitable(value) else value


class Driver:
    """A connection of asyncpg or of async psycopg."""

    def __init__(self, connection: Any) -> None:
        self.joined = connection

    def transaction(self) -> Any:
        return self.joined.transaction()

    savepoint = transaction

    async def execute(self, sql: str) -> object:
        return await self.joined.execute(sql)


class Synchronous:
    """A connection of sync psycopg, or a session or connection of SQLAlchemy without asyncio."""

    def __init__(self, joined: Any) -> None:
        self.joined = joined

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[object]:
        # psycopg and SQLAlchemy begin by themselves: nothing is sent until something is done.
        try:
            yield None
        except BaseException:
            self.joined.rollback()
            raise
        self.joined.commit()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[object]:
        nested = getattr(self.joined, "begin_nested", None) or self.joined.transaction
        with nested():
            yield None

    async def execute(self, sql: str) -> object:
        execute = getattr(self.joined, "exec_driver_sql", None)
        if isinstance(self.joined, Session):
            execute = self.joined.connection().exec_driver_sql
        return (execute or self.joined.execute)(sql)


class Async:
    """An AsyncSession or AsyncConnection."""

    def __init__(self, joined: Any) -> None:
        self.joined = joined

    def transaction(self) -> Any:
        return self.joined.begin()

    def savepoint(self) -> Any:
        return self.joined.begin_nested()

    async def execute(self, sql: str) -> object:
        connection = self.joined
        if isinstance(connection, AsyncSession):
            connection = await connection.connection()
        return await connection.exec_driver_sql(sql)


def url(database: Database, driver: str) -> Any:
    """SQLAlchemy's address; the schema is set apart, since asyncpg takes no `options`."""
    return database.server_dsn.replace("postgresql:", f"postgresql+{driver}:", 1)


def engine(database: Database, driver: str, **options: Any) -> Any:
    return create_engine(
        url(database, driver),
        connect_args={"options": f"-csearch_path={database.schema}"},
        **options,
    )


def async_engine(database: Database, driver: str, **options: Any) -> Any:
    arguments: dict[str, Any] = {"options": f"-csearch_path={database.schema}"}
    if driver == "asyncpg":
        arguments = {"server_settings": {"search_path": database.schema}}
    return create_async_engine(url(database, driver), connect_args=arguments, **options)


KINDS = (
    "asyncpg",
    "asyncpg_pool",
    "psycopg",
    "psycopg_manual",
    "psycopg_sync",
    "Connection-psycopg",
    "Connection-psycopg2",
    "Session-psycopg",
    "Session-psycopg2",
    "SQLModel-psycopg",
    "AsyncConnection-asyncpg",
    "AsyncConnection-psycopg",
    "AsyncSession-asyncpg",
    "AsyncSession-psycopg",
    "AsyncSQLModel-asyncpg",
)


@asynccontextmanager
async def opened(kind: str, database: Database) -> AsyncIterator[Caller]:
    dsn, (name, _, driver) = database.dsn, kind.partition("-")
    match name:
        case "asyncpg" | "asyncpg_pool":
            async with (
                asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool,
                pool.acquire() as lent,
            ):
                yield Driver(lent if name == "asyncpg_pool" else lent._con)
        case "psycopg" | "psycopg_manual":
            async with await psycopg.AsyncConnection.connect(
                dsn, autocommit=name == "psycopg"
            ) as connection:
                yield Driver(connection)
        case "psycopg_sync":
            with psycopg.connect(dsn) as synchronous:
                yield Synchronous(synchronous)
        case "Connection" | "Session" | "SQLModel":
            pool = engine(database, driver)
            made = {"Session": Session, "SQLModel": SqlmodelSession}.get(name)
            with made(pool) if made else pool.connect() as joined:
                yield Synchronous(joined)
            pool.dispose()
        case _:
            pool = async_engine(database, driver)
            kinds = {"AsyncSession": AsyncSession, "AsyncSQLModel": SqlmodelAsyncSession}
            async with kinds[name](pool) if name in kinds else pool.connect() as joined:
                yield Async(joined)
            await pool.dispose()
