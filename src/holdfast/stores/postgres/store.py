"""Jobs in PostgreSQL: one set of tables, reached through one driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import Clock, SystemClock
from holdfast.models import JobId
from holdfast.settings import Names
from holdfast.stores.postgres import migrate
from holdfast.stores.postgres.breakers import PostgresBreakers
from holdfast.stores.postgres.drivers import wrap
from holdfast.stores.postgres.drivers.base import NEED, NEED_NOT
from holdfast.stores.postgres.jobs import PostgresJobs
from holdfast.stores.postgres.leases import PostgresLeases
from holdfast.stores.postgres.render import statements
from holdfast.stores.postgres.runner import Runner
from holdfast.stores.postgres.schedules import PostgresSchedules

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.ports import Only
    from holdfast.stores.postgres.drivers.base import Driver

_CANCEL = "cancel "


class PostgresStore:
    """The five ports over one driver; fork() gives another over a connection of its own."""

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
        self._clock = clock or SystemClock()
        self._notify = notify
        runner = Runner(driver, statements(self.names), self._clock)
        self.leases = PostgresLeases(runner, self.names)
        self.jobs = PostgresJobs(runner, self.names, notify=notify)
        self.schedules = PostgresSchedules(runner, self.names, self.jobs)
        self.breakers = PostgresBreakers(runner, self.names)
        self.wakeups = PostgresWakeups(driver, self.names)

    @property
    def dedicated(self) -> bool:
        return self.driver.dedicated

    def fork(self, role: str) -> PostgresStore:
        return self.over(self.driver.fork(role))

    def over(self, driver: Driver) -> PostgresStore:
        """The same tables through another driver, such as the caller's transaction."""
        return PostgresStore(driver, self.names, clock=self._clock, notify=self._notify)

    def on(self, connection: object) -> PostgresStore:
        return self.over(wrap(connection))

    async def verify(self) -> None:
        await migrate.verify(self.driver, self.names)

    async def install(self, only: Only | None = None) -> list[str]:
        install = migrate.install_breakers if only == "breakers" else migrate.install
        return await install(self.driver, self.names)

    async def uninstall(self) -> None:
        await migrate.uninstall(self.driver, self.names)

    async def close(self) -> None:
        await self.jobs.close()
        await self.driver.close()


class PostgresWakeups:
    """NOTIFY as a hint that there is work, or that a running job was cancelled."""

    def __init__(self, driver: Driver, names: Names) -> None:
        self._driver = driver
        self._channel = names.channel
        self._needed: bool | None = None
        """What the session that listens has said; None: none does."""

    async def listen(self, on_work: Callable[[], None], on_cancel: Callable[[JobId], None]) -> None:
        def hear(payload: str) -> None:
            if payload.startswith(_CANCEL):
                on_cancel(JobId(int(payload.removeprefix(_CANCEL))))
            else:
                on_work()

        def ready() -> None:
            self._needed = True
            on_work()

        try:
            await self._driver.listen(self._channel, hear, ready)
        finally:
            self._needed = None

    async def need(self, *, needed: bool) -> None:
        # Elsewhere the session that listens cannot be asked, so it always needs to be told.
        if self._needed is not None and needed != self._needed and self._driver.dedicated:
            self._needed = needed
            await self._driver.fetch(NEED if needed else NEED_NOT, (self._channel,))
