"""The one place that chooses: a store, its drivers, the executors, and what runs together."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar, Unpack

from holdfast import db, embedded
from holdfast.client.client import Client
from holdfast.client.explain import explain_entrypoint, explain_job
from holdfast.client.groups import TaskGroup, TaskMethods
from holdfast.client.handles import JobHandle, as_completed, wait_for
from holdfast.client.job_checks import check_ids
from holdfast.client.queries import Queries, SyncQueries
from holdfast.client.tasks import Task
from holdfast.clock import SystemClock
from holdfast.errors import ConnectionFailed, InvalidInput, InvalidTask, WrongEventLoop
from holdfast.events import Observer, Observers, Telemetry
from holdfast.executors import ExecutorFactory, build
from holdfast.executors.table import table_executor
from holdfast.models import JobId
from holdfast.repeated import RepeatedLog
from holdfast.scheduler.manager import (
    Misfire,
    Overlap,
    ScheduleQueries,
    SchedulerManager,
)
from holdfast.settings import MAX_PAYLOAD, Names, WorkerSettings
from holdfast.stores.memory import InMemoryDriver
from holdfast.stores.opening import store_on
from holdfast.stores.postgres.drivers import Driver, connect
from holdfast.stores.postgres.drivers.base import DEFAULT_TIMEOUT_SECONDS
from holdfast.stores.postgres.drivers.reconnecting import Reconnecting
from holdfast.stores.postgres.drivers.unstarted import UnstartedDriver
from holdfast.stores.postgres.tables.store import leases_on
from holdfast.table import TableQueue
from holdfast.task import MAX_ATTEMPTS, Kind, Registry, define
from holdfast.telemetry.gauges import gauging
from holdfast.worker.claim import QueueExecutionMode
from holdfast.worker.manager import QueueManager
from holdfast.worker.signals import stop_on_signals
from holdfast.worker.sources import Sources
from holdfast.worker.status import say_it_works

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.breaker import BreakerPolicy
    from holdfast.clock import Clock
    from holdfast.explanation import Explanation
    from holdfast.lifecycle import Status
    from holdfast.models import Executor, OnFailure
    from holdfast.ports import Only, Store
    from holdfast.task import EntrypointExecutorParameters, EntrypointOptions

logger = logging.getLogger("holdfast.worker")

_FIRST_ADMISSION_PAUSE_SECONDS = 0.5
_LONGEST_ADMISSION_PAUSE_SECONDS = 10.0
"""Between two tries of a worker that found no free connection when it started."""

Handler = TypeVar("Handler", bound=Callable[..., Any])
R = TypeVar("R")
Mode = Literal["continuous", "drain"]


class HoldfastOptions(TypedDict, total=False):
    """The options of Holdfast, whichever way one is made."""

    prefix: str
    """The prefix of its tables' names."""
    schema: str | None
    """The schema of its tables. None means the connection's search_path."""
    resources: MutableMapping[Any, Any] | None
    """Passed to every handler in its Context."""
    notify: bool
    """Whether an enqueue wakes workers; without it they poll."""
    max_payload: int
    """The largest payload, in bytes, that may be enqueued."""
    clock: Clock | None
    """For tests."""


class Holdfast(TaskMethods):
    """A queue: register handlers, enqueue through `queries`, work with `run()`.

    `Holdfast.connect(dsn)` is the recommended way to make one.
    """

    def __init__(
        self,
        driver: Driver | InMemoryDriver,
        *,
        prefix: str = "holdfast",
        schema: str | None = None,
        resources: MutableMapping[Any, Any] | None = None,
        notify: bool = True,
        max_payload: int = MAX_PAYLOAD,
        clock: Clock | None = None,
    ) -> None:
        self._names = Names(prefix, schema)
        self._clock = clock
        self._notify = notify
        self._server: embedded.EmbeddedServer | None = None
        self._embedded: Path | None = None
        self._owned = False
        self._entered = 0
        """How many blocks it was entered by and not left."""
        self._entering = asyncio.Lock()
        self._left = False
        """It was entered and left, so its connections are closed."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where it was entered or run last."""
        self._registry = Registry()
        self._only: tuple[str, ...] = ()
        self._without: tuple[str, ...] = ()
        self._tables: dict[str, TableQueue] = {}
        self._warned: set[str] = set()
        """Warnings about tables that were logged. Each is logged once."""
        self._telemetry: Telemetry | None = None
        self.observers = Observers()
        self.resources = {} if resources is None else resources
        """The caller's own mapping, shared by all handlers."""
        self.shutdown = asyncio.Event()
        """Setting it begins the graceful stop of run()."""
        self._place: str | None = getattr(driver, "place", None)
        self.store = store = self._store_on(driver)
        self.queries = Queries(store, max_payload=max_payload)
        self._client = Client(self.queries)
        self._tasks: dict[str, Task[..., Any]] = {}
        self.schedules = ScheduleQueries(store)
        self.queue_manager = QueueManager(
            store,
            self._registry,
            observers=self.observers,
            resources=self.resources,
            shutdown=self.shutdown,
        )
        self.queue_manager.queries = self.queries
        self.scheduler_manager = SchedulerManager(
            store, shutdown=self.shutdown, observers=self.observers, worker=self.queue_manager.id
        )

    def _store_on(self, driver: Driver | InMemoryDriver) -> Store:
        return store_on(driver, self._names, clock=self._clock, notify=self._notify)

    def _use(self, driver: Driver) -> None:
        """Serve another server. What callers have taken from here before reaches it as well."""
        self._place = driver.place
        self._use_store(self._store_on(driver))

    def _use_store(self, store: Store) -> None:
        self.store = store
        self.queries.use(self.store)
        self.schedules.use(self.store)
        self.scheduler_manager.use(self.store)
        self.queue_manager.use(Sources(self.store), self._registry)

    @classmethod
    def connect(
        cls,
        dsn: str,
        *,
        listen_dsn: str | None = None,
        driver: Literal["asyncpg", "psycopg"] | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        **options: Unpack[HoldfastOptions],
    ) -> Self:
        """A queue on a DSN: `postgresql://…`, or `embedded:DIR` for a PostgreSQL of its own.

        It opens the connections it needs, and again when they break. Where `dsn` leads through a
        pooler in transaction mode, `listen_dsn` names an address past it, for wake-ups.
        Use it as `async with Holdfast.connect(dsn) as hf:`.
        """
        directory = embedded.parse(dsn)
        if directory and listen_dsn is not None:
            raise InvalidInput("listen_dsn is for a pooler, and an embedded server has none")
        # The DSN stays in here: an attribute would show its password to whoever prints the object.
        given = "" if directory else dsn

        def opened(started: str | None = None) -> Driver:
            return connect(started or given, listen_dsn=listen_dsn, driver=driver, timeout=timeout)

        first = opened()
        unstarted = UnstartedDriver(directory, timeout=timeout) if directory else None
        new = cls(unstarted or first, **options)
        new._owned = True
        new._embedded = directory
        new._connect = opened
        return new

    _connect: Callable[..., Driver]
    """Opens the driver again, or opens one for a server that was started."""

    @classmethod
    def in_memory(cls, **options: Unpack[HoldfastOptions]) -> Self:
        """Work without a database, for tests: the same rules, gone with the process."""
        return cls(InMemoryDriver(options.get("clock")), **options)

    @classmethod
    def from_asyncpg_connection(cls, connection: Any, **options: Unpack[HoldfastOptions]) -> Self:
        """Work on one asyncpg connection: everything takes turns on it."""
        return cls(db.AsyncpgDriver(connection), **options)

    @classmethod
    def from_asyncpg_pool(cls, pool: Any, **options: Unpack[HoldfastOptions]) -> Self:
        """Work on an asyncpg pool."""
        return cls(db.AsyncpgPoolDriver(pool), **options)

    @classmethod
    def from_psycopg_connection(cls, connection: Any, **options: Unpack[HoldfastOptions]) -> Self:
        """Work on one psycopg AsyncConnection: everything takes turns on it."""
        return cls(db.PsycopgDriver(connection), **options)

    @property
    def qm(self) -> QueueManager:
        """`queue_manager` under PgQueuer's name."""
        return self.queue_manager

    @property
    def sm(self) -> SchedulerManager:
        """`scheduler_manager` under PgQueuer's name."""
        return self.scheduler_manager

    @property
    def place(self) -> str | None:
        """The server and database in words, without a password. None where only the caller knows
        them."""
        if self._embedded is not None:
            return f"embedded database {self._embedded}"
        return self._place

    @property
    def names(self) -> Names:
        """The prefix and schema of its tables."""
        return self._names

    async def __aenter__(self) -> Self:
        """Open it for this event loop. It closes when the last of several blocks is left."""
        self._move_in()
        async with self._entering:
            if self._left:
                self._left = False
                if self._owned and self._embedded is None:
                    self._use(self._connect())
            if self._embedded is not None and self._server is None:
                self._server = await asyncio.to_thread(embedded.start, self._embedded)
                self._use(self._connect(self._server.dsn))
            self._entered += 1
        return self

    def _move_in(self) -> None:
        """Serve the running event loop; WrongEventLoop while another one runs."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop and self._loop.is_running():
            raise WrongEventLoop(
                "this Holdfast is in use by another event loop, which still runs; make one for "
                "each event loop, or enqueue with enqueue_sync() from other threads"
            )
        if self._left or self._loop not in (None, loop):
            # An event belongs to the loop it was waited for in. One that was set ended its run.
            stopping = self.shutdown.is_set() and not self._left
            self.shutdown = asyncio.Event()
            if stopping:
                self.shutdown.set()
            self.queue_manager.renew(self.shutdown)
            self.scheduler_manager.renew(self.shutdown)
        if self._loop is not loop:
            # Blocks of an event loop that has ended went with it.
            self._entered, self._entering = 0, asyncio.Lock()
        self._loop = loop

    async def __aexit__(self, *_: object) -> None:
        self._entered -= 1
        if self._entered > 0:
            return
        self._left = True
        self._loop = None
        await self._client.close()
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
        max_attempts: int | None = MAX_ATTEMPTS,
        max_recoveries: int = 3,
        executor: Kind = "async",
        breaker: str | BreakerPolicy | None = None,
    ) -> Callable[[Handler], Handler]:
        """Register a handler for the jobs that are enqueued under `name`.

        `breaker` names the circuit breaker of a dependency; entrypoints and tables may share one.
        """

        def register(func: Handler) -> Handler:
            _refuse_task(name, func)
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

    def _add_task(self, task: Task[..., Any]) -> None:
        self._add_tasks([task])

    def _add_tasks(self, tasks: Iterable[Task[..., Any]]) -> None:
        """Register all of them or, where one is refused, none. What is registered stays."""
        known = set(self._tasks.values())
        given = list(dict.fromkeys(tasks))
        new = [task for task in given if task not in known]
        self._registry.add_all([each for task in new for each in task.entrypoints()])
        self._tasks |= {name: task for task in new for name in task.names}
        for task in given:
            task.bind(self._client)

    def include(self, *groups: TaskGroup) -> None:
        """Register the tasks of groups, and enqueue their jobs here from now on.

        A group may be included again, such as after tasks were added to it.
        """
        for group in groups:
            if not isinstance(group, TaskGroup):
                raise InvalidTask(
                    f"include() takes a TaskGroup, got {group!r}; register one function with "
                    "@hf.task"
                )
        self._add_tasks(task for group in groups for task in group.tasks)

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks that were registered, by name and alias."""
        return dict(self._tasks)

    def handle(self, job_id: int, task: Task[..., R]) -> JobHandle[R]:
        """The handle of a job whose id was kept, such as in the caller's own table."""
        [checked] = check_ids([JobId(job_id)])
        if not isinstance(task, Task):
            raise InvalidInput(f"handle() takes the task of the job, got {task!r}")
        return JobHandle(checked, task, self._client)

    async def wait_for(
        self, handles: Iterable[JobHandle[Any]], timeout: float | timedelta | None = None
    ) -> list[Status | None]:
        """Wait until all of these jobs have ended or are held; their statuses, in that order."""
        return await wait_for(handles, timeout)

    def as_completed(
        self, handles: Iterable[JobHandle[R]], timeout: float | timedelta | None = None
    ) -> AsyncIterator[JobHandle[R]]:
        """The handles, each as soon as its job has ended or is held."""
        return as_completed(handles, timeout)

    def schedule(
        self,
        name: str,
        expression: str,
        *,
        timezone: str = "UTC",
        misfire: Misfire = "once",
        overlap: Overlap = "allow",
        **options: Unpack[EntrypointOptions],
    ) -> Callable[[Handler], Handler]:
        """Register a handler that is run at every tick of a cron expression.

        Each tick is a job of the entrypoint `name`. `options` are those of `entrypoint`, except
        that the handler cannot run in another process.
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

        options["executor_factory"] = on_ticks

        def register(func: Handler) -> Handler:
            _refuse_task(name, func)
            self.scheduler_manager.add(name, expression, timezone, misfire, overlap)
            return self.entrypoint(name, **options)(func)

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
        """Notify an observer of claims and outcomes."""
        self.observers.subscribe(observer)

    def instrument(self, telemetry: Telemetry) -> None:
        """Count and trace: claims and outcomes, and every job in the trace of its enqueue."""
        self._telemetry = telemetry
        self.observers.subscribe(telemetry)
        self.queries.carry = telemetry.carry

    async def install(
        self,
        only: Only | None = None,
        *,
        notify_inserts: bool | None = None,
        functions: bool | None = None,
    ) -> list[str]:
        """Create the tables, or apply what is missing; the migrations applied.

        only="breakers" creates the table of the circuit breakers and nothing else, for a database
        whose queues are tables of its own. A full install may follow. notify_inserts=True adds a
        trigger that wakes workers when others insert rows, False removes it, None leaves it as is.
        functions=True adds the functions that enqueue, cancel and ask from SQL, in the same way.
        """
        if only is not None and (notify_inserts, functions) != (None, None):
            raise InvalidInput(
                "notify_inserts and functions are about the table of the jobs; leave out `only`"
            )
        applied = await self.queries.install(only)
        if notify_inserts is not None:
            await self.store.notify_inserts(wanted=notify_inserts)
        if functions is not None:
            await self.store.functions(wanted=functions)
        return applied

    async def upgrade(self) -> list[str]:
        """Apply what is missing to tables that exist; SchemaMissing when there are none."""
        return await self.queries.upgrade()

    @property
    def breakers(self) -> Mapping[str, BreakerPolicy]:
        """The circuit breakers of the entrypoints that were registered, by entrypoint."""
        return dict(self._registry.breakers)

    async def explain(
        self, job_id: int | None = None, *, entrypoint: str | None = None
    ) -> Explanation:
        """Say why a job is not running, or the next job of an entrypoint.

        The sentence, its code, the next instant at which it may change, and the command that
        changes it. The breaker of an entrypoint is known where it is registered here, and from what
        workers report.
        """
        behind = {name: policy.name for name, policy in self.breakers.items()}
        if (job_id is None) is (entrypoint is None):
            raise InvalidInput(f"pass a job id or an entrypoint; got {job_id!r}, {entrypoint!r}")
        if entrypoint is not None:
            return await explain_entrypoint(self.store, entrypoint, behind)
        [checked] = check_ids([JobId(job_id or 0)])
        return await explain_job(self.store, checked, behind)

    async def verify(self) -> None:
        """Raise SchemaError unless this version can work with the tables."""
        await self.queries.verify()

    async def uninstall(self) -> None:
        """Remove the tables, with every job in them."""
        await self.queries.uninstall()

    async def run(
        self,
        *,
        dequeue_timeout: timedelta | None = None,
        batch_size: int | None = None,
        heartbeat_timeout: timedelta | None = None,
        drain_timeout: timedelta | None = None,
        concurrency: int | None = None,
        max_concurrent_tasks: int | None = None,
        max_loop_block: timedelta | None = None,
        connections: int | None = None,
        listen_dsn: str | None = None,
        mode: Mode | QueueExecutionMode = "continuous",
        signals: bool = True,
    ) -> None:
        """Work: the queue and the scheduler in this event loop, until `shutdown` is set.

        SIGTERM and SIGINT begin the graceful stop, a second one ends it at once; signals=False
        leaves both to the program around it. mode="drain" returns when nothing is claimable.
        `max_concurrent_tasks` is PgQueuer's name for `concurrency`; 0 means the default.

        `heartbeat_timeout` is the length of the leases that this worker takes: when it dies, others
        run its jobs after that time. The value of the worker that died counts, not that of the
        survivor, so give all workers the same.

        A busy worker opens at most `connections`, by default 4, and an idle one at most 2.
        `listen_dsn` replaces that of `connect`.
        """
        given = {
            "dequeue_timeout": dequeue_timeout,
            "batch_size": batch_size,
            "heartbeat_timeout": heartbeat_timeout,
            "drain_timeout": drain_timeout,
            "concurrency": _one_of(concurrency, max_concurrent_tasks or None),
            "max_loop_block": max_loop_block,
        }
        settings = WorkerSettings(**{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
        try:
            chosen = QueueExecutionMode(mode)
        except ValueError:
            raise InvalidInput(f'mode must be "continuous" or "drain", got {mode!r}') from None
        self._move_in()
        self.plan_connections(connections, listen_dsn)
        if not await self.wait_for_connection():
            return
        manager = self.queue_manager
        manager.use(self.sources(), self._traced_registry())
        once = chosen is QueueExecutionMode.drain
        if not once:
            say_it_works(manager.id, self.served, settings.concurrency, self.place)
        with stop_on_signals(self.shutdown, manager.fast_stop) if signals else nullcontext():
            async with self.scheduler_manager.running(once=once), self._gauges():
                await manager.run(settings, chosen)

    def plan_connections(self, connections: int | None, listen_dsn: str | None) -> None:
        """Set what run() takes under these names; None changes nothing."""
        driver = getattr(self.store, "driver", None)
        if isinstance(driver, Reconnecting):
            if listen_dsn is not None:
                driver.plan.listen_on(listen_dsn)
            if connections is not None:
                driver.plan.limit(connections)
        elif connections is not None or listen_dsn is not None:
            raise InvalidInput(
                "connections and listen_dsn are for Holdfast.connect(dsn), which opens its own "
                "connections; leave them out"
            )

    async def wait_for_connection(self) -> bool:
        """Wait while the server has no free connection. Return False when `shutdown` was set
        meanwhile."""
        pause, log = _FIRST_ADMISSION_PAUSE_SECONDS, RepeatedLog(logger)
        while True:
            try:
                await self.store.jobs.now()
            except ConnectionFailed as error:
                if not error.full:
                    raise
                log.warning("the worker waits for a free connection: %s", error)
            else:
                return True
            with suppress(TimeoutError):
                async with asyncio.timeout(pause * random.uniform(0.5, 1.0)):  # noqa: S311
                    await self.shutdown.wait()
                return False
            pause = min(2 * pause, _LONGEST_ADMISSION_PAUSE_SECONDS)

    def _gauges(self) -> AbstractAsyncContextManager[None]:
        if self._telemetry is None:
            return nullcontext()
        return gauging(self.sources(), self._telemetry)

    def serve(self, *, only: Collection[str] = (), without: Collection[str] = ()) -> None:
        """Serve only the entrypoints of `only`, or all, without those of `without`, from the next
        run() on."""
        self._registry.narrowed(only, without)
        self._only, self._without = tuple(only), tuple(without)

    @property
    def served(self) -> tuple[str, ...]:
        """The names of the entrypoints that run() serves."""
        return tuple(sorted(self._registry.narrowed(self._only, self._without).names))

    def _traced_registry(self) -> Registry:
        telemetry = self._telemetry
        served = self._registry.narrowed(self._only, self._without)
        if telemetry is None:
            return served
        worker = self.queue_manager.id
        return served.wrapped(lambda executor: telemetry.traced(executor, worker))

    def sources(self) -> Sources:
        """The tables that run() serves: our own, those of users, or both."""
        clock = self._clock or SystemClock()
        makers = {
            name: leases_on(queue, clock, self._warned) for name, queue in self._tables.items()
        }
        own = not self._tables or len(self._registry) > len(self._tables)
        return Sources(self.store, makers, own=own)


def _refuse_task(name: str, func: object) -> None:
    if isinstance(func, Task):
        raise InvalidTask(
            f"{func!r} is a task, which takes arguments and no Job or Schedule; for {name!r:.80} "
            f"register a function that awaits {func.__name__}.enqueue(…)"
        )


def _one_of(concurrency: int | None, max_concurrent_tasks: int | None) -> int | None:
    if None not in (concurrency, max_concurrent_tasks) and concurrency != max_concurrent_tasks:
        raise InvalidInput(
            f"concurrency={concurrency!r} and max_concurrent_tasks={max_concurrent_tasks!r} are "
            f"two names for one setting; leave one of them out"
        )
    return max_concurrent_tasks if concurrency is None else concurrency


sync_queries = SyncQueries
"""Queries for code without an event loop: `sync_queries(SyncPsycopgDriver(connection))`."""
