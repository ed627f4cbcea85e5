"""Typed tasks: a function, the name its jobs have, and how they are enqueued and run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from holdfast.client.execute import TaskExecutor, TaskRules, is_async
from holdfast.client.handles import JobHandle
from holdfast.client.retries import DEFAULT_ATTEMPTS, Retry, retry_of
from holdfast.client.signature import Signature, default_name, read_signature
from holdfast.errors import InvalidInput, InvalidTask
from holdfast.models import NewJob
from holdfast.redact import REDACTED_HEADER
from holdfast.task import Entrypoint, TaskCap, define, where

if TYPE_CHECKING:
    from typing import Literal

    from holdfast.breaker import BreakerPolicy
    from holdfast.client.client import Client
    from holdfast.client.codec import Codec
    from holdfast.client.queries import Queries
    from holdfast.models import Context, Headers, JobId, OnFailure

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_KEEP = timedelta(days=1)
"""For how long a result is kept."""

_LONGEST_KEEP = timedelta(days=3650)

Arguments = Mapping[str, Any] | tuple[Any, ...]
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options of a task; `hf.task` documents each."""

    name: str | None = None
    aliases: tuple[str, ...] = ()
    retry: int | Retry | None = DEFAULT_ATTEMPTS
    store_result: bool | timedelta = False
    on_failure: OnFailure = "hold"
    concurrency_limit: int = 0
    serialized_dispatch: bool = False
    retry_timer: timedelta = timedelta(0)
    timeout: timedelta | None = None
    max_recoveries: int = 3
    breaker: str | BreakerPolicy | None = None

    def rules(self) -> TaskRules:
        """How its jobs are run."""
        return TaskRules(retry_of(self.retry), self.on_failure, self._keep())

    def _keep(self) -> timedelta | None:
        keep = self.store_result
        if isinstance(keep, bool):
            return DEFAULT_KEEP if keep else None
        if not isinstance(keep, timedelta) or not timedelta(0) < keep <= _LONGEST_KEEP:
            raise InvalidTask(
                f"store_result must be True, False or a timedelta up to {_LONGEST_KEEP.days} days, "
                f"got {keep!r}"
            )
        return keep


@dataclass(frozen=True, slots=True)
class EnqueueOptions:
    """The options of one job; `task.options` documents each."""

    priority: int = 0
    after: timedelta | datetime | None = None
    dedupe_key: str | None = None
    headers: Headers | None = None
    max_attempts: int | None = None
    on_conflict: Literal["raise", "update_priority"] = "raise"


class Task(Generic[P, R]):
    """A function whose calls can be enqueued; made by `@hf.task`."""

    def __init__(
        self, func: Callable[..., Any], options: TaskOptions, names: Mapping[str, Any]
    ) -> None:
        self.func = func
        """The function itself."""
        self.name = default_name(func) if options.name is None else options.name
        """The name under which its jobs are enqueued."""
        self.options_given = options
        if len(set(self.names)) < len(self.names):
            raise InvalidTask(f"task {self.name!r}: a name is taken twice in {self.names}")
        self._names = names
        self._rules = options.rules()
        self._client: Client | None = None
        self._signature: Signature | None = None
        self._codec: Codec | None = None
        self.__doc__ = func.__doc__
        self.__name__ = getattr(func, "__name__", self.name)
        self.__module__ = func.__module__
        self.__wrapped__ = func
        try:
            self._codec = self._read()
        except NameError:
            # It names a class that is defined further down, so it is read when it is needed.
            return
        self._names = {}

    def __repr__(self) -> str:
        return f"<task {self.name!r} ({where(self.func)})>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it is registered under: its name and its aliases."""
        return (self.name, *self.options_given.aliases)

    @property
    def signature(self) -> Signature:
        """The parameters in its payload, and its result."""
        if self._signature is None:
            self._signature = read_signature(self.name, self.func, self._names)
        return self._signature

    @property
    def stores_result(self) -> bool:
        """Whether its results are stored."""
        return self._rules.keep is not None

    def codec(self) -> Codec:
        """How its arguments and its result become JSON."""
        if self._codec is None:
            try:
                self._codec = self._read()
            except NameError as error:
                reason = str(error).partition("\n")[0]
                raise InvalidTask(
                    f"task {self.name!r}: an annotation cannot be resolved ({reason}); define or "
                    "import it above the task, at the top level of its module"
                ) from None
        return self._codec

    def _read(self) -> Codec:
        from holdfast.client.codec import Codec

        return Codec(self.name, self.signature)

    def bind(self, client: Client) -> None:
        """Enqueue into this queue from now on."""
        self._client = client

    @property
    def client(self) -> Client:
        """The queue it belongs to."""
        if self._client is None:
            raise InvalidInput(
                f"task {self.name!r} belongs to no queue yet; call hf.include(tasks) with its group"
            )
        return self._client

    def entrypoints(self) -> list[Entrypoint]:
        """The entrypoints that a worker serves: one for its name and one for each alias."""
        return [self._entrypoint(name) for name in self.names]

    def _entrypoint(self, name: str) -> Entrypoint:
        options, rules, codec = self.options_given, self._rules, self.codec()
        context_name = self.signature.context
        return define(
            name,
            self.func,
            build=lambda given: TaskExecutor(given, self.func, lambda: codec, rules, context_name),
            concurrency_limit=options.concurrency_limit,
            serialized_dispatch=options.serialized_dispatch,
            retry_timer=options.retry_timer,
            takes_job=False,
            on_failure=options.on_failure,
            timeout=options.timeout,
            max_attempts=TaskCap(rules.retry.attempts),
            max_recoveries=options.max_recoveries,
            executor="async" if is_async(self.func) else "thread",
            breaker=options.breaker,
        )

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return the job that `enqueue` with these arguments would enqueue."""
        return self._new_job(args, kwargs, EnqueueOptions())

    def job_of(self, payload: bytes) -> NewJob:
        """The job of a payload that was made elsewhere, after a look whether it fits."""
        self.codec().decode(payload)
        paths = self.codec().redacted
        headers = {REDACTED_HEADER: [list(path) for path in paths]} if paths else None
        return NewJob(self.name, payload, headers=headers)

    def _new_job(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: EnqueueOptions
    ) -> NewJob:
        payload, redacted = self.codec().encode(args, kwargs)
        headers = options.headers
        if redacted:
            headers = {**(headers or {}), REDACTED_HEADER: [list(path) for path in redacted]}
        return NewJob(
            self.name,
            payload,
            options.priority,
            options.after,
            options.dedupe_key,
            headers,
            options.max_attempts,
        )

    def on(self, transaction: object, *, autocommit: bool = False) -> BoundTask[P, R]:
        """The same task in the caller's transaction: `await ship.on(session).enqueue(order)`.

        In code without an event loop: `ship.on(session).enqueue_sync(order)`.
        """
        return self.options().on(transaction, autocommit=autocommit)

    def options(
        self,
        *,
        priority: int = 0,
        delay: timedelta | None = None,
        at: datetime | None = None,
        dedupe_key: str | None = None,
        headers: Headers | None = None,
        max_attempts: int | None = None,
        on_conflict: Literal["raise", "update_priority"] = "raise",
    ) -> BoundTask[P, R]:
        """The same task with options for the jobs to be enqueued.

        Higher `priority` runs first. `delay` is a time from now, `at` an aware instant. A
        `dedupe_key` that belongs to an active job raises DuplicateJobError; with
        on_conflict="update_priority" the handle is that of the active job.
        """
        if on_conflict not in ("raise", "update_priority"):
            raise InvalidInput(
                f'on_conflict must be "raise" or "update_priority", got {on_conflict!r}: a job '
                "that is skipped has no handle; call hf.queries.enqueue_many() for that"
            )
        if delay is not None and at is not None:
            raise InvalidInput("delay and at are two times for one job; pass one of them")
        options = EnqueueOptions(
            priority, at if delay is None else delay, dedupe_key, headers, max_attempts, on_conflict
        )
        return BoundTask(self, options)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a call of the function; the handle waits for its end and its result."""
        return await self.options().enqueue(*args, **kwargs)

    async def enqueue_many(self, calls: Iterable[NewJob | Arguments]) -> list[JobHandle[R]]:
        """Enqueue many calls in one statement.

        Each is what `task.job(…)` returns, which is checked by types, or its bare arguments: a
        tuple by position, a mapping by name.
        """
        return await self.options().enqueue_many(calls)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue where no event loop runs, such as in a thread or a plain script."""
        return self.options().enqueue_sync(*args, **kwargs)


class AsyncTask(Task[P, R]):
    """A task made of an `async def`."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now."""
        result: R = await self.func(*args, **kwargs)
        return result


class PlainTask(Task[P, R]):
    """A task made of a `def`, which a worker runs in a thread."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now."""
        result: R = self.func(*args, **kwargs)
        return result


class AsyncContextTask(Task[P, R]):
    """A task made of an `async def` whose first argument is a Context, not in the payload."""

    async def __call__(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now."""
        result: R = await self.func(context, *args, **kwargs)
        return result


class PlainContextTask(Task[P, R]):
    """A task made of a `def` whose first argument is a Context, not in the payload."""

    def __call__(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now."""
        result: R = self.func(context, *args, **kwargs)
        return result


@dataclass(frozen=True, slots=True)
class BoundTask(Generic[P, R]):
    """A task with options for its jobs, and a connection if they join a transaction."""

    task: Task[P, R]
    _options: EnqueueOptions
    _queries: Queries | None = field(default=None, repr=False)

    def on(self, transaction: object, *, autocommit: bool = False) -> BoundTask[P, R]:
        """The same in the caller's transaction."""
        queries = self.task.client.on(transaction, autocommit=autocommit)
        return replace(self, _queries=queries)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a call of the function; the handle waits for its end and its result."""
        job = self.task._new_job(args, kwargs, self._options)
        [job_id] = await self._insert([job])
        return self._handle(job_id)

    async def enqueue_many(self, calls: Iterable[NewJob | Arguments]) -> list[JobHandle[R]]:
        """Enqueue many calls in one statement; see Task.enqueue_many."""
        ids = await self._insert([self._job_of(call) for call in calls])
        return [self._handle(job_id) for job_id in ids]

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue where no event loop runs, such as in a thread or a plain script."""
        job = self.task._new_job(args, kwargs, self._options)
        client = self.task.client
        [job_id] = client.run_sync(lambda queries: self._insert([job], queries), self._queries)
        return self._handle(job_id)

    def _job_of(self, call: NewJob | Arguments) -> NewJob:
        if isinstance(call, NewJob):
            if call.entrypoint != self.task.name:
                raise InvalidInput(f"a job of {call.entrypoint!r} is no call of {self.task.name!r}")
            options = self._options
            headers = {**(options.headers or {}), **(call.headers or {})}
            return call._replace(
                priority=options.priority,
                execute_after=options.after,
                dedupe_key=options.dedupe_key,
                headers=headers or None,
                max_attempts=options.max_attempts,
            )
        if isinstance(call, tuple):
            return self.task._new_job(call, _NOTHING, self._options)
        if isinstance(call, Mapping):
            return self.task._new_job((), call, self._options)
        raise InvalidInput(
            f"enqueue_many takes {self.task.__name__}.job(…), a tuple or a mapping of arguments, "
            f"got a {type(call).__name__}"
        )

    async def _insert(self, jobs: list[NewJob], queries: Queries | None = None) -> list[JobId]:
        chosen = queries or self._queries or self.task.client.queries
        ids = await chosen.enqueue_many(jobs, on_conflict=self._options.on_conflict)
        return [job_id for job_id in ids if job_id is not None]

    def _handle(self, job_id: JobId) -> JobHandle[R]:
        return JobHandle(job_id, self.task, self.task.client)
