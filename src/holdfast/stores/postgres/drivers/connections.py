"""The connection plan: every connection that a process opens, and its purpose.

| purpose | connection |
|---|---|
| main, enqueue, claim, settle, housekeep, gauges, overseer, probe | shared: what the others leave |
| web, web_live | the pages and the live stream of the web page: shared as well |
| listen, results | one for LISTEN; from two connections down it shares |
| renew | one for the thread that renews leases, while it needs one; with one connection it shares |
| side | one for a moment, while the worker's event loop is blocked |
| handler | shared: one for each handler in a transaction of its own, and one stays for the others |
| sync | one for enqueue_sync() in threads, while it is used |
| home | one for a moment, when a transaction of the caller's is joined for the first time |

With seven connections or more each purpose has one of its own, and handlers have what is left, at
least one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.checks import is_integer
from holdfast.errors import InvalidInput
from holdfast.stores.postgres.drivers.pool import ConnectionPool
from holdfast.stores.postgres.drivers.reconnecting import Reconnecting

if TYPE_CHECKING:
    from holdfast.stores.postgres.drivers.pool import Address

DEFAULT_CONNECTIONS = 4
_ONE_FOR_EACH_PURPOSE = 7

_SHARING = (
    *("main", "enqueue", "claim", "settle", "housekeep", "gauges", "overseer", "probe"),
    *("web", "web_live"),
)
_LISTENING = ("listen", "results")
_APART = (*_LISTENING, "renew", "side", "handler", "sync", "home")

_log = logging.getLogger(__name__)


class Connections:
    """Divides at most `most` connections among the purposes of a process."""

    def __init__(
        self,
        address: Address,
        listen_dsn: str | None = None,
        most: int = DEFAULT_CONNECTIONS,
    ) -> None:
        self._address = address
        self._listen_address = None if listen_dsn is None else address.at(listen_dsn)
        self._most = most
        self._shared = ConnectionPool(address, "main", 1)
        self._warned = False
        self.handlers = 0
        """How many handlers have a transaction now."""
        self.limit(most)

    @property
    def has_listen_address(self) -> bool:
        """Whether LISTEN goes to an address of its own, such as one past a pooler."""
        return self._listen_address is not None

    @property
    def listens_apart(self) -> bool:
        return self._most >= 3 or self.has_listen_address

    @property
    def renews_apart(self) -> bool:
        """Whether leases are renewed on a connection that another thread may use."""
        return self._most >= (3 if self.has_listen_address else 2)

    def limit(self, most: int) -> None:
        """Open at most this many connections from now on."""
        least = 2 if self.has_listen_address else 1
        if not is_integer(most, least):
            why = ": listen_dsn needs one of its own" if least == 2 else ""
            raise InvalidInput(
                f"connections must be an integer of at least {least}{why}, got {most!r}"
            )
        self._most = most
        shared = most - self.listens_apart - self.renews_apart
        self._shared.most = 1 if most >= _ONE_FOR_EACH_PURPOSE else max(1, shared)

    def listen_on(self, listen_dsn: str) -> None:
        """Listen on another address from now on."""
        self._listen_address = self._address.at(listen_dsn)
        self.limit(self._most)

    @property
    def has_spare(self) -> bool:
        """Whether a statement that takes minutes leaves a connection to the others."""
        return self._shared.most - self.handlers > 1 or self._most >= _ONE_FOR_EACH_PURPOSE

    @property
    def handler_places(self) -> int:
        """How many handlers may have a transaction at once: one connection stays for the others."""
        if self._most >= _ONE_FOR_EACH_PURPOSE:
            return max(1, self._most - _ONE_FOR_EACH_PURPOSE)
        return self._shared.most - 1

    @property
    def most(self) -> int:
        return self._most

    def driver(self, purpose: str) -> Reconnecting:
        """A driver for a purpose. One that shares no connection opens and closes its own."""
        if purpose not in (*_SHARING, *_APART):
            raise InvalidInput(f"no connection is planned for the purpose {purpose!r}")
        return Reconnecting(self, purpose, self._pool(purpose))

    def _pool(self, purpose: str) -> ConnectionPool:
        if purpose in _LISTENING and self.listens_apart:
            return ConnectionPool(self._listen_address or self._address, purpose, 1)
        if purpose in ("side", "sync", "home") or (purpose == "renew" and self.renews_apart):
            return ConnectionPool(self._address, purpose, 1)
        if purpose != "main" and self._most >= _ONE_FOR_EACH_PURPOSE:
            return ConnectionPool(self._address, purpose, 1)
        return self._shared

    def warn_deaf(self) -> None:
        """Log once that LISTEN receives nothing."""
        if self._listen_address is None:
            self._address.pooler.warn_deaf(self._address.target)
        elif not self._warned:
            self._warned = True
            _log.warning(
                "listen_dsn (%s) receives no notification that is sent through %s: it must name "
                "the same database, past any pooler in transaction mode; no wake-ups arrive, so "
                "work is looked for every second",
                self._listen_address.target,
                self._address.target,
            )
