"""Bugs of sessions: what is left to the server's defaults, what is left behind on the server."""

from __future__ import annotations

import re

from chaos.mutants.base import mutant, patch
from holdfast.stores.postgres import leases
from holdfast.stores.postgres.drivers import pool
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgConnection


def _without(*settings: str) -> None:
    """Leave settings of a session to the server."""
    text = pool._SETTINGS
    for name in settings:
        if name not in text:
            raise LookupError(f"a session does not set {name} any more")
        text = re.sub(rf"set_config\('{name}', ('[^']*'|\$1::text), false\)", r"\1", text)
    patch(pool, "_SETTINGS", text)


@mutant("isolation-of-the-server", "strict isolation")
def isolation_of_the_server() -> None:
    """Transactions use the default isolation level of the server."""
    _without("default_transaction_isolation")
    patch(AsyncpgConnection, "begin", "begin")
    patch(leases, "_check_isolation", lambda *_: None)


@mutant("abandoned-backend-not-cancelled", "locked table")
def abandoned_backend_not_cancelled() -> None:
    """A statement that timed out is left running on the server."""

    async def never(self: AsyncpgConnection) -> bool:
        return False

    _without("statement_timeout", "lock_timeout", "client_connection_check_interval")
    patch(AsyncpgConnection, "stopped", never)
