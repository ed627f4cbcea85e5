"""LISTEN on one connection: subscribed, pinged, and known to the producers as long as it lasts."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed, ConnectionLost, DatabaseError
from holdfast.repeated import RepeatedLog
from holdfast.stores.postgres.drivers.error_mapping import lost
from holdfast.stores.postgres.drivers.transactions import POLITE_END_SECONDS
from holdfast.stores.postgres.holders import holders

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.stores.postgres.drivers.base import Connection, Loan, OnNotify, Row
    from holdfast.stores.postgres.drivers.connection_lock import ConnectionLock

LOCK_SECONDS = 8.5
"""A listener waits this long for other statements on its connection."""
PING_EVERY = 30.0
PING_TIMEOUT = 5.0

# A lock that a listener shares while it needs NOTIFY: a producer that finds it free sends none. It
# ends with the session. Any role that may connect can take it as well, so nobody ever waits for it:
# whoever has it makes producers notify.
_KEY = "hashtextextended('listeners of ' || $1::text, 0)"
_NEED = f"select pg_try_advisory_lock_shared({_KEY})"
NEED_NOT = f"select pg_advisory_unlock_shared({_KEY})"
_STRANGER = f"""
select a.pid, a.usename::text, a.application_name, a.state, clock_timestamp() - a.xact_start
from pg_locks k join pg_stat_activity a on a.pid = k.pid
where k.locktype = 'advisory' and k.granted and k.mode = 'ExclusiveLock'
  and k.database = (select oid from pg_database where datname = current_database())
  and (k.classid::bigint << 32) + k.objid::bigint = {_KEY}
"""
_NEED_TRIES = 10
_NEED_PAUSE_SECONDS = 0.01
"""A producer has the lock for the moment in which it checks it."""
NEED_AGAIN_SECONDS = 1.0

_LISTENS = (
    "select $1::text in (select pg_listening_channels()),"
    " current_setting('transaction_read_only') = 'on'"
)

NOTIFY = "select pg_notify($1::text, $2::text)"
PROBE_CHANNEL = "holdfast_probe"
PROBE_SECONDS = 3.0
DEAF_SECONDS = 60.0
"""A listener that received no probe waits this long before it tries again."""
_PROBE_CHECK_SECONDS = 0.1

_log = logging.getLogger(__name__)
_repeated = RepeatedLog(_log)


async def is_pooled(loan: Loan) -> bool:
    """Whether there is a pooler in between; a caller's transaction that has failed cannot tell."""
    try:
        return await loan.connection.pooled(loan.left)
    except (ConnectionFailed, ConnectionLost):
        raise
    except DatabaseError:
        return False


async def attend(
    connection: Connection,
    lock: ConnectionLock,
    channel: str,
    on_notify: OnNotify,
    on_ready: Callable[[], None],
    *,
    own: str | None = None,
    restore: bool = True,
) -> None:
    """Listen on one connection until cancelled; other statements run while nothing arrives.

    With `restore` the connection is left as it was found.
    """
    channels = [channel, own] if own else [channel]
    listener = _Listener(connection, channel, on_notify)
    try:
        async with lock.taken(LOCK_SECONDS):
            for name in channels:
                await connection.subscribe(name, listener, PING_TIMEOUT)
            said = await say_needed(partial(connection.fetch, timeout=PING_TIMEOUT), channel)
        on_ready()
        while True:
            arrived = await connection.idle(PING_EVERY if said else NEED_AGAIN_SECONDS)
            async with lock.taken(LOCK_SECONDS):
                await (connection.receive() if arrived else _ping(listener))
                if not said:
                    said = await say_needed(
                        partial(connection.fetch, timeout=PING_TIMEOUT), channel
                    )
    except ConnectionLost:
        connection.drop()
        raise
    finally:
        listener.open = False
        with suppress(DatabaseError, TimeoutError):
            async with asyncio.timeout(POLITE_END_SECONDS), lock.taken(POLITE_END_SECONDS):
                for name in channels:
                    await connection.unsubscribe(name, listener)
                if restore:
                    await connection.fetch(NEED_NOT, (channel,), POLITE_END_SECONDS)


async def say_needed(
    fetch: Callable[[str, Sequence[object]], Awaitable[Sequence[Row]]], channel: str
) -> bool:
    """Have producers notify. False when a stranger has the lock, in which case they do anyway."""
    for _ in range(_NEED_TRIES):
        [[got]] = await fetch(_NEED, (channel,))
        if got:
            return True
        await asyncio.sleep(_NEED_PAUSE_SECONDS)
    stranger = await holders(fetch(_STRANGER, (channel,)))
    _repeated.warning(
        "the lock by which listeners of %s say that they need wake-ups is held by %s: producers "
        "notify with every enqueue until it is released",
        channel,
        stranger,
    )
    return False


class _Listener:
    """Calls on_notify while listen() runs, even if the server could not be told of its end."""

    def __init__(self, connection: Connection, channel: str, on_notify: OnNotify) -> None:
        self.connection = connection
        self.channel = channel
        self._on_notify = on_notify
        self._log = RepeatedLog(_log)
        self.open = True

    def __call__(self, payload: str) -> None:
        if not self.open:
            return
        try:
            self._on_notify(payload)
        except Exception:
            # It runs inside whatever statement was in flight, which must not fail for it.
            # Any role may send notifications, so the line must not repeat without bound.
            self._log.error("a notification could not be handled", exc_info=True)


async def _ping(listener: _Listener) -> None:
    """Ask the server whether this session still listens.

    A peer that vanished keeps the socket open and silent, so only an answer shows that it is there.
    """
    connection = listener.connection
    if connection.closed:
        raise lost("it was closed")
    try:
        found = await connection.fetch(_LISTENS, (listener.channel,), PING_TIMEOUT)
    except ConnectionLost:
        raise
    except DatabaseError:
        # An answer all the same, as in a caller's transaction that has failed.
        return
    [[listens, read_only]] = found
    if not connection.in_transaction:
        # LISTEN in a transaction takes effect when it commits.
        if not listens:
            raise lost("its LISTEN is no longer in force")
        # After a failover notifications are sent on another server.
        if read_only:
            raise lost("the server takes no changes any more")
    await connection.receive()


async def receives(
    connection: Connection,
    lock: ConnectionLock,
    notify: Callable[[str, str], Awaitable[object]],
    seconds: float,
) -> bool:
    """Whether a notification that `notify` sends through another connection arrives.

    Through the same one it could come back by the session that happened to have run LISTEN.
    """
    word, heard = uuid4().hex, asyncio.Event()

    def hear(payload: str) -> None:
        if payload == word:
            heard.set()

    try:
        async with lock.taken(seconds):
            await connection.subscribe(PROBE_CHANNEL, hear, seconds)
        await notify(PROBE_CHANNEL, word)
        deadline = monotonic() + PROBE_SECONDS
        while not heard.is_set() and monotonic() < deadline:
            if await connection.idle(_PROBE_CHECK_SECONDS):
                async with lock.taken(seconds):
                    await connection.receive()
    finally:
        with suppress(DatabaseError, TimeoutError):
            async with lock.taken(seconds):
                await connection.unsubscribe(PROBE_CHANNEL, hear)
    return heard.is_set()
