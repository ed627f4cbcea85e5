"""A job's life as data: states, verbs, guards and effects. Both stores interpret this table.

A verb may have several rows: each is one transition with its own guards. `stores/memory/state.py`
gives every guard and effect a meaning on values, `render.py` one in SQL. No other file knows a
rule.
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
    """The verbs of a job: the same word in Python, SQL, events, command and docs."""

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
    MOVE = "move"


class Guard(Enum):
    """Conditions on the row, checked while its lock is held."""

    OWNED = "the token is the row's"
    DUE = "execute_after has passed"
    ATTEMPTS_LEFT = "attempts under the cap"
    ATTEMPTS_SPENT = "attempts at the cap"
    RETRY_LEFT = "attempts + 1 under the cap"
    RETRY_SPENT = "attempts + 1 at the cap"
    STALE = "heartbeat older than the lease"
    NEVER_RECOVERED = "recoveries 0"
    RECOVERED = "recoveries over 0"
    RECOVERY_LEFT = "recoveries + 1 under the cap, which is at least 2"
    RECOVERY_SPENT = "recoveries + 1 at the cap, which is at least 2"
    COUNTED = "heartbeat after the last outage of the database"
    EXCUSED = "heartbeat before the end of the last outage"
    KEY_FREE = "dedupe key free"


class Effect(Enum):
    """The columns that a transition writes besides the status."""

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
    MARK_HELD = "held_at now"
    CLEAR_HELD = "held_at cleared"
    REPLACE_PAYLOAD = "payload replaced"
    RENAME = "entrypoint replaced where a new one is given"


STALE_ERROR = "stale claim recovered"

LEAST_RECOVERIES_CAP = 2
"""A lower cap counts as this one: the first death may have been the work of a neighbour."""


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
    """Written to the log when the caller gives none."""

    @property
    def name(self) -> str:
        return f"{self.verb}:{self.variant}" if self.variant else str(self.verb)

    @property
    def leaves(self) -> bool:
        """The row is deleted from the queue table."""
        return self.target in FINAL


_Q, _P, _F = Status.QUEUED, Status.PICKED, Status.FAILED
_G, _E = Guard, Effect

SPOKEN: dict[Status, str] = {
    Status.QUEUED: "queued",
    Status.PICKED: "running",
    Status.SUCCESSFUL: "successful",
    Status.EXCEPTION: "failed",
    Status.FAILED: "held",
    Status.CANCELED: "canceled",
    Status.DELETED: "deleted",
}
"""The words for a state in texts for people. SQL and the API keep the state's own word."""

LIFECYCLE: tuple[Transition, ...] = (
    Transition(Verb.ENQUEUE, (), _Q, (_G.KEY_FREE,), (_E.RESET_COUNTERS,), logged=False),
    Transition(
        Verb.CLAIM,
        (_Q,),
        _P,
        (_G.DUE, _G.ATTEMPTS_LEFT, _G.NEVER_RECOVERED),
        (_E.TAKE_LEASE,),
        logged=False,
    ),
    Transition(
        Verb.CLAIM,
        (_Q,),
        _P,
        (_G.DUE, _G.ATTEMPTS_LEFT, _G.RECOVERED, _G.RECOVERY_LEFT),
        (_E.TAKE_LEASE,),
        logged=False,
        variant="recovered",
    ),
    Transition(
        Verb.CLAIM,
        (_Q,),
        _P,
        (_G.DUE, _G.ATTEMPTS_LEFT, _G.RECOVERED, _G.RECOVERY_SPENT),
        (_E.TAKE_LEASE,),
        logged=False,
        variant="suspect",
    ),
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
    Transition(Verb.HOLD, (_P,), _F, (_G.OWNED,), (_E.NOTE_ERROR, _E.FREE_LEASE, _E.MARK_HELD)),
    Transition(Verb.RELEASE, (_P,), _Q, (_G.OWNED,), (_E.FREE_LEASE,)),
    Transition(
        Verb.RECOVER,
        (_P,),
        _Q,
        (_G.STALE, _G.COUNTED, _G.RECOVERY_LEFT),
        (_E.COUNT_RECOVERY, _E.NOTE_STALE, _E.FREE_LEASE),
        reason="lease_expired",
    ),
    Transition(
        Verb.RECOVER,
        (_P,),
        _Q,
        (_G.STALE, _G.EXCUSED),
        (_E.FREE_LEASE,),
        variant="outage",
        reason="outage",
    ),
    Transition(
        Verb.RETIRE,
        (_P,),
        _F,
        (_G.STALE, _G.COUNTED, _G.RECOVERY_SPENT),
        (_E.COUNT_RECOVERY, _E.NOTE_STALE, _E.FREE_LEASE, _E.MARK_HELD),
        variant="stale",
        reason="crash_loop",
    ),
    Transition(
        Verb.RETIRE,
        (_P,),
        _F,
        (_G.OWNED, _G.RETRY_SPENT),
        (_E.COUNT_ATTEMPT, _E.NOTE_ERROR, _E.FREE_LEASE, _E.MARK_HELD),
        variant="last_retry",
        reason="max_attempts",
    ),
    Transition(
        Verb.RETIRE,
        (_Q,),
        _F,
        (_G.DUE, _G.ATTEMPTS_SPENT),
        (_E.MARK_HELD,),
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
        (_E.RESET_COUNTERS, _E.DUE_NOW, _E.CLEAR_HELD),
    ),
    Transition(Verb.EDIT, (_F,), _F, (), (_E.REPLACE_PAYLOAD,), reason="payload edited"),
    Transition(Verb.MOVE, (_Q,), _Q, (), (_E.RENAME,), variant="waiting"),
    Transition(Verb.MOVE, (_P,), _Q, (_G.STALE,), (_E.RENAME, _E.FREE_LEASE), variant="leased"),
    Transition(
        Verb.MOVE,
        (_F,),
        _Q,
        (_G.KEY_FREE,),
        (_E.RENAME, _E.RESET_COUNTERS, _E.DUE_NOW, _E.CLEAR_HELD),
        variant="held",
    ),
)

TRANSITIONS: dict[str, Transition] = {row.name: row for row in LIFECYCLE}
"""By name: the verb, or `verb:variant` where a verb has several rows."""

CLAIM_RECOVERED = TRANSITIONS["claim:recovered"]
CLAIM_SUSPECT = TRANSITIONS["claim:suspect"]
RECOVER_OUTAGE = TRANSITIONS["recover:outage"]
RETIRE_STALE = TRANSITIONS["retire:stale"]
RETIRE_LAST_RETRY = TRANSITIONS["retire:last_retry"]
RETIRE_UNCLAIMABLE = TRANSITIONS["retire:unclaimable"]

MOVE_WAITING = TRANSITIONS["move:waiting"]
MOVE_LEASED = TRANSITIONS["move:leased"]
MOVE_HELD = TRANSITIONS["move:held"]
"""The transitions by which an operator queues a job again, under the same name or another, one for
each live state. A lease that is not stale ends only where the operator says so."""


def mermaid() -> str:
    """The state diagram of the documentation."""
    lines = ["stateDiagram-v2", f"    [*] --> {_Q}: {Verb.ENQUEUE}"]
    for row in LIFECYCLE:
        lines += [f"    {source} --> {row.target}: {row.name}" for source in row.sources]
    lines += [f"    {status} --> [*]" for status in FINAL]
    return "\n".join(lines) + "\n"
