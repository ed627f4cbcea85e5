"""A driver over a caller's psycopg connection of the synchronous kind."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext, suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import Connection, RawCursor, capabilities
from psycopg.rows import tuple_row

from holdfast.errors import DatabaseError, InvalidInput
from holdfast.stores.postgres.drivers.base import DEFAULT_TIMEOUT_SECONDS, SingleDriver
from holdfast.stores.postgres.drivers.connection_lock import ThreadConnectionLock
from holdfast.stores.postgres.drivers.error_mapping import overdue
from holdfast.stores.postgres.drivers.psycopg_common import (
    PID,
    begin,
    in_transaction,
    shut,
    translating,
)
from holdfast.stores.postgres.drivers.psycopg_types import adapt
from holdfast.stores.postgres.drivers.transactions import CANCEL_SECONDS
from holdfast.stores.postgres.drivers.watch import watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.stores.postgres.drivers.base import OnNotify, Row


class SyncPsycopgDriver(SingleDriver):
    """A caller's `psycopg.Connection`, for producers in code without an event loop.

    Its coroutines never suspend, so `coroutine.send(None)` runs them to their end.
    """

    synchronous = True

    def __init__(
        self, connection: Connection[Any], *, timeout: float = DEFAULT_TIMEOUT_SECONDS
    ) -> None:
        super().__init__(SyncPsycopgConnection(connection), timeout=timeout)

    async def listen(
        self,
        channel: str,
        on_notify: OnNotify,
        on_ready: Callable[[], None],
        *,
        own: str | None = None,
    ) -> None:
        raise _cannot_listen()


class SyncPsycopgConnection:
    """One sync connection behind coroutines that never suspend."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._cursor = RawCursor(connection, row_factory=tuple_row)
        adapt(self._cursor.adapters)
        self.server_limit: float | None = None
        self._canceling: Thread | None = None

    @property
    def native(self) -> object:
        return self._connection

    @property
    def closed(self) -> bool:
        return self._connection.closed

    @property
    def pid(self) -> int:
        return self._connection.pgconn.backend_pid

    @property
    def begin(self) -> str:
        return begin(self._connection)

    @property
    def in_transaction(self) -> bool:
        return in_transaction(self._connection)

    def new_lock(self) -> ThreadConnectionLock:
        return ThreadConnectionLock()

    async def fetch(self, sql: str, args: Sequence[object], timeout: float) -> Sequence[Row]:
        with self._bounded(timeout), self._committed():
            self._cursor.execute(sql, args, binary=True)
            return self._cursor.fetchall() if self._cursor.rownumber is not None else []

    async def script(self, sql: str, timeout: float) -> None:
        with self._bounded(timeout), self._committed():
            self._cursor.execute(sql)

    @contextmanager
    def _bounded(self, seconds: float) -> Iterator[None]:
        """A thread that waits for an answer is interrupted by the answer to a cancellation.

        Where none comes, the end of its socket does it.
        """
        with (
            watched(seconds, self._cancel) as watch,
            watched(seconds + CANCEL_SECONDS, lambda: shut(self._connection)),
        ):
            try:
                with translating(self._connection):
                    yield
            except DatabaseError:
                if watch.over:
                    raise overdue(seconds) from None
                raise
            finally:
                # A cancellation still on its way would end the next statement.
                if self._canceling is not None:
                    self._canceling.join(CANCEL_SECONDS)
                    self._canceling = None

    def _cancel(self) -> None:
        if capabilities.has_cancel_safe():
            self._canceling = Thread(
                target=self._cancel_safely, name="holdfast-cancel", daemon=True
            )
            self._canceling.start()
        else:
            # libpq before 17 asks without a deadline.
            shut(self._connection)

    def _cancel_safely(self) -> None:
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=CANCEL_SECONDS)

    def _committed(self) -> Any:
        ours = not self._connection.autocommit and not self.in_transaction
        return self._connection.transaction() if ours else nullcontext()

    async def command(self, sql: str, timeout: float) -> None:
        with self._bounded(timeout):
            self._cursor.execute(sql)

    async def pooled(self, timeout: float) -> bool:
        ((pid,),) = await self.fetch(PID, (), timeout)
        return bool(pid != self.pid)

    async def subscribe(self, channel: str, on_notify: OnNotify, timeout: float) -> None:
        raise _cannot_listen()

    async def unsubscribe(self, channel: str, on_notify: OnNotify) -> None:
        raise _cannot_listen()

    async def idle(self, seconds: float) -> bool:
        raise _cannot_listen()

    async def receive(self) -> None:
        raise _cannot_listen()

    def drop(self) -> None:
        self._connection.close()

    async def close(self) -> None:
        self._connection.close()


def _cannot_listen() -> InvalidInput:
    return InvalidInput(
        "SyncPsycopgDriver cannot listen: it is for producers; "
        "give workers an async connection, or Holdfast.connect(dsn)"
    )
