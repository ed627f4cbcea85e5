"""What producers and operators call: arguments are checked here, once, for every store."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from holdfast.breaker import BreakerState, name_faults
from holdfast.enqueue import check_ids, check_jobs, check_payload, check_text, new_jobs
from holdfast.errors import BreakerNotFound, InvalidInput, JobNotFound
from holdfast.lifecycle import TRANSITIONS, Status, Verb
from holdfast.models import HeldFilter
from holdfast.settings import MAX_PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from holdfast.breaker import Breaker
    from holdfast.models import (
        Headers,
        Job,
        JobId,
        LogEntry,
        NewJob,
        OnConflict,
        QueueSize,
        Requeued,
        Statistic,
        WorkerInfo,
    )
    from holdfast.ports import Store

P = ParamSpec("P")
T = TypeVar("T")

_LONGEST = timedelta(days=365 * 1000)
"""Reaching back farther would leave the calendar."""


class Queries:
    """Enqueue, look, requeue, cancel, delete; `on(connection)` does it in your transaction."""

    def __init__(
        self,
        store: Store,
        *,
        max_payload: int = MAX_PAYLOAD,
        carry: Callable[[], Headers] | None = None,
    ) -> None:
        self._store = store
        self._max_payload = max_payload
        self.carry = carry
        """Headers that every job takes along, such as those of the trace it is enqueued in."""

    def on(self, connection: object) -> Queries:
        """The same queries on your own connection: what they do commits with your transaction."""
        return Queries(self._store.on(connection), max_payload=self._max_payload, carry=self.carry)

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
        on_conflict: Literal["raise"] = "raise",
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
        on_conflict: OnConflict,
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
        on_conflict: OnConflict = "raise",
    ) -> list[JobId] | list[JobId | None]:
        """Enqueue one job, or one for each place of parallel lists; the ids in that order.

        A key that belongs to an active job raises DuplicateJobError and enqueues nothing; with
        on_conflict="skip" that place of the result is None and the others go through.
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
        self, jobs: Sequence[NewJob], *, on_conflict: OnConflict = "raise"
    ) -> list[JobId | None]:
        """Enqueue all of them, in one statement."""
        if on_conflict not in ("raise", "skip"):
            raise InvalidInput(f'on_conflict must be "raise" or "skip", got {on_conflict!r}')
        checked = self._loaded(check_jobs(jobs, self._max_payload))
        return await self._store.jobs.insert(checked, on_conflict)

    def _loaded(self, jobs: list[NewJob]) -> list[NewJob]:
        """The jobs with what is to be carried; their own headers win."""
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
        """Send held jobs back to the queue with fresh counters; what became of each id.

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

    async def mark_job_as_cancelled(
        self, ids: Sequence[JobId], *, actor: str | None = None, reason: str | None = None
    ) -> set[JobId]:
        """Cancel jobs wherever they are; a running handler is told to stop. Those that moved."""
        return await self._remove(Verb.CANCEL, ids, actor, reason)

    async def delete_jobs(
        self, ids: Sequence[JobId], *, actor: str | None = None, reason: str | None = None
    ) -> set[JobId]:
        """Delete jobs that are queued or held, not those that run. Those that moved."""
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

    async def get_jobs(self, ids: Sequence[JobId]) -> list[Job]:
        """Those of the ids that are still in the queue table."""
        return await self._store.jobs.get(check_ids(ids))

    async def job_status(self, ids: Sequence[JobId]) -> list[tuple[JobId, Status]]:
        """Where each job is, or how it ended."""
        asked = check_ids(ids)
        known = await self._store.jobs.statuses(asked)
        for job_id in asked:
            if job_id not in known:
                raise JobNotFound(job_id)
        return [(job_id, known[job_id]) for job_id in asked]

    async def job_history(self, job_id: JobId) -> list[LogEntry]:
        """Every log row of a job, oldest first."""
        [job_id] = check_ids([job_id])
        history = await self._store.jobs.history(job_id)
        if not history and not await self._store.jobs.get([job_id]):
            raise JobNotFound(job_id)
        return history

    async def list_failed_jobs(
        self, limit: int = 25, *, among: HeldFilter | None = None
    ) -> list[Job]:
        """Held jobs, newest first; `among` says which."""
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
        """Jobs that a worker holds, the longest held first."""
        return await self._store.jobs.list_running(_positive("limit", limit))

    async def oldest_waiting(self) -> dict[str, datetime]:
        """Of each entrypoint with claimable jobs: since when the oldest of them has been due."""
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
        """How many jobs there are by entrypoint, priority and status."""
        if isinstance(entrypoints, str):
            raise InvalidInput(
                f"entrypoints must be a list of names, got {entrypoints!r}; write [{entrypoints!r}]"
            )
        for name in entrypoints or ():
            check_text("entrypoint", name)
        return await self._store.jobs.size(entrypoints)

    async def queue_log(
        self,
        *,
        limit: int = 100,
        status: Status | str | None = None,
        entrypoint: str | None = None,
        last: timedelta | None = None,
    ) -> list[LogEntry]:
        """The newest log rows, of that last stretch of time alone if it is given."""
        return await self._store.jobs.log(
            limit=_positive("limit", limit),
            status=_status(status),
            entrypoint=check_text("entrypoint", entrypoint),
            since=None if last is None else _stretch("last", last),
        )

    async def log_statistics(
        self, *, last: timedelta | None = None, limit: int = 1000
    ) -> list[Statistic]:
        """Log rows counted by minute, entrypoint, priority and status, newest first."""
        since = None if last is None else _stretch("last", last)
        most = _positive("limit", limit)
        await self._store.jobs.aggregate()
        return await self._store.jobs.statistics(since=since, limit=most)

    async def prune_log(self, older_than: timedelta, *, limit: int = 10_000) -> int:
        """Delete log rows older than that, oldest first, at most `limit`; how many went."""
        age, most = _stretch("older_than", older_than), _positive("limit", limit)
        await self._store.jobs.aggregate()
        return await self._store.jobs.prune(older_than=age, limit=most)

    async def list_breakers(self) -> list[Breaker]:
        """The circuit breakers that workers have named, or that somebody holds open."""
        return await self._store.breakers.all()

    async def open_breaker(
        self, name: str, *, actor: str | None = None, reason: str | None = None
    ) -> Breaker:
        """Hold a circuit breaker open: its work waits until close_breaker()."""
        if faults := name_faults(name):
            raise InvalidInput(f"circuit breaker: {faults[0]}")
        return await self._store.breakers.force(
            name,
            BreakerState.OPEN,
            actor=check_text("actor", actor) or "unknown",
            reason=check_text("reason", reason),
        )

    async def close_breaker(self, name: str) -> Breaker:
        """Close a circuit breaker at once, whoever or whatever opened it."""
        if name not in {breaker.name for breaker in await self._store.breakers.all()}:
            raise BreakerNotFound(name)
        return await self._store.breakers.force(name, BreakerState.CLOSED, actor="", reason=None)

    async def list_workers(self) -> list[WorkerInfo]:
        """The workers as they last reported themselves."""
        return await self._store.jobs.workers()

    async def sees_payloads(self) -> bool:
        """Whether this user may read payloads and headers; else they are None in every job."""
        return await self._store.jobs.sees_payloads()

    async def now(self) -> datetime:
        """The clock that decides: the database's."""
        return await self._store.jobs.now()


def _positive(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise InvalidInput(f"{name} must be a whole number of at least 1, got {value!r}")
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


def _now_or_never(work: Coroutine[Any, Any, T]) -> T:
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
        return _now_or_never(method(self._queries, *args, **kwargs))

    return update_wrapper(call, method)


class SyncQueries:
    """The same for code without an event loop: each method runs its async twin to the end."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    enqueue = _synchronous(Queries.enqueue)
    enqueue_many = _synchronous(Queries.enqueue_many)
    requeue_jobs = _synchronous(Queries.requeue_jobs)
    mark_job_as_cancelled = _synchronous(Queries.mark_job_as_cancelled)
    delete_jobs = _synchronous(Queries.delete_jobs)
    get_jobs = _synchronous(Queries.get_jobs)
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
    prune_log = _synchronous(Queries.prune_log)
    list_workers = _synchronous(Queries.list_workers)
    list_breakers = _synchronous(Queries.list_breakers)
    open_breaker = _synchronous(Queries.open_breaker)
    close_breaker = _synchronous(Queries.close_breaker)
    sees_payloads = _synchronous(Queries.sees_payloads)
    now = _synchronous(Queries.now)
