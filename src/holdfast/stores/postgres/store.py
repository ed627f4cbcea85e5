"""Jobs in PostgreSQL: one set of tables, reached through one driver."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import DatabaseError
from holdfast.models import JobId
from holdfast.repeated import RepeatedLog
from holdfast.settings import Names, own_channel
from holdfast.stores.postgres import functions, migrate
from holdfast.stores.postgres.breakers import PostgresBreakers
from holdfast.stores.postgres.carriers import join
from holdfast.stores.postgres.carriers.home import Home
from holdfast.stores.postgres.drivers.listening import NEED_AGAIN_SECONDS, say_needed
from holdfast.stores.postgres.jobs import PostgresJobs
from holdfast.stores.postgres.leases import PostgresLeases
from holdfast.stores.postgres.pauses import PauseView, PostgresPauses
from holdfast.stores.postgres.render import statements
from holdfast.stores.postgres.reports import PostgresReports
from holdfast.stores.postgres.results import PostgresResults
from holdfast.stores.postgres.runner import Runner
from holdfast.stores.postgres.schedules import PostgresSchedules
from holdfast.stores.postgres.upkeep import PostgresUpkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.clock import Clock
    from holdfast.ports import Only
    from holdfast.stores.postgres.drivers.base import Driver, Row

logger = logging.getLogger("holdfast.worker")

_CANCEL = "cancel "
_RECOVERED = "recovered"
_NEED_NOT = (
    "select pg_advisory_unlock_shared(hashtextextended('listeners of ' || name, 0))"
    " from unnest($1::text[]) as n(name)"
)
_INTEGER = re.compile("[0-9]{1,19}", re.ASCII)


class PostgresStore:
    """The ports over one driver; fork() gives another over a connection of its own."""

    def __init__(
        self,
        driver: Driver,
        names: Names | None = None,
        *,
        clock: Clock | None = None,
        notify: bool = True,
    ) -> None:
        self.driver = driver
        self.names = names or Names()
        self._clock = clock
        self._notify = notify
        runner = Runner(driver, statements(self.names), self._clock)
        self.leases = PostgresLeases(runner, self.names)
        self.jobs = PostgresJobs(runner, self.names, notify=notify)
        self.results = PostgresResults(runner, self.names)
        self.schedules = PostgresSchedules(runner, self.names, self.jobs)
        self.breakers = PostgresBreakers(runner, self.names)
        self.pauses = PostgresPauses(runner, self.names)
        self.wakeups = PostgresWakeups(runner, self.names)
        self.upkeep = PostgresUpkeep(runner)
        self.reports = PostgresReports(runner)
        self._home = Home(driver, self.names.table())
        self._accepted: tuple[str, ...] = ()
        """The newer migrations of which a warning was logged."""

    @property
    def dedicated(self) -> bool:
        return self.driver.dedicated

    def pause_view(self) -> PauseView:
        """A view for a table queue, whose database may not have Holdfast's own tables."""
        return PauseView(Runner(self.driver, statements(self.names), self._clock), optional=True)

    async def examine(self, statement: str, **values: object) -> Sequence[Row]:
        """Run a statement of the doctor."""
        runner = Runner(self.driver, statements(self.names), self._clock)
        return await runner.run(statement, **values)

    async def plan(self, statement: str, **values: object) -> Any:
        """Ask how the server would run a statement of the doctor; it is not run."""
        asked = statements(self.names)[statement]
        [[found]] = await self.driver.fetch(
            f"explain (format json) {asked.text}", asked.args(values)
        )
        return json.loads(found) if isinstance(found, str) else found

    def fork(self, purpose: str) -> PostgresStore:
        return self.over(self.driver.fork(purpose))

    def over(self, driver: Driver) -> PostgresStore:
        """The same tables through another driver, such as the caller's transaction."""
        return PostgresStore(driver, self.names, clock=self._clock, notify=self._notify)

    @property
    def synchronous(self) -> bool:
        return self.driver.synchronous

    @property
    def needs_loop(self) -> bool:
        return not self.driver.synchronous

    def on(self, transaction: object, *, autocommit: bool = False) -> PostgresStore:
        return self.over(join(transaction, self._home, autocommit=autocommit))

    async def verify(self) -> None:
        newer = tuple(await migrate.verify(self.driver, self.names))
        if newer and newer != self._accepted:
            self._accepted = newer
            logger.warning(
                "the tables were upgraded by a newer Holdfast (%s); the changes are marked as "
                "compatible with this version, which goes on working",
                ", ".join(newer),
            )

    async def install(self, only: Only | None = None) -> list[str]:
        install = migrate.install_breakers if only == "breakers" else migrate.install
        applied = await install(self.driver, self.names)
        if applied and only is None and await functions.installed(self.driver, self.names):
            # They contain the statements of the version that made them.
            await self.functions(wanted=True)
        return applied

    async def notify_inserts(self, *, wanted: bool) -> None:
        await migrate.notify_inserts(self.driver, self.names, wanted=wanted)

    async def functions(self, *, wanted: bool) -> None:
        await functions.install(self.driver, self.names, wanted=wanted)

    async def notifies_inserts(self) -> bool:
        return await migrate.notifies_inserts(self.driver, self.names)

    async def uninstall(self) -> None:
        await migrate.uninstall(self.driver, self.names)

    async def close(self) -> None:
        await self.jobs.close()
        await self.leases.handlers.close()
        await self.wakeups.close()
        await self.driver.close()


class PostgresWakeups:
    """NOTIFY as a hint that there is work, or that a running job was cancelled."""

    def __init__(self, runner: Runner, names: Names) -> None:
        # The same connection for LISTEN and for saying whether it is needed.
        self._driver = runner.driver.fork("listen")
        self._runner = runner.over(self._driver)
        self._channel = names.channel
        self._needed: bool | None = None
        """Whether the listening session asked for NOTIFY; None while no session listens."""
        self._sleeper: str | None = None
        """The name by which producers find this worker while it waits for work."""
        self._listing: asyncio.Task[None] | None = None
        self._log = RepeatedLog(logger)

    async def listen(
        self,
        on_work: Callable[[], None],
        on_cancel: Callable[[JobId], None],
        worker: str = "",
        on_recovered: Callable[[], None] | None = None,
    ) -> None:
        def ready() -> None:
            self._needed = True
            if worker and self._driver.reconnects:
                self._listing = asyncio.get_running_loop().create_task(self._list(worker))
            on_work()

        hear = partial(self._hear, on_work, on_cancel, on_recovered)
        try:
            own = own_channel(self._channel, worker) if worker else None
            await self._driver.listen(self._channel, hear, ready, own=own)
        finally:
            self._needed = self._sleeper = None
            if self._listing is not None:
                self._listing.cancel()

    def _hear(
        self,
        on_work: Callable[[], None],
        on_cancel: Callable[[JobId], None],
        on_recovered: Callable[[], None] | None,
        payload: str,
    ) -> None:
        if payload == _RECOVERED and on_recovered is not None:
            on_recovered()
        if not payload.startswith(_CANCEL):
            on_work()
        elif _INTEGER.fullmatch(words := payload.removeprefix(_CANCEL)):
            on_cancel(JobId(int(words)))
        else:
            # Any role that may connect can send one. Its text stays out of the log.
            self._log.warning(
                "ignored a notification on channel %s: a job id must follow %r",
                self._channel,
                _CANCEL.strip(),
            )

    async def _list(self, worker: str) -> None:
        """Let producers see that this worker sleeps. A worker that they cannot see is not woken."""
        self._sleeper = f"{self._channel} {worker}"
        if self._needed:
            with suppress(DatabaseError):
                await say_needed(self._driver.fetch, self._sleeper)

    @property
    def dedicated(self) -> bool:
        """Whether it has a connection of its own, which close() may close."""
        return self._driver.reconnects

    async def close(self) -> None:
        await self._driver.close()

    async def need(self, *, needed: bool) -> None:
        # Only a dedicated driver reaches the listening session. Other drivers leave NOTIFY switched
        # on.
        if self._needed is not None and needed != self._needed and self._driver.reconnects:
            self._needed = needed
            if not needed:
                names = [self._channel, *([self._sleeper] if self._sleeper else [])]
                await self._driver.fetch(_NEED_NOT, (names,))
                return
            if self._sleeper:
                await say_needed(self._driver.fetch, self._sleeper)
            while not await say_needed(self._driver.fetch, self._channel):  # noqa: ASYNC110
                await asyncio.sleep(NEED_AGAIN_SECONDS)

    async def pass_on(self, entrypoints: Sequence[str]) -> None:
        await self._runner.run("wake", entrypoints=list(entrypoints), channel=self._channel)

    async def recovered(self) -> None:
        await self._runner.run("wake_recovered", channel=self._channel)
