"""Every kind of row that a transition can meet, and every token that can be offered for it."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from holdfast.clock import ManualClock
from holdfast.lifecycle import Status
from holdfast.models import Change, ClaimRule, Job, JobId, LeaseKey, TracebackRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOCK = ManualClock()
NOW = CLOCK.now()
SECOND = timedelta(seconds=1)
LEASE = timedelta(seconds=30)
LEASE_AGES = {"live": LEASE - SECOND, "just past": LEASE, "past": LEASE + SECOND}
DUE = {"long due": -SECOND, "just due": timedelta(0), "deferred": SECOND}
OFFERED = ("right token", "wrong token", "both tokens")
COUNTS = (0, 1, 2)
ROW_CAPS = (None, 1, 3)
ENTRYPOINT_CAP = 2
ENTRYPOINTS = {"capped": ENTRYPOINT_CAP, "boundless": None}
WORKER = "worker-1"


class Case(NamedTuple):
    """A row before the transition, and the token that a caller offers for it."""

    status: Status
    offered: str
    lease_age: str
    due: str
    attempts: int
    recoveries: int
    row_cap: int | None
    entrypoint: str
    last_error: str | None


def cases() -> Iterator[Case]:
    """All combinations, without those that differ in nothing that the state has or uses."""
    errors = (None, "earlier")
    for rest in product(
        OFFERED, LEASE_AGES, tuple(DUE)[::2], COUNTS, COUNTS, ROW_CAPS, ENTRYPOINTS, errors
    ):
        yield Case(Status.PICKED, *rest)
    for status in (Status.QUEUED, Status.FAILED):
        for rest in product(
            OFFERED, ["live"], DUE, COUNTS, COUNTS, ROW_CAPS, ENTRYPOINTS, errors[:1]
        ):
            yield Case(status, *rest)


CASES = tuple(cases())
"""Job n of each store is the row of case n - 1."""


def right(job_id: int) -> UUID:
    return UUID(int=job_id)


def wrong(job_id: int) -> UUID:
    return UUID(int=(1 << 64) + job_id)


def key(job_id: int, status: Status) -> str | None:
    """A held job may find its key taken, by an active job or by a held one that goes first."""
    if job_id % 4 == 0:
        return None
    if status is Status.FAILED and job_id % 4 == 2:
        return "key 1"
    if status is Status.FAILED and job_id % 4 == 3:
        return f"shared {job_id // 8}"
    return f"key {job_id}"


def row(job_id: int, case: Case) -> Job:
    values: dict[str, Any] = dict.fromkeys(Job._fields)
    values |= {
        "id": JobId(job_id),
        "entrypoint": case.entrypoint,
        "payload": b"payload",
        "priority": 7,
        "status": case.status,
        "execute_after": NOW + DUE[case.due],
        "attempts": case.attempts,
        "recoveries": case.recoveries,
        "max_attempts": case.row_cap,
        "max_recoveries": case.row_cap,
        "dedupe_key": key(job_id, case.status),
        "headers": {"n": job_id} if job_id % 2 else None,
        "created": NOW - 100 * SECOND,
        "updated": NOW - 50 * SECOND,
        "last_error": case.last_error,
        "last_error_at": NOW - 50 * SECOND if case.last_error else None,
    }
    if case.status is Status.PICKED:
        since = NOW - LEASE_AGES[case.lease_age]
        values |= {
            "heartbeat": since,
            "claim_token": right(job_id),
            "claimed_by": f"worker-{job_id % 2}",
            "claimed_at": since - SECOND,
            "lease": LEASE,
        }
    if case.status is Status.FAILED:
        values["held_at"] = NOW - 50 * SECOND
    return Job(**values)


ROWS = tuple(row(n, case) for n, case in enumerate(CASES, start=1))
IDS = [job.id for job in ROWS]


def offers() -> Iterator[tuple[Case, LeaseKey]]:
    for job_id, case in zip(IDS, CASES, strict=True):
        if case.offered != "right token":
            yield case, LeaseKey(job_id, wrong(job_id))
        if case.offered != "wrong token":
            yield case, LeaseKey(job_id, right(job_id))


RULES = [
    ClaimRule(name, lease=LEASE, max_attempts=cap, max_recoveries=ENTRYPOINT_CAP)
    for name, cap in ENTRYPOINTS.items()
]


def changes() -> list[Change]:
    record = TracebackRecord("ValueError", "no", "Traceback …", {"n": 1}, 1, NOW)
    return [
        Change(
            held,
            delay=SECOND * (held.id % 3) if held.id % 4 else None,
            error="it broke" if held.id % 5 else None,
            reason="because" if held.id % 2 else None,
            traceback=record if held.id % 3 else None,
            max_attempts=ENTRYPOINTS[case.entrypoint],
        )
        for case, held in offers()
    ]
