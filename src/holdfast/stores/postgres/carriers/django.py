"""A carrier over Django's connection of the current thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy

from holdfast.errors import CarrierError, NoTransaction
from holdfast.stores.postgres.carriers.connections import begin_implicitly, session_over

if TYPE_CHECKING:
    from holdfast.stores.postgres.carriers.joining import Carrier
    from holdfast.stores.postgres.drivers.base import Connection


def carrier_of(transaction: object) -> Carrier | None:
    fits = isinstance(transaction, (ConnectionProxy, BaseDatabaseWrapper))
    return DjangoCarrier(transaction) if fits else None


class DjangoCarrier:
    """`django.db.connection`, or one of `django.db.connections`."""

    what = "Django's connection"
    begin_with = "with transaction.atomic():"
    synchronous = True

    def __init__(self, connection: Any) -> None:
        self.owner = self._connection = connection
        self._raw: object = None
        self._session: Connection | None = None

    async def session(self, *, begin: bool) -> Connection:
        connection = self._connection
        if connection.vendor != "postgresql":
            raise CarrierError(
                f"{self.what} is of {connection.vendor}; Holdfast joins PostgreSQL: name that one, "
                'as in .on(connections["…"])'
            )
        if connection.in_atomic_block and connection.needs_rollback:
            raise CarrierError(
                f"{self.what} is in an atomic block that an error has ended; leave the block first"
            )
        connection.ensure_connection()
        if begin and connection.get_autocommit():
            raise NoTransaction(self.what, self.begin_with)
        session = self._over(connection.connection)
        if begin:
            await begin_implicitly(session)
        return session

    def _over(self, raw: object) -> Connection:
        if self._session is None or raw is not self._raw:
            found = session_over(raw)
            if found is None:
                raise CarrierError(f"{self.what} is a {type(raw).__name__}, not one of psycopg")
            self._raw, self._session = raw, found.session
        return self._session
