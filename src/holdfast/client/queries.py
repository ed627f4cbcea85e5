"""The calls of producers and operators. Arguments are checked here, once, for every store."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from holdfast import db
from holdfast.breaker import BreakerState, name_faults
from holdfast.checks import integer_fault
from holdfast.client.job_checks import (
    check_entrypoint,
    check_ids,
    check_jobs,
    check_keys_differ,
    check_payload,
    check_text,
    new_jobs,
)
from holdfast.errors import (
    BreakerNotFound,
    InvalidInput,
    JobNotFound,
    NotPaused,
    SchemaError,
    SchemaMissing,
    WorkerAlive,
)
from holdfast.lifecycle import TRANSITIONS, Status, Verb
from holdfast.models import HeldFilter, Moved
from holdfast.settings import MAX_PAYLOAD, Names, Retention, WorkerSettings
from holdfast.stores.opening import store_on

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from holdfast.breaker import Breaker
    from holdfast.models import (
        Act,
        EnqueueConflict,
        Headers,
        Job,
        JobId,
        LogEntry,
        NewJob,
        Pause,
        Progress,
        QueueSize,
        Requeued,
        Statistic,
        StoredResult,
        Timing,
        WorkerInfo,
    )
    from holdfast.ports import Only, Store
    from holdfast.stores.memory import InMemoryDriver
    from holdfast.stores.postgres.drivers import Driver

P = ParamSpec("P")
T = TypeVar("T")


class SynchronousTransaction(Protocol):
    """A Session or Connection whose commit() does not have to be awaited."""

    def commit(self) -> None: ...


_MOST = 2**31 - 1
_LONGEST = timedelta(days=365 * 1000)
"""Reaching back farther would leave the calendar."""


class QueriesOptions(TypedDict, total=False):
    """The options of Queries; those of Holdfast are these and more."""

    prefix: str
    """The prefix of its tables' names."""
    schema: str | None
    """The schema of its tables. None means the connection's search_path."""
    max_payload: int
    """The largest payload, in bytes, that may be enqueued."""
    carry: Callable[[], Headers] | None
    """Returns headers that are added to every job."""


class Queries:
    """Enqueue, look, requeue, cancel, delete; `on(connection)` does it in your transaction.

    `hf.queries` is one; `Queries(driver)` works without a Holdfast around it.
    """

    def __init__(
        self,
        driver: Driver | InMemoryDriver | Store,
        *,
        prefix: str = "holdfast",
        schema: str | None = None,
        max_payload: int = MAX_PAYLOAD,
        carry: Callable[[], Headers] | None = None,
    ) -> None:
        self._store = store_on(driver, Names(prefix, schema))
        self._max_payload = max_payload
        self.carry = carry
        """Headers that are added to every job, such as those of the trace it is enqueued in."""

    @classmethod
    def from_asyncpg_connection(cls, connection: Any, **options: Unpack[QueriesOptions]) -> Self:
        """Work on one asyncpg connection: everything takes turns on it."""
        return cls(db.AsyncpgDriver(connection), **options)

    @classmethod
    def from_asyncpg_pool(cls, pool: Any, **options: Unpack[QueriesOptions]) -> Self:
        """Work on an asyncpg pool."""
        return cls(db.AsyncpgPoolDriver(pool), **options)

    @classmethod
    def from_psycopg_connection(cls, connection: Any, **options: Unpack[QueriesOptions]) -> Self:
        """Work on one psycopg AsyncConnection: everything takes turns on it."""
        return cls(db.PsycopgDriver(connection), **options)

    @property
    def store(self) -> Store:
        """The store that it asks."""
        return self._store

    def over(self, store: Store) -> Queries:
        """The same queries through another store of the same tables."""
        return Queries(store, max_payload=self._max_payload, carry=self.carry)

    def use(self, store: Store) -> None:
        """Ask another store from now on, such as that of a server which has just started."""
        self._store = store

    @overload
    def on(  # type: ignore[overload-overlap]  # `object` has to take what is not listed here
        self, transaction: SynchronousTransaction, *, autocommit: bool = False
    ) -> SyncQueries: ...

    @overload
    def on(self, transaction: object, *, autocommit: bool = False) -> Queries: ...

    def on(self, transaction: object, *, autocommit: bool = False) -> Queries | SyncQueries:
        """The same queries in your own transaction: what they do commits with it, or not at all.

        It takes a connection of asyncpg, psycopg or psycopg2, a session or connection of
        SQLAlchemy or SQLModel, and Django's connection. What works without an event loop gives
        SyncQueries. A connection that is in no transaction is refused, unless `autocommit` is true.
        """
        queries = self.joining(transaction, autocommit=autocommit)
        return SyncQueries(queries) if queries._store.synchronous else queries

    def joining(self, transaction: object, *, autocommit: bool = False) -> Queries:
        """As `on`, with coroutines for every transaction; one without a loop never suspends."""
        return self.over(self._store.on(transaction, autocommit=autocommit))

    async def install(self, only: Only | None = None) -> list[str]:
        """Create the tables, or apply what is missing; the migrations applied.

        only="breakers" creates the table of the circuit breakers and nothing else.
        """
        if only not in (None, "breakers"):
            raise InvalidInput(f'only must be "breakers" or None, got {only!r}')
        return await self._store.install(only)

    async def upgrade(self) -> list[str]:
        """Apply what is missing to tables that exist; SchemaMissing when there are none."""
        try:
            await self._store.verify()
        except SchemaMissing:
            raise
        except SchemaError:
            return await self._store.install()
        return []

    async def verify(self) -> None:
        """Raise SchemaError unless this version can work with the tables."""
        await self._store.verify()

    async def uninstall(self) -> None:
        """Remove the tables, with every job in them."""
        await self._store.uninstall()

    @overload
    async def enqueue(
        self,
        entrypoint: str | Sequence[str],
        payload: bytes | Sequence[bytes | None] | None = None,
        priority: int | Sequence[int] = 0,
        execute_after: timedelta | datetime | Sequence[timedelta | datetime | None] | None = None,
        dedupe_key: str | Sequence[str | None] | None = None,
        headers: Headers | Sequence[Headers | None] | None = None,
        *,
        max_attempts: int | Sequence[int | None] | None = None,
        on_conflict: Literal["raise", "update_priority"] = "raise",
    ) -> list[JobId]: ...

    @overload
    async def enqueue(
        self,
        entrypoint: str | Sequence[str],
        payload: bytes | Sequence[bytes | None] | None = None,
        priority: int | Sequence[int] = 0,
        execute_after: timedelta | datetime | Sequence[timedelta | datetime | None] | None = None,
        dedupe_key: str | Sequence[str | None] | None = None,
        headers: Headers | Sequence[Headers | None] | None = None,
        *,
        max_attempts: int | Sequence[int | None] | None = None,
        on_conflict: EnqueueConflict,
    ) -> list[JobId | None]: ...

    async def enqueue(
        self,
        entrypoint: str | Sequence[str],
        payload: bytes | Sequence[bytes | None] | None = None,
        priority: int | Sequence[int] = 0,
        execute_after: timedelta | datetime | Sequence[timedelta | datetime | None] | None = None,
        dedupe_key: str | Sequence[str | None] | None = None,
        headers: Headers | Sequence[Headers | None] | None = None,
        *,
        max_attempts: int | Sequence[int | None] | None = None,
        on_conflict: EnqueueConflict = "raise",
    ) -> list[JobId] | list[JobId | None]:
        """Enqueue one job, or one for each place of parallel lists; the ids in that order.

        A key that belongs to an active job raises DuplicateJobError and enqueues nothing; with
        on_conflict="skip" that place of the result is None and the others go through; with
        "update_priority" it is the id of that job, whose priority is raised if it is lower.
        """
        jobs = new_jobs(
            entrypoint=entrypoint,
            payload=payload,
            priority=priority,
            execute_after=execute_after,
            dedupe_key=dedupe_key,
            headers=headers,
            max_attempts=max_attempts,
        )
        return await self.enqueue_many(jobs, on_conflict=on_conflict)

    async def enqueue_many(
        self, jobs: Sequence[NewJob], *, on_conflict: EnqueueConflict = "raise"
    ) -> list[JobId | None]:
        """Enqueue all of them, in one statement; "update_priority" takes one more."""
        if on_conflict not in ("raise", "skip", "update_priority"):
            raise InvalidInput(
                f'on_conflict must be "raise", "skip" or "update_priority", got {on_conflict!r}'
            )
        checked = self._loaded(check_jobs(jobs, self._max_payload))
        if on_conflict == "update_priority":
            return await self._insert_or_raise_priority(checked)
        return await self._store.jobs.insert(checked, on_conflict)

    async def _insert_or_raise_priority(self, jobs: list[NewJob]) -> list[JobId | None]:
        """First the jobs that are there, so that a call that fails has enqueued nothing."""
        check_keys_differ(jobs)
        ids: list[JobId | None] = [None] * len(jobs)
        # Once more when a job with the key comes or ends between the two statements.
        while places := [place for place, job_id in enumerate(ids) if job_id is None]:
            keyed = {
                key: jobs[place].priority for place in places if (key := jobs[place].dedupe_key)
            }
            owners = await self._store.jobs.raise_priority(keyed) if keyed else {}
            for place in places:
                ids[place] = owners.get(jobs[place].dedupe_key or "")
            new = [place for place in places if ids[place] is None]
            inserted = await self._store.jobs.insert([jobs[place] for place in new], "skip")
            for place, job_id in zip(new, inserted, strict=True):
                ids[place] = job_id
        return ids

    def _loaded(self, jobs: list[NewJob]) -> list[NewJob]:
        """The jobs with the headers of the carrier. Their own headers win."""
        carried = self.carry() if self.carry else None
        if not carried:
            return jobs
        loaded = [job._replace(headers={**carried, **(job.headers or {})}) for job in jobs]
        return check_jobs(loaded, self._max_payload)

    async def requeue_jobs(
        self,
        ids: Sequence[JobId],
        *,
        actor: str | None = None,
        reason: str | None = None,
        max_attempts: int | None = None,
    ) -> dict[JobId, Requeued]:
        """Send held jobs back to the queue with fresh counters. Return the outcome of each id.

        `max_attempts` gives them a cap of their own.
        """
        if max_attempts is not None:
            _positive("max_attempts", max_attempts)
        return await self._store.jobs.requeue(
            check_ids(ids),
            actor=check_text("actor", actor),
            reason=check_text("reason", reason),
            max_attempts=max_attempts,
        )

    async def preview_requeue(self, ids: Sequence[JobId]) -> dict[JobId, Requeued]:
        """Return what requeue_jobs() would do with each id now, without doing it."""
        return await self._store.jobs.preview_requeue(check_ids(ids))

    async def move_jobs(
        self,
        ids: Sequence[JobId],
        to: str,
        *,
        actor: str | None = None,
        reason: str | None = None,
        force: bool = False,
    ) -> dict[JobId, Moved]:
        """Queue jobs again under the entrypoint `to`. Return the outcome of each id.

        Jobs that wait, that are held (these with fresh counters) or whose lease is stale are moved.
        A job whose lease is live is `leased` and stays, unless `force` is true: then its worker
        loses the lease and its handler is stopped.
        """
        name = check_entrypoint(to)
        why = check_text("reason", reason)
        return await self._store.jobs.move(
            check_ids(ids),
            name,
            actor=check_text("actor", actor),
            reason=f"moved to {name}: {why}" if why else f"moved to {name}",
            force=force,
        )

    async def release_worker(
        self,
        worker: str,
        *,
        actor: str | None = None,
        reason: str | None = None,
        force: bool = False,
    ) -> list[JobId]:
        """Release the jobs of a dead worker now instead of when its leases expire.

        Return the ids that were released. Nothing is counted against them. A worker that reported
        within its own heartbeat_timeout is refused with WorkerAlive unless `force` is true.
        """
        if not isinstance(worker, str) or not worker:
            raise InvalidInput(f"worker must be the id of a worker, got {worker!r}")
        check_text("worker", worker)
        jobs = self._store.jobs
        if not force:
            await self._check_silent(worker)
        ids = await jobs.leased_to(worker)
        why = check_text("reason", reason)
        moved = await jobs.move(
            ids,
            None,
            actor=check_text("actor", actor),
            reason=f"worker released: {why}" if why else "worker released",
            worker=worker,
        )
        return [job_id for job_id, outcome in moved.items() if outcome is Moved.MOVED]

    async def _check_silent(self, worker: str) -> None:
        """A worker that is not listed has been silent for an hour, or never worked here."""
        now = await self._store.jobs.now()
        for info in await self._store.jobs.workers():
            patience = info.heartbeat_timeout or WorkerSettings().heartbeat_timeout
            if info.id == worker and now - info.heartbeat < patience:
                raise WorkerAlive(worker, now - info.heartbeat, patience)

    async def mark_job_as_cancelled(
        self, ids: Sequence[JobId], *, actor: str | None = None, reason: str | None = None
    ) -> set[JobId]:
        """Cancel jobs in any state. A running handler is asked to stop. Return the ids that were
        canceled."""
        return await self._remove(Verb.CANCEL, ids, actor, reason)

    async def delete_jobs(
        self, ids: Sequence[JobId], *, actor: str | None = None, reason: str | None = None
    ) -> set[JobId]:
        """Delete jobs that are queued or held, not those that run. Return the ids that were
        deleted."""
        return await self._remove(Verb.DELETE, ids, actor, reason)

    async def _remove(
        self, verb: Verb, ids: Sequence[JobId], actor: str | None, reason: str | None
    ) -> set[JobId]:
        return await self._store.jobs.remove(
            TRANSITIONS[verb],
            check_ids(ids),
            actor=check_text("actor", actor),
            reason=check_text("reason", reason),
        )

    async def clear_queue(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        actor: str | None = None,
        reason: str | None = None,
    ) -> int:
        """Take all jobs of the entrypoint or entrypoints, or of all, out of the queue; how many.

        Those that wait or are held end as deleted, those that run as canceled, each with its log
        row. What is enqueued meanwhile stays.
        """
        return await self._store.jobs.clear(
            _names(entrypoint),
            actor=check_text("actor", actor),
            reason=check_text("reason", reason),
        )

    async def clear_queue_log(self, entrypoint: str | Sequence[str] | None = None) -> int:
        """Delete the log rows of the entrypoint or entrypoints, or all; how many.

        They are counted into the statistics first. What is newer than the oldest transaction that
        still runs on the server cannot be counted yet, and stays.
        """
        names = _names(entrypoint)
        await self._store.jobs.aggregate()
        return await self._store.jobs.clear_log(names)

    async def clear_statistics_log(self, entrypoint: str | Sequence[str] | None = None) -> int:
        """Delete the statistics of the entrypoint or entrypoints, or all; how many rows."""
        names = _names(entrypoint)
        await self._store.jobs.aggregate()
        return await self._store.jobs.clear_statistics(names)

    async def get_jobs(self, ids: Sequence[JobId]) -> list[Job]:
        """Return the jobs with these ids that are still in the queue table."""
        return await self._store.jobs.get(check_ids(ids))

    async def find_statuses(self, ids: Sequence[JobId]) -> dict[JobId, Status]:
        """Return the status of each known job. An id that is unknown or pruned is left out."""
        return await self._store.jobs.statuses(check_ids(ids))

    async def find_results(self, ids: Sequence[JobId]) -> dict[JobId, StoredResult]:
        """Return the stored results of jobs as JSON, where they have not expired."""
        return await self._store.results.get(check_ids(ids))

    async def find_progress(self, ids: Sequence[JobId]) -> dict[JobId, Progress]:
        """Return the progress of jobs, where their handlers reported it."""
        return await self._store.results.progress(check_ids(ids))

    async def list_progress(self, limit: int = 100) -> list[tuple[JobId, Progress]]:
        """Return the progress of running jobs, the latest report first."""
        return await self._store.results.list_progress(_positive("limit", limit))

    async def job_status(self, ids: Sequence[JobId]) -> list[tuple[JobId, Status]]:
        """Return the status of each job."""
        asked = check_ids(ids)
        known = await self._store.jobs.statuses(asked)
        for job_id in asked:
            if job_id not in known:
                raise JobNotFound(job_id)
        return [(job_id, known[job_id]) for job_id in asked]

    async def job_history(self, job_id: JobId) -> list[LogEntry]:
        """Return every log row of a job, oldest first."""
        [job_id] = check_ids([job_id])
        history = await self._store.jobs.history(job_id)
        if not history and not await self._store.jobs.get([job_id]):
            raise JobNotFound(job_id)
        return history

    async def list_failed_jobs(
        self, limit: int = 25, *, among: HeldFilter | None = None
    ) -> list[Job]:
        """Return held jobs, newest first. `among` filters them."""
        wanted = among or HeldFilter()
        check_text("entrypoint", wanted.entrypoint)
        check_text("error", wanted.error)
        for name, value in (("since", wanted.since), ("older_than", wanted.older_than)):
            if value is not None:
                _stretch(name, value)
        return await self._store.jobs.list_held(_positive("limit", limit), wanted)

    async def edit_job(
        self,
        job_id: JobId,
        payload: bytes | None,
        *,
        actor: str | None = None,
        reason: str | None = None,
    ) -> bool:
        """Replace the payload of a held job; False when the job is not held."""
        [job_id] = check_ids([job_id])
        check_payload(payload, self._max_payload)
        return await self._store.jobs.edit(
            job_id, payload, actor=check_text("actor", actor), reason=check_text("reason", reason)
        )

    async def resolve_job(self, job_id: JobId, reason: str, *, actor: str | None = None) -> bool:
        """End a held job for good, because it can never succeed; False when it is not held."""
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidInput(f"a job is resolved with a reason, got {reason!r}")
        [job_id] = check_ids([job_id])
        held = {job.id for job in await self._store.jobs.get([job_id]) if job.held_at is not None}
        return bool(held and await self.delete_jobs([job_id], actor=actor, reason=reason))

    async def list_running_jobs(self, limit: int = 25) -> list[Job]:
        """Return leased jobs, the longest leased first."""
        return await self._store.jobs.list_running(_positive("limit", limit))

    async def oldest_waiting(self) -> dict[str, datetime]:
        """Return for each entrypoint with claimable jobs since when the oldest has been due."""
        return await self._store.jobs.oldest()

    async def browse_queue(
        self, *, status: Status | str | None = None, entrypoint: str | None = None, limit: int = 25
    ) -> list[Job]:
        """Jobs of the queue table, newest first."""
        return await self._store.jobs.browse(
            status=_status(status),
            entrypoint=check_text("entrypoint", entrypoint),
            limit=_positive("limit", limit),
        )

    async def queue_size(self, entrypoints: Sequence[str] | None = None) -> list[QueueSize]:
        """Count the jobs by entrypoint, priority and status."""
        if isinstance(entrypoints, str):
            raise InvalidInput(
                f"entrypoints must be a list of names, got {entrypoints!r}; write [{entrypoints!r}]"
            )
        return await self._store.jobs.size(_names(entrypoints))

    async def queue_log(
        self,
        *,
        limit: int = 100,
        status: Status | str | None = None,
        entrypoint: str | None = None,
        last: timedelta | None = None,
    ) -> list[LogEntry]:
        """Return the newest log rows. `last` limits their age."""
        return await self._store.jobs.log(
            limit=_positive("limit", limit),
            status=_status(status),
            entrypoint=check_text("entrypoint", entrypoint),
            since=None if last is None else _stretch("last", last),
        )

    async def log_statistics(
        self, limit: int | None = 1000, last: timedelta | None = None
    ) -> list[Statistic]:
        """Return log rows counted by minute, entrypoint, priority and status, newest first.

        `last` limits their age; None means all of them.
        """
        since = None if last is None else _stretch("last", last)
        most = _MOST if limit is None else _positive("limit", limit)
        await self._store.jobs.aggregate()
        return await self._store.jobs.statistics(since=since, limit=most)

    async def uncounted_since(self) -> datetime | None:
        """Return since when log_statistics() lacks rows, None while it has all.

        A row is counted when no transaction of the server is older than it. Those that are not yet
        counted are read from the log, up to a bound.
        """
        return await self._store.jobs.uncounted_since()

    async def timings(self, last: timedelta = timedelta(hours=1)) -> list[Timing]:
        """Return waiting and running times by entrypoint, for `histogram.percentile()`.

        They come from the statistics, so their cost does not depend on the length of the log.
        """
        stretch = _stretch("last", last)
        await self._store.jobs.aggregate()
        return await self._store.jobs.timings(stretch)

    async def prune_log(self, older_than: timedelta, *, limit: int = 10_000) -> int:
        """Delete log rows older than that, oldest first, at most `limit`; how many went."""
        age, most = _stretch("older_than", older_than), _positive("limit", limit)
        await self._store.jobs.aggregate()
        return await self._store.jobs.prune(older_than=age, limit=most)

    async def uncounted_log(self, older_than: timedelta) -> int:
        """Return how many log rows of that age prune_log() leaves.

        A row is counted in the statistics when no transaction of the server is older than it,
        whichever database that is in. Until then it is not deleted.
        """
        return await self._store.jobs.uncounted(_stretch("older_than", older_than))

    async def retention(self) -> Retention:
        """Return how long log rows are kept."""
        return await self._store.upkeep.retention()

    async def set_retention(self, retention: Retention) -> None:
        """Set how long log rows are kept; workers delete those whose time is over."""
        if not isinstance(retention, Retention):
            raise InvalidInput(f"retention must be a Retention, got {retention!r}")
        await self._store.upkeep.set_retention(retention)

    async def delete_expired_log(self, *, limit: int = 10_000) -> int:
        """Delete at most `limit` log rows whose time is over; how many went. Workers do so."""
        most = _positive("limit", limit)
        await self._store.jobs.aggregate()
        return await self._store.upkeep.delete_expired(limit=most)

    async def list_breakers(self) -> list[Breaker]:
        """The circuit breakers that workers have named, or that an operator holds open."""
        return await self._store.breakers.all()

    async def open_breaker(
        self, name: str, *, actor: str | None = None, reason: str | None = None
    ) -> Breaker:
        """Hold a circuit breaker open: its work waits until close_breaker()."""
        if faults := name_faults(name):
            raise InvalidInput(f"circuit breaker: {faults[0]}")
        who, why = check_text("actor", actor), check_text("reason", reason)
        held = await self._store.breakers.force(
            name, BreakerState.OPEN, actor=who or "unknown", reason=why
        )
        if who:
            await self._store.pauses.record_act("open breaker", name, actor=who, reason=why)
        return held

    async def close_breaker(
        self, name: str, *, actor: str | None = None, reason: str | None = None
    ) -> Breaker:
        """Close a circuit breaker at once, whoever or whatever opened it."""
        who, why = check_text("actor", actor), check_text("reason", reason)
        if name not in {breaker.name for breaker in await self._store.breakers.all()}:
            raise BreakerNotFound(name)
        closed = await self._store.breakers.force(name, BreakerState.CLOSED, actor="", reason=None)
        if who:
            await self._store.pauses.record_act("close breaker", name, actor=who, reason=why)
        return closed

    async def pause(
        self,
        name: str | None = None,
        *,
        reason: str,
        until: datetime | timedelta | None = None,
        everything: bool = False,
        actor: str | None = None,
    ) -> Pause:
        """Claim no job of an entrypoint or table queue, or with `everything` of any.

        It holds in the whole fleet one second later. Running jobs finish, and deferred jobs keep
        their times. `until` ends it by itself.
        """
        target = _pause_target(name, everything=everything)
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidInput(f"a pause needs a reason, got {reason!r}")
        lasts, instant = _pause_end(until)
        return await self._store.pauses.pause(
            target,
            until=instant,
            lasts=lasts,
            actor=check_text("actor", actor),
            reason=check_text("reason", reason) or "",
        )

    async def resume(
        self,
        name: str | None = None,
        *,
        everything: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> None:
        """End a pause. NotPaused where there is none of that name."""
        target = _pause_target(name, everything=everything)
        if not await self._store.pauses.resume(
            target, actor=check_text("actor", actor), reason=check_text("reason", reason)
        ):
            raise NotPaused(target)

    async def list_pauses(self) -> list[Pause]:
        """Return the pauses that hold now."""
        return await self._store.pauses.all()

    async def list_acts(self, limit: int = 100) -> list[Act]:
        """Return acts of people on entrypoints, schedules and breakers, newest first."""
        return await self._store.pauses.acts(_positive("limit", limit))

    async def list_workers(self) -> list[WorkerInfo]:
        """Return the workers as they last reported themselves."""
        return await self._store.jobs.workers()

    async def sees_payloads(self) -> bool:
        """Return whether this user may read payloads and headers. If not, they are None in every
        job."""
        return await self._store.jobs.sees_payloads()

    async def now(self) -> datetime:
        """Return the database's clock, which decides what is due."""
        return await self._store.jobs.now()


def _names(entrypoint: str | Sequence[str] | None) -> Sequence[str] | None:
    names = [entrypoint] if isinstance(entrypoint, str) else entrypoint
    for name in names or ():
        check_text("entrypoint", name)
    return names


def _pause_target(name: str | None, *, everything: bool) -> str:
    """The name in the table, where an empty one means everything."""
    if everything is (name is not None):
        raise InvalidInput(
            f"name an entrypoint or table queue, or pass everything=True; got name={name!r}"
        )
    return "" if name is None else check_entrypoint(name)


def _pause_end(
    until: datetime | timedelta | None,
) -> tuple[timedelta | None, datetime | None]:
    """The end of a pause, as a length or as an instant."""
    if until is None:
        return None, None
    if isinstance(until, timedelta):
        return _stretch("until", until), None
    if not isinstance(until, datetime) or until.utcoffset() is None:
        raise InvalidInput(f"until must be a timedelta or an aware datetime, got {until!r}")
    return None, until


def _positive(name: str, value: int) -> int:
    if fault := integer_fault(name, value, 1):
        raise InvalidInput(fault)
    return value


def _stretch(name: str, value: timedelta) -> timedelta:
    if not isinstance(value, timedelta) or not timedelta(0) <= value <= _LONGEST:
        raise InvalidInput(f"{name} must be a timedelta from 0 to {_LONGEST}, got {value!r}")
    return value


def _status(word: Status | str | None) -> Status | None:
    if word is None:
        return None
    try:
        return Status(word)
    except ValueError:
        known = ", ".join(Status)
        raise InvalidInput(f"status must be one of {known}; got {word!r}") from None


def now_or_never(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, because its driver is a synchronous one."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise InvalidInput(
        "SyncQueries needs a driver that does not wait; pass SyncPsycopgDriver(connection)"
    )


def _synchronous(
    method: Callable[Concatenate[Queries, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncQueries, P], T]:
    def call(self: SyncQueries, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return now_or_never(method(self._queries, *args, **kwargs))

    return update_wrapper(call, method)


class SyncQueries:
    """The same for code without an event loop: each method runs its async twin to the end."""

    def __init__(
        self,
        driver: Driver | InMemoryDriver | Queries | SyncQueries,
        **options: Unpack[QueriesOptions],
    ) -> None:
        self._queries: Queries
        if isinstance(driver, SyncQueries):
            self._queries = driver._queries
        else:
            self._queries = driver if isinstance(driver, Queries) else Queries(driver, **options)

    @classmethod
    def from_psycopg_connection(
        cls, connection: Any, **options: Unpack[QueriesOptions]
    ) -> SyncQueries:
        """Work on a `psycopg.Connection`."""
        return cls(db.SyncPsycopgDriver(connection), **options)

    install = _synchronous(Queries.install)
    upgrade = _synchronous(Queries.upgrade)
    verify = _synchronous(Queries.verify)
    uninstall = _synchronous(Queries.uninstall)
    enqueue = _synchronous(Queries.enqueue)
    enqueue_many = _synchronous(Queries.enqueue_many)
    requeue_jobs = _synchronous(Queries.requeue_jobs)
    preview_requeue = _synchronous(Queries.preview_requeue)
    move_jobs = _synchronous(Queries.move_jobs)
    release_worker = _synchronous(Queries.release_worker)
    mark_job_as_cancelled = _synchronous(Queries.mark_job_as_cancelled)
    delete_jobs = _synchronous(Queries.delete_jobs)
    clear_queue = _synchronous(Queries.clear_queue)
    clear_queue_log = _synchronous(Queries.clear_queue_log)
    clear_statistics_log = _synchronous(Queries.clear_statistics_log)
    get_jobs = _synchronous(Queries.get_jobs)
    find_statuses = _synchronous(Queries.find_statuses)
    find_results = _synchronous(Queries.find_results)
    find_progress = _synchronous(Queries.find_progress)
    list_progress = _synchronous(Queries.list_progress)
    job_status = _synchronous(Queries.job_status)
    job_history = _synchronous(Queries.job_history)
    list_failed_jobs = _synchronous(Queries.list_failed_jobs)
    edit_job = _synchronous(Queries.edit_job)
    resolve_job = _synchronous(Queries.resolve_job)
    list_running_jobs = _synchronous(Queries.list_running_jobs)
    oldest_waiting = _synchronous(Queries.oldest_waiting)
    browse_queue = _synchronous(Queries.browse_queue)
    queue_size = _synchronous(Queries.queue_size)
    queue_log = _synchronous(Queries.queue_log)
    log_statistics = _synchronous(Queries.log_statistics)
    timings = _synchronous(Queries.timings)
    prune_log = _synchronous(Queries.prune_log)
    uncounted_log = _synchronous(Queries.uncounted_log)
    uncounted_since = _synchronous(Queries.uncounted_since)
    retention = _synchronous(Queries.retention)
    set_retention = _synchronous(Queries.set_retention)
    delete_expired_log = _synchronous(Queries.delete_expired_log)
    list_workers = _synchronous(Queries.list_workers)
    list_breakers = _synchronous(Queries.list_breakers)
    open_breaker = _synchronous(Queries.open_breaker)
    close_breaker = _synchronous(Queries.close_breaker)
    sees_payloads = _synchronous(Queries.sees_payloads)
    pause = _synchronous(Queries.pause)
    resume = _synchronous(Queries.resume)
    list_pauses = _synchronous(Queries.list_pauses)
    list_acts = _synchronous(Queries.list_acts)
    now = _synchronous(Queries.now)
