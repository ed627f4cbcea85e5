"""The read-only door of the web page: one short transaction for each look at the queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.app import Holdfast
from holdfast.clock import Clock, monotonic
from holdfast.errors import InvalidInput
from holdfast.stores.postgres.drivers import Driver
from holdfast.stores.postgres.pages import LISTS
from holdfast.stores.postgres.render import READING, statements
from holdfast.stores.postgres.runner import Runner
from holdfast.stores.postgres.store import PostgresStore

Row = Sequence[Any]
Recent = dict[tuple[Any, ...], tuple[float, Sequence[Row]]]
"""Rows by statement and values, each with the time until which they are new enough."""

STATEMENT_SECONDS = 2.0
"""A statement of a page that takes longer is ended by the server."""

_RECENT_SECONDS = 5.0
_MOST_RECENT = 200

_BY_PRIVILEGE = frozenset({*READING, *LISTS})


@dataclass(frozen=True, slots=True)
class Privileges:
    """What the user of the connection may see besides jobs themselves."""

    payloads: bool
    results: bool


class Look:
    """Statements inside one read-only transaction."""

    def __init__(
        self, runner: Runner, store: PostgresStore, recent: Recent, sees: Privileges
    ) -> None:
        self._runner = runner
        self._recent = recent
        self.store = store
        """The ports inside the same transaction, for what is asked through them."""
        self.sees_payloads = sees.payloads
        self.sees_results = sees.results
        self.statements = 0
        """How many were sent, for the budget of the live stream."""

    async def run(self, name: str, /, **values: object) -> Sequence[Row]:
        self.statements += 1
        if name in _BY_PRIVILEGE and not self.sees_payloads:
            name = f"{name}:hidden"
        return await self._runner.run(name, **values)

    @property
    def driver(self) -> Driver:
        """For the statements of a user's own table."""
        return self._runner.driver

    async def recent(self, name: str, /, **values: object) -> Sequence[Row]:
        """As `run`, with rows that may be some seconds old: sums over hours hardly change."""
        key = (name, *sorted((each, str(value)) for each, value in values.items()))
        until, found = self._recent.get(key, (0.0, ()))
        if monotonic() >= until:
            found = await self.run(name, **values)
            if len(self._recent) >= _MOST_RECENT:
                self._recent.clear()
            self._recent[key] = (monotonic() + _RECENT_SECONDS, found)
        return found

    async def one(self, name: str, /, **values: object) -> Row:
        [row] = await self.run(name, **values)
        return row


class PageReader:
    """Opens looks on a connection of its own, where the driver has one to give."""

    def __init__(self, hf: Holdfast, purpose: str = "web", clock: Clock | None = None) -> None:
        self._hf = hf
        self._purpose = purpose
        self._clock = clock
        self._of: PostgresStore | None = None
        self._store: PostgresStore | None = None
        self._sees: Privileges | None = None
        self._recent: Recent = {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Look]:
        store = self._current()
        names = store.names
        if self._sees is None:
            [[results]] = await store.examine("sees_results", table=names.table("_results"))
            self._sees = Privileges(await store.jobs.sees_payloads(), results)
        async with store.driver.transaction() as tx:
            look = Look(
                Runner(tx, statements(names), self._clock),
                store.over(tx),
                self._recent,
                self._sees,
            )
            await look.run("page_open", limit=f"{int(STATEMENT_SECONDS * 1000)}ms")
            # BEGIN and COMMIT are round trips as well.
            look.statements += 2
            yield look

    def _current(self) -> PostgresStore:
        found = self._hf.store
        if not isinstance(found, PostgresStore):
            raise InvalidInput(
                "the web page needs PostgreSQL; use Holdfast.connect(dsn), or embedded:DIR where "
                "there is no server"
            )
        if self._store is None or self._of is not found:
            # An embedded server has another store once it is started.
            self._of, self._store, self._sees = found, found.fork(self._purpose), None
        return self._store

    @property
    def table(self) -> str:
        return self._hf.names.table()

    async def close(self) -> None:
        if self._store is not None and self._store is not self._of and self._store.dedicated:
            await self._store.close()
        self._store = None
