"""The protocol between the store and its drivers, and the common part of all drivers.

A *connection* is one connection of a client library, its errors translated and its calls bounded. A
driver lends a connection to each call: its only one, one of its own, or one of a caller's pool.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from holdfast.clock import monotonic
from holdfast.errors import InvalidInput
from holdfast.stores.postgres.drivers import listening
from holdfast.stores.postgres.drivers.pgbouncer import Pooler
from holdfast.stores.postgres.drivers.transactions import bracketed, lifted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.stores.postgres.drivers.connection_lock import ConnectionLock
    from holdfast.stores.postgres.drivers.overseer import Overseer

Row: TypeAlias = Sequence[Any]
OnNotify: TypeAlias = Callable[[str], None]

DEFAULT_TIMEOUT_SECONDS = 8.5
"""With what comes on top, a call on a connection that fell silent is over within ten seconds."""
SCRIPT_TIMEOUT_SECONDS = 600.0
"""Building an index on a large table is slow and still no sign of a dead server."""

LEAST_SECONDS = 0.01
"""A call on a connection that was waited for until the deadline still has this long."""


class Driver(Protocol):
    """How the store reaches PostgreSQL. Placeholders are $1 … $n, rows are read by position."""

    @property
    def dedicated(self) -> bool:
        """Whether fork("renew") opens a connection that another thread's event loop may use."""
        ...

    @property
    def spare(self) -> bool:
        """Whether a statement that takes minutes leaves a connection to the others."""
        ...

    @property
    def in_transaction(self) -> bool:
        """Whether a statement that fails takes others of the same transaction with it."""
        ...

    concurrent: bool
    """Whether several statements may be in flight at once."""
    autocommits: bool
    """Whether each statement commits by itself: no transaction of a caller's can be around it."""
    synchronous: bool
    """Whether its coroutines never suspend, so that no event loop is needed."""
    reconnects: bool
    """Whether a lost connection is replaced by the next call."""

    @property
    def timeout(self) -> float:
        """Seconds within which a statement is over."""
        ...

    @property
    def place(self) -> str | None:
        """The servers and the database in words; None where only the caller knows them."""
        ...

    async def fetch(
        self, sql: str, args: Sequence[object] = (), *, timeout: float | None = None
    ) -> Sequence[Row]:
        """Run one statement once; past the deadline it is cancelled (DeadlineExceeded)."""
        ...

    async def script(self, sql: str) -> None:
        """Run several statements without arguments."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait between two tries of a statement."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Driver]:
        """A driver whose statements share one transaction (a savepoint inside another)."""
        ...

    async def listen(
        self,
        channel: str,
        on_notify: OnNotify,
        on_ready: Callable[[], None],
        *,
        own: str | None = None,
    ) -> None:
        """Call on_ready once LISTEN is in force, then on_notify(payload), until cancelled.

        `own` is a second channel, on which no other listener is.
        """
        ...

    def fork(self, purpose: str) -> Driver:
        """A driver for a purpose of the connection plan. A caller's connection returns itself."""
        ...

    async def close(self) -> None:
        """Close what the driver opened itself; a caller's connection stays open."""
        ...


class Connection(Protocol):
    """One connection of a client library. A lock keeps one statement in flight at a time."""

    server_limit: float | None
    """Seconds after which the server itself ends a statement, where we have set that."""

    @property
    def native(self) -> object:
        """The client library's own connection, of which there is one for a session."""
        ...

    @property
    def begin(self) -> str:
        """The statement after which an idle connection is in a transaction."""
        ...

    @property
    def pid(self) -> int:
        """The server's process, as its greeting says."""
        ...

    @property
    def closed(self) -> bool: ...
    @property
    def in_transaction(self) -> bool: ...

    def new_lock(self) -> ConnectionLock: ...

    async def fetch(self, sql: str, args: Sequence[object], timeout: float) -> Sequence[Row]: ...
    async def script(self, sql: str, timeout: float) -> None: ...
    async def command(self, sql: str, timeout: float) -> None:
        """Run one word of transaction control as it stands."""
        ...

    async def pooled(self, timeout: float) -> bool:
        """Whether the server's process is not the one that the connection was greeted by."""
        ...

    async def subscribe(self, channel: str, on_notify: OnNotify, timeout: float) -> None: ...
    async def unsubscribe(self, channel: str, on_notify: OnNotify) -> None: ...
    async def idle(self, seconds: float) -> bool:
        """Wait, without the lock, until something may have arrived (True) or time is up."""
        ...

    async def receive(self) -> None:
        """Deliver what has arrived; raise ConnectionLost when it was the end."""
        ...

    def drop(self) -> None:
        """Give the connection up at once, without a word to the server."""
        ...

    async def close(self) -> None: ...


class Loan(NamedTuple):
    """A connection for one call, and the instant (monotonic) by which the call must be over."""

    connection: Connection
    deadline: float

    @property
    def left(self) -> float:
        return max(self.deadline - monotonic(), LEAST_SECONDS)


class BaseDriver(ABC):
    """The calls of a driver, each on a connection that `_lend` gives for its duration."""

    concurrent = False
    autocommits = False
    synchronous = False
    reconnects = False

    def __init__(
        self, *, timeout: float = DEFAULT_TIMEOUT_SECONDS, pooler: Pooler | None = None
    ) -> None:
        self.timeout = positive("timeout", timeout)
        self._pooler = pooler or Pooler()

    @property
    def dedicated(self) -> bool:
        return False

    @property
    def spare(self) -> bool:
        return False

    @property
    def in_transaction(self) -> bool:
        return False

    @property
    def place(self) -> str | None:
        return None

    @abstractmethod
    def _lend(self, seconds: float) -> AbstractAsyncContextManager[Loan]: ...

    async def fetch(
        self, sql: str, args: Sequence[object] = (), *, timeout: float | None = None
    ) -> Sequence[Row]:
        async with self._lend(self.timeout if timeout is None else timeout) as loan:
            connection, left = loan.connection, loan.left
            limit = connection.server_limit
            if self._pooler.snapshots or (limit is not None and left > limit):
                return await self._fetch_bracketed(loan, sql, args)
            return await connection.fetch(sql, args, left)

    async def _fetch_bracketed(self, loan: Loan, sql: str, args: Sequence[object]) -> Sequence[Row]:
        """Fetch with more time or an isolation level of its own, where a statement needs that."""
        connection, limit = loan.connection, loan.connection.server_limit
        if limit is not None and loan.left > limit:
            async with lifted(connection, loan.left):
                return await connection.fetch(sql, args, loan.left)
        if connection.in_transaction:
            return await connection.fetch(sql, args, loan.left)
        async with bracketed(connection, loan.left):
            return await connection.fetch(sql, args, loan.left)

    async def script(self, sql: str) -> None:
        async with (
            self._lend(self.timeout) as loan,
            lifted(loan.connection, SCRIPT_TIMEOUT_SECONDS),
        ):
            work = loan.connection.script(sql, SCRIPT_TIMEOUT_SECONDS)
            # Behind a pooler it is unknown which process of the server it is.
            overseer = None if self._pooler.seen else self._overseeing()
            await (work if overseer is None else overseer.over(loan.connection, work))

    def _overseeing(self) -> Overseer | None:
        return None

    async def pause(self, seconds: float) -> None:
        if self.synchronous:
            time.sleep(seconds)  # noqa: ASYNC251 (there is no event loop to give way to)
        else:
            await asyncio.sleep(seconds)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Driver]:
        async with self._lend(self.timeout) as loan, bracketed(loan.connection, self.timeout):
            yield SingleDriver(
                loan.connection,
                timeout=self.timeout,
                pooler=self._pooler,
                overseer=self._overseeing(),
            )

    @abstractmethod
    async def listen(
        self,
        channel: str,
        on_notify: OnNotify,
        on_ready: Callable[[], None],
        *,
        own: str | None = None,
    ) -> None: ...

    def fork(self, purpose: str) -> Driver:
        return self

    async def close(self) -> None:
        return None


class SingleDriver(BaseDriver):
    """One connection that a caller opened, or that is in a transaction. Its users share it."""

    def __init__(
        self,
        connection: Connection,
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        pooler: Pooler | None = None,
        overseer: Overseer | None = None,
    ) -> None:
        super().__init__(timeout=timeout, pooler=pooler)
        self._connection = connection
        self._lock = connection.new_lock()
        self._overseer = overseer

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def _overseeing(self) -> Overseer | None:
        return self._overseer

    @asynccontextmanager
    async def _lend(self, seconds: float) -> AsyncIterator[Loan]:
        async with self._lock.taken(seconds) as deadline:
            yield Loan(self._connection, deadline)

    async def listen(
        self,
        channel: str,
        on_notify: OnNotify,
        on_ready: Callable[[], None],
        *,
        own: str | None = None,
    ) -> None:
        async with self._lend(self.timeout) as loan:
            pooled = await listening.is_pooled(loan)
        if pooled:
            # Only a message through another connection could show whether it receives
            # notifications.
            self._pooler.warn_deaf("the server")
            await asyncio.Event().wait()
        await listening.attend(self._connection, self._lock, channel, on_notify, on_ready, own=own)


def positive(name: str, seconds: float) -> float:
    if not 0 < seconds < float("inf"):
        raise InvalidInput(f"{name} must be a positive number of seconds, got {seconds!r}")
    return seconds
