"""A queue that is the user's own table: which column plays which part, checked on construction."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from holdfast.errors import InvalidInput

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")
_ORDER = re.compile(
    r"(?P<column>[A-Za-z_][A-Za-z0-9_$]{0,62})(?P<way>(\s+(asc|desc))?(\s+nulls\s+(first|last))?)",
    re.IGNORECASE,
)

Backoff = Callable[[int, BaseException], timedelta]
"""(attempts so far, the error) -> how long to wait before the next attempt."""


def linear(
    step: timedelta = timedelta(seconds=30), limit: timedelta = timedelta(hours=1)
) -> Backoff:
    """One step more after each failure."""
    _check_step(step, limit)
    return lambda attempts, _: min(limit, step * (attempts + 1))


def exponential(
    first: timedelta = timedelta(seconds=10),
    limit: timedelta = timedelta(hours=1),
    *,
    jitter: bool = False,
) -> Backoff:
    """Twice as long after each failure; with jitter somewhere up to that."""
    _check_step(first, limit)

    def backoff(attempts: int, _: BaseException) -> timedelta:
        delay: timedelta = min(limit, first * float(2 ** min(attempts, 20)))
        return delay * random.random() if jitter else delay  # noqa: S311 - not a secret

    return backoff


def _check_step(step: timedelta, limit: timedelta) -> None:
    if not timedelta(0) < step <= limit:
        raise InvalidInput(f"a backoff needs 0 < step <= limit, got step {step}, limit {limit}")


@dataclass(frozen=True, slots=True)
class TableQueue:
    """Declare a table as a queue.

    Each column has a default name. An optional column with its default name is used if the table
    has it. Name it to require it; pass None to do without it.
    """

    table: str
    due: str = "remind_at"
    key: str = "id"
    order: tuple[str, ...] = ()
    """What "next" means, for example ("priority desc", "remind_at"); the due column by default."""
    lease: timedelta = timedelta(minutes=5)
    backoff: Backoff = field(default_factory=exponential)
    where: str | None = None
    """A further condition for a row to be work, in SQL. It is code of yours, never input."""
    max_attempts: str | int | None = "max_attempts"
    """A column, or one number for all rows; None: no cap."""
    max_recoveries: int = 3
    """Deaths after which a row is retired, where there is a recoveries column; at least 2."""
    name: str = ""
    """The queue's name in telemetry, logs and limits; the table's by default."""
    claim_token: str = "claim_token"  # noqa: S105 - a column
    claimed_at: str = "claimed_at"
    attempts: str = "attempts"
    inactive: str = "inactive"
    claimed_by: str | None = "claimed_by"
    heartbeat: str | None = "heartbeat"
    recoveries: str | None = "recoveries"
    last_error: str | None = "last_error"
    last_error_at: str | None = "last_error_at"
    updated_at: str | None = "updated_at"
    outcome: str | None = "outcome"
    """Receives the word of the final state, so that success and failure can be distinguished."""

    def __post_init__(self) -> None:
        faults = [f"{part} must name a column" for part in REQUIRED if getattr(self, part) is None]
        faults += [
            f"{part} {value!r} is not a column name"
            for part, value in self.columns().items()
            if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value)
        ]
        if not 1 <= len(self.path) <= 2 or not all(map(_IDENTIFIER.fullmatch, self.path)):
            faults.append(f"table {self.table!r} must be a table or schema.table")
        faults += self._order_faults() + self._twin_faults()
        if not isinstance(self.lease, timedelta) or self.lease < timedelta(milliseconds=100):
            faults.append(f"lease must be a timedelta of at least 0.1 s, got {self.lease!r}")
        if isinstance(self.max_attempts, int) and self.max_attempts < 1:
            faults.append(f"max_attempts must be at least 1, got {self.max_attempts}")
        if not callable(self.backoff):
            faults.append(
                f"backoff must be linear(…), exponential(…) or a function, got {self.backoff!r}"
            )
        if faults:
            raise InvalidInput(f"table queue {self.table!r}: " + "; ".join(faults))

    def _order_faults(self) -> list[str]:
        if not isinstance(self.order, tuple | list):
            return [f'order must be a tuple such as ("priority desc",), got {self.order!r}']
        return [
            f"order {item!r} must be a column, optionally with asc or desc"
            for item in self.order
            if not isinstance(item, str) or not _ORDER.fullmatch(item.strip())
        ]

    def _twin_faults(self) -> list[str]:
        by_column: dict[str, list[str]] = {}
        for part, column in self.columns().items():
            by_column.setdefault(str(column), []).append(part)
        return [
            f"column {column!r} cannot be {' and '.join(parts)} at once"
            for column, parts in by_column.items()
            if len(parts) > 1
        ]

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.table.split(".")) if isinstance(self.table, str) else ()

    @property
    def queue(self) -> str:
        return self.name or self.table

    @property
    def ordering(self) -> tuple[str, ...]:
        return self.order or (self.due,)

    def columns(self) -> dict[str, str]:
        """The parts that are played by a column, required ones first."""
        parts = (*REQUIRED, *OPTIONAL, "max_attempts")
        return {
            part: value
            for part in parts
            if (value := getattr(self, part)) is not None and not isinstance(value, int)
        }


REQUIRED = ("key", "due", "claim_token", "claimed_at", "attempts", "inactive")
"""Used by a guard: without it the rules could not hold."""

OPTIONAL = (
    "claimed_by",
    "heartbeat",
    "recoveries",
    "last_error",
    "last_error_at",
    "updated_at",
    "outcome",
)
"""Absent means not written. A row tells that a worker died with it by `recoveries`, or else by
`last_error_at`."""


def order_item(item: str) -> tuple[str, str]:
    """The column of an order item, and which way: "", " desc", " desc nulls last"…"""
    match = _ORDER.fullmatch(item.strip())
    if match is None:
        raise InvalidInput(f"order {item!r} must be a column, optionally with asc or desc")
    return match["column"], match["way"]
