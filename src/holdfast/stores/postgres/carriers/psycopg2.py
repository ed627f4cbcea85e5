"""A session over psycopg2, which SQLAlchemy and Django still use: it knows no `$1`."""

from __future__ import annotations

import os
import re
import socket
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from threading import Thread
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg2
from psycopg2 import extensions

from holdfast.errors import DatabaseError, HoldfastError, InvalidInput
from holdfast.stores.postgres.drivers.connection_lock import ThreadConnectionLock
from holdfast.stores.postgres.drivers.error_mapping import failure, lost, overdue
from holdfast.stores.postgres.drivers.transactions import CANCEL_SECONDS, ISOLATION
from holdfast.stores.postgres.drivers.watch import watched

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.stores.postgres.drivers.base import OnNotify, Row

_ERRORS = (psycopg2.Error, OSError, ValueError)
_OUTSIDE = (extensions.TRANSACTION_STATUS_IDLE, extensions.TRANSACTION_STATUS_UNKNOWN)
_NUMBERED = re.compile(r"\$(\d+)")

_BYTEA, _JSON, _JSONB, _TIMESTAMPTZ, _UUID = 17, 114, 3802, 1184, 2950


def _bytes(value: str | None, cursor: Any) -> bytes | None:
    found = psycopg2.BINARY(value, cursor)
    return None if found is None else bytes(found)


def _instant(value: str | None, cursor: Any) -> datetime | None:
    found: datetime | None = extensions.PYDATETIMETZ(value, cursor)
    if found is None:
        return None
    return found.replace(tzinfo=UTC) if found.year in (1, 9999) else found.astimezone(UTC)


_LOADERS = [
    extensions.new_type((_BYTEA,), "HOLDFAST_BYTEA", _bytes),
    extensions.new_type((_JSON, _JSONB), "HOLDFAST_JSON", lambda value, _: value),
    extensions.new_type((_TIMESTAMPTZ,), "HOLDFAST_INSTANT", _instant),
    extensions.new_type((_UUID,), "HOLDFAST_UUID", lambda value, _: value and UUID(value)),
]
"""Values as the other drivers give them. Registered for one cursor, not for the connection."""


class Psycopg2Connection:
    """One connection behind coroutines that never suspend."""

    begin = f"begin {ISOLATION}"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.server_limit: float | None = None
        self._canceling: Thread | None = None

    @property
    def native(self) -> object:
        return self._connection

    @property
    def closed(self) -> bool:
        return bool(self._connection.closed)

    @property
    def pid(self) -> int:
        return int(self._connection.info.backend_pid)

    @property
    def in_transaction(self) -> bool:
        return not self.closed and self._connection.info.transaction_status not in _OUTSIDE

    def new_lock(self) -> ThreadConnectionLock:
        return ThreadConnectionLock()

    async def fetch(self, sql: str, args: Sequence[object], timeout: float) -> Sequence[Row]:
        values = {str(place): _adapted(value) for place, value in enumerate(args, 1)}
        with self._bounded(timeout), self._committed(), self._connection.cursor() as cursor:
            for loader in _LOADERS:
                extensions.register_type(loader, cursor)
            cursor.execute(_named(sql), values)
            return [] if cursor.description is None else [tuple(row) for row in cursor.fetchall()]

    async def script(self, sql: str, timeout: float) -> None:
        with self._bounded(timeout), self._committed(), self._connection.cursor() as cursor:
            cursor.execute(sql)

    async def command(self, sql: str, timeout: float) -> None:
        with self._bounded(timeout), self._connection.cursor() as cursor:
            cursor.execute(sql)

    @contextmanager
    def _committed(self) -> Iterator[None]:
        """Commit the block, unless it is in a transaction of the caller's."""
        ours = not self._connection.autocommit and not self.in_transaction
        try:
            yield
        except BaseException:
            if ours:
                self._connection.rollback()
            raise
        if ours:
            self._connection.commit()

    @contextmanager
    def _bounded(self, seconds: float) -> Iterator[None]:
        """End a statement that takes too long by a cancellation, else by the end of its socket."""
        with (
            watched(seconds, self._cancel) as watch,
            watched(seconds + CANCEL_SECONDS, self._shut),
        ):
            try:
                yield
            except _ERRORS as error:
                if watch.over:
                    raise overdue(seconds) from None
                raise self._translate(error) from None
            finally:
                # A cancellation still on its way would end the next statement.
                if self._canceling is not None:
                    self._canceling.join(CANCEL_SECONDS)
                    self._canceling = None

    def _cancel(self) -> None:
        self._canceling = Thread(target=self._ask_to_stop, name="holdfast-cancel", daemon=True)
        self._canceling.start()

    def _ask_to_stop(self) -> None:
        with suppress(psycopg2.Error):
            self._connection.cancel()

    def _shut(self) -> None:
        with suppress(psycopg2.Error, OSError):
            twin = socket.socket(fileno=os.dup(self._connection.fileno()))
            with twin:
                twin.shutdown(socket.SHUT_RDWR)

    def _translate(self, error: Exception) -> HoldfastError:
        if isinstance(error, HoldfastError):
            return error
        if isinstance(error, ValueError):
            return DatabaseError("an argument has text that cannot be encoded", sqlstate="22021")
        if not isinstance(error, psycopg2.Error):
            return lost(str(error))
        diagnosis = error.diag
        message = diagnosis.message_primary or str(error).partition("\n")[0]
        if self.closed:
            return lost(message, error.pgcode)
        return failure(
            error.pgcode,
            message,
            severity=diagnosis.severity_nonlocalized,
            constraint=diagnosis.constraint_name,
            detail=diagnosis.message_detail,
        )

    async def pooled(self, timeout: float) -> bool:
        ((pid,),) = await self.fetch("select pg_backend_pid()", (), timeout)
        return bool(pid != self.pid)

    async def subscribe(self, channel: str, on_notify: OnNotify, timeout: float) -> None:
        raise _cannot_listen()

    async def unsubscribe(self, channel: str, on_notify: OnNotify) -> None:
        raise _cannot_listen()

    async def idle(self, seconds: float) -> bool:
        raise _cannot_listen()

    async def receive(self) -> None:
        raise _cannot_listen()

    def drop(self) -> None:
        self._connection.close()

    async def close(self) -> None:
        self._connection.close()


@lru_cache(maxsize=256)
def _named(sql: str) -> str:
    return _NUMBERED.sub(r"%(\1)s", sql.replace("%", "%%"))


def _adapted(value: Any) -> Any:
    """Return a value whose literal, as psycopg2 writes it, PostgreSQL reads as meant."""
    if isinstance(value, (list, tuple)):
        return [_adapted(item) for item in value]
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, timedelta):
        return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"
    return value


def _cannot_listen() -> InvalidInput:
    return InvalidInput("psycopg2 cannot listen here; give workers a connection of their own")
