"""Drivers over asyncpg: a caller's connection, a caller's pool, or connections of our own."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from holdfast.clock import monotonic
from holdfast.errors import (
    ConnectionLost,
    DatabaseError,
    HoldfastError,
    InvalidInput,
    UnreadableReply,
)
from holdfast.stores.postgres.drivers.base import (
    TIMEOUT,
    LendingDriver,
    Loan,
    OnNotify,
    Row,
    SessionDriver,
    attend,
    is_pooled,
)
from holdfast.stores.postgres.drivers.bracket import GRACE
from holdfast.stores.postgres.drivers.dsn import for_asyncpg
from holdfast.stores.postgres.drivers.failures import failure, lost, overdue, unreachable
from holdfast.stores.postgres.drivers.own import DsnDriver
from holdfast.stores.postgres.drivers.pooling import DEAF_SECONDS, TELL, hears
from holdfast.stores.postgres.drivers.sockets import keep_alive
from holdfast.stores.postgres.drivers.turns import AsyncTurns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from types import TracebackType

    from holdfast.stores.postgres.drivers.base import Session

_CLIENT_ERRORS = (asyncpg.InterfaceError, asyncpg.InternalClientError)
_ERRORS = (asyncpg.PostgresError, *_CLIENT_ERRORS, OSError)


class AsyncpgDriver(SessionDriver):
    """A caller's `asyncpg.Connection` (or one taken from a pool), which stays the caller's.

    A transaction that the caller has open is joined: it commits, or not, with everything else.
    """

    def __init__(self, connection: Any, *, timeout: float = TIMEOUT) -> None:
        super().__init__(AsyncpgSession(connection), timeout=timeout)


class AsyncpgPoolDriver(LendingDriver):
    """A caller's `asyncpg.Pool`; each statement borrows a connection, listening keeps one."""

    concurrent = True
    autocommits = True

    def __init__(self, pool: Any, *, timeout: float = TIMEOUT) -> None:
        super().__init__(timeout=timeout)
        self._pool = pool

    @asynccontextmanager
    async def _lend(self, seconds: float) -> AsyncIterator[Loan]:
        deadline = monotonic() + seconds
        connection = await self._acquire(seconds * 2 / 3)
        loan = Loan(AsyncpgSession(connection), deadline)
        session, patience = loan.session, None
        try:
            yield loan
        except asyncio.CancelledError:
            patience = GRACE
            raise
        except ConnectionLost:
            session.drop()
            raise
        finally:
            try:
                # asyncpg's own timeout leaves out the wait for a statement that was cancelled.
                async with asyncio.timeout(patience or max(loan.left, GRACE)):
                    await self._pool.release(connection)
            except _ERRORS:
                session.drop()

    async def _acquire(self, seconds: float) -> Any:
        try:
            return await self._pool.acquire(timeout=seconds)
        except TimeoutError:
            size = self._pool.get_max_size()
            raise unreachable("the pool", f"all {size} connections were in use") from None
        except _ERRORS as error:
            raise unreachable("the pool", _words(error), _sqlstate(error)) from None

    async def listen(self, channel: str, on_notify: OnNotify, on_ready: Callable[[], None]) -> None:
        if self._pool.get_max_size() < 2:
            raise InvalidInput(
                "listening keeps one connection of the pool, whose max_size is 1; "
                "set max_size to 2 or more, or poll only"
            )
        while True:
            async with self._lend(self._timeout) as loan:
                session, turns = loan.session, loan.session.new_turns()
                if not await is_pooled(loan) or await hears(
                    session, turns, self._tell, self._timeout
                ):
                    await attend(session, turns, channel, on_notify, on_ready)
            self._pooling.deaf("the pool's server")
            await asyncio.sleep(DEAF_SECONDS)

    async def _tell(self, channel: str, word: str) -> None:
        await self.fetch(TELL, (channel, word))


class AsyncpgDsnDriver(DsnDriver):
    """A connection of our own."""

    async def _open(self, seconds: float, cache_size: int) -> Session:
        reason: Exception = OSError("the DSN names no host")
        for place in for_asyncpg(self._target):
            try:
                connection = await asyncpg.connect(
                    **place,
                    timeout=seconds,
                    statement_cache_size=cache_size,
                    server_settings={"application_name": self._application_name},
                )
            except TimeoutError:
                reason = TimeoutError(f"no answer within {seconds:g} s")
            except (asyncpg.ClientConfigurationError, ValueError):
                # The library quotes what it could not read, which may be a password.
                raise InvalidInput(
                    f"the dsn of {self._target} has an option that asyncpg does not understand; "
                    "compare it with PostgreSQL's list of connection parameters"
                ) from None
            except _ERRORS as error:
                reason = error
            else:
                keep_alive(connection)
                return AsyncpgSession(connection)
        raise unreachable(self._target, _words(reason), _sqlstate(reason)) from None


class AsyncpgSession:
    """One asyncpg connection, its errors translated and its calls bounded."""

    begin = "begin"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._gone = asyncio.Event()
        self._listeners: dict[tuple[str, OnNotify], Callable[..., None]] = {}

    @property
    def closed(self) -> bool:
        try:
            return bool(self._connection.is_closed())
        except asyncpg.InterfaceError:
            # A terminated connection of a pool has already gone back to it.
            return True

    @property
    def pid(self) -> int:
        return int(self._connection.get_server_pid())

    @property
    def in_transaction(self) -> bool:
        return not self.closed and bool(self._connection.is_in_transaction())

    def new_turns(self) -> AsyncTurns:
        return AsyncTurns()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def fetch(self, sql: str, args: Sequence[object], timeout: float) -> Sequence[Row]:
        async with _Bounded(self, timeout):
            try:
                rows: Sequence[Row] = await self._connection.fetch(sql, *args)
            except _ERRORS:
                raise
            except Exception as error:
                # A decoder's own: the library has read the rest of the reply all the same.
                raise UnreadableReply(type(error).__name__) from None
        return rows

    async def script(self, sql: str, timeout: float) -> None:
        async with _Bounded(self, timeout):
            await self._connection.execute(sql)

    async def command(self, sql: str, timeout: float) -> None:
        await self.script(sql, timeout)

    async def pooled(self, timeout: float) -> bool:
        # By the simple protocol, which prepares nothing and here returns no rows but their number.
        question = f"select where pg_backend_pid() = {self.pid}"
        async with _Bounded(self, timeout):
            answer: str = await self._connection.execute(question)
        return answer == "SELECT 0"

    async def subscribe(self, channel: str, on_notify: OnNotify, timeout: float) -> None:
        def hear(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
            on_notify(payload)

        async with _Bounded(self, timeout):
            await self._connection.add_listener(channel, hear)
            self._connection.add_termination_listener(self._on_gone)
        self._listeners[channel, on_notify] = hear

    async def unsubscribe(self, channel: str, on_notify: OnNotify) -> None:
        hear = self._listeners.pop((channel, on_notify), None)
        if hear is None or self.closed:
            return
        async with _Bounded(self, GRACE):
            if not self._listeners:
                self._connection.remove_termination_listener(self._on_gone)
            await self._connection.remove_listener(channel, hear)

    def _on_gone(self, _connection: Any) -> None:
        self._gone.set()

    async def idle(self, seconds: float) -> bool:
        # asyncpg reads its socket by itself: all there is to wait for is the end.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        return self._gone.is_set()

    async def receive(self) -> None:
        if self.closed:
            raise lost("the server closed it")

    def drop(self) -> None:
        with suppress(*_CLIENT_ERRORS):
            self._connection.terminate()

    async def close(self) -> None:
        try:
            async with asyncio.timeout(GRACE):
                await self._connection.close()
        except _ERRORS:
            self.drop()

    def translate(self, error: Exception) -> HoldfastError:
        if isinstance(error, asyncpg.PostgresError):
            return failure(
                error.sqlstate,
                _words(error),
                severity=error.severity_en,
                constraint=error.constraint_name,
                detail=error.detail,
            )
        if isinstance(error, asyncpg.InterfaceError) and not self.closed:
            return DatabaseError(f"asyncpg refused a statement: {_words(error)}")
        # A protocol that lost its way answers the next statement with the last one's rows.
        self.drop()
        return lost(_words(error))


class _Bounded:
    """A call of the library: over in time, and its errors translated.

    asyncpg's own timeout leaves out the wait for a statement that it cancelled.
    """

    __slots__ = ("_seconds", "_session", "_timeout")

    def __init__(self, session: AsyncpgSession, seconds: float) -> None:
        self._session = session
        self._seconds = seconds
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError as late:
            error = late
        if isinstance(error, TimeoutError):
            self._session.drop()
            raise overdue(self._seconds) from None
        if isinstance(error, _ERRORS):
            raise self._session.translate(error) from None


def _sqlstate(error: Exception) -> str | None:
    return error.sqlstate if isinstance(error, asyncpg.PostgresError) else None


def _words(error: Exception) -> str:
    """The library's message without the argument that it may quote."""
    text = getattr(error, "message", None) or (str(error.args[0]) if error.args else "")
    if isinstance(error, OSError):
        text = str(error)
    if text.startswith("invalid input for query argument"):
        text = text.partition(":")[0]
    return text or type(error).__name__
