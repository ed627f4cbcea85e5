"""asyncpg: its connection behind our protocol, and drivers over a caller's connection or pool."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import asyncpg

from holdfast.clock import monotonic
from holdfast.errors import (
    ConnectionLost,
    DatabaseError,
    DeadlineExceeded,
    HoldfastError,
    InvalidInput,
    UnreadableReply,
)
from holdfast.stores.postgres.drivers.base import (
    DEFAULT_TIMEOUT_SECONDS,
    BaseDriver,
    Loan,
    OnNotify,
    Row,
    SingleDriver,
)
from holdfast.stores.postgres.drivers.connection_lock import AsyncConnectionLock
from holdfast.stores.postgres.drivers.dsn import for_asyncpg
from holdfast.stores.postgres.drivers.error_mapping import failure, lost, overdue, unreachable
from holdfast.stores.postgres.drivers.listening import (
    DEAF_SECONDS,
    NOTIFY,
    attend,
    is_pooled,
    receives,
)
from holdfast.stores.postgres.drivers.sockets import keep_alive
from holdfast.stores.postgres.drivers.transactions import (
    CANCEL_AGAIN_SECONDS,
    CANCEL_SECONDS,
    ISOLATION,
    POLITE_END_SECONDS,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from holdfast.stores.postgres.drivers.base import Connection
    from holdfast.stores.postgres.drivers.dsn import Target

_FIRST_OID_OF_USERS = 16384
"""Smaller numbers are PostgreSQL's own, and the same in every database of a version."""

_CLIENT_ERRORS = (asyncpg.InterfaceError, asyncpg.InternalClientError)
_ERRORS = (asyncpg.PostgresError, *_CLIENT_ERRORS, OSError)


class AsyncpgDriver(SingleDriver):
    """A caller's `asyncpg.Connection` (or one taken from a pool), which stays the caller's.

    A transaction that the caller has open is joined: it commits, or not, with everything else.
    """

    def __init__(self, connection: Any, *, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        super().__init__(AsyncpgConnection(connection), timeout=timeout)


class AsyncpgPoolDriver(BaseDriver):
    """A caller's `asyncpg.Pool`; each statement borrows a connection, listening keeps one."""

    concurrent = True
    autocommits = True

    def __init__(self, pool: Any, *, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        super().__init__(timeout=timeout)
        self._pool = pool

    @asynccontextmanager
    async def _lend(self, seconds: float) -> AsyncIterator[Loan]:
        deadline = monotonic() + seconds
        lent = await self._acquire(seconds * 2 / 3)
        loan = Loan(AsyncpgConnection(lent), deadline)
        connection, patience = loan.connection, None
        try:
            yield loan
        except asyncio.CancelledError:
            patience = POLITE_END_SECONDS
            raise
        except DeadlineExceeded:
            # The connection has ended itself unless the server confirmed the statement's end.
            raise
        except ConnectionLost:
            connection.drop()
            raise
        finally:
            try:
                # asyncpg's own timeout leaves out the wait for a statement that was cancelled.
                async with asyncio.timeout(patience or max(loan.left, POLITE_END_SECONDS)):
                    await self._pool.release(lent)
            except _ERRORS:
                connection.drop()

    async def _acquire(self, seconds: float) -> Any:
        try:
            return await self._pool.acquire(timeout=seconds)
        except TimeoutError:
            size = self._pool.get_max_size()
            raise unreachable("the pool", f"all {size} connections were in use") from None
        except _ERRORS as error:
            raise unreachable("the pool", _words(error), _sqlstate(error)) from None

    async def listen(
        self,
        channel: str,
        on_notify: OnNotify,
        on_ready: Callable[[], None],
        *,
        own: str | None = None,
    ) -> None:
        if self._pool.get_max_size() < 2:
            raise InvalidInput(
                "listening keeps one connection of the pool, whose max_size is 1; "
                "set max_size to 2 or more, or poll only"
            )
        while True:
            async with self._lend(self.timeout) as loan:
                connection, lock = loan.connection, loan.connection.new_lock()
                if not await is_pooled(loan) or await receives(
                    connection, lock, self._notify, self.timeout
                ):
                    await attend(connection, lock, channel, on_notify, on_ready, own=own)
            self._pooler.warn_deaf("the pool's server")
            await asyncio.sleep(DEAF_SECONDS)

    async def _notify(self, channel: str, word: str) -> None:
        await self.fetch(NOTIFY, (channel, word))


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """Asks each server only once about PostgreSQL's own types, such as arrays of text.

    asyncpg asks on every new connection, with up to three statements that take longer than a claim.
    Types of users may be dropped and made again under another number, so those are asked about.
    """

    _known: ClassVar[dict[tuple[object, ...], Any]] = {}

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float) -> Any:
        oids = sorted(typeoids)
        if oids[-1] >= _FIRST_OID_OF_USERS:
            return await super()._introspect_types(typeoids, timeout)
        key = (self.get_server_version(), *oids)
        if key not in self._known:
            answer = await super()._introspect_types(typeoids, timeout)
            # A statement without a name would be prepared again, because the question replaces it.
            self._known[key] = (answer[0], SimpleNamespace(name="not asked"))
            return answer
        return self._known[key]


async def open_connection(
    target: Target, *, application_name: str, seconds: float, cache_size: int
) -> Connection:
    """Connect, with `seconds` for each host."""
    reason: Exception = OSError("the DSN names no host")
    for place in for_asyncpg(target):
        try:
            connection = await asyncpg.connect(
                **place,
                timeout=seconds,
                connection_class=_Connection,
                statement_cache_size=cache_size,
                server_settings={"application_name": application_name},
            )
        except TimeoutError:
            reason = TimeoutError(f"no answer within {seconds:g} s")
        except (asyncpg.ClientConfigurationError, ValueError):
            # The library quotes what it could not read, which may be a password.
            raise InvalidInput(
                f"the dsn of {target} has an option that asyncpg does not understand; "
                "compare it with PostgreSQL's list of connection parameters"
            ) from None
        except _ERRORS as error:
            reason = error
        else:
            keep_alive(connection)
            return AsyncpgConnection(connection)
    raise unreachable(target, _words(reason), _sqlstate(reason)) from None


class AsyncpgConnection:
    """One asyncpg connection, its errors translated and its calls bounded."""

    begin = f"begin {ISOLATION}"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.server_limit: float | None = None
        self._gone = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        """Stops a statement that was cancelled. The next one waits for it."""
        self._listeners: dict[tuple[str, OnNotify], Callable[..., None]] = {}

    @property
    def native(self) -> object:
        # A pool lends its connections in wrappers.
        return getattr(self._connection, "_con", self._connection)

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

    def new_lock(self) -> AsyncConnectionLock:
        return AsyncConnectionLock()

    async def fetch(self, sql: str, args: Sequence[object], timeout: float) -> Sequence[Row]:
        try:
            async with asyncio.timeout(timeout):
                if self._ending is not None:
                    await self._ended()
                rows: Sequence[Row] = await self._connection.fetch(sql, *args)
                return rows
        except _ERRORS as error:
            raise await self._failure(error, timeout) from None
        except asyncio.CancelledError:
            await self._give_up()
            raise
        except Exception as error:
            # A decoder's own: the library has read the rest of the reply all the same.
            raise UnreadableReply(type(error).__name__) from None

    async def script(self, sql: str, timeout: float) -> None:
        async with self.bounded(timeout):
            await self._connection.execute(sql)

    async def command(self, sql: str, timeout: float) -> None:
        await self.script(sql, timeout)

    async def pooled(self, timeout: float) -> bool:
        # By the simple protocol, which prepares nothing and here returns no rows but their number.
        question = f"select where pg_backend_pid() = {self.pid}"
        async with self.bounded(timeout):
            answer = await self._connection.execute(question)
        return bool(answer == "SELECT 0")

    async def subscribe(self, channel: str, on_notify: OnNotify, timeout: float) -> None:
        def hear(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
            on_notify(payload)

        async with self.bounded(timeout):
            await self._connection.add_listener(channel, hear)
        self._connection.add_termination_listener(self._on_gone)
        self._listeners[channel, on_notify] = hear

    async def unsubscribe(self, channel: str, on_notify: OnNotify) -> None:
        hear = self._listeners.pop((channel, on_notify), None)
        if hear is None or self.closed:
            return
        if not self._listeners:
            self._connection.remove_termination_listener(self._on_gone)
        async with self.bounded(POLITE_END_SECONDS):
            await self._connection.remove_listener(channel, hear)

    @asynccontextmanager
    async def bounded(self, seconds: float) -> AsyncIterator[None]:
        """A call of the library that has to be over in time, its errors translated."""
        try:
            async with asyncio.timeout(seconds):
                if self._ending is not None:
                    await self._ended()
                yield
        except _ERRORS as error:
            raise await self._failure(error, seconds) from None
        except asyncio.CancelledError:
            await self._give_up()
            raise

    async def _give_up(self) -> None:
        """Stop a statement that was cancelled. This goes on when it is cancelled once more."""
        self._ending = asyncio.ensure_future(self._stop())
        await self._ended()

    async def _ended(self) -> None:
        if self._ending is not None:
            await asyncio.shield(self._ending)
            self._ending = None

    async def _stop(self) -> None:
        # A backend that is left at its statement would stay beside the one that replaces it.
        if not await self.stopped():
            self.drop()

    async def _failure(self, error: Exception, seconds: float) -> HoldfastError:
        """Return the error of a failed call. A statement past its deadline is cancelled on the
        server.

        asyncpg's own timeout leaves out the wait for a statement that it cancelled.
        """
        if not isinstance(error, TimeoutError):
            return self.translate(error)
        await self._stop()
        return overdue(seconds)

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

    async def stopped(self) -> bool:
        """Whether the server confirms the end of the statement that was given up."""
        confirmed = asyncio.ensure_future(self._confirmed())
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                while not (await asyncio.wait({confirmed}, timeout=CANCEL_AGAIN_SECONDS))[0]:
                    await self._cancel_again()
                await confirmed
        except asyncpg.PostgresError:
            return not self.closed
        except (*_CLIENT_ERRORS, OSError):
            return False
        except BaseException:
            self.drop()
            raise
        finally:
            confirmed.cancel()
        return not self.closed

    async def _confirmed(self) -> None:
        """Wait for the end of the statement that asyncpg has asked the server to cancel."""
        end = getattr(getattr(self.native, "_protocol", None), "_wait_for_cancellation", None)
        # Before any other statement it waits for the same.
        await (self._connection.execute("select") if end is None else end())

    async def _cancel_again(self) -> None:
        """Repeat the request. It is over before the next statement, which it would end."""
        ask = getattr(self.native, "_cancel", None)
        if ask is None:
            return
        asked = asyncio.get_running_loop().create_future()
        # Before asyncpg 0.32 it gets the error of a request that fails. The next one is tried all
        # the same, and asyncio complains of errors that are never read.
        asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        # In a task of its own, because it swallows its cancellation.
        request = asyncio.ensure_future(ask(asked))
        try:
            await asyncio.wait({request})
        except asyncio.CancelledError:
            request.cancel()
            # Until it has closed its connection.
            await asyncio.wait({request})
            raise

    def drop(self) -> None:
        try:
            self._connection.terminate()
        except _CLIENT_ERRORS:
            pass
        except RuntimeError:
            # Its event loop has ended, and the transport with it. asyncpg would warn of an
            # unclosed connection that nothing can close.
            self._connection._protocol = None

    async def close(self) -> None:
        try:
            async with asyncio.timeout(POLITE_END_SECONDS):
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
