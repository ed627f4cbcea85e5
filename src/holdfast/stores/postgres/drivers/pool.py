"""Our own connections: opened on demand, replaced when lost, closed when they are idle."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from holdfast.clock import monotonic
from holdfast.errors import (
    ConnectionFailed,
    ConnectionLost,
    DatabaseError,
    DeadlineExceeded,
    WrongEventLoop,
)
from holdfast.stores.postgres.drivers.base import DEFAULT_TIMEOUT_SECONDS, Loan
from holdfast.stores.postgres.drivers.connection_lock import AsyncConnectionLock, busy
from holdfast.stores.postgres.drivers.dsn import parse
from holdfast.stores.postgres.drivers.error_mapping import FULL, UNPREPARED, unreachable
from holdfast.stores.postgres.drivers.listening import is_pooled
from holdfast.stores.postgres.drivers.pgbouncer import Pooler
from holdfast.stores.postgres.drivers.transactions import CANCEL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.stores.postgres.drivers.base import Connection
    from holdfast.stores.postgres.drivers.dsn import Target

DEFAULT_CONNECT_TIMEOUT_SECONDS = 5.0
_LEAST_CONNECT_SECONDS = 2.0
_LEAST_SECONDS = 0.05
_FIRST_FULL_PAUSE_SECONDS = 0.25
_LONGEST_FULL_PAUSE_SECONDS = 2.0
"""Time without a try after the server had no free connection: short beside a lease."""

GROW_AFTER_SECONDS = 0.01
"""Another connection is opened when a statement has waited this long for the first."""
IDLE_SECONDS = 10.0
"""A connection beside the first is closed when it was not needed for this long."""

_SETTINGS = """
select set_config('jit', 'off', false),
       set_config('default_transaction_isolation', 'read committed', false),
       case current_setting('statement_timeout')
           when '0' then set_config('statement_timeout', $1::text, false) end,
       case current_setting('lock_timeout')
           when '0' then set_config('lock_timeout', $1::text, false) end,
       case when current_setting('client_connection_check_interval', true) = '0'
                 and version() ~ 'linux'
           then set_config('client_connection_check_interval', '2s', false) end
"""
"""What a session of our own has. Behind a pooler others would inherit it.

Among dead rows the planner expects much work of statements that do little, and has them compiled
each time, which takes up to a second: no jit. The default isolation may be one that counts in an
old snapshot. A statement whose client is gone, or cannot be reached, ends on the server soon after
the client's own deadline, or when the server finds the socket closed."""

_STATEMENT_TIMEOUT_COLUMN = 2
_DEFAULT_ISOLATION = "select current_setting('default_transaction_isolation')"

_log = logging.getLogger(__name__)


class OpenConnection(Protocol):
    """How a client library connects."""

    async def __call__(
        self, target: Target, *, application_name: str, seconds: float, cache_size: int
    ) -> Connection: ...


@dataclass(frozen=True)
class Address:
    """A server, and everything that a connection to it needs."""

    target: Target
    library: OpenConnection
    pooler: Pooler
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    connect_timeout: float = DEFAULT_CONNECT_TIMEOUT_SECONDS
    statement_cache_size: int = 100

    def at(self, dsn: str) -> Address:
        """The same, for another server."""
        target = parse(dsn)
        return replace(self, target=target, pooler=Pooler(seen=target.pooled))

    async def open(self, purpose: str, until: float) -> Connection:
        """Connect, recognize a pooler, and set the session up."""
        hosts, longest = len(self.target.hosts), self.connect_timeout
        patience = max(longest / hosts, min(longest, _LEAST_CONNECT_SECONDS))
        patience = min(patience, (until - monotonic()) / hosts)
        connect = partial(
            self.library, self.target, application_name=f"holdfast:{purpose}", seconds=patience
        )
        cache_size = 0 if self.pooler.seen else self.statement_cache_size
        connection = await connect(cache_size=cache_size)
        try:
            deadline = max(until, monotonic() + 1)
            if not self.pooler.seen and await is_pooled(Loan(connection, deadline)):
                self.pooler.notice(self.target)
                if cache_size:
                    await connection.close()
                    connection = await connect(cache_size=0)
            await self._set_up(Loan(connection, deadline))
        except ConnectionFailed:
            connection.drop()
            raise
        except DatabaseError as error:
            connection.drop()
            raise unreachable(self.target, error, error.sqlstate) from None
        except BaseException:
            connection.drop()
            raise
        return connection

    async def _set_up(self, loan: Loan) -> None:
        connection = loan.connection
        if self.pooler.seen:
            [[level]] = await connection.fetch(_DEFAULT_ISOLATION, (), loan.left)
            self.pooler.notice_isolation(self.target, level)
            return
        # The server ends a statement only after its client had the time to cancel it.
        limit = self.timeout + CANCEL_SECONDS
        [settings] = await connection.fetch(_SETTINGS, (f"{int(limit * 1000)}ms",), loan.left)
        # A limit that the owner of the server has set is not ours to lift.
        connection.server_limit = None if settings[_STATEMENT_TIMEOUT_COLUMN] is None else limit


class ConnectionPool:
    """At most `most` connections for the statements of one event loop.

    The first is opened on first use and replaced when it is lost. Further ones are opened while
    statements wait, and closed when they are idle. Where none can be had, the statements go on
    waiting for those that are open.
    """

    def __init__(self, address: Address, purpose: str, most: int) -> None:
        self.address = address
        self.lock = AsyncConnectionLock()
        self.purpose = purpose
        self.most = most
        self._places = 1
        self._free: list[Connection] = []
        """The one used last is at the end, so that the others become idle."""
        self._open: set[Connection] = set()
        self._full = _FullServer()
        self._closed = False
        self._home: asyncio.AbstractEventLoop | None = None
        """The event loop that its connections belong to."""
        self._timer: asyncio.TimerHandle | None = None
        self._growing: asyncio.Task[None] | None = None
        self._least_free = 0
        self._closing: set[asyncio.Task[None]] = set()

    async def take(self, purpose: AsyncConnectionLock, seconds: float) -> Loan:
        """Wait for the calls of the same purpose before this one, then for a connection.

        The wait goes on while other calls get their answers.
        """
        if purpose.free and self.lock.free and self._free and not self._closed:
            connection = self._free.pop()
            if not connection.closed:
                purpose.free -= 1
                self.lock.free -= 1
                self._least_free = min(self._least_free, len(self._free))
                return Loan(connection, monotonic() + seconds)
            self._open.discard(connection)
        deadline = await purpose.take(seconds)
        try:
            return await self._wait(seconds, deadline)
        except BaseException as error:
            purpose.leave(error)
            raise

    async def _wait(self, seconds: float, deadline: float) -> Loan:
        """Wait for a connection until the deadline of a call that was given `seconds`."""
        if self._places < self.most and not self.lock.free and self._growing is None:
            self._growing = asyncio.create_task(self._grow())
        deadline = await self.lock.take(deadline - monotonic())
        try:
            # Those that have waited for a silent server do not wait for it again one by one.
            until = deadline + max(0.0, self.address.connect_timeout - seconds)
            connection = await self._current(until, seconds)
        except BaseException as error:
            if self._places > 1 and isinstance(error, ConnectionFailed) and error.sqlstate == FULL:
                # The others are still there: go on with one place less.
                self._places -= 1
                return await self._wait(seconds, deadline)
            self.lock.leave(error)
            raise
        # After a slow connect the statement still has a third of the time.
        return Loan(connection, max(deadline, monotonic() + seconds / 3))

    def belong_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve this event loop. Connections of one that has ended are dropped."""
        home, self._home = self._home, loop
        if home is None or home is loop:
            return
        if home.is_running():
            self._home = home
            raise WrongEventLoop(
                f"the connection {self.purpose!r} is in use by another event loop, which still "
                "runs; make a Holdfast for each event loop, or enqueue with enqueue_sync() from "
                "other threads"
            )
        self._abandon()

    def _abandon(self) -> None:
        """Drop everything that belongs to an event loop that has ended."""
        for connection in self._open:
            # Whatever its closed loop says about it.
            with suppress(Exception):
                connection.drop()
        self._open.clear()
        self._free.clear()
        self._closing.clear()
        self.lock, self._places = AsyncConnectionLock(), 1
        self._timer = self._growing = None

    def leave(
        self, purpose: AsyncConnectionLock, connection: Connection, error: BaseException | None
    ) -> None:
        """Return a connection after the call for which it was taken."""
        if error is None:
            # One that was lost since is discarded when the next call takes it.
            self._free.append(connection)
            if not purpose.waiting and not self.lock.waiting:
                purpose.free += 1
                self.lock.free += 1
                return
        else:
            self._drop_broken(connection, error)
            if connection.closed:
                self._open.discard(connection)
            else:
                self._free.append(connection)
        self.lock.leave(error)
        purpose.leave(error)

    def _drop_broken(self, connection: Connection, error: BaseException) -> None:
        if isinstance(error, DatabaseError) and error.sqlstate in UNPREPARED:
            self.address.pooler.notice(self.address.target)
            connection.drop()
        elif isinstance(error, DeadlineExceeded):
            # The connection has ended itself unless the server confirmed the statement's end.
            return
        elif isinstance(error, (ConnectionFailed, ConnectionLost)):
            connection.drop()

    async def _current(self, until: float, seconds: float) -> Connection:
        if self._closed:
            raise ConnectionFailed(
                f"the driver {self.purpose!r} is closed; enter the queue "
                "again with `async with`, or make another driver",
                closed=True,
            )
        while self._free:
            connection = self._free.pop()
            if not connection.closed:
                self._least_free = min(self._least_free, len(self._free))
                return connection
            self._open.discard(connection)
        if until - monotonic() < _LEAST_SECONDS:
            raise busy(seconds)
        return await self._connect(until)

    async def _connect(self, until: float) -> Connection:
        connection = await self._full.guard(partial(self.address.open, self.purpose, until))
        self._open.add(connection)
        if self._closed:
            await connection.close()
        return connection

    async def _grow(self) -> None:
        """Add a connection if statements still wait after a moment."""
        try:
            await asyncio.sleep(GROW_AFTER_SECONDS)
            if self.lock.free or self._closed:
                return
            connection = await self._connect(monotonic() + self.address.connect_timeout)
        except DatabaseError as error:
            _log.debug("no further connection could be opened: %s", error)
            return
        finally:
            self._growing = None
        self._free.append(connection)
        self._places += 1
        self.lock.add_place()
        self._watch_idle()

    def _watch_idle(self) -> None:
        if self._timer is None and self._places > 1:
            self._least_free = len(self._free)
            self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._shrink)

    def _shrink(self) -> None:
        """Close the connection that was not needed since the last check."""
        self._timer = None
        if self._closed:
            return
        needless = self._least_free > 0 or self._places > self.most
        if needless and self._free and self.lock.free:
            self._places -= 1
            self.lock.free -= 1
            idle = self._free.pop(0)
            self._open.discard(idle)
            closing = asyncio.get_running_loop().create_task(_close(idle))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._watch_idle()

    async def close(self) -> None:
        # Without the lock: a statement that hangs must not keep the process from ending.
        self._closed = True
        if self._home is not None and self._home.is_closed():
            self._abandon()
        if self._timer is not None:
            self._timer.cancel()
        if self._growing is not None:
            self._growing.cancel()
        for connection in tuple(self._open):
            await _close(connection)


async def _close(connection: Connection) -> None:
    with suppress(DatabaseError):
        await connection.close()


class _FullServer:
    """Keeps a pool from trying again and again while the server has no free connection.

    Each try costs the server a process. Calls in the pause after a refusal fail with its reason.
    """

    def __init__(self) -> None:
        self._refusal: ConnectionFailed | None = None
        self._tries = 0
        self._until = 0.0

    async def guard(self, connect: Callable[[], Awaitable[Connection]]) -> Connection:
        if self._refusal is not None and monotonic() < self._until:
            raise ConnectionFailed(str(self._refusal), sqlstate=FULL)
        try:
            connection = await connect()
        except ConnectionFailed as error:
            if error.sqlstate == FULL:
                pause = min(_LONGEST_FULL_PAUSE_SECONDS, _FIRST_FULL_PAUSE_SECONDS * 2**self._tries)
                # Jitter keeps a fleet from coming back in step.
                self._until = monotonic() + pause * random.uniform(0.5, 1.0)  # noqa: S311
                self._refusal, self._tries = error, min(self._tries + 1, 10)
            raise
        self._refusal, self._tries = None, 0
        return connection
