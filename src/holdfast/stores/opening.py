"""Opens the store behind a driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
