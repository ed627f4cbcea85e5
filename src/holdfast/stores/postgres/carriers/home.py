"""Tells the tables that a store works on from Holdfast's tables in another database."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from holdfast.errors import CarrierError, HoldfastError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.postgres.drivers.base import Connection, Driver, Row

# No join, no lookup of names that may fail: an error would end the caller's transaction. A standby
# has another start than its primary, and may be read.
_WHERE = """\
select case when not pg_is_in_recovery() then extract(epoch from pg_postmaster_start_time())::text
    || ' ' || (select oid from pg_database where datname = current_database())::text
    || ' ' || coalesce(to_regclass($1)::oid::text, '') end"""

_PATIENCE_SECONDS = 5.0


class Home:
    """The table that the store of a `Holdfast.connect(dsn)` works on.

    It is asked for once, on a connection that is closed again. Each connection of the caller's is
    asked when it is joined for the first time, so a connection that is kept costs one statement.
    """

    def __init__(self, driver: Driver, table: str) -> None:
        self._driver = driver
        self._table = table
        self._lock = Lock()
        self._known: str | None = None
        self._asked = False
        self._checked: WeakSet[Any] = WeakSet()

    async def check(self, what: str, session: Connection, *, synchronous: bool) -> None:
        """CarrierError where the session sees other tables than the store."""
        if not self._driver.dedicated or session.native in self._checked:
            return
        theirs = _only(await session.fetch(_WHERE, (self._table,), _PATIENCE_SECONDS))
        if theirs is None:
            return
        if theirs.endswith(" "):
            # Without asking, the first statement would fail and end the caller's transaction.
            raise CarrierError(no_tables(what))
        for anew in (False, True):
            # The server may have been restarted since.
            ours = self._learn(anew) if synchronous else await self._learn_apart(anew)
            if ours in (None, theirs):
                self._checked.add(session.native)
                return
        raise CarrierError(
            f"{what} is connected to other tables than this Holdfast, in another database or "
            "schema, where no worker of this one would see the job; pass one of the same database, "
            "or connect Holdfast to that one"
        )

    async def _learn_apart(self, anew: bool) -> str | None:
        return await asyncio.to_thread(self._learn, anew)

    def _learn(self, anew: bool) -> str | None:
        """Ask through the store's own connection. None when it cannot be asked."""
        with self._lock:
            if anew or not self._asked:
                # An event loop of its own, because code without one asks as well.
                with ThreadPoolExecutor(1, "holdfast-home") as thread:
                    self._known = thread.submit(asyncio.run, self._ask()).result()
                self._asked = True
            return self._known

    async def _ask(self) -> str | None:
        driver = self._driver.fork("home")
        try:
            return _only(await driver.fetch(_WHERE, (self._table,), timeout=_PATIENCE_SECONDS))
        except HoldfastError:
            return None
        finally:
            await driver.close()


def no_tables(what: str) -> str:
    return (
        f"{what} sees no tables of Holdfast: it is connected to another database, or has another "
        "search_path; pass one of the database where `holdfast install` was run, or give Holdfast "
        "schema=…"
    )


def _only(rows: Sequence[Row]) -> str | None:
    found: str | None = rows[0][0]
    return found
