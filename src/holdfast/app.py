"""The one place that chooses: a store, its drivers, the executors, and what runs together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from holdfast import embedded
from holdfast.clock import SystemClock
from holdfast.errors import InvalidInput, SchemaError, SchemaMissing
from holdfast.events import Observer, Observers, Telemetry
from holdfast.executors import ExecutorFactory, build
from holdfast.executors.table import table_executor
from holdfast.queries import Queries, SyncQueries
from holdfast.scheduler.manager import (
    Misfire,
    Overlap,
    ScheduleQueries,
    SchedulerManager,
)
from holdfast.settings import MAX_PAYLOAD, Names, WorkerSettings
from holdfast.stores.memory import InMemoryDriver
from holdfast.stores.postgres.drivers import Driver, connect
from holdfast.stores.postgres.drivers.base import TIMEOUT, LendingDriver
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.tables.store import leases_on
from holdfast.stores.several import SeveralStores
from holdfast.table import TableQueue
from holdfast.task import Kind, Registry, define
from holdfast.telemetry.gauges import gauging
from holdfast.worker.claim import QueueExecutionMode
from holdfast.worker.signals import heeding
from holdfast.worker.worker import QueueManager

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.breaker import BreakerPolicy
    from holdfast.clock import Clock
    from holdfast.models import OnFailure
    from holdfast.ports import Only, Store
    from holdfast.task import EntrypointExecutorParameters, Executor

Handler = TypeVar("Handler", bound=Callable[..., Any])
Mode = Literal["continuous", "drain"]


class Holdfast:
    """A queue: register handlers, enqueue through `queries`, work with `run()`.

    `Holdfast.connect(dsn)` is the recommended way to make one.
    """

    def __init__(
        self,
        driver: Driver | InMemoryDriver,
        *,
        prefix: str = "holdfast",
        schema: str | None = None,
        resources: Mapping[Any, Any] | None = None,
        notify: bool = True,
        max_payload: int = MAX_PAYLOAD,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(driver, LendingDriver | InMemoryDriver):
            raise InvalidInput(
                f"expected a driver such as AsyncpgDriver(connection), got {driver!r}; "
                f"Holdfast.connect(dsn) and Holdfast.from_asyncpg_pool(pool) make one"
            )
        self._names = Names(prefix, schema)
        self._clock = clock
        self._notify = notify
        self._max_payload = max_payload
        self._server: embedded.EmbeddedServer | None = None
        self._embedded: Path | None = None
        self._owned = False
        self._registry = Registry()
        self._tables: dict[str, TableQueue] = {}
        self._told: set[str] = set()
        """What was warned of about tables: once is enough, though several look at them."""
        self._telemetry: Telemetry | None = None
        self.observers = Observers()
        self.resources = dict(resources or {})
        self.shutdown = asyncio.Event()
        """Setting it begins the graceful stop of run()."""
        self.scheduler_manager = SchedulerManager(shutdown=self.shutdown)
        self._use(driver)

    def _use(self, driver: Driver | InMemoryDriver) -> None:
        store: Store
        if isinstance(driver, InMemoryDriver):
            store = driver.store
            self._place: str | None = None
        else:
            self._place = driver.place
            store = PostgresStore(driver, self._names, clock=self._clock, notify=self._notify)
        self.store = store
        carry = self._telemetry.carry if self._telemetry else None
        self.queries = Queries(store, max_payload=self._max_payload, carry=carry)
        self.queue_manager = QueueManager(
            store,
            self._registry,
            observers=self.observers,
            resources=self.resources,
            shutdown=self.shutdown,
        )
        self.scheduler_manager.use(store)
        self.schedules = ScheduleQueries(store)

    @classmethod
    def connect(
        cls,
        dsn: str,
        *,
        driver: Literal["asyncpg", "psycopg"] | None = None,
        timeout: float = TIMEOUT,
        **options: Any,
    ) -> Self:
        """A queue on a DSN: `postgresql://…`, or `embedded:DIR` for a PostgreSQL of its own.

        It opens the connections a worker needs, each for one purpose, and again when they break.
        Use it as `async with Holdfast.connect(dsn) as hf:`.
        """
        directory = embedded.parse(dsn)
        new = cls(connect("" if directory else dsn, driver=driver, timeout=timeout), **options)
        new._owned = True
        new._embedded = directory
        new._connect = lambda dsn: connect(dsn, driver=driver, timeout=timeout)
        return new

    _connect: Callable[[str], Driver]

    @classmethod
    def from_asyncpg_connection(cls, connection: Any, **options: Any) -> Self:
        """On one asyncpg connection: everything takes turns on it."""
        from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver

        return cls(AsyncpgDriver(connection), **options)

    @classmethod
    def from_asyncpg_pool(cls, pool: Any, **options: Any) -> Self:
        """On an asyncpg pool."""
        from holdfast.stores.postgres.drivers.asyncpg import AsyncpgPoolDriver

        return cls(AsyncpgPoolDriver(pool), **options)

    @classmethod
    def from_psycopg_connection(cls, connection: Any, **options: Any) -> Self:
        """On one psycopg AsyncConnection: everything takes turns on it."""
        from holdfast.stores.postgres.drivers.psycopg import PsycopgDriver

        return cls(PsycopgDriver(connection), **options)

    @classmethod
    def in_memory(cls, *, clock: Clock | None = None, **options: Any) -> Self:
        """Without a database, for tests: the same rules, gone with the process."""
        return cls(InMemoryDriver(clock), **options)

    @property
    def place(self) -> str | None:
        """Where it works, in words without a password; None where only the caller knows."""
        if self._embedded is not None:
            return f"embedded database {self._embedded}"
        return self._place

    @property
    def names(self) -> Names:
        """What its tables are called."""
        return self._names

    async def __aenter__(self) -> Self:
        if self._embedded is not None and self._server is None:
            self._server = await asyncio.to_thread(embedded.start, self._embedded)
            self._use(self._connect(self._server.dsn))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._owned:
            await self.store.close()
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)
            self._server = None

    def entrypoint(
        self,
        name: str,
        *,
        concurrency_limit: int = 0,
        serialized_dispatch: bool = False,
        retry_timer: timedelta = timedelta(0),
        accepts_context: bool | None = None,
        on_failure: OnFailure = "delete",
        executor_factory: ExecutorFactory | None = None,
        timeout: timedelta | None = None,
        max_attempts: int | None = 25,
        max_recoveries: int = 3,
        executor: Kind = "async",
        breaker: str | BreakerPolicy | None = None,
    ) -> Callable[[Handler], Handler]:
        """Register a handler for the jobs that are enqueued under `name`.

        `breaker` names the circuit breaker of a dependency; entrypoints and tables may share one.
        """

        def register(func: Handler) -> Handler:
            self._registry.add(
                define(
                    name,
                    func,
                    build=lambda parameters: build(parameters, executor_factory),
                    concurrency_limit=concurrency_limit,
                    serialized_dispatch=serialized_dispatch,
                    retry_timer=retry_timer,
                    accepts_context=accepts_context,
                    on_failure=on_failure,
                    timeout=timeout,
                    max_attempts=max_attempts,
                    max_recoveries=max_recoveries,
                    executor=executor,
                    breaker=breaker,
                )
            )
            return func

        return register

    def schedule(
        self,
        name: str,
        expression: str,
        *,
        timezone: str = "UTC",
        misfire: Misfire = "once",
        overlap: Overlap = "allow",
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        """Register a handler that is run at every tick of a cron expression.

        Each tick is a job of the entrypoint `name`; `options` are those of `entrypoint`, but that
        the handler cannot run in another process.
        """
        factory = options.pop("executor_factory", None)
        if options.get("executor") == "process":
            raise InvalidInput(
                f'schedule {name!r:.80}: executor="process" is not for schedules; let the handler '
                f"enqueue a job of an entrypoint that has it"
            )

        def on_ticks(parameters: EntrypointExecutorParameters) -> Executor:
            func = self.scheduler_manager.on_ticks(parameters.func)
            return build(replace(parameters, func=func), factory)

        def register(func: Handler) -> Handler:
            self.scheduler_manager.add(name, expression, timezone, misfire, overlap)
            return self.entrypoint(name, executor_factory=on_ticks, **options)(func)

        return register

    def table(
        self,
        queue: TableQueue | str,
        *,
        timeout: timedelta | None = None,
        accepts_context: bool | None = None,
        executor: Kind = "async",
        breaker: str | BreakerPolicy | None = None,
    ) -> Callable[[Handler], Handler]:
        """Register a handler for the rows of a table of your own: the row is the work.

        The handler gets the row as its first parameter is annotated: a mapping, a dataclass or a
        Pydantic model. What it raises is retried by the queue's backoff, then retired.
        """
        declared = queue if isinstance(queue, TableQueue) else TableQueue(queue)

        def register(func: Handler) -> Handler:
            self._registry.add(
                define(
                    declared.queue,
                    func,
                    build=table_executor(declared),
                    retry_timer=declared.lease,
                    accepts_context=accepts_context,
                    on_failure="hold",
                    timeout=timeout,
                    max_attempts=None,
                    max_recoveries=declared.max_recoveries,
                    executor=executor,
                    breaker=breaker,
                )
            )
            self._tables[declared.queue] = declared
            return func

        return register

    @property
    def tables(self) -> Mapping[str, TableQueue]:
        """The table queues that were registered, by name."""
        return dict(self._tables)

    def observe(self, observer: Observer) -> None:
        """Tell an observer about claims and outcomes."""
        self.observers.subscribe(observer)

    def instrument(self, telemetry: Telemetry) -> None:
        """Count and trace: claims and outcomes, and every job in the trace of its enqueue."""
        self._telemetry = telemetry
        self.observers.subscribe(telemetry)
        self.queries.carry = telemetry.carry

    async def install(self, only: Only | None = None) -> list[str]:
        """Create the tables, or apply what is missing; the migrations applied.

        only="breakers" creates the table of the circuit breakers and nothing else, for a database
        whose queues are tables of its own. A full install may follow.
        """
        if only not in (None, "breakers"):
            raise InvalidInput(f'only must be "breakers" or None, got {only!r}')
        return await self.store.install(only)

    async def upgrade(self) -> list[str]:
        """Apply what is missing to tables that exist; SchemaMissing when there are none."""
        try:
            await self.store.verify()
        except SchemaMissing:
            raise
        except SchemaError:
            return await self.store.install()
        return []

    async def verify(self) -> None:
        """Raise SchemaError unless this version can work with the tables."""
        await self.store.verify()

    async def uninstall(self) -> None:
        """Remove the tables, with every job in them."""
        await self.store.uninstall()

    async def run(
        self,
        *,
        dequeue_timeout: timedelta | None = None,
        batch_size: int | None = None,
        heartbeat_timeout: timedelta | None = None,
        drain_timeout: timedelta | None = None,
        concurrency: int | None = None,
        mode: Mode | QueueExecutionMode = "continuous",
        signals: bool = True,
    ) -> None:
        """Work: the queue and the scheduler in this event loop, until `shutdown` is set.

        SIGTERM and SIGINT begin the graceful stop, a second one ends it at once; signals=False
        leaves both to the program around it. mode="drain" returns when nothing is claimable.
        """
        given = {
            "dequeue_timeout": dequeue_timeout,
            "batch_size": batch_size,
            "heartbeat_timeout": heartbeat_timeout,
            "drain_timeout": drain_timeout,
            "concurrency": concurrency,
        }
        settings = WorkerSettings(**{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
        try:
            chosen = QueueExecutionMode(mode)
        except ValueError:
            raise InvalidInput(f'mode must be "continuous" or "drain", got {mode!r}') from None
        manager = self.queue_manager
        manager.use(self.work_store(), self._traced_registry())
        once = chosen is QueueExecutionMode.drain
        with heeding(self.shutdown, manager.hurry) if signals else nullcontext():
            async with self.scheduler_manager.running(once=once), self._gauges():
                await manager.run(settings, chosen)

    def _gauges(self) -> AbstractAsyncContextManager[None]:
        if self._telemetry is None:
            return nullcontext()
        return gauging(self.work_store(), self._telemetry)

    def _traced_registry(self) -> Registry:
        telemetry = self._telemetry
        if telemetry is None:
            return self._registry
        worker = self.queue_manager.id
        return self._registry.wrapped(lambda executor: telemetry.traced(executor, worker))

    def work_store(self) -> Store:
        """What run() serves: our own table, the users', or both."""
        if not self._tables:
            return self.store
        clock = self._clock or SystemClock()
        makers = {name: leases_on(queue, clock, self._told) for name, queue in self._tables.items()}
        with_own = len(self._registry) > len(self._tables)
        return SeveralStores(self.store, makers, with_own=with_own)


def sync_queries(
    driver: Any, *, prefix: str = "holdfast", schema: str | None = None
) -> SyncQueries:
    """Queries for code without an event loop, on a SyncPsycopgDriver."""
    return SyncQueries(Queries(PostgresStore(driver, Names(prefix, schema))))
