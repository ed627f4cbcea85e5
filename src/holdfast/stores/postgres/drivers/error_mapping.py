"""Maps errors of the server and of client libraries to errors of our tree, by their SQLSTATE."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

from holdfast.errors import (
    ConnectionFailed,
    ConnectionLost,
    DatabaseError,
    DeadlineExceeded,
    DuplicateJobError,
    PrivilegeMissing,
)
from holdfast.redact import redact
from holdfast.stores.postgres.drivers.dsn import Target

if TYPE_CHECKING:
    from holdfast.errors import HoldfastError

# The session is over. Only a new connection can help.
_LOST = frozenset({"25P03", "25P04", "53300", "57P01", "57P02", "57P03", "57P05"})
_READ_ONLY = "25006"
FULL = "53300"
_FULL_WORDS = re.compile("too many (?:clients|connections)|remaining connection slots")
_NO_DESCRIPTOR = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE))
_CONNECTION_CLASS = "08"
_PROTOCOL_VIOLATION = "08P01"
_DATA_CLASS = "22"
_INSUFFICIENT_PRIVILEGE = "42501"
_UNIQUE_VIOLATION = "23505"
_DEDUPE_SUFFIX = "dedupe_key"

# A pooler changed the server's session under a prepared statement.
UNPREPARED = frozenset({"26000", "42P05"})
# Nothing was done, and a new connection may meet another server, or need no prepared statements.
UNTOUCHED = UNPREPARED | {_READ_ONLY}

# Serialization failure and deadlock: the server undid the statement and asks for it again.
REPEATABLE = frozenset({"40001", "40P01"})


def failure(
    sqlstate: str | None,
    message: str,
    *,
    severity: str | None = None,
    constraint: str | None = None,
    detail: str | None = None,
) -> HoldfastError:
    """The error for a statement that the server, or the client library, refused."""
    if sqlstate is None:
        return DatabaseError(f"the statement failed: {message}")
    if sqlstate == _READ_ONLY:
        return ConnectionFailed(
            f"the server takes no changes ({message}), as after a failover; nothing was changed",
            sqlstate=sqlstate,
        )
    if sqlstate in UNPREPARED:
        return DatabaseError(
            f"the server has other prepared statements than this connection ({message}), as behind "
            "a connection pooler; use Holdfast.connect(dsn), which notices, or open the connection "
            "with statement_cache_size=0 (asyncpg) or prepare_threshold=None (psycopg)",
            sqlstate=sqlstate,
        )
    # As a mere ERROR it is a statement that asks for other arguments than it was given.
    mismatched = sqlstate == _PROTOCOL_VIOLATION and severity == "ERROR"
    if sqlstate in _LOST or (sqlstate.startswith(_CONNECTION_CLASS) and not mismatched):
        return lost(message, sqlstate)
    if sqlstate == _UNIQUE_VIOLATION and (constraint or "").endswith(_DEDUPE_SUFFIX):
        return DuplicateJobError(_key_of(detail or ""))
    if sqlstate == _INSUFFICIENT_PRIVILEGE:
        return PrivilegeMissing(message)
    if sqlstate.startswith(_DATA_CLASS):
        # 'invalid input syntax for type uuid: "…"' quotes the argument.
        message = message.partition(': "')[0]
    # DETAIL stays out: there the server quotes whole rows, payload included.
    return DatabaseError(f"the server refused a statement: {message}", sqlstate=sqlstate)


def lost(reason: str, sqlstate: str | None = None) -> ConnectionLost:
    return ConnectionLost(
        f"the connection was lost ({reason}); whether the statement took effect is unknown",
        sqlstate=sqlstate,
    )


def overdue(timeout: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"no answer from the server within {timeout:.1f} s, so the statement was cancelled; "
        "whether it took effect is unknown"
    )


def unreachable(target: object, reason: object, sqlstate: str | None = None) -> ConnectionFailed:
    # libpq's reasons have several lines, which a log would tear apart.
    words = " ".join(str(reason).split()) or type(reason).__name__
    # A client library quotes the parts of a DSN as it has cut them.
    words = target.hide(words) if isinstance(target, Target) else redact(words)
    # libpq gives no SQLSTATE for a connection that was refused.
    if sqlstate == FULL or (sqlstate is None and _FULL_WORDS.search(words)):
        return ConnectionFailed(
            f"could not connect to {target}: {words}; the server has no free connection for this "
            "role: close some, raise max_connections or the limit of the role, or connect as a "
            "role that is a member of pg_use_reserved_connections (PostgreSQL 16 or newer, with "
            "reserved_connections above 0)",
            sqlstate=FULL,
        )
    if any(each in words for each in _NO_DESCRIPTOR):
        return ConnectionFailed(
            f"could not connect to {target}: {words}; look for a handler that leaves files or "
            "sockets open, or raise the limit (ulimit -n)",
            sqlstate=sqlstate,
            no_descriptor=True,
        )
    return ConnectionFailed(
        f"could not connect to {target}: {words}; "
        "check that the server runs and that the address is right",
        sqlstate=sqlstate,
    )


def _key_of(detail: str) -> str:
    # "Key (dedupe_key)=(abc) already exists.": the words change with the server's language.
    _, _, tail = detail.partition(")=(")
    return tail.rpartition(")")[0]
