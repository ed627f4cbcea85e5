"""Transactions in words of SQL: the client libraries' own objects can lose count."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.stores.postgres.drivers.base import Session

# A polite end (cancel, ROLLBACK, UNLISTEN) is answered at once, or the server is gone.
GRACE = 0.5

_savepoints = itertools.count(1)


@asynccontextmanager
async def bracketed(session: Session, timeout: float) -> AsyncIterator[None]:
    """One transaction, or one savepoint of the transaction that is open.

    The client libraries' own objects lose count when a cancellation meets BEGIN on its way.
    """
    nested, begun = session.in_transaction, False
    begin, commit, rollback = _savepoint() if nested else (session.begin, "commit", "rollback")
    try:
        await session.command(begin, timeout)
        begun = True
        yield
        await session.command(commit, timeout)
    except BaseException:
        # BEGIN or COMMIT may still be in flight, so what the connection says of its state may be
        # old; ROLLBACK outside a transaction does no harm, an unknown savepoint does.
        if not session.closed and (begun or not nested):
            await _undo(session, rollback)
        raise


def _savepoint() -> tuple[str, str, str]:
    name = f"holdfast_{next(_savepoints)}"
    release = f"release savepoint {name}"
    return f"savepoint {name}", release, f"rollback to savepoint {name}; {release}"


async def _undo(session: Session, rollback: str) -> None:
    try:
        await session.command(rollback, GRACE)
    except HoldfastError:
        return
    except BaseException:
        # Cancelled once more: the end of the connection is the only rollback left.
        session.drop()
        raise
