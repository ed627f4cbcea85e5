"""What the store asks of a driver, and what all drivers do alike.

A *session* is one connection of a client library, its errors translated. A driver lends a session
to each call: its only one, one opened on demand, or one of a pool.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed, ConnectionLost, DatabaseError, InvalidInput
from holdfast.stores.postgres.drivers.bracket import GRACE, bracketed
from holdfast.stores.postgres.drivers.failures import REPEATABLE, lost, pauses
from holdfast.stores.postgres.drivers.pooling import Pooling

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.stores.postgres.drivers.overseer import Overseer
    from holdfast.stores.postgres.drivers.turns import Turns

Row: TypeAlias = Sequence[Any]
OnNotify: TypeAlias = Callable[[str], None]

# With what comes on top, a call on a connection that fell silent is over within ten seconds.
TIMEOUT = 8.5
# Building an index on a large table is slow and still no sign of a dead server.
SCRIPT_TIMEOUT = 600.0
PING_EVERY = 10.0
PING_TIMEOUT = 5.0

# A lock that a listener shares while it needs to be told of new work: whoever enqueues sees that
# nobody has it, and spares itself the NOTIFY. It ends with the session.
NEED = "select pg_advisory_lock_shared(hashtextextended('listeners of ' || $1::text, 0))"
NEED_NOT = "select pg_advisory_unlock_shared(hashtextextended('listeners of ' || $1::text, 0))"

_LISTENS = (
    "select $1::text in (select pg_listening_channels()),"
    " current_setting('transaction_read_only') = 'on'"
)
_LEAST = 0.01

_log = logging.getLogger(__name__)


class Driver(Protocol):
    """How the store reaches PostgreSQL. Placeholders are $1 … $n, rows are read by position."""

    dedicated: bool
    """Whether fork() gives a connection of its own, fit for another thread's event loop."""
    concurrent: bool
    """Whether several statements may be in flight at once."""
    autocommits: bool
    """Whether each statement commits by itself: no transaction of a caller's can be around it."""

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
    """One connection; callers take turns on it, so that one statement is in flight."""

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

    def new_turns(self) -> Turns: ...
    async def pause(self, seconds: float) -> None: ...

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
        """Wait, out of turn, until something may have arrived (True) or time is up."""
        ...

    async def receive(self) -> None:
        """Hand out what has arrived; raise ConnectionLost when it was the end."""
        ...

    def drop(self) -> None:
        """Give the connection up at once, without a word to the server."""
        ...

    async def close(self) -> None: ...


class Loan(NamedTuple):
    """A session for one call."""

    session: Session
    deadline: float

    @property
    def left(self) -> float:
        return max(self.deadline - monotonic(), _LEAST)


class LendingDriver(ABC):
    """The calls of a driver, each on a session that `_lend` gives for its duration."""

    dedicated = False
    concurrent = False
    autocommits = False

    def __init__(self, *, timeout: float = TIMEOUT) -> None:
        self._timeout = positive("timeout", timeout)
        self._pooling = Pooling()
        self._overseer: Overseer | None = None

    @property
    def timeout(self) -> float:
        return self._timeout

    @property
    def place(self) -> str | None:
        return None

    @abstractmethod
    def _lend(self, seconds: float) -> AbstractAsyncContextManager[Loan]: ...

    async def fetch(
        self, sql: str, args: Sequence[object] = (), *, timeout: float | None = None
    ) -> Sequence[Row]:
        async with self._lend(self._timeout if timeout is None else timeout) as loan:
            session = loan.session
            for pause in pauses():
                try:
                    return await session.fetch(sql, args, loan.left)
                except DatabaseError as error:
                    # Inside a transaction the statements before it are undone as well.
                    if error.sqlstate not in REPEATABLE or session.in_transaction:
                        raise
                await session.pause(pause)
            return await session.fetch(sql, args, loan.left)

    async def script(self, sql: str) -> None:
        async with self._lend(self._timeout) as loan:
            work = loan.session.script(sql, SCRIPT_TIMEOUT)
            # Behind a pooler nobody knows which of the server's processes it is.
            if self._overseer is None or self._pooling.seen:
                await work
            else:
                await self._overseer.over(loan.session, work)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Driver]:
        async with self._lend(self._timeout) as (session, _), bracketed(session, self._timeout):
            inside = SessionDriver(session, timeout=self._timeout)
            inside._pooling, inside._overseer = self._pooling, self._overseer
            yield inside

    @abstractmethod
    async def listen(
        self, channel: str, on_notify: OnNotify, on_ready: Callable[[], None]
    ) -> None: ...

    def fork(self, role: str) -> Driver:
        return self

    async def close(self) -> None:
        return None


class SessionDriver(LendingDriver):
    """One session that somebody else opened, which its callers share by turns."""

    def __init__(self, session: Session, *, timeout: float = TIMEOUT) -> None:
        super().__init__(timeout=timeout)
        self._session = session
        self._turns = session.new_turns()

    @asynccontextmanager
    async def _lend(self, seconds: float) -> AsyncIterator[Loan]:
        async with self._turns.taken(seconds) as deadline:
            yield Loan(self._session, deadline)

    async def listen(self, channel: str, on_notify: OnNotify, on_ready: Callable[[], None]) -> None:
        async with self._lend(self._timeout) as loan:
            pooled = await is_pooled(loan)
        if pooled:
            # Whether it hears anything could only be asked through another connection.
            self._pooling.deaf("the server")
            await asyncio.Event().wait()
        await attend(self._session, self._turns, channel, on_notify, on_ready)


def positive(name: str, seconds: float) -> float:
    if not 0 < seconds < float("inf"):
        raise InvalidInput(f"{name} must be a positive number of seconds, got {seconds!r}")
    return seconds


async def is_pooled(loan: Loan) -> bool:
    """Whether there is a pooler in between; a caller's transaction that has failed cannot tell."""
    try:
        return await loan.session.pooled(loan.left)
    except (ConnectionFailed, ConnectionLost):
        raise
    except DatabaseError:
        return False


async def attend(
    session: Session,
    turns: Turns,
    channel: str,
    on_notify: OnNotify,
    on_ready: Callable[[], None],
    *,
    lasts: bool = True,
) -> None:
    """Listen on one session until cancelled; others have their turns while nothing arrives.

    A session that lasts is left as it was found.
    """
    ear = _Ear(session, channel, on_notify)
    try:
        async with turns.taken(TIMEOUT):
            await session.subscribe(channel, ear, PING_TIMEOUT)
            await session.fetch(NEED, (channel,), PING_TIMEOUT)
        on_ready()
        while True:
            arrived = await session.idle(PING_EVERY)
            async with turns.taken(TIMEOUT):
                await (session.receive() if arrived else _ping(ear))
    except ConnectionLost:
        session.drop()
        raise
    finally:
        ear.open = False
        with suppress(DatabaseError, TimeoutError):
            async with asyncio.timeout(GRACE), turns.taken(GRACE):
                await session.unsubscribe(channel, ear)
                if lasts:
                    await session.fetch(NEED_NOT, (channel,), GRACE)


class _Ear:
    """Calls on_notify while listen() runs, even if the server could not be told of its end."""

    def __init__(self, session: Session, channel: str, on_notify: OnNotify) -> None:
        self.session = session
        self.channel = channel
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


async def _ping(ear: _Ear) -> None:
    """A peer that vanished keeps the socket open and silent: only a question tells.

    And only the server knows whether the session that answers is still the one that listens.
    """
    session = ear.session
    if session.closed:
        raise lost("it was closed")
    try:
        found = await session.fetch(_LISTENS, (ear.channel,), PING_TIMEOUT)
    except ConnectionLost:
        raise
    except DatabaseError:
        # An answer all the same, as in a caller's transaction that has failed.
        return
    [[listens, read_only]] = found
    if not session.in_transaction:
        # LISTEN in a transaction takes effect when it commits.
        if not listens:
            raise lost("its LISTEN is no longer in force")
        # After a failover the news are told elsewhere.
        if read_only:
            raise lost("the server takes no changes any more")
    await session.receive()
