"""What the engine asks of a store, and of an executor. Two stores answer: memory and PostgreSQL."""

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
        Duty,
        HeldFilter,
        Job,
        JobId,
        LeaseKey,
        LogEntry,
        Lookout,
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


class Leases(Protocol):
    """The worker's side: claim, keep, settle, sweep. The worker depends on nothing else."""

    async def claim(
        self, rules: Sequence[ClaimRule], *, limit: int, worker: str, sweep: bool = False
    ) -> list[Job]:
        """Lease up to `limit` due jobs of these entrypoints to `worker`, each with a new token.

        Of an entrypoint no more than its want has room for; what is taken is counted down there.
        Jobs that a worker died with are left to `claim_recovered`.
        Jobs come back picked; one that had no attempts left comes back failed: it was retired on
        the way and must not be run. `sweep` asks for a look everywhere, whatever it costs; without
        it a store may look only where it expects work, and `next_due` says when it will do more.
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
        """How many suspects the next claim may take together: all that the worker then holds.

        More than one only where the store can tell a suspect that ran alone from one of a group.
        """
        ...

    async def recovered_waiting(self, rules: Sequence[ClaimRule]) -> RecoveredWaiting:
        """Whether `claim_recovered` would find a job, and when; one cheap statement."""
        ...

    async def next_due(self, rules: Sequence[ClaimRule]) -> timedelta | None:
        """How long until a claim may find something that the last one did not; None: unknown."""
        ...

    async def renew(self, held: Sequence[LeaseKey]) -> set[LeaseKey]:
        """Move the heartbeats; the leases returned are still owned, all others are lost."""
        ...

    async def change(self, transition: Transition, changes: Sequence[Change]) -> list[LeaseKey]:
        """Make one transition for each lease that is still owned; return those that moved."""
        ...

    def begin(self, queue: str, target: object) -> JobTransaction:
        """Make a transaction for a handler of this queue: on a connection of its own, or on what
        `target` makes, such as an engine of SQLAlchemy."""
        ...

    async def note_progress(self, notes: Sequence[ProgressNote]) -> list[LeaseKey]:
        """Store how far jobs are whose leases are still owned; return those leases."""
        ...

    async def locked(self, held: Sequence[LeaseKey]) -> set[LeaseKey]:
        """Those whose rows another transaction has locked: `renew` and `change` do not wait.

        Both fail with an error that is `locked` instead, and nothing of the call is done.
        """
        ...

    async def recall(self) -> None:
        """Release what claims took whose replies never came."""
        ...

    async def delete_claims(self, tokens: Sequence[UUID]) -> None:
        """Drop the bookkeeping of claims none of whose jobs is leased any more."""
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

    @property
    def shared(self) -> bool:
        """Whether one worker recovers, does the upkeep and looks for due jobs for all."""
        ...

    async def housekeep(self, duty: Duty | None = None) -> None:
        """What the store wants done now and then, such as counting its statistics."""
        ...

    async def vacuum(self) -> None:
        """Clear away what ended jobs leave behind, where that is worth it."""
        ...


class JobTransaction(Protocol):
    """A transaction of a handler, in which its job ends."""

    @property
    def synchronous(self) -> bool | None:
        """Whether its coroutines never suspend. None: they do not, and block nobody."""
        ...

    async def open(self) -> object:
        """Begin; return the connection or session that the handler writes through."""
        ...

    async def change(self, transition: Transition, changes: Sequence[Change]) -> list[LeaseKey]:
        """As `Leases.change`, inside the transaction. An error leaves the transaction usable."""
        ...

    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


class Jobs(Protocol):
    """The producer's and the operator's side."""

    async def insert(self, jobs: Sequence[NewJob], on_conflict: OnConflict) -> list[JobId | None]:
        """All or, on a taken dedupe key with "raise", none; None where "skip" skipped."""
        ...

    async def raise_priority(self, priorities: Mapping[str, int]) -> dict[str, JobId]:
        """Raise the priority of the active jobs with these dedupe keys; the job of each key."""
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

    async def leased_to(self, worker: str) -> list[JobId]:
        """Return the ids of the jobs that are leased to a worker."""
        ...

    async def clear(
        self, entrypoints: Sequence[str] | None, *, actor: str | None, reason: str | None
    ) -> int:
        """Take out all jobs there are now: those that run are cancelled, the others deleted."""
        ...

    async def get(self, ids: Sequence[JobId]) -> list[Job]: ...

    async def statuses(self, ids: Sequence[JobId]) -> dict[JobId, Status]:
        """Return for each known id where it is now, or how it ended."""
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

    async def surroundings(self, job_id: JobId) -> Surroundings:
        """What stands between a queued job and its claim; a bounded look."""
        ...

    async def first_of(self, entrypoint: str) -> JobId | None:
        """The job of an entrypoint that comes first, due or not."""
        ...

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

    async def statistics(self, *, since: timedelta | None, limit: int) -> list[Statistic]:
        """What was counted, and a bounded number of log rows that are still to be."""
        ...

    async def uncounted_since(self) -> datetime | None:
        """Since when statistics() is incomplete, because too many rows are uncounted."""
        ...

    async def timings(self, since: timedelta) -> list[Timing]:
        """Waiting and running times of each entrypoint, from the statistics alone."""
        ...

    async def prune(self, *, older_than: timedelta, limit: int) -> int:
        """Delete old log rows, oldest first; how many went."""
        ...

    async def uncounted(self, older_than: timedelta) -> int:
        """Count old log rows that the statistics do not have yet, so that prune leaves them."""
        ...

    async def clear_log(self, entrypoints: Sequence[str] | None) -> int:
        """Delete log rows that are counted already, whatever their age; how many went."""
        ...

    async def clear_statistics(self, entrypoints: Sequence[str] | None) -> int:
        """Delete counts; how many rows went."""
        ...

    async def workers(self) -> list[WorkerInfo]: ...

    async def unrecorded(self) -> int:
        """How many leased jobs no sweep can find, since the bookkeeping of their claims is gone."""
        ...

    async def sees_payloads(self) -> bool:
        """Whether jobs are read with what they carry: not every user has that privilege."""
        ...

    async def now(self) -> datetime:
        """The clock that decides."""
        ...


class Results(Protocol):
    """What jobs returned, and how far those that run are."""

    async def get(self, ids: Sequence[JobId]) -> dict[JobId, StoredResult]:
        """The results that were stored and have not expired."""
        ...

    async def progress(self, ids: Sequence[JobId]) -> dict[JobId, Progress]:
        """What the handlers of these jobs last said."""
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

    async def return_permits(
        self, name: str, generation: int, expires: datetime, count: int
    ) -> None:
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


class Pauses(Protocol):
    """What people have paused: jobs of these names are not claimed. An empty name means all."""

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
        """End the pause of that name; False where there is none."""
        ...

    async def all(self) -> list[Pause]:
        """The pauses that hold now."""
        ...

    async def acts(self, limit: int) -> list[Act]:
        """What people did that concerns no single job, newest first."""
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
        """Run until cancelled; `on_work` is also called once listening has begun (again).

        `on_recovered` is called as well when jobs wait that a worker died with.
        A listener that names its worker hears of work that it was chosen for, others of all.
        """
        ...

    async def pass_on(self, entrypoints: Sequence[str]) -> None:
        """Wake another worker of these entrypoints: this one has no room for what it heard of."""
        ...

    async def recovered(self) -> None:
        """Tell all workers that jobs wait which a worker died with."""
        ...

    async def need(self, *, needed: bool) -> None:
        """Whether enqueues must tell this listener; they must, until it says otherwise."""
        ...


class Reports(Protocol):
    """What each worker reports about itself, so that others and people see it."""

    async def report(self, worker: WorkerInfo) -> bool:
        """Record that this worker is alive. Return whether nobody does the upkeep.

        The store sets the two instants.
        """
        ...

    async def sign_off(self, worker: str) -> None:
        """Remove a worker that has ended."""
        ...


class Upkeep(Protocol):
    """What is done once for all workers, and the rules for it."""

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
        """Take a duty that nobody has, or keep it for `lasts` from now."""
        ...

    async def release(self, duty: str, token: UUID) -> None:
        """Give a duty up."""
        ...

    async def look(self, grace: timedelta) -> Lookout:
        """Look for jobs that are due for longer than `grace` while workers serve them."""
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
        """None where there is no place for reports, as beside tables of users alone."""
        ...

    @property
    def dedicated(self) -> bool:
        """fork() opens a connection of its own, which another thread may use."""
        ...

    def fork(self, role: str) -> Store: ...

    @property
    def synchronous(self) -> bool:
        """Whether its coroutines never suspend, so that no event loop is needed."""
        ...

    def on(self, transaction: object, *, autocommit: bool = False) -> Store:
        """The same store inside the caller's transaction; CarrierError where there is none."""
        ...

    async def verify(self) -> None:
        """Raise SchemaError unless this version of Holdfast can work here."""
        ...

    async def install(self, only: Only | None = None) -> list[str]:
        """Apply what is missing, or create that part alone; the names of what was applied."""
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
