"""A driver -> the store behind it. Whoever is given a driver asks here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from holdfast.errors import InvalidInput
from holdfast.stores.memory import InMemoryDriver
from holdfast.stores.postgres.drivers.base import BaseDriver
from holdfast.stores.postgres.store import PostgresStore

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.ports import Store
    from holdfast.settings import Names
    from holdfast.stores.postgres.drivers import Driver


def store_on(
    driver: Driver | InMemoryDriver | Store,
    names: Names | None = None,
    *,
    clock: Clock | None = None,
    notify: bool = True,
) -> Store:
    """The store that a driver reaches; a store is returned as it is."""
    if isinstance(driver, InMemoryDriver):
        return driver.store
    if isinstance(driver, BaseDriver):
        return PostgresStore(driver, names, clock=clock, notify=notify)
    if hasattr(driver, "jobs"):
        return driver  # type: ignore[return-value]
    # Only its type: a DSN in the wrong place has a password in it.
    raise InvalidInput(
        f"expected a driver such as AsyncpgDriver(connection), got {_kind(driver)}; "
        f"Holdfast.connect(dsn) and Holdfast.from_asyncpg_pool(pool) make one"
    )


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


class FromConnections:
    """Ways to make an object that takes a driver out of a connection of the caller's."""

    if TYPE_CHECKING:

        def __init__(self, driver: Any, **options: Any) -> None: ...

    @classmethod
    def from_asyncpg_connection(cls, connection: Any, **options: Any) -> Self:
        """On one asyncpg connection: everything takes turns on it."""
        from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver

        return cls(AsyncpgDriver(connection), **options)

    @classmethod
    def from_asyncpg_pool(cls, pool: Any, **options: Any) -> Self:
        """On an asyncpg pool."""
        from holdfast.stores.postgres.drivers.asyncpg import AsyncpgPoolDriver

        return cls(AsyncpgPoolDriver(pool), **options)

    @classmethod
    def from_psycopg_connection(cls, connection: Any, **options: Any) -> Self:
        """On one psycopg AsyncConnection: everything takes turns on it."""
        from holdfast.stores.postgres.drivers.psycopg import PsycopgDriver

        return cls(PsycopgDriver(connection), **options)
