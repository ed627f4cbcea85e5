"""Drivers around a caller's own connection, under PgQueuer's path."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.errors import MissingDependency

if TYPE_CHECKING:
    from holdfast.stores.memory import InMemoryDriver
    from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver, AsyncpgPoolDriver
    from holdfast.stores.postgres.drivers.psycopg import PsycopgDriver, SyncPsycopgDriver

__all__ = [
    "AsyncpgDriver",
    "AsyncpgPoolDriver",
    "InMemoryDriver",
    "PsycopgDriver",
    "SyncPsycopgDriver",
]

_DRIVERS = "holdfast.stores.postgres.drivers"
_HOMES = {
    "AsyncpgDriver": f"{_DRIVERS}.asyncpg",
    "AsyncpgPoolDriver": f"{_DRIVERS}.asyncpg",
    "InMemoryDriver": "holdfast.stores.memory",
    "PsycopgDriver": f"{_DRIVERS}.psycopg",
    "SyncPsycopgDriver": f"{_DRIVERS}.psycopg",
}
_EXTRAS = ("asyncpg", "psycopg")


def __getattr__(name: str) -> Any:
    # On demand, because no program needs both client libraries.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        raise MissingDependency(
            f"{name} needs {error.name}, which is not installed; "
            f"run: pip install 'holdfast[{error.name}]'"
        ) from None


def __dir__() -> list[str]:
    return __all__
