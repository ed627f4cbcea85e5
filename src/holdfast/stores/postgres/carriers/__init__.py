"""Carriers join the transaction of a caller's object in `.on(X)`. A library is imported only when X
is an object of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import CarrierError
from holdfast.stores.postgres.carriers import connections
from holdfast.stores.postgres.carriers.joining import JoinedDriver
from holdfast.stores.postgres.drivers import wrap
from holdfast.stores.postgres.drivers.base import BaseDriver

if TYPE_CHECKING:
    from holdfast.stores.postgres.carriers.home import Home
    from holdfast.stores.postgres.carriers.joining import Carrier
    from holdfast.stores.postgres.drivers import Driver

__all__ = ["join"]

_TAKEN = (
    "a connection of asyncpg, psycopg or psycopg2, a Session, AsyncSession, Connection or "
    "AsyncConnection of SQLAlchemy or SQLModel, or django.db.connection"
)


def join(transaction: object, home: Home, *, autocommit: bool = False) -> Driver:
    """Return a driver whose statements are part of the caller's transaction.

    With `autocommit` a connection that is in no transaction is accepted, and each call on it
    commits by itself. `home` refuses a connection to another database.
    """
    if isinstance(transaction, BaseDriver):
        return transaction
    libraries = {kind.__module__.partition(".")[0] for kind in type(transaction).__mro__}
    if autocommit and libraries & {"asyncpg", "psycopg"}:
        return wrap(transaction)
    carrier = _carrier(transaction, libraries)
    if carrier is None:
        # Only its type: a DSN in the wrong place has a password in it.
        raise CarrierError(f".on() takes {_TAKEN}; got {_article(type(transaction).__name__)}")
    return JoinedDriver(carrier, home, autocommit=autocommit)


def _carrier(transaction: object, libraries: set[str]) -> Carrier | None:
    # SQLModel's sessions are SQLAlchemy's. A driver's own library comes last: SQLAlchemy and Django
    # never derive their classes from it.
    if "sqlalchemy" in libraries:
        from holdfast.stores.postgres.carriers import sqlalchemy

        return sqlalchemy.carrier_of(transaction)
    if "django" in libraries:
        from holdfast.stores.postgres.carriers import django

        return django.carrier_of(transaction)
    return connections.carrier_of(transaction)


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
