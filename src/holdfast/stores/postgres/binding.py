"""Where a lifecycle lives: the columns of a table, and how it says which state a row is in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.models import NewJob

if TYPE_CHECKING:
    from holdfast.lifecycle import Status
    from holdfast.settings import Names

JOB_COLUMNS = (
    "id",
    "entrypoint",
    "payload",
    "priority",
    "status",
    "execute_after",
    "attempts",
    "recoveries",
    "max_attempts",
    "max_recoveries",
    "dedupe_key",
    "headers",
    "created",
    "updated",
    "heartbeat",
    "claim_token",
    "claimed_by",
    "claimed_at",
    "lease",
    "last_error",
    "last_error_at",
    "held_at",
)
"""The fields of models.Job, in its order."""

NEW_COLUMNS = (*NewJob._fields, "created", "updated")
"""The columns that an enqueue writes."""

LEASE_COLUMNS = ("heartbeat", "claim_token", "claimed_by", "claimed_at", "lease")
"""They count only while the row is picked."""

_WRITTEN_BY_A_CLAIM = ("status", *LEASE_COLUMNS)
CLAIMED_COLUMNS = tuple(column for column in JOB_COLUMNS if column not in _WRITTEN_BY_A_CLAIM)
"""The columns that a claim returns. The claim itself has written the others."""

LARGE_PAYLOAD = 64 * 1024
"""Bytes. A larger payload is not in the reply to a claim, which says its size instead."""

_SIZE = "octet_length(payload)"
_INSTANTS = ("execute_after", "created", "updated", "last_error_at", "held_at")
_AS_CLAIMED = {
    **{column: f"date_part('epoch', {column})" for column in _INSTANTS},
    "payload": f"case when {_SIZE} <= {LARGE_PAYLOAD} then payload end",
}
CLAIMED_VALUES = (
    *(_AS_CLAIMED.get(column, column) for column in CLAIMED_COLUMNS),
    f"case when {_SIZE} > {LARGE_PAYLOAD} then {_SIZE} end",
)
"""The columns as a claim returns them, and the size of a large payload. Instants are seconds since
1970: a driver takes longer to make three datetimes than for all other columns, and those of one
claim are mostly the same."""

HIDDEN_COLUMNS = {"payload": "bytea", "headers": "jsonb"}
"""The columns of a job's payload and headers, with their types. A reader need not see them."""

LOG_COLUMNS = (
    "id",
    "job_id",
    "status",
    "entrypoint",
    "priority",
    "attempt",
    "recoveries",
    "claimed_by",
    "claimed_at",
    "actor",
    "reason",
    "traceback",
    "created",
    "enqueued_at",
    "due_at",
    "lease",
    "fingerprint",
)
"""The fields of models.LogEntry, in its order."""

SCHEDULE_COLUMNS = (
    "id",
    "name",
    "expression",
    "timezone",
    "misfire",
    "overlap",
    "paused",
    "next_run",
    "last_run",
    "created",
    "updated",
)
"""The stored fields of models.Schedule, in its order."""

BREAKER_COLUMNS = (
    "name",
    "state",
    "generation",
    "failures",
    "opened_at",
    "cooldown",
    "probes",
    "actor",
    "reason",
    "updated",
)
"""The fields of breaker.Breaker, in its order."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Holdfast's own tables under one prefix and schema."""

    names: Names

    @property
    def relations(self) -> dict[str, str]:
        """The names of the tables in the templates."""
        suffixes = (
            *("log", "leases", "statistics", "counted", "schedules", "workers", "breakers"),
            *("enqueues", "limits", "results", "progress", "retention", "pauses", "acts"),
            "upkeep",
            "status",
        )
        quoted = {suffix: self.names.table(f"_{suffix}") for suffix in suffixes}
        return {
            "table": self.names.table(),
            "migrations": self.names.table("_migrations"),
            "prefix": self.names.prefix,
            **quoted,
        }

    @property
    def functions(self) -> dict[str, str]:
        """The names of the functions that the tables themselves need."""
        return {"count_deleted": self.names.table("_count_deleted")}

    def word(self, status: Status) -> str:
        """A state as a literal, so that a plan made without values can use it."""
        return f"'{status}'::{self.names.table('_status')}"

    def is_in(self, sources: tuple[Status, ...]) -> str:
        """The row `j` is in one of these states."""
        if len(sources) == 1:
            return f"j.status = {self.word(sources[0])}"
        return f"j.status in ({', '.join(self.word(status) for status in sources)})"

    def become(self, target: Status) -> str:
        """The assignment that puts a row into a state."""
        return f"status = {self.word(target)}"
