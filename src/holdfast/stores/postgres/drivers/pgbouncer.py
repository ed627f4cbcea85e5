"""Handles a pooler such as PgBouncer between a driver and the server.

In transaction mode each statement may meet another server session. A named prepared statement is
then missing, or another client's under the same name; LISTEN succeeds and no notification arrives.
"""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


class Pooler:
    """Shared by all drivers of a connection plan, so that each warning is logged once."""

    def __init__(self, *, seen: bool = False) -> None:
        self.seen = seen
        """Statements must not be prepared under names."""
        self.snapshots = False
        """The server's default isolation is not read committed, and no setting of ours lasts: each
        statement needs a transaction that states it."""
        self._deaf = False

    def notice(self, place: object) -> None:
        """Record that there is a pooler."""
        if not self.seen:
            self.seen = True
            _log.info(
                "%s is reached through a connection pooler: statements are not prepared", place
            )

    def notice_isolation(self, place: object, level: str) -> None:
        if level == "read committed" or self.snapshots:
            return
        self.snapshots = True
        _log.warning(
            "%s is reached through a connection pooler and its default_transaction_isolation is "
            "%r: each statement takes two more round trips to be read committed; set the default "
            "to 'read committed' for the role (ALTER ROLE … SET)",
            place,
            level,
        )

    def warn_deaf(self, place: object) -> None:
        """Log once that LISTEN does not reach a session of its own."""
        if self._deaf:
            return
        self._deaf = True
        _log.warning(
            "%s is reached through a connection pooler that passes no notifications on, like "
            "PgBouncer in transaction mode: no wake-ups arrive, so work is looked for every "
            "second; name a direct address for LISTEN with listen_dsn (--listen-dsn), or connect "
            "workers to a pool in session mode",
            place,
        )
