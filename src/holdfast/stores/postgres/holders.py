"""Names the sessions whose locks a statement waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from holdfast.stores.postgres.drivers.base import Row

TABLE_HOLDERS = """
select a.pid, a.usename::text, a.application_name, a.state, clock_timestamp() - a.xact_start
from pg_locks k join pg_stat_activity a on a.pid = k.pid
where k.relation = to_regclass($1) and k.granted and k.pid <> pg_backend_pid()
  and k.mode not in ('AccessShareLock', 'RowShareLock')
"""

HOLDERS_OF_TABLES = """
select a.pid, a.usename::text, a.application_name, a.state, clock_timestamp() - min(a.xact_start)
from pg_locks k join pg_stat_activity a on a.pid = k.pid
where k.relation = any(array(select to_regclass(name) from unnest($1::text[]) as t(name)))
  and k.granted and k.pid <> pg_backend_pid()
group by a.pid, a.usename, a.application_name, a.state
order by min(a.xact_start)
"""
"""Any lock on any of these tables, the oldest transaction first: even a reader blocks a change."""

_MOST = 3
"""Sessions that are named in one line."""


async def holders(question: Awaitable[Sequence[Row]]) -> str:
    """Describe the sessions in the reply, for a log line, also when the question fails."""
    try:
        found = await question
    except DatabaseError:
        return "an unknown session"
    return ", ".join(map(_describe, found[:_MOST])) or "a session that has just ended"


def _describe(row: Row) -> str:
    pid, user, application, state, age = row
    since = "" if age is None else f" for {age.total_seconds():.1f} s"
    name = f" ({application})" if application else ""
    return f"process {pid} of {user}{name}, {state or 'of unknown state'}{since}"
