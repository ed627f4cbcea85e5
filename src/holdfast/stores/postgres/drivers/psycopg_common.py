"""The common part of the psycopg drivers, async and sync."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.errors import DatabaseError, HoldfastError
from holdfast.stores.postgres.drivers.error_mapping import failure, lost
from holdfast.stores.postgres.drivers.transactions import ISOLATION

if TYPE_CHECKING:
    from collections.abc import Iterator

ERRORS = (psycopg.Error, OSError, UnicodeError)
PID = "select pg_backend_pid()"


def in_transaction(connection: psycopg.BaseConnection[Any]) -> bool:
    outside = (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
    return connection.pgconn.transaction_status not in outside


def begin(connection: psycopg.BaseConnection[Any]) -> str:
    # Outside autocommit psycopg sends BEGIN by itself before whatever comes first.
    return f"{'begin' if connection.autocommit else 'set transaction'} {ISOLATION}"


def shut(connection: psycopg.BaseConnection[Any]) -> None:
    """End the connection. Its users get their errors at once.

    The socket is shut down, not closed: under a statement in flight its number could get a new
    owner.
    """
    with suppress(psycopg.Error, OSError):
        twin = socket.socket(fileno=os.dup(connection.fileno()))
        with twin:
            twin.shutdown(socket.SHUT_RDWR)


@contextmanager
def translating(connection: psycopg.BaseConnection[Any]) -> Iterator[None]:
    try:
        yield
    except ERRORS as error:
        raise _translate(error, connection.closed) from None


def _translate(error: Exception, closed: bool) -> HoldfastError:
    if isinstance(error, UnicodeError):
        return DatabaseError("an argument has text that cannot be encoded", sqlstate="22021")
    if not isinstance(error, psycopg.Error):
        return lost(str(error))
    diagnosis, sqlstate = error.diag, error.sqlstate
    message = diagnosis.message_primary or str(error).partition("\n")[0]
    if closed:
        return lost(message, sqlstate)
    return failure(
        sqlstate,
        message,
        severity=diagnosis.severity_nonlocalized,
        constraint=diagnosis.constraint_name,
        detail=diagnosis.message_detail,
    )


def sqlstate_of(error: Exception) -> str | None:
    return error.sqlstate if isinstance(error, psycopg.Error) else None
