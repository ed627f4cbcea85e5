"""Transactions in words of SQL: the client libraries' own objects can lose count."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.errors import ConnectionLost, DatabaseError, HoldfastError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.stores.postgres.drivers.base import Connection

POLITE_END_SECONDS = 0.5
"""A polite end (cancel, ROLLBACK, UNLISTEN) is answered at once, or the server is gone."""
CANCEL_SECONDS = 2 * POLITE_END_SECONDS
"""A cancellation travels through a connection of its own, for which the server starts a process."""
CANCEL_AGAIN_SECONDS = 0.2
"""A server forgets a cancellation that comes before the statement, or between two messages of it,
so one without an effect is repeated after this long."""

ISOLATION = "isolation level read committed"
"""Statements that count and then write need to see what was committed before they got their lock.
The default of a server, a database or a role may be a snapshot for the whole transaction."""

_savepoints = itertools.count(1)


@asynccontextmanager
async def bracketed(connection: Connection, timeout: float) -> AsyncIterator[None]:
    """One transaction, or one savepoint of the transaction that is open.

    The client libraries' own objects lose count when a cancellation meets BEGIN on its way.
    """
    nested, begun = connection.in_transaction, False
    begin, commit, rollback = _savepoint() if nested else (connection.begin, "commit", "rollback")
    try:
        await connection.command(begin, timeout)
        begun = True
        yield
        await connection.command(commit, timeout)
    except BaseException:
        # BEGIN or COMMIT may still be in flight, so what the connection says of its state may be
        # old; ROLLBACK outside a transaction does no harm, an unknown savepoint does.
        if not connection.closed and (begun or not nested):
            await _undo(connection, rollback, nested)
        raise


@asynccontextmanager
async def lifted(connection: Connection, seconds: float) -> AsyncIterator[None]:
    """Allow one statement more time than the server gives the others."""
    usual = connection.server_limit
    if usual is None:
        yield
        return
    # A busy server may take as long for this as for any other statement.
    patience = max(usual - CANCEL_SECONDS, POLITE_END_SECONDS)
    await connection.command(_limit(seconds + CANCEL_SECONDS), patience)
    try:
        yield
    finally:
        # A transaction that failed forgets the setting with everything else.
        if not connection.closed:
            with suppress(DatabaseError):
                await connection.command(_limit(usual), patience)


def _limit(seconds: float) -> str:
    return f"set statement_timeout = {int(seconds * 1000)}"


def _savepoint() -> tuple[str, str, str]:
    name = f"holdfast_{next(_savepoints)}"
    release = f"release savepoint {name}"
    return f"savepoint {name}", release, f"rollback to savepoint {name}; {release}"


async def _undo(connection: Connection, rollback: str, nested: bool) -> None:
    try:
        await connection.command(rollback, POLITE_END_SECONDS)
    except HoldfastError as error:
        # A savepoint that is not there any more was released before the cancellation came. The
        # transaction around it has failed now, and rolls back.
        released = nested and not isinstance(error, ConnectionLost)
        # Other failures do not show whether the statement took effect. A transaction that stayed
        # open would take in the next statements, and never commit them.
        if not released:
            connection.drop()
    except BaseException:
        # Cancelled once more: the end of the connection is the only rollback left.
        connection.drop()
        raise
