"""A driver over a transaction that belongs to the caller."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from holdfast.errors import CarrierError, DatabaseError, InvalidInput, NoTransaction
from holdfast.stores.postgres.carriers.home import no_tables
from holdfast.stores.postgres.drivers.base import BaseDriver, Loan
from holdfast.stores.postgres.drivers.connection_lock import (
    AsyncConnectionLock,
    ThreadConnectionLock,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from holdfast.stores.postgres.carriers.home import Home
    from holdfast.stores.postgres.drivers.base import Connection, OnNotify

_NO_TABLE = frozenset({"42P01", "3F000"})
"""SQLSTATEs of a table and of a schema that do not exist."""
_ABORTED = "25P02"
"""SQLSTATE of each statement after one that failed, until the rollback."""
_READ_ONLY = "25006"
"""SQLSTATE of a write in a transaction that may only read."""
BUSY = "another operation is in progress"
"""asyncpg, to the second of two tasks that use a connection at the same time."""

_locks: WeakValueDictionary[int, AsyncConnectionLock] = WeakValueDictionary()
"""By the id of the caller's object. A driver keeps both alive."""


class Carrier(Protocol):
    """Finds the connection of a caller's object, and begins its transaction as its library does."""

    owner: object
    """The caller's object."""
    what: str
    """The object in words, such as "the asyncpg connection"."""
    begin_with: str
    """The code with which a caller begins a transaction."""
    synchronous: bool
    """Whether `session` never suspends, so that no event loop is needed."""

    async def session(self, *, begin: bool) -> Connection:
        """Return the session of now: an ORM session may take another connection for the next
        transaction. With `begin` the library begins its transaction if it has only announced it.
        """
        ...


class JoinedDriver(BaseDriver):
    """Each call joins the transaction that the caller is in at that moment, or is refused."""

    def __init__(
        self, carrier: Carrier, home: Home | None = None, *, autocommit: bool = False
    ) -> None:
        super().__init__()
        self._home = home
        self.synchronous = carrier.synchronous
        self._carrier = carrier
        self._autocommit = autocommit
        self._joins: Connection | None = None
        # Calls through several `.on()` of one object take turns, as those of one `.on()` do.
        self._lock = (
            ThreadConnectionLock()
            if carrier.synchronous
            else _locks.setdefault(id(carrier.owner), AsyncConnectionLock())
        )

    @property
    def in_transaction(self) -> bool:
        return not self._autocommit or (self._joins is not None and self._joins.in_transaction)

    @asynccontextmanager
    async def _lend(self, seconds: float) -> AsyncIterator[Loan]:
        async with self._lock.taken(seconds) as deadline:
            try:
                session = self._joins = await self._joined()
                yield Loan(session, deadline)
            except DatabaseError as error:
                explained = self._explained(error)
                if explained is None:
                    raise
                raise explained from None

    def _explained(self, error: DatabaseError) -> CarrierError | None:
        """Name what the caller can do about it. None where the caller's connection is fine."""
        what = self._carrier.what
        if error.sqlstate == _ABORTED:
            return CarrierError(
                f"{what} is in a transaction that an error has ended; roll it back, or keep the "
                "statement that fails behind a savepoint"
            )
        if error.sqlstate == _READ_ONLY:
            return CarrierError(
                f"{what} may only read; begin a transaction that may write, on the primary server"
            )
        if error.sqlstate in _NO_TABLE:
            return CarrierError(no_tables(what))
        return in_use(what) if BUSY in str(error) else None

    async def _joined(self) -> Connection:
        session = await self._carrier.session(begin=not self._autocommit)
        if session.closed:
            raise CarrierError(
                f"{self._carrier.what} is closed; call .on() while it is open, before the block "
                "that owns it ends"
            )
        if not self._autocommit and not session.in_transaction:
            raise NoTransaction(self._carrier.what, self._carrier.begin_with)
        if self._home is not None:
            await self._home.check(self._carrier.what, session, synchronous=self.synchronous)
        return session

    async def listen(
        self,
        channel: str,
        on_notify: OnNotify,
        on_ready: Callable[[], None],
        *,
        own: str | None = None,
    ) -> None:
        raise InvalidInput("a transaction cannot listen; give workers a connection of their own")


def in_use(what: str) -> CarrierError:
    return CarrierError(
        f"{what} is in use by another task; await one call after the other, or give each task a "
        "session or connection of its own"
    )
