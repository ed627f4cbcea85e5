"""psycopg 3: its async connection behind our protocol, and a driver over a caller's."""

from __future__ import annotations

import asyncio
import math
import os
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, capabilities
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.sql import Identifier

from holdfast.errors import InvalidInput, UnreadableReply
from holdfast.stores.postgres.drivers.base import (
    DEFAULT_TIMEOUT_SECONDS,
    OnNotify,
    Row,
    SingleDriver,
)
from holdfast.stores.postgres.drivers.connection_lock import AsyncConnectionLock
from holdfast.stores.postgres.drivers.error_mapping import lost, overdue, unreachable
from holdfast.stores.postgres.drivers.psycopg_common import (
    ERRORS,
    PID,
    begin,
    in_transaction,
    shut,
    sqlstate_of,
    translating,
)
from holdfast.stores.postgres.drivers.psycopg_sync import SyncPsycopgDriver
from holdfast.stores.postgres.drivers.psycopg_types import adapt
from holdfast.stores.postgres.drivers.sockets import KEEPALIVE
from holdfast.stores.postgres.drivers.transactions import (
    CANCEL_AGAIN_SECONDS,
    CANCEL_SECONDS,
    POLITE_END_SECONDS,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from holdfast.stores.postgres.drivers.base import Connection
    from holdfast.stores.postgres.drivers.dsn import Target

__all__ = ["PsycopgConnection", "PsycopgDriver", "SyncPsycopgDriver", "open_connection"]

T = TypeVar("T")

_PREPARE_AFTER = 5
_BUSY_PAUSE_SECONDS = 0.01


class PsycopgDriver(SingleDriver):
    """A caller's `psycopg.AsyncConnection`, which stays the caller's.

    A transaction that the caller has open is joined, not committed. On an idle connection each
    call is committed, whether the connection is in autocommit mode or not.
    """

    def __init__(
        self, connection: AsyncConnection[Any], *, timeout: float = DEFAULT_TIMEOUT_SECONDS
    ) -> None:
        super().__init__(PsycopgConnection(connection), timeout=timeout)


async def open_connection(
    target: Target, *, application_name: str, seconds: float, cache_size: int
) -> Connection:
    """Connect, with `seconds` for each host."""
    # psycopg counts whole seconds for each host and leaves the look-up of names out of it.
    patience = seconds + math.ceil(seconds) * (len(target.hosts) - 1)
    try:
        async with asyncio.timeout(patience):
            connection = await AsyncConnection.connect(
                target.dsn,
                autocommit=True,
                prepare_threshold=_PREPARE_AFTER if cache_size else None,
                application_name=application_name,
                connect_timeout=math.ceil(seconds),
                **{name: value for name, value in KEEPALIVE.items() if name not in target.given},
            )
    except TimeoutError:
        raise unreachable(target, f"no answer within {patience:g} s") from None
    except psycopg.ProgrammingError:
        # libpq quotes what it could not read, which may be a password.
        raise InvalidInput(
            f"the dsn of {target} has an option that libpq does not understand; "
            "compare it with PostgreSQL's list of connection parameters"
        ) from None
    except ERRORS as error:
        raise unreachable(target, error, sqlstate_of(error)) from None
    connection.prepared_max = cache_size
    return PsycopgConnection(connection)


class PsycopgConnection:
    """One async connection, its errors translated and its calls bounded."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection
        self._cursor = AsyncRawCursor(connection, row_factory=tuple_row)
        adapt(self._cursor.adapters)
        self.server_limit: float | None = None
        self._in_flight: asyncio.Task[Any] | None = None
        self._dropped = False
        self._listeners: dict[tuple[str, OnNotify], Callable[[psycopg.Notify], None]] = {}

    @property
    def native(self) -> object:
        return self._connection

    @property
    def closed(self) -> bool:
        return self._dropped or self._connection.closed

    @property
    def pid(self) -> int:
        return self._connection.pgconn.backend_pid

    @property
    def begin(self) -> str:
        return begin(self._connection)

    @property
    def in_transaction(self) -> bool:
        return not self.closed and in_transaction(self._connection)

    def new_lock(self) -> AsyncConnectionLock:
        return AsyncConnectionLock()

    async def fetch(self, sql: str, args: Sequence[object], timeout: float) -> Sequence[Row]:
        return await self._bounded(self._fetch(sql, args), timeout)

    async def _fetch(self, sql: str, args: Sequence[object]) -> Sequence[Row]:
        async with self._committed():
            await self._cursor.execute(sql, args, binary=True)
        if self._cursor.rownumber is None:
            return []
        try:
            return await self._cursor.fetchall()
        except Exception as error:
            # The server's part is done: this is about a value.
            raise UnreadableReply(type(error).__name__) from None

    async def script(self, sql: str, timeout: float) -> None:
        await self._bounded(self._script(sql), timeout)

    async def _script(self, sql: str) -> None:
        async with self._committed():
            # Only the simple protocol, without arguments and in text, takes several statements.
            await self._cursor.execute(sql)

    def _committed(self) -> Any:
        ours = not self._connection.autocommit and not self.in_transaction
        return self._connection.transaction() if ours else nullcontext()

    async def command(self, sql: str, timeout: float) -> None:
        await self._bounded(self._cursor.execute(sql), timeout)

    async def pooled(self, timeout: float) -> bool:
        ((pid,),) = await self.fetch(PID, (), timeout)
        return bool(pid != self.pid)

    async def subscribe(self, channel: str, on_notify: OnNotify, timeout: float) -> None:
        def hear(notification: psycopg.Notify) -> None:
            if notification.channel == channel:
                on_notify(notification.payload)

        self._connection.add_notify_handler(hear)
        self._listeners[channel, on_notify] = hear
        await self.script(_command("listen", channel), timeout)

    async def unsubscribe(self, channel: str, on_notify: OnNotify) -> None:
        hear = self._listeners.pop((channel, on_notify), None)
        if hear is None:
            return
        self._connection.remove_notify_handler(hear)
        if not self.closed and all(other != channel for other, _ in self._listeners):
            await self.script(_command("unlisten", channel), POLITE_END_SECONDS)

    async def idle(self, seconds: float) -> bool:
        # The socket is watched through a second descriptor: psycopg registers and removes the
        # first one for every statement, and a loop keeps one reader a descriptor.
        with translating(self._connection):
            watch = os.dup(self._connection.fileno())
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(watch, readable.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await readable.wait()
        finally:
            loop.remove_reader(watch)
            os.close(watch)
        return readable.is_set()

    async def receive(self) -> None:
        with translating(self._connection):
            if self.closed:
                raise lost("it was closed")
            pgconn = self._connection.pgconn
            if pgconn.transaction_status == TransactionStatus.ACTIVE:
                # The caller's own statement reads the socket and hands out what it finds.
                await asyncio.sleep(_BUSY_PAUSE_SECONDS)
                return
            pgconn.consume_input()
            while notification := pgconn.notifies():
                if pgconn.notify_handler is not None:
                    pgconn.notify_handler(notification)

    def drop(self) -> None:
        self._dropped = True
        shut(self._connection)
        if self._in_flight is None or self._in_flight.done():
            self._connection.pgconn.finish()

    async def close(self) -> None:
        if self._in_flight is None or self._in_flight.done():
            await self._connection.close()
        else:
            self.drop()

    async def _bounded(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """Await work in a task of its own.

        psycopg answers a cancellation by asking the server to stop, and waits seconds for one
        that is gone; a task can be left behind.
        """
        if self._dropped:
            work.close()
            raise lost("it was dropped before")
        task = self._in_flight = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=timeout)
        except asyncio.CancelledError:
            self._ask_to_stop(task)
            await self._abandon(task, CANCEL_SECONDS)
            raise
        if not task.done():
            # A backend that is left at its statement would stay beside the one that replaces it.
            self._ask_to_stop(task)
            await self._abandon(task, CANCEL_SECONDS)
            raise overdue(timeout)
        with translating(self._connection):
            result: T = task.result()
        return result

    def _ask_to_stop(self, task: asyncio.Task[Any]) -> None:
        status = self._connection.pgconn.transaction_status
        if capabilities.has_cancel_safe() or status != TransactionStatus.ACTIVE:
            task.cancel()
            return
        # libpq before 17 asks by blocking the whole process, for ever when there is no answer.
        self.drop()

    async def _abandon(self, task: asyncio.Task[Any], patience: float) -> None:
        # Its result is never read, and asyncio complains of errors that are never read.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    while not (await asyncio.wait({task}, timeout=CANCEL_AGAIN_SECONDS))[0]:
                        await self._cancel_again()
        finally:
            if not task.done():
                self.drop()
                task.cancel()
                task.add_done_callback(lambda _: self._connection.pgconn.finish())
            elif self._dropped:
                self._connection.pgconn.finish()

    async def _cancel_again(self) -> None:
        """Repeat the request. It is over before the next statement, which it would end."""
        if not self._dropped and capabilities.has_cancel_safe():
            with suppress(*ERRORS):
                await self._connection.cancel_safe(timeout=CANCEL_SECONDS)


def _command(verb: str, channel: str) -> str:
    return f"{verb} {Identifier(channel).as_string()}"
