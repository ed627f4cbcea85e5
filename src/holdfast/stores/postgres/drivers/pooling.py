"""A pooler such as PgBouncer between a driver and the server: what is known of it.

In transaction mode each statement may meet another server session. A named prepared statement is
then missing, or is somebody else's under the same name; LISTEN succeeds and nothing is ever heard.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.stores.postgres.drivers.base import Session
    from holdfast.stores.postgres.drivers.turns import Turns

TELL = "select pg_notify($1::text, $2::text)"
PROBE_CHANNEL = "holdfast_probe"
PROBE_SECONDS = 3.0
DEAF_SECONDS = 60.0
"""How long a listener that heard nothing waits before it tries again."""

_LOOK_SECONDS = 0.1

_log = logging.getLogger(__name__)


class Pooling:
    """Shared by a driver and its forks, so that everything is said once."""

    def __init__(self, *, seen: bool = False) -> None:
        self.seen = seen
        """Statements must not be prepared under names."""
        self._deaf = False

    def notice(self, place: object) -> bool:
        """There is a pooler; False: that was known."""
        if self.seen:
            return False
        self.seen = True
        _log.info("%s is reached through a connection pooler: statements are not prepared", place)
        return True

    def deaf(self, place: object) -> None:
        """LISTEN does not reach a session of one's own."""
        if self._deaf:
            return
        self._deaf = True
        _log.warning(
            "%s is reached through a connection pooler that passes no notifications on, like "
            "PgBouncer in transaction mode: no wake-ups arrive, so work is looked for every "
            "second; connect workers to PostgreSQL itself, or to a pool in session mode",
            place,
        )


async def hears(
    session: Session, turns: Turns, tell: Callable[[str, str], Awaitable[None]], seconds: float
) -> bool:
    """Whether a notification that `tell` sends through another connection arrives.

    Through the same one it could come back by the session that happened to have run LISTEN.
    """
    word, heard = uuid4().hex, asyncio.Event()

    def hear(payload: str) -> None:
        if payload == word:
            heard.set()

    try:
        async with turns.taken(seconds):
            await session.subscribe(PROBE_CHANNEL, hear, seconds)
        await tell(PROBE_CHANNEL, word)
        deadline = monotonic() + PROBE_SECONDS
        while not heard.is_set() and monotonic() < deadline:
            if await session.idle(_LOOK_SECONDS):
                async with turns.taken(seconds):
                    await session.receive()
    finally:
        with suppress(DatabaseError, TimeoutError):
            async with turns.taken(seconds):
                await session.unsubscribe(PROBE_CHANNEL, hear)
    return heard.is_set()
