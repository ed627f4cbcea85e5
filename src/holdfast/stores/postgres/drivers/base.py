"""What the store asks of a driver, and what all drivers do alike.

A *session* is one connection of a client library, its errors translated. A driver lends a session
to each call: its only one, one opened on demand, or one of a pool.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

from holdfast.errors import (
    ConnectionFailed,
    ConnectionLost,
    DatabaseError,
    HoldfastError,
    InvalidInput,
)
from holdfast.stores.postgres.drivers.dsn import parse
from holdfast.stores.postgres.drivers.failures import REPEATABLE, lost, pauses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Row: TypeAlias = Sequence[Any]
OnNotify: TypeAlias = Callable[[str], None]

TIMEOUT = 10.0
CONNECT_TIMEOUT = 5.0
# Building an index on a large table is slow and still no sign of a dead server.
SCRIPT_TIMEOUT = 600.0
# A polite end (cancel, ROLLBACK, UNLISTEN) is answered at once, or the server is gone.
GRACE = 0.5
PING_EVERY = 10.0
PING_TIMEOUT = 5.0

_log = logging.getLogger(__name__)
_savepoints = itertools.count(1)


class Driver(Protocol):
    """How the store reaches PostgreSQL. Placeholders are $1 … $n, rows are read by position."""

    dedicated: bool
    """Whether fork() gives a connection of its own, fit for another thread's event loop."""
    concurrent: bool
    """Whether several statements may be in flight at once."""

    async def fetch(
        self, sql: str, args: Sequence[object] = (), *, timeout: float | None = None
    ) -> Sequence[Row]:
        """Run one statement; past the deadline the socket is dropped (DeadlineExceeded)."""
        ...

    async def script(self, sql: str) -> None:
        """Run several statements without arguments."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Driver]:
        """A driver whose statements share one transaction (a savepoint inside another)."""
        ...

    async def listen(self, channel: str, on_notify: OnNotify, on_ready: Callable[[], None]) -> None:
        """Call on_ready once LISTEN is in force, then on_notify(payload), until cancelled."""
        ...

    def fork(self, role: str) -> Driver:
        """A sibling with its own connection where the driver is dedicated, else itself."""
        ...

    async def close(self) -> None:
        """Close what the driver opened itself; a caller's connection stays open."""
        ...


class Session(Protocol):
    """One connection; callers hold its lock, so that one statement is in flight."""

    @property
    def begin(self) -> str:
        """The statement after which an idle connection is in a transaction."""
        ...

    @property
    def closed(self) -> bool: ...
    @property
    def in_transaction(self) -> bool: ...

    def new_lock(self) -> AbstractAsyncContextManager[object]: ...
    async def pause(self, seconds: float) -> None: ...

    async def fetch(self, sql: str, args: Sequence[object], timeout: float) -> Sequence[Row]: ...
    async def script(self, sql: str, timeout: float) -> None: ...
    async def command(self, sql: str, timeout: float) -> None:
        """Run one word of transaction control as it stands."""
        ...

    async def subscribe(self, channel: str, on_notify: OnNotify, timeout: float) -> None: ...
    async def unsubscribe(self, channel: str, on_notify: OnNotify) -> None: ...
    async def idle(self, seconds: float) -> bool:
        """Wait, without the lock, until something may have arrived (True) or time is up."""
        ...

    async def receive(self) -> None:
        """Hand out what has arrived; raise ConnectionLost when it was the end."""
        ...

    def drop(self) -> None:
        """Give the connection up at once, without a word to the server."""
        ...

    async def close(self) -> None: ...


class LendingDriver(ABC):
    """The calls of a driver, each on a session that `_lend` gives for its duration."""

    dedicated = False
    concurrent = False

    def __init__(self, *, timeout: float = TIMEOUT) -> None:
        self._timeout = _positive("timeout", timeout)

    @abstractmethod
    def _lend(self) -> AbstractAsyncContextManager[Session]: ...

    async def fetch(
        self, sql: str, args: Sequence[object] = (), *, timeout: float | None = None
    ) -> Sequence[Row]:
        limit = self._timeout if timeout is None else timeout
        async with self._lend() as session:
            for pause in pauses():
                try:
                    return await session.fetch(sql, args, limit)
                except DatabaseError as error:
                    # Inside a transaction the statements before it are undone as well.
                    if error.sqlstate not in REPEATABLE or session.in_transaction:
                        raise
                await session.pause(pause)
            return await session.fetch(sql, args, limit)

    async def script(self, sql: str) -> None:
        async with self._lend() as session:
            await session.script(sql, SCRIPT_TIMEOUT)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Driver]:
        async with self._lend() as session, _bracketed(session, self._timeout):
            yield SessionDriver(session, timeout=self._timeout)

    @abstractmethod
    async def listen(
        self, channel: str, on_notify: OnNotify, on_ready: Callable[[], None]
    ) -> None: ...

    def fork(self, role: str) -> Driver:
        return self

    async def close(self) -> None:
        return None


class SingleDriver(LendingDriver):
    """A driver of one session, which its callers share by turns."""

    _lock: AbstractAsyncContextManager[object]

    @abstractmethod
    async def _current(self) -> Session: ...

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[Session]:
        async with self._lock:
            yield await self._current()

    async def listen(self, channel: str, on_notify: OnNotify, on_ready: Callable[[], None]) -> None:
        async with self._lend() as session:
            pass
        await attend(session, self._lock, channel, on_notify, on_ready)


class SessionDriver(SingleDriver):
    """One session that somebody else opened."""

    def __init__(self, session: Session, *, timeout: float = TIMEOUT) -> None:
        super().__init__(timeout=timeout)
        self._session = session
        self._lock = session.new_lock()

    async def _current(self) -> Session:
        return self._session


class DsnDriver(SingleDriver):
    """One session of our own: opened on first use, and again by the call after it was lost.

    Behind PgBouncer in transaction mode set statement_cache_size to 0.
    """

    dedicated = True

    def __init__(
        self,
        dsn: str,
        *,
        role: str = "main",
        timeout: float = TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
        statement_cache_size: int = 100,
    ) -> None:
        super().__init__(timeout=timeout)
        self._target = parse(dsn)
        self._role = role
        self._connect_timeout = _positive("connect_timeout", connect_timeout)
        self._statement_cache_size = statement_cache_size
        self._lock = asyncio.Lock()
        self._session: Session | None = None
        self._closed = False

    @abstractmethod
    async def _open(self) -> Session: ...

    def fork(self, role: str) -> Self:
        return type(self)(
            self._target.dsn,
            role=role,
            timeout=self._timeout,
            connect_timeout=self._connect_timeout,
            statement_cache_size=self._statement_cache_size,
        )

    @property
    def _application_name(self) -> str:
        return f"holdfast:{self._role}"

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[Session]:
        async with super()._lend() as session:
            try:
                yield session
            except ConnectionLost:
                session.drop()
                raise

    async def _current(self) -> Session:
        if self._closed:
            raise ConnectionFailed(f"the driver {self._application_name!r} is closed; make another")
        if self._session is None or self._session.closed:
            self._session = await self._open()
            if self._closed:
                await self._session.close()
        return self._session

    async def close(self) -> None:
        # Without the lock: a statement that hangs must not keep the process from ending.
        self._closed = True
        if self._session is not None:
            await self._session.close()


def _positive(name: str, seconds: float) -> float:
    if not 0 < seconds < float("inf"):
        raise InvalidInput(f"{name} must be a positive number of seconds, got {seconds!r}")
    return seconds


@asynccontextmanager
async def _bracketed(session: Session, timeout: float) -> AsyncIterator[None]:
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


async def attend(
    session: Session,
    lock: AbstractAsyncContextManager[object],
    channel: str,
    on_notify: OnNotify,
    on_ready: Callable[[], None],
) -> None:
    """Listen on one session until cancelled; the lock is free while nothing arrives."""
    ear = _Ear(on_notify)
    try:
        async with lock:
            await session.subscribe(channel, ear, PING_TIMEOUT)
        on_ready()
        while True:
            arrived = await session.idle(PING_EVERY)
            async with lock:
                await (session.receive() if arrived else _ping(session))
    except ConnectionLost:
        session.drop()
        raise
    finally:
        ear.open = False
        with suppress(DatabaseError, TimeoutError):
            async with asyncio.timeout(GRACE), lock:
                await session.unsubscribe(channel, ear)


class _Ear:
    """Calls on_notify while listen() runs, even if the server could not be told of its end."""

    def __init__(self, on_notify: OnNotify) -> None:
        self._on_notify = on_notify
        self.open = True

    def __call__(self, payload: str) -> None:
        if not self.open:
            return
        try:
            self._on_notify(payload)
        except Exception:
            # It runs inside whatever statement was in flight, which must not fail for it.
            _log.exception("a notification could not be handled")


async def _ping(session: Session) -> None:
    """A peer that vanished keeps the socket open and silent: only a question tells."""
    if session.closed:
        raise lost("it was closed")
    try:
        await session.fetch("select 1", (), PING_TIMEOUT)
    except ConnectionLost:
        raise
    except DatabaseError:
        # An answer all the same, as in a caller's transaction that has failed.
        return
    await session.receive()
