"""A driver over a caller's psycopg connection of the synchronous kind."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from psycopg import Connection, RawCursor
from psycopg.rows import tuple_row

from holdfast.errors import DatabaseError, InvalidInput
from holdfast.stores.postgres.drivers.base import TIMEOUT, SessionDriver
from holdfast.stores.postgres.drivers.failures import overdue
from holdfast.stores.postgres.drivers.psycopg_common import (
    PID,
    begin,
    in_transaction,
    shut,
    translating,
)
from holdfast.stores.postgres.drivers.psycopg_types import adapt
from holdfast.stores.postgres.drivers.turns import ThreadTurns
from holdfast.stores.postgres.drivers.watch import watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.stores.postgres.drivers.base import OnNotify, Row


class SyncPsycopgDriver(SessionDriver):
    """A caller's `psycopg.Connection`, for producers in code without an event loop.

    Its coroutines never suspend, so `coroutine.send(None)` runs them to their end.
    """

    def __init__(self, connection: Connection[Any], *, timeout: float = TIMEOUT) -> None:
        super().__init__(SyncPsycopgSession(connection), timeout=timeout)

    async def listen(self, channel: str, on_notify: OnNotify, on_ready: Callable[[], None]) -> None:
        raise _cannot_listen()


class SyncPsycopgSession:
    """One sync connection behind coroutines that never suspend."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._cursor = RawCursor(connection, row_factory=tuple_row)
        adapt(self._cursor.adapters)

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

    def new_turns(self) -> ThreadTurns:
        return ThreadTurns()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (there is no event loop to give way to)

    async def fetch(self, sql: str, args: Sequence[object], timeout: float) -> Sequence[Row]:
        with self._bounded(timeout), self._committed():
            self._cursor.execute(sql, args, binary=True)
            return self._cursor.fetchall() if self._cursor.rownumber is not None else []

    async def script(self, sql: str, timeout: float) -> None:
        with self._bounded(timeout), self._committed():
            self._cursor.execute(sql)

    @contextmanager
    def _bounded(self, seconds: float) -> Iterator[None]:
        """Nothing interrupts a thread that waits for an answer but the end of its socket."""
        with watched(seconds, lambda: shut(self._connection)) as watch:
            try:
                with translating(self._connection):
                    yield
            except DatabaseError:
                if watch.over:
                    raise overdue(seconds) from None
                raise

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
