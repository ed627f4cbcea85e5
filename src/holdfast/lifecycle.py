"""A job's life as data: states, verbs, guards and effects. Both stores interpret this table.

A verb may have several rows: each is one transition with its own guards. `memory_state.py` gives
every guard and effect a meaning on values, `render.py` one in SQL; nothing else knows the rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum


class Status(StrEnum):
    """The seven words of the enum type in the database."""

    QUEUED = "queued"
    PICKED = "picked"
    SUCCESSFUL = "successful"
    EXCEPTION = "exception"
    FAILED = "failed"
    CANCELED = "canceled"
    DELETED = "deleted"


LIVE = (Status.QUEUED, Status.PICKED, Status.FAILED)
"""Rows in the queue table."""

FINAL = (Status.SUCCESSFUL, Status.EXCEPTION, Status.CANCELED, Status.DELETED)
"""The row has left the queue table; its last log row carries the status."""

ACTIVE = (Status.QUEUED, Status.PICKED)
"""States in which a job owns its dedupe key."""


class Verb(StrEnum):
    """What can happen to a job: the same word in Python, SQL, events, command and docs."""

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    RENEW = "renew"
    COMPLETE = "complete"
    RETRY = "retry"
    FAIL = "fail"
    HOLD = "hold"
    RELEASE = "release"
    RECOVER = "recover"
    RETIRE = "retire"
    CANCEL = "cancel"
    DELETE = "delete"
    REQUEUE = "requeue"
    EDIT = "edit"


class Guard(Enum):
    """What must be true of the row, at the moment its lock is held, for a transition to happen."""

    OWNED = "the token is the row's"
    DUE = "execute_after has passed"
    ATTEMPTS_LEFT = "attempts under the cap"
    ATTEMPTS_SPENT = "attempts at the cap"
    RETRY_LEFT = "attempts + 1 under the cap"
    RETRY_SPENT = "attempts + 1 at the cap"
    STALE = "heartbeat older than the lease"
    RECOVERY_LEFT = "recoveries + 1 under the cap"
    RECOVERY_SPENT = "recoveries + 1 at the cap"
    KEY_FREE = "dedupe key free"


class Effect(Enum):
    """What a transition writes besides the status."""

    TAKE_LEASE = "new claim_token, claimed_by, claimed_at, lease, heartbeat now"
    RENEW_LEASE = "heartbeat now"
    FREE_LEASE = "claim columns and heartbeat cleared"
    COUNT_ATTEMPT = "attempts + 1"
    COUNT_RECOVERY = "recoveries + 1"
    RESET_COUNTERS = "attempts 0, recoveries 0"
    DELAY = "execute_after = now + delay"
    DUE_NOW = "execute_after = now"
    NOTE_ERROR = "last_error, last_error_at"
    NOTE_STALE = "last_error 'stale claim recovered' if none, last_error_at"
    PARK = "held_at now"
    UNPARK = "held_at cleared"
    REPLACE_PAYLOAD = "payload replaced"


STALE_ERROR = "stale claim recovered"


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table."""

    verb: Verb
    sources: tuple[Status, ...]
    target: Status
    guards: tuple[Guard, ...] = ()
    effects: tuple[Effect, ...] = ()
    logged: bool = True
    variant: str | None = None
    """Tells the rows of one verb apart."""
    reason: str | None = None
    """Written to the log when nobody gives a better one."""

    @property
    def name(self) -> str:
        return f"{self.verb}:{self.variant}" if self.variant else str(self.verb)

    @property
    def leaves(self) -> bool:
        """The row is deleted from the queue table."""
        return self.target in FINAL


_Q, _P, _F = Status.QUEUED, Status.PICKED, Status.FAILED
_G, _E = Guard, Effect

LIFECYCLE: tuple[Transition, ...] = (
    Transition(Verb.ENQUEUE, (), _Q, (_G.KEY_FREE,), (_E.RESET_COUNTERS,), logged=False),
    Transition(Verb.CLAIM, (_Q,), _P, (_G.DUE, _G.ATTEMPTS_LEFT), (_E.TAKE_LEASE,), logged=False),
    Transition(Verb.RENEW, (_P,), _P, (_G.OWNED,), (_E.RENEW_LEASE,), logged=False),
    Transition(Verb.COMPLETE, (_P,), Status.SUCCESSFUL, (_G.OWNED,)),
    Transition(
        Verb.RETRY,
        (_P,),
        _Q,
        (_G.OWNED, _G.RETRY_LEFT),
        (_E.COUNT_ATTEMPT, _E.DELAY, _E.NOTE_ERROR, _E.FREE_LEASE),
    ),
    Transition(Verb.FAIL, (_P,), Status.EXCEPTION, (_G.OWNED,)),
    Transition(Verb.HOLD, (_P,), _F, (_G.OWNED,), (_E.NOTE_ERROR, _E.FREE_LEASE, _E.PARK)),
    Transition(Verb.RELEASE, (_P,), _Q, (_G.OWNED,), (_E.FREE_LEASE,)),
    Transition(
        Verb.RECOVER,
        (_P,),
        _Q,
        (_G.STALE, _G.RECOVERY_LEFT),
        (_E.COUNT_RECOVERY, _E.NOTE_STALE, _E.FREE_LEASE),
        reason="lease_expired",
    ),
    Transition(
        Verb.RETIRE,
        (_P,),
        _F,
        (_G.STALE, _G.RECOVERY_SPENT),
        (_E.COUNT_RECOVERY, _E.NOTE_STALE, _E.FREE_LEASE, _E.PARK),
        variant="stale",
        reason="crash_loop",
    ),
    Transition(
        Verb.RETIRE,
        (_P,),
        _F,
        (_G.OWNED, _G.RETRY_SPENT),
        (_E.COUNT_ATTEMPT, _E.NOTE_ERROR, _E.FREE_LEASE, _E.PARK),
        variant="last_retry",
        reason="max_attempts",
    ),
    Transition(
        Verb.RETIRE,
        (_Q,),
        _F,
        (_G.DUE, _G.ATTEMPTS_SPENT),
        (_E.PARK,),
        variant="unclaimable",
        reason="max_attempts",
    ),
    Transition(Verb.CANCEL, (_Q, _P, _F), Status.CANCELED),
    Transition(Verb.DELETE, (_Q, _F), Status.DELETED),
    Transition(
        Verb.REQUEUE,
        (_F,),
        _Q,
        (_G.KEY_FREE,),
        (_E.RESET_COUNTERS, _E.DUE_NOW, _E.UNPARK),
    ),
    Transition(Verb.EDIT, (_F,), _F, (), (_E.REPLACE_PAYLOAD,), reason="payload edited"),
)

TRANSITIONS: dict[str, Transition] = {row.name: row for row in LIFECYCLE}
"""By name: the verb, or `verb:variant` where a verb has several rows."""

RETIRE_STALE = TRANSITIONS["retire:stale"]
RETIRE_LAST_RETRY = TRANSITIONS["retire:last_retry"]
RETIRE_UNCLAIMABLE = TRANSITIONS["retire:unclaimable"]


def mermaid() -> str:
    """The state diagram of the documentation."""
    lines = ["stateDiagram-v2", f"    [*] --> {_Q}: {Verb.ENQUEUE}"]
    for row in LIFECYCLE:
        lines += [f"    {source} --> {row.target}: {row.name}" for source in row.sources]
    lines += [f"    {status} --> [*]" for status in FINAL]
    return "\n".join(lines) + "\n"
