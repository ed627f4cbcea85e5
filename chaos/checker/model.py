"""What the histories say, as values: leases, runs, calls, disturbances."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.lifecycle import FINAL, RECOVER_OUTAGE, TRANSITIONS, Status, Verb

_FINAL = frozenset(str(status) for status in FINAL)


class LeaseKey(NamedTuple):
    """The identity of a lease in every history: job, worker and instant of the claim."""

    queue: str
    job: int
    by: str
    at: int


def pid_of(worker: str | None) -> int | None:
    """Of a worker's id, host:pid:random."""
    return int(worker.split(":")[-2]) if worker else None


@dataclass(slots=True)
class LogRow:
    """A row of the product's log: mostly the end of a lease."""

    id: int
    job: int
    status: str
    entrypoint: str
    attempt: int
    recoveries: int
    by: str | None
    at: int | None
    actor: str | None
    reason: str | None
    error: str | None
    t: int

    @property
    def final(self) -> bool:
        return self.status in _FINAL

    @property
    def key(self) -> LeaseKey | None:
        if self.by is None or self.at is None:
            return None
        return LeaseKey("", self.job, self.by, self.at)

    @property
    def verb(self) -> str:
        """Which transition wrote it; the log says states, the verb follows from the rest."""
        if self.final:
            return self.status
        if self.at is None:
            by_hand = "requeue" if self.status == Status.QUEUED else "edit"
            return by_hand if self.actor is not None else "unclaimable"
        if self.status == Status.QUEUED:
            if self.error is not None:
                return "retry"
            return _BACK.get(self.reason, "release")
        return "hold" if self.error is not None else "retire"

    @property
    def settles(self) -> bool:
        """The holder of the lease wrote it."""
        by_hand = (Status.CANCELED, Status.DELETED)
        return self.at is not None and self.status not in by_hand and self.verb not in _REAPED


_REAPED = ("recover", "excuse", "retire")
_BACK = {TRANSITIONS[Verb.RECOVER].reason: "recover", RECOVER_OUTAGE.reason: "excuse"}
"""Why a sweep puts a job back into the queue: a counted recovery, or one after an outage."""


@dataclass(slots=True)
class Run:
    """One start of a handler, from the effects ledger."""

    key: LeaseKey
    pid: int
    token: str
    uid: int | None
    kind: str
    entrypoint: str
    attempt: int
    recoveries: int
    due: int
    born: int
    dedupe: str | None
    slot: str | None
    start: int
    before: int
    """When the event loop of its process last wrote a line before this one."""
    end: int | None = None
    how: str = ""

    def open_at(self, t: int) -> bool:
        return self.start < t and (self.end is None or self.end > t)


@dataclass(slots=True)
class QueueRow:
    """A row of the queue table as it was at the end."""

    job: int
    entrypoint: str
    status: str
    attempts: int
    recoveries: int
    by: str | None
    at: int | None
    has_token: bool
    due: int
    born: int
    dedupe: str | None
    held: int | None
    slot: str | None
    uid: int | None
    kind: str

    @property
    def key(self) -> LeaseKey | None:
        if self.by is None or self.at is None:
            return None
        return LeaseKey("", self.job, self.by, self.at)


@dataclass(slots=True)
class Call:
    """One call of a client: `ok`, `fail` (changed nothing), `info` (unknown) or still open."""

    id: str
    op: str
    invoked: int
    jobs: list[list[Any]] = field(default_factory=list)
    ids: list[int | None] = field(default_factory=list)
    outcome: str = "info"
    ended: int | None = None
    final: bool = False


@dataclass(slots=True)
class Story:
    """All that is known of one job."""

    job: int
    log: list[LogRow] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    row: QueueRow | None = None
    acknowledged: int | None = None
    spec: list[Any] | None = None
    """uid, kind, entrypoint, dedupe key and delay, as the client gave them."""
    invoked: int | None = None

    @property
    def ended(self) -> int | None:
        """When it left the queue."""
        return next((row.t for row in self.log if row.final), None)

    @property
    def uid(self) -> int | None:
        if self.spec is not None:
            return int(self.spec[0])
        if self.runs:
            return self.runs[0].uid
        return self.row.uid if self.row else None


@dataclass(slots=True)
class Fault:
    """Something that the nemesis did; to every process where there is no pid."""

    kind: str
    t: int
    worker: str | None
    pid: int | None
    until: int
    hit: bool | None = None
    """For faults that can hit no lease: whether they hit a call."""


@dataclass(slots=True)
class Exit:
    name: str
    pid: int
    t: int
    code: int
    told: bool


@dataclass(slots=True)
class Violation:
    """Of one invariant. `job` is what the timeline is about."""

    invariant: str
    text: str
    job: int | None = None
    t: int | None = None
