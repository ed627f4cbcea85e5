"""The rows of the memory store, and what the lifecycle's guards and effects mean on them.

A row is a `Job` value and a transition replaces it, so whoever was given one keeps a snapshot.
"""

from __future__ import annotations

import copy
import json
import math
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from holdfast.clock import Clock, LocalClock
from holdfast.errors import DuplicateJobError
from holdfast.lifecycle import (
    ACTIVE,
    LEAST_RECOVERIES_CAP,
    STALE_ERROR,
    TRANSITIONS,
    Effect,
    Guard,
    Transition,
    Verb,
)
from holdfast.models import (
    SOON,
    ClaimRule,
    Job,
    JobId,
    LogEntry,
    NewJob,
    OnConflict,
    Pause,
    Progress,
    StoredResult,
    TracebackRecord,
    error_fingerprint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

ENQUEUE = TRANSITIONS[Verb.ENQUEUE]
CLAIM = TRANSITIONS[Verb.CLAIM]
_NO_DELAY = timedelta(0)


@dataclass(frozen=True, slots=True)
class Asked:
    """The facts that a transition may need besides the row."""

    now: datetime
    token: UUID | None = None
    worker: str | None = None
    lease: timedelta | None = None
    delay: timedelta | None = None
    error: str | None = None
    actor: str | None = None
    reason: str | None = None
    traceback: TracebackRecord | None = None
    max_attempts: int | None = None
    max_recoveries: int | None = None
    payload: bytes | None = None
    entrypoint: str | None = None
    worker_is_dead: bool = False
    """The row's worker is known to be gone, so that its heartbeat proves nothing."""
    since: datetime | None = None
    """When the last outage ended that the sweeping worker saw."""


def _attempts_cap(row: Job, asked: Asked) -> float:
    return _first(row.max_attempts, asked.max_attempts)


def _recoveries_cap(row: Job, asked: Asked) -> float:
    return max(_first(row.max_recoveries, asked.max_recoveries), LEAST_RECOVERIES_CAP)


def _first(*caps: int | None) -> float:
    return next((cap for cap in caps if cap is not None), math.inf)


def _lapsed(row: Job, asked: Asked) -> bool:
    """Older than the lease; after an outage the lease counts from the end of it."""
    if row.heartbeat is None or row.lease is None:
        return False
    return asked.now - max(row.heartbeat, asked.since or row.heartbeat) >= row.lease


def _excused(row: Job, asked: Asked) -> bool:
    if asked.worker_is_dead or asked.since is None or row.heartbeat is None:
        return False
    return row.heartbeat < asked.since


GUARDS: dict[Guard, Callable[[State, Job, Asked], bool]] = {
    Guard.OWNED: lambda _, row, asked: row.claim_token == asked.token,
    Guard.DUE: lambda _, row, asked: row.execute_after <= asked.now,
    Guard.ATTEMPTS_LEFT: lambda _, row, asked: row.attempts < _attempts_cap(row, asked),
    Guard.ATTEMPTS_SPENT: lambda _, row, asked: row.attempts >= _attempts_cap(row, asked),
    Guard.RETRY_LEFT: lambda _, row, asked: row.attempts + 1 < _attempts_cap(row, asked),
    Guard.RETRY_SPENT: lambda _, row, asked: row.attempts + 1 >= _attempts_cap(row, asked),
    Guard.NEVER_RECOVERED: lambda _, row, __: row.recoveries == 0,
    Guard.RECOVERED: lambda _, row, __: row.recoveries > 0,
    Guard.STALE: lambda _, row, asked: asked.worker_is_dead or _lapsed(row, asked),
    Guard.COUNTED: lambda _, row, asked: not _excused(row, asked),
    Guard.EXCUSED: lambda _, row, asked: _excused(row, asked),
    Guard.RECOVERY_LEFT: lambda _, row, asked: row.recoveries + 1 < _recoveries_cap(row, asked),
    Guard.RECOVERY_SPENT: lambda _, row, asked: row.recoveries + 1 >= _recoveries_cap(row, asked),
    Guard.KEY_FREE: lambda state, row, _: row.dedupe_key not in state.keys,
}

EFFECTS: dict[Effect, Callable[[Job, Asked], dict[str, Any]]] = {
    Effect.TAKE_LEASE: lambda _, asked: {
        "claim_token": asked.token,
        "claimed_by": asked.worker,
        "claimed_at": asked.now,
        "lease": asked.lease,
        "heartbeat": asked.now,
    },
    Effect.RENEW_LEASE: lambda _, asked: {"heartbeat": asked.now},
    Effect.FREE_LEASE: lambda _row, _asked: dict.fromkeys(
        ("claim_token", "claimed_by", "claimed_at", "lease", "heartbeat")
    ),
    Effect.COUNT_ATTEMPT: lambda row, _: {"attempts": row.attempts + 1},
    Effect.COUNT_RECOVERY: lambda row, _: {"recoveries": row.recoveries + 1},
    Effect.RESET_COUNTERS: lambda _row, _asked: {"attempts": 0, "recoveries": 0},
    Effect.DELAY: lambda _, asked: {"execute_after": asked.now + (asked.delay or _NO_DELAY)},
    Effect.DUE_NOW: lambda _, asked: {"execute_after": asked.now},
    Effect.NOTE_ERROR: lambda _, asked: {"last_error": asked.error, "last_error_at": asked.now},
    Effect.NOTE_STALE: lambda row, asked: {
        "last_error": STALE_ERROR if row.last_error is None else row.last_error,
        "last_error_at": asked.now,
    },
    Effect.MARK_HELD: lambda _, asked: {"held_at": asked.now},
    Effect.CLEAR_HELD: lambda _row, _asked: {"held_at": None},
    Effect.REPLACE_PAYLOAD: lambda _, asked: {"payload": asked.payload},
    Effect.RENAME: lambda row, asked: {"entrypoint": asked.entrypoint or row.entrypoint},
}
"""Each effect as the fields it writes, read from the row as it was before the transition."""


@dataclass(frozen=True, slots=True)
class Listener:
    """The callbacks of one listener."""

    on_work: Callable[[], None]
    on_cancel: Callable[[JobId], None]


@dataclass(slots=True)
class _Last:
    """The ids that were given out last."""

    job: int = 0
    entry: int = 0


class State:
    """The state that the facets of one memory store share. No call awaits, so each is a
    transaction."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or LocalClock()
        self.rows: dict[JobId, Job] = {}
        """In the order of their ids."""
        self.keys: dict[str | None, JobId] = {}
        """Which active job owns a dedupe key; never has None."""
        self.log: list[LogEntry] = []
        self.listeners: list[Listener] = []
        self.results: dict[JobId, tuple[StoredResult, datetime]] = {}
        """The stored results, with the times at which they expire."""
        self.progress: dict[JobId, Progress] = {}
        self.result_listeners: list[Callable[[JobId], None]] = []
        self.pauses: dict[str, Pause] = {}
        """By name, also those that are over."""
        self.origin = self
        """The state that the outermost transaction began from."""
        self._last = _Last()

    def fork(self, listener: Listener) -> State:
        """A copy for a transaction. Ids are given out once, whichever copy asks."""
        copied = State(self._clock)
        copied.rows, copied.keys, copied.log = dict(self.rows), dict(self.keys), [*self.log]
        copied.results, copied.progress = dict(self.results), dict(self.progress)
        copied.pauses = self.pauses
        copied.listeners.append(listener)
        copied.origin, copied._last = self.origin, self._last
        return copied

    def take_results(self, done: State) -> None:
        """Make the results that a transaction stored visible, and say that they are there."""
        self.progress.update(done.progress)
        for job_id, stored in done.results.items():
            if self.results.get(job_id) is not stored:
                self.results[job_id] = stored
                self._announce_result(job_id)

    def take_over(self, changed: Mapping[JobId, Job | None], entries: Sequence[LogEntry]) -> None:
        """Make the changes of a transaction visible, all at once."""
        for job_id, after in changed.items():
            before = self.rows.pop(job_id, None)
            if before is not None and self.keys.get(before.dedupe_key) == job_id:
                del self.keys[before.dedupe_key]
            if after is not None:
                self.rows[job_id] = after
        for row in filter(None, changed.values()):
            if row.dedupe_key is not None and row.status in ACTIVE:
                self.keys[row.dedupe_key] = row.id
        ordered = sorted(self.rows.items())
        self.rows.clear()
        self.rows.update(ordered)
        self.log += entries
        self.announce(filter(None, changed.values()), self.now() + SOON)

    def now(self) -> datetime:
        return self._clock.now() or LocalClock().now()

    def paused(self) -> list[Pause]:
        """The pauses that hold now."""
        now = self.now()
        return [each for each in self.pauses.values() if each.until is None or each.until > now]

    def unpaused(self, rules: Sequence[ClaimRule]) -> list[ClaimRule]:
        """The rules whose jobs may be claimed now."""
        paused = self.paused()
        return [r for r in rules if not any(each.covers(r.entrypoint) for each in paused)]

    def apply(self, transition: Transition, row: Job, asked: Asked) -> Job | None:
        """The row after the transition, or None: it does not apply and nothing was changed."""
        if not self.allows(transition, row, asked):
            return None
        writes: dict[str, Any] = {"status": transition.target}
        if transition.verb is not Verb.RENEW:
            writes["updated"] = asked.now
        for effect in transition.effects:
            writes |= EFFECTS[effect](row, asked)
        after = row._replace(**writes)
        if transition.logged:
            self._write_log(transition, row, asked)
        self._write_row(transition, after)
        return after

    def insert(self, jobs: Sequence[NewJob], on_conflict: OnConflict) -> list[JobId | None]:
        if on_conflict == "raise":
            self._refuse_taken_keys(jobs)
        asked = Asked(self.now())
        ids: list[JobId | None] = []
        for job in jobs:
            row = self.apply(ENQUEUE, self._new_row(job, asked.now), asked)
            ids.append(row.id if row else None)
            self._last.job = row.id if row else self._last.job
        self.announce((self.rows[id_] for id_ in ids if id_ is not None), asked.now + SOON)
        return ids

    def found(self, ids: Iterable[JobId]) -> list[Job]:
        """The rows of those ids that are in the queue, in the order of the ids."""
        return [self.rows[id_] for id_ in sorted(set(ids)) if id_ in self.rows]

    def store_result(self, job_id: JobId, result: StoredResult, now: datetime) -> None:
        """Store the result of a job, and notify its listeners."""
        self.results[job_id] = result, now + result.keep
        self._announce_result(job_id)

    def _announce_result(self, job_id: JobId) -> None:
        for listener in tuple(self.result_listeners):
            listener(job_id)

    def announce(self, changed: Iterable[Job], now: datetime) -> None:
        """Wake the sleepers once if any of these rows can be claimed now."""
        if any(row.status in CLAIM.sources and row.execute_after <= now for row in changed):
            for listener in tuple(self.listeners):
                listener.on_work()

    def announce_cancel(self, ids: Iterable[JobId]) -> None:
        for id_ in ids:
            for listener in tuple(self.listeners):
                listener.on_cancel(id_)

    def allows(self, transition: Transition, row: Job, asked: Asked) -> bool:
        # A row that is not here yet has no state, which is what an empty `sources` says.
        here = row.status in transition.sources if row.id in self.rows else not transition.sources
        return here and all(GUARDS[guard](self, row, asked) for guard in transition.guards)

    def _write_row(self, transition: Transition, row: Job) -> None:
        if transition.leaves:
            del self.rows[row.id]
        else:
            self.rows[row.id] = row
        if row.dedupe_key is None:
            return
        if row.status in ACTIVE:
            self.keys[row.dedupe_key] = row.id
        elif self.keys.get(row.dedupe_key) == row.id:
            del self.keys[row.dedupe_key]

    def _write_log(self, transition: Transition, before: Job, asked: Asked) -> None:
        self._last.entry += 1
        entry = LogEntry(
            id=self._last.entry,
            job_id=before.id,
            status=transition.target,
            entrypoint=before.entrypoint,
            priority=before.priority,
            attempt=before.attempts,
            recoveries=before.recoveries,
            claimed_by=before.claimed_by,
            claimed_at=before.claimed_at,
            actor=asked.actor,
            reason=transition.reason if asked.reason is None else asked.reason,
            traceback=_traceback(asked.traceback),
            created=asked.now,
            enqueued_at=before.created,
            due_at=before.execute_after,
            lease=before.lease,
            fingerprint=error_fingerprint(asked.error, asked.traceback),
        )
        self.log.append(entry)

    def _refuse_taken_keys(self, jobs: Sequence[NewJob]) -> None:
        taken = set(self.keys)
        for key in (job.dedupe_key for job in jobs if job.dedupe_key is not None):
            if key in taken:
                raise DuplicateJobError(key)
            taken.add(key)

    def _new_row(self, job: NewJob, now: datetime) -> Job:
        unset: dict[str, Any] = dict.fromkeys(Job._fields)
        given = {
            **job._asdict(),
            "id": JobId(self._last.job + 1),
            "status": ENQUEUE.target,
            "execute_after": _instant(job.execute_after, now),
            "headers": None if job.headers is None else _as_json(dict(job.headers)),
            "created": now,
            "updated": now,
        }
        return Job(**(unset | given))


def given_out(row: Job) -> Job:
    """A handler may change its headers; the row must not follow."""
    return row._replace(headers=copy.deepcopy(row.headers)) if row.headers else row


def _instant(when: timedelta | datetime | None, now: datetime) -> datetime:
    if isinstance(when, datetime):
        return when.astimezone(UTC)
    return now + (when or _NO_DELAY)


def _as_json(value: dict[str, Any]) -> dict[str, Any]:
    """A copy as a JSON column would give it back: tuples are lists, keys are text."""
    copied: dict[str, Any] = json.loads(json.dumps(value, default=str))
    return copied


def _traceback(record: TracebackRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    fields = asdict(record)
    fields["timestamp"] = record.timestamp and record.timestamp.isoformat()
    unknown = [name for name in ("job_id", "timestamp") if fields[name] is None]
    return _as_json({name: value for name, value in fields.items() if name not in unknown})
