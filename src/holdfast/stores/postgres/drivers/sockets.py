"""TCP keepalives: an idle connection stays alive in routers' tables, or its end is noticed."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

KEEPALIVE: dict[str, Any] = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
"""By libpq's names. The kernel's own default is to wait for two hours."""

_OPTIONS = {
    "keepalives_idle": "TCP_KEEPIDLE",
    "keepalives_interval": "TCP_KEEPINTVL",
    "keepalives_count": "TCP_KEEPCNT",
}


def keep_alive(connection: Any) -> None:
    """For asyncpg, which leaves sockets as they are and has no public way to one."""
    transport = getattr(connection, "_transport", None)
    wire = transport.get_extra_info("socket") if transport is not None else None
    if wire is None or wire.family == getattr(socket, "AF_UNIX", None):
        return
    with suppress(OSError):
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            # Not every system has all of them.
            if (option := getattr(socket, _OPTIONS[name], None)) is not None:
                wire.setsockopt(socket.IPPROTO_TCP, option, value)
