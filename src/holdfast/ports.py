"""What the engine asks of a store, and of an executor. Two stores answer: memory and PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from holdfast.breaker import Admission, Breaker, BreakerPolicy, BreakerState, Verdicts
    from holdfast.lifecycle import Status, Transition
    from holdfast.models import (
        Change,
        Context,
        Held,
        HeldFilter,
        Job,
        JobId,
        LogEntry,
        NewJob,
        OnConflict,
        QueueSize,
        Recovery,
        Requeued,
        Schedule,
        Statistic,
        Want,
        WorkerInfo,
    )

Only = Literal["breakers"]
"""A part of the schema that can be installed alone."""


class Leases(Protocol):
    """The worker's side: claim, keep, settle, sweep. The worker depends on nothing else."""

    async def claim(
        self, wants: Sequence[Want], *, limit: int, worker: str, sweep: bool = False
    ) -> list[Job]:
        """Lease up to `limit` due jobs of these entrypoints to `worker`, each with a new token.

        Of an entrypoint no more than its want has room for; what is taken is counted down there.
        Jobs come back picked; one that had no attempts left comes back failed: it was retired on
        the way and must not be run. `sweep` asks for a look everywhere, whatever it costs; without
        it a store may look only where it expects work, and `next_due` says when it will do more.
        """
        ...

    async def next_due(self, wants: Sequence[Want]) -> timedelta | None:
        """How long until a claim may find something that the last one did not; None: unknown."""
        ...

    async def renew(self, held: Sequence[Held]) -> set[Held]:
        """Move the heartbeats; the leases returned are still owned, all others are lost."""
        ...

    async def change(self, transition: Transition, changes: Sequence[Change]) -> list[Held]:
        """Make one transition for each lease that is still owned; return those that moved."""
        ...

    async def locked(self, held: Sequence[Held]) -> set[Held]:
        """Those whose rows somebody else has locked: what `renew` and `change` do not wait for.

        Both fail with an error that is `locked` instead, and nothing of the call is done.
        """
        ...

    async def recall(self) -> None:
        """Hand back what claims took whose replies never came."""
        ...

    async def forget(self, tokens: Sequence[UUID]) -> None:
        """Drop the bookkeeping of claims none of whose jobs is leased any more."""
        ...

    async def recover(
        self, wants: Sequence[Want], *, limit: int = 1000, worker: str | None = None
    ) -> Recovery:
        """Recover or retire jobs with stale leases, or all those of a worker known to be dead."""
        ...

    async def housekeep(self) -> None:
        """What the store wants done now and then, such as counting its statistics."""
        ...

    async def tidy(self) -> None:
        """Clear away what ended jobs leave behind, where that is worth it."""
        ...

    async def report(self, worker: WorkerInfo) -> None:
        """Tell the others that this worker lives; its two instants are set by the store."""
        ...

    async def farewell(self, worker: str) -> None:
        """This worker is gone for good."""
        ...


class Jobs(Protocol):
    """The producer's and the operator's side."""

    async def insert(self, jobs: Sequence[NewJob], on_conflict: OnConflict) -> list[JobId | None]:
        """All or, on a taken dedupe key with "raise", none; None where "skip" skipped."""
        ...

    async def requeue(
        self,
        ids: Sequence[JobId],
        *,
        actor: str | None,
        reason: str | None,
        max_attempts: int | None = None,
    ) -> dict[JobId, Requeued]:
        """What became of each id; `max_attempts` replaces the row's cap where it is given."""
        ...

    async def remove(
        self, transition: Transition, ids: Sequence[JobId], *, actor: str | None, reason: str | None
    ) -> set[JobId]:
        """Cancel or delete by hand; the ids that moved."""
        ...

    async def get(self, ids: Sequence[JobId]) -> list[Job]: ...

    async def statuses(self, ids: Sequence[JobId]) -> dict[JobId, Status]:
        """Of each known id: where it is now, or how it ended."""
        ...

    async def list_held(self, limit: int, among: HeldFilter) -> list[Job]: ...

    async def edit(
        self, job_id: JobId, payload: bytes | None, *, actor: str | None, reason: str | None
    ) -> bool:
        """Replace the payload of a held job; False when it is not held."""
        ...

    async def list_running(self, limit: int) -> list[Job]:
        """Leased jobs, the longest leased first."""
        ...

    async def oldest(self) -> dict[str, datetime]:
        """Since when the oldest claimable job of each entrypoint has been due."""
        ...

    async def browse(
        self, *, status: Status | None, entrypoint: str | None, limit: int
    ) -> list[Job]: ...

    async def size(self, entrypoints: Sequence[str] | None) -> list[QueueSize]: ...

    async def history(self, job_id: JobId) -> list[LogEntry]: ...

    async def log(
        self,
        *,
        limit: int,
        status: Status | None,
        entrypoint: str | None,
        since: timedelta | None = None,
    ) -> list[LogEntry]: ...

    async def aggregate(self) -> int:
        """Count new log rows into the statistics; how many were counted."""
        ...

    async def statistics(self, *, since: timedelta | None, limit: int) -> list[Statistic]: ...

    async def prune(self, *, older_than: timedelta, limit: int) -> int:
        """Delete old log rows, oldest first; how many went."""
        ...

    async def workers(self) -> list[WorkerInfo]: ...

    async def sees_payloads(self) -> bool:
        """Whether jobs are read with what they carry: not every user has that privilege."""
        ...

    async def now(self) -> datetime:
        """The clock that decides."""
        ...


class Schedules(Protocol):
    """Recurring jobs. Advancing a schedule and enqueuing its ticks is one atomic step."""

    async def register(
        self, name: str, expression: str, timezone: str, misfire: str, overlap: str, first: datetime
    ) -> Schedule:
        """Create it, or change what differs; `first` counts when it is new or its times changed."""
        ...

    async def due(self, names: Sequence[str], now: datetime) -> list[Schedule]: ...

    async def advance(
        self, schedule: Schedule, slots: Sequence[datetime], next_run: datetime
    ) -> list[JobId] | None:
        """Enqueue a job per slot and set next_run, if next_run is still `schedule.next_run`.

        None: another scheduler was first and nothing was done.
        """
        ...

    async def all(self) -> list[Schedule]: ...

    async def set_paused(self, name: str, paused: bool, next_run: datetime | None) -> bool: ...

    async def trigger(self, schedule: Schedule, slot: datetime) -> JobId: ...

    async def remove(self, name: str) -> bool: ...


class Breakers(Protocol):
    """Circuit breakers, whose rules are in `holdfast.breaker`. One that never failed is closed."""

    async def admit(self, policies: Sequence[BreakerPolicy], wanted: int) -> dict[str, Admission]:
        """What may be claimed of the work behind each, by name; half open, permits are granted.

        From then on a breaker is known, and listed. SchemaMissing where there is no table.
        """
        ...

    async def give_back(self, name: str, generation: int, expires: datetime, count: int) -> None:
        """Return permits that led to no outcome, so that others need not wait for their expiry."""
        ...

    async def record(self, outcomes: Sequence[Verdicts]) -> None:
        """Count outcomes; where that changes nothing, nothing is written."""
        ...

    async def all(self) -> list[Breaker]: ...

    async def force(
        self, name: str, state: BreakerState, *, actor: str, reason: str | None
    ) -> Breaker:
        """Hold it open until it is closed by hand, or close it now."""
        ...


class Wakeups(Protocol):
    """Hints that something happened. Losing one costs time, never a job."""

    async def listen(self, on_work: Callable[[], None], on_cancel: Callable[[JobId], None]) -> None:
        """Run until cancelled; `on_work` is also called once listening has begun (again)."""
        ...

    async def need(self, *, needed: bool) -> None:
        """Whether enqueues must tell this listener; they must, until it says otherwise."""
        ...


class Store(Protocol):
    """A place where jobs live: the seam between the engine and the world."""

    @property
    def leases(self) -> Leases: ...
    @property
    def jobs(self) -> Jobs: ...
    @property
    def schedules(self) -> Schedules: ...
    @property
    def breakers(self) -> Breakers: ...
    @property
    def wakeups(self) -> Wakeups: ...

    @property
    def dedicated(self) -> bool:
        """fork() opens a connection of its own, which another thread may use."""
        ...

    def fork(self, role: str) -> Store: ...

    def on(self, connection: object) -> Store:
        """The same store through the caller's own connection, inside its transaction."""
        ...

    async def verify(self) -> None:
        """Raise SchemaError unless this version of Holdfast can work here."""
        ...

    async def install(self, only: Only | None = None) -> list[str]:
        """Apply what is missing, or create that part alone; the names of what was applied."""
        ...

    async def uninstall(self) -> None:
        """Remove the tables, with every job in them."""
        ...

    async def close(self) -> None: ...


class Executor(Protocol):
    """Runs a handler. It raises what the handler raises, and never sees a store."""

    async def execute(self, job: Job, context: Context) -> None: ...
