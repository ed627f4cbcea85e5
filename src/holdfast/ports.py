"""The protocols between the engine and a store, which memory and PostgreSQL implement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from holdfast.breaker import Admission, Breaker, BreakerPolicy, BreakerState, Verdicts
    from holdfast.explanation import Surroundings
    from holdfast.lifecycle import Status, Transition
    from holdfast.models import (
        Act,
        Change,
        ClaimRule,
        DueJobs,
        Duty,
        HeldFilter,
        Job,
        JobId,
        LeaseKey,
        LogEntry,
        Moved,
        NewJob,
        OnConflict,
        Pause,
        Progress,
        ProgressNote,
        QueueSize,
        RecoveredWaiting,
        Recovery,
        Requeued,
        Schedule,
        Statistic,
        StoredResult,
        Timing,
        WorkerInfo,
    )
    from holdfast.settings import Retention

Only = Literal["breakers"]
"""A part of the schema that can be installed alone."""


class Claims(Protocol):
    """Where a worker finds jobs: one table, or several that share its capacity."""

    async def claim(
        self,
        rules: Sequence[ClaimRule],
        *,
        limit: int,
        worker: str,
        sweep: bool = False,
        fleet: int = 1,
        idle: bool = False,
    ) -> list[Job]:
        """Lease up to `limit` due jobs of these entrypoints to `worker`, each with a new token.

        It takes no more jobs of an entrypoint than its rule has capacity for, and reduces that
        capacity. Jobs that a worker died with are left to `claim_recovered`. A job that had no
        attempts left comes back failed: it was retired by the claim and must not be run. All others
        come back picked. `sweep` asks for a scan of everything, whatever it costs. Without it a
        store may read only where it expects work, and `next_due` says when it will read more.
        `fleet` is the number of live workers, and `idle` says that this one holds no lease. Where
        many workers claim already, an idle one may come back with nothing, and `next_due` says
        when it should ask again.
        """
        ...

    async def claim_recovered(
        self, rules: Sequence[ClaimRule], *, limit: int, worker: str, suspects: bool
    ) -> list[Job]:
        """Lease up to `limit` due jobs that a worker died with; `claim` never returns those.

        `suspects` selects the jobs that one more death would retire. The caller runs such a job
        while it holds no other lease, so a suspect whose lease expires ran alone. Without it only
        the other recovered jobs are claimed. Everything else is as for `claim`.
        """
        ...

    @property
    def suspect_group(self) -> int:
        """How many suspects the next claim may take together, as the only leases of the worker.

        More than one only where the store can tell a suspect that ran alone from one of a group.
        """
        ...

    async def recovered_waiting(self, rules: Sequence[ClaimRule]) -> RecoveredWaiting:
        """Return when `claim_recovered` may find a job. It takes one cheap statement."""
        ...

    async def next_due(self, rules: Sequence[ClaimRule]) -> timedelta | None:
        """Return the time until a claim may find more than the last one. None means unknown."""
        ...

    async def recall(self) -> None:
        """Release the jobs of claims whose replies never came."""
        ...

    async def delete_claims(self, tokens: Sequence[UUID]) -> None:
        """Delete the bookkeeping of claims none of whose jobs is leased any more."""
        ...

    @property
    def shared(self) -> bool:
        """Whether one worker recovers, does the upkeep and looks for due jobs for all."""
        ...

    async def housekeep(self, duty: Duty | None = None) -> None:
        """Do the store's periodic upkeep, such as counting its statistics."""
        ...

    async def vacuum(self) -> None:
        """Remove the dead rows of ended jobs, where that is worth it."""
        ...


class Leases(Claims, Protocol):
    """One table: claim, keep, settle, sweep. The worker depends on nothing else."""

    async def payloads(self, held: Sequence[LeaseKey]) -> dict[LeaseKey, bytes | None]:
        """Return the payloads of leases that are still owned. A claim leaves out large ones."""
        ...

    async def renew(self, held: Sequence[LeaseKey]) -> set[LeaseKey]:
        """Move the heartbeats. Return the leases that are still owned; all others are lost."""
        ...

    async def change(self, transition: Transition, changes: Sequence[Change]) -> list[LeaseKey]:
        """Make one transition for each lease that is still owned; return those that moved."""
        ...

    def begin(self, target: object) -> JobTransaction:
        """Make a transaction for a handler: on a connection of its own, or on what `target` makes,
        such as an engine of SQLAlchemy."""
        ...

    async def note_progress(self, notes: Sequence[ProgressNote]) -> list[LeaseKey]:
        """Store how far jobs are whose leases are still owned; return those leases."""
        ...

    async def locked(self, held: Sequence[LeaseKey]) -> set[LeaseKey]:
        """Return the leases whose rows another transaction has locked.

        `renew` and `change` do not wait for such rows: they change nothing and fail with an error
        that is `locked`.
        """
        ...

    async def recover(
        self,
        rules: Sequence[ClaimRule],
        *,
        limit: int = 1000,
        worker: str | None = None,
        held: Sequence[LeaseKey] = (),
        contact: timedelta | None = None,
        lived: timedelta | None = None,
        duty: Duty | None = None,
    ) -> Recovery:
        """Recover or retire jobs with stale leases, or all those of a worker known to be dead.

        `held` are leases that the caller still holds; they are left alone. `contact` says for how
        long the caller has reached the database without a gap; None means that it saw no gap.
        `lived` says for how long the caller has run. A lease whose heartbeat is older than that
        contact, or than a start of the server which the caller lived through, gets one lease of
        grace. If it is still stale then, it is recovered without counting a recovery. A caller that
        began after the server saw no outage, so to it a stale lease is a dead worker's.

        A caller with a `duty` changes nothing that another does by now, where one does it for all.
        """
        ...


class JobTransaction(Protocol):
    """A transaction of a handler, in which its job ends."""

    @property
    def synchronous(self) -> bool | None:
        """Whether its coroutines never suspend. None means that they never suspend and block
        nobody."""
        ...

    async def open(self) -> object:
        """Begin; return the connection or session that the handler writes through."""
        ...

    async def change(self, transition: Transition, changes: Sequence[Change]) -> list[LeaseKey]:
        """Do as `Leases.change` does, inside the transaction. An error leaves the transaction
        usable."""
        ...

    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


class EnqueuesJobs(Protocol):
    """The producer's side."""

    async def insert(self, jobs: Sequence[NewJob], on_conflict: OnConflict) -> list[JobId | None]:
        """Enqueue the jobs. Return their ids, with None where "skip" skipped a taken dedupe key. On
        a taken key "raise" enqueues none of them."""
        ...

    async def raise_priority(self, priorities: Mapping[str, int]) -> dict[str, JobId]:
        """Raise the priority of the active jobs with these dedupe keys. Return each key's job."""
        ...


class OperatesJobs(Protocol):
    """Operations of people on jobs: move, remove and clean up."""

    async def requeue(
        self,
        ids: Sequence[JobId],
        *,
        actor: str | None,
        reason: str | None,
        max_attempts: int | None = None,
    ) -> dict[JobId, Requeued]:
        """Send held jobs back to the queue. Return the outcome of each id. `max_attempts` replaces
        the row's cap where it is given."""
        ...

    async def remove(
        self, transition: Transition, ids: Sequence[JobId], *, actor: str | None, reason: str | None
    ) -> set[JobId]:
        """Cancel or delete by hand. Return the ids that moved."""
        ...

    async def preview_requeue(self, ids: Sequence[JobId]) -> dict[JobId, Requeued]:
        """Return what requeue() would do with each id now, without doing it."""
        ...

    async def move(
        self,
        ids: Sequence[JobId],
        entrypoint: str | None,
        *,
        actor: str | None,
        reason: str | None,
        force: bool = False,
        worker: str | None = None,
    ) -> dict[JobId, Moved]:
        """Queue jobs again, under `entrypoint` unless it is None. Return the outcome of each id.

        A lease that is not stale ends only with `force`. With `worker` only the jobs leased to that
        worker move, whatever their heartbeats; the others have the outcome `leased` or `key_taken`.
        """
        ...

    async def clear(
        self, entrypoints: Sequence[str] | None, *, actor: str | None, reason: str | None
    ) -> int:
        """Remove all jobs that are there now. Jobs that run are cancelled, the others deleted."""
        ...

    async def edit(
        self, job_id: JobId, payload: bytes | None, *, actor: str | None, reason: str | None
    ) -> bool:
        """Replace the payload of a held job. Return False when it is not held."""
        ...

    async def aggregate(self) -> int:
        """Count new log rows into the statistics. Return how many were counted."""
        ...

    async def prune(self, *, older_than: timedelta, limit: int) -> int:
        """Delete old log rows, oldest first. Return how many were deleted."""
        ...

    async def clear_log(self, entrypoints: Sequence[str] | None) -> int:
        """Delete log rows that are counted already, whatever their age. Return how many were
        deleted."""
        ...

    async def clear_statistics(self, entrypoints: Sequence[str] | None) -> int:
        """Delete counts. Return how many rows were deleted."""
        ...


class ReadsJobs(Protocol):
    """Questions about jobs, the log and the statistics."""

    async def leased_to(self, worker: str) -> list[JobId]:
        """Return the ids of the jobs that are leased to a worker."""
        ...

    async def get(self, ids: Sequence[JobId]) -> list[Job]: ...

    async def statuses(self, ids: Sequence[JobId]) -> dict[JobId, Status]:
        """Return for each known id where it is now, or how it ended."""
        ...

    async def list_held(self, limit: int, among: HeldFilter) -> list[Job]: ...

    async def list_running(self, limit: int) -> list[Job]:
        """Return leased jobs, the longest leased first."""
        ...

    async def oldest(self) -> dict[str, datetime]:
        """Return since when the oldest claimable job of each entrypoint has been due."""
        ...

    async def browse(
        self, *, status: Status | None, entrypoint: str | None, limit: int
    ) -> list[Job]: ...

    async def size(self, entrypoints: Sequence[str] | None) -> list[QueueSize]: ...

    async def history(self, job_id: JobId) -> list[LogEntry]: ...

    async def surroundings(self, job_id: JobId) -> Surroundings:
        """Return the facts between a queued job and its claim. The cost is bounded."""
        ...

    async def first_of(self, entrypoint: str) -> JobId | None:
        """Return the job of an entrypoint that comes first, due or not."""
        ...

    async def log(
        self,
        *,
        limit: int,
        status: Status | None,
        entrypoint: str | None,
        since: timedelta | None = None,
    ) -> list[LogEntry]: ...

    async def statistics(self, *, since: timedelta | None, limit: int) -> list[Statistic]:
        """Return the counts, with a bounded number of log rows that are not counted yet."""
        ...

    async def uncounted_since(self) -> datetime | None:
        """Return since when statistics() is incomplete, because too many rows are uncounted."""
        ...

    async def uncounted(self, older_than: timedelta) -> int:
        """Count old log rows that the statistics do not have yet, so that prune leaves them."""
        ...

    async def timings(self, since: timedelta) -> list[Timing]:
        """Return waiting and running times of each entrypoint, from the statistics alone."""
        ...

    async def workers(self) -> list[WorkerInfo]: ...

    async def unrecorded(self) -> int:
        """Return how many leased jobs no sweep can find, because the bookkeeping of their claims is
        gone."""
        ...

    async def sees_payloads(self) -> bool:
        """Return whether this user may read payloads and headers. Else jobs come without them."""
        ...

    async def now(self) -> datetime:
        """Return the clock that decides what is due."""
        ...


class Jobs(EnqueuesJobs, OperatesJobs, ReadsJobs, Protocol):
    """All that is done to jobs from outside a worker."""


class Results(Protocol):
    """The results of jobs, and the progress of those that run."""

    async def get(self, ids: Sequence[JobId]) -> dict[JobId, StoredResult]:
        """Return the stored results that have not expired."""
        ...

    async def progress(self, ids: Sequence[JobId]) -> dict[JobId, Progress]:
        """Return the progress that the handlers of these jobs last reported."""
        ...

    async def list_progress(self, limit: int) -> list[tuple[JobId, Progress]]:
        """Return the progress of leased jobs, the latest first."""
        ...

    async def listen(self, on_ready: Callable[[], None], on_end: Callable[[JobId], None]) -> None:
        """Run until cancelled; a hint for each job that ended with a stored result."""
        ...


class Schedules(Protocol):
    """Recurring jobs. Advancing a schedule and enqueuing its ticks is one atomic step."""

    async def register(
        self, name: str, expression: str, timezone: str, misfire: str, overlap: str, first: datetime
    ) -> Schedule:
        """Create a schedule, or change what differs. `first` counts when it is new or its times
        changed."""
        ...

    async def due(self, names: Sequence[str], now: datetime) -> list[Schedule]: ...

    async def advance(
        self, schedule: Schedule, slots: Sequence[datetime], next_run: datetime
    ) -> list[JobId] | None:
        """Enqueue a job per slot and set next_run, if next_run is still `schedule.next_run`.

        None means that another scheduler was first and nothing was done.
        """
        ...

    async def all(self) -> list[Schedule]: ...

    async def set_paused(self, name: str, paused: bool, next_run: datetime | None) -> bool: ...

    async def trigger(self, schedule: Schedule, slot: datetime) -> JobId: ...

    async def remove(self, name: str) -> bool: ...


class Breakers(Protocol):
    """Circuit breakers, whose rules are in `holdfast.breaker`. One that never failed is closed."""

    async def admit(self, policies: Sequence[BreakerPolicy], wanted: int) -> dict[str, Admission]:
        """Return how much may be claimed behind each breaker, by name. Half open, permits are
        granted.

        From then on a breaker is known and listed. SchemaMissing where there is no table.
        """
        ...

    async def return_permits(
        self, name: str, generation: int, expires: datetime, count: int
    ) -> None:
        """Return permits that led to no outcome, so that others need not wait for their expiry."""
        ...

    async def record(self, outcomes: Sequence[Verdicts]) -> None:
        """Count outcomes. Nothing is written where they change nothing."""
        ...

    async def all(self) -> list[Breaker]: ...

    async def force(
        self, name: str, state: BreakerState, *, actor: str, reason: str | None
    ) -> Breaker:
        """Hold it open until it is closed by hand, or close it now."""
        ...


class Pauses(Protocol):
    """Pauses by people: jobs of these names are not claimed. An empty name means all."""

    async def pause(
        self,
        name: str,
        *,
        until: datetime | None,
        lasts: timedelta | None,
        actor: str | None,
        reason: str,
    ) -> Pause:
        """Claim no job of this name from a second from now on. Running jobs finish."""
        ...

    async def resume(self, name: str, *, actor: str | None, reason: str | None) -> bool:
        """End the pause of that name. Return False where there is none."""
        ...

    async def all(self) -> list[Pause]:
        """Return the pauses that hold now."""
        ...

    async def acts(self, limit: int) -> list[Act]:
        """Return acts of people that concern no single job, newest first."""
        ...

    async def record_act(self, act: str, subject: str, *, actor: str, reason: str | None) -> None:
        """Add what a person did to a schedule or a breaker."""
        ...


class Wakeups(Protocol):
    """Hints that something happened. Losing one costs time, never a job."""

    async def listen(
        self,
        on_work: Callable[[], None],
        on_cancel: Callable[[JobId], None],
        worker: str = "",
        on_recovered: Callable[[], None] | None = None,
    ) -> None:
        """Run until cancelled. `on_work` is also called once listening has begun (again).

        `on_recovered` is called as well when jobs wait that a worker died with. A listener that
        names its worker is notified of work that it was chosen for, and all are notified of work
        for which nobody was.
        """
        ...

    async def pass_on(self, entrypoints: Sequence[str]) -> None:
        """Wake another worker of these entrypoints, because this one has no room for the work."""
        ...

    async def recovered(self) -> None:
        """Notify all workers that jobs wait which a worker died with."""
        ...

    async def need(self, *, needed: bool) -> None:
        """Declare whether enqueues must notify this listener. They must until it declares
        otherwise."""
        ...


class Reports(Protocol):
    """The reports of workers about themselves, for other workers and for people."""

    async def report(self, worker: WorkerInfo) -> bool:
        """Record that this worker is alive. Return whether no worker does the upkeep.

        The store sets the two instants.
        """
        ...

    async def sign_off(self, worker: str) -> None:
        """Remove a worker that has ended."""
        ...


class Upkeep(Protocol):
    """Work that one worker does for all, and the rules for it."""

    async def retention(self) -> Retention:
        """Return how long log rows are kept."""
        ...

    async def set_retention(self, retention: Retention) -> None: ...

    async def delete_expired(self, *, limit: int) -> int:
        """Delete counted log rows whose retention is over. Return how many were deleted."""
        ...

    async def hold(
        self, duty: str, worker: str, token: UUID, *, lasts: timedelta, sent: float
    ) -> Duty:
        """Take a duty that no worker has, or keep it for `lasts` from now."""
        ...

    async def release(self, duty: str, token: UUID) -> None:
        """Give a duty up."""
        ...

    async def look(self, grace: timedelta) -> DueJobs:
        """Look for jobs that are due for longer than `grace` while workers serve them."""
        ...

    async def free_connections(self) -> float:
        """Return the share of the server's connections that may still be opened, from 0 to 1."""
        ...


class Store(Protocol):
    """A place where jobs live: the seam between the engine and the world."""

    @property
    def leases(self) -> Leases: ...
    @property
    def jobs(self) -> Jobs: ...
    @property
    def results(self) -> Results: ...
    @property
    def schedules(self) -> Schedules: ...
    @property
    def breakers(self) -> Breakers: ...
    @property
    def pauses(self) -> Pauses: ...
    @property
    def wakeups(self) -> Wakeups: ...
    @property
    def upkeep(self) -> Upkeep: ...
    @property
    def reports(self) -> Reports | None:
        """None where there is no place for reports, as with tables of users alone."""
        ...

    @property
    def dedicated(self) -> bool:
        """Whether fork() opens a connection of its own, which another thread may use."""
        ...

    def fork(self, purpose: str) -> Store: ...

    @property
    def synchronous(self) -> bool:
        """Whether it is for code without an event loop: its coroutines never suspend."""
        ...

    @property
    def needs_loop(self) -> bool:
        """Whether its coroutines may suspend."""
        ...

    def on(self, transaction: object, *, autocommit: bool = False) -> Store:
        """The same store inside the caller's transaction; CarrierError where there is none."""
        ...

    async def verify(self) -> None:
        """Raise SchemaError unless this version of Holdfast can work here."""
        ...

    async def install(self, only: Only | None = None) -> list[str]:
        """Apply what is missing, or create that part alone. Return the names of the migrations
        applied."""
        ...

    async def notify_inserts(self, *, wanted: bool) -> None:
        """Add or remove the trigger that wakes workers when others insert rows."""
        ...

    async def functions(self, *, wanted: bool) -> None:
        """Add or remove the functions that enqueue, cancel and ask from SQL."""
        ...

    async def notifies_inserts(self) -> bool:
        """Return whether that trigger is there."""
        ...

    async def uninstall(self) -> None:
        """Remove the tables, with every job in them."""
        ...

    async def close(self) -> None: ...
