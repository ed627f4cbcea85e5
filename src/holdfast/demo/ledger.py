"""Accounts for every job of a run: compares the enqueued jobs with the database."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from holdfast.demo.handlers import ENTRYPOINTS, TICK
from holdfast.lifecycle import ACTIVE, FINAL, RECOVER_OUTAGE, TRANSITIONS, Status, Verb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.app import Holdfast
    from holdfast.models import JobId, LogEntry

_EVERYTHING = 2**31 - 1
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Account:
    """The jobs of one entrypoint."""

    entrypoint: str
    enqueued: int
    successful: int
    exception: int
    failed: int
    canceled: int
    waiting: int

    @property
    def found(self) -> int:
        return self.successful + self.exception + self.failed + self.canceled + self.waiting

    @property
    def balanced(self) -> bool:
        return self.enqueued == self.found


@dataclass(frozen=True, slots=True)
class Recovery:
    """A lease that ended without an outcome from its worker."""

    job: JobId
    worker: str | None


@dataclass(frozen=True, slots=True)
class Ledger:
    accounts: tuple[Account, ...]
    recoveries: tuple[Recovery, ...]
    ended_twice: tuple[JobId, ...]

    @property
    def total(self) -> Account:
        rows = self.accounts
        return Account(
            "all",
            sum(row.enqueued for row in rows),
            sum(row.successful for row in rows),
            sum(row.exception for row in rows),
            sum(row.failed for row in rows),
            sum(row.canceled for row in rows),
            sum(row.waiting for row in rows),
        )

    @property
    def balanced(self) -> bool:
        return all(row.balanced for row in self.accounts) and not self.ended_twice


@dataclass(frozen=True, slots=True)
class Ticks:
    """The slots of the schedule during the run, the last of them included."""

    first: datetime
    last: datetime | None

    @property
    def count(self) -> int:
        if self.last is None or self.last < self.first:
            return 0
        return (self.last - self.first) // _SECOND + 1


async def draw_up(hf: Holdfast, ids: Mapping[str, Sequence[JobId]], ticks: Ticks) -> Ledger:
    """Make the ledger from the queue and the log. `ids` are those that the producer got."""
    first = min(job_id for of_one in ids.values() for job_id in of_one)
    log = [
        entry for entry in await hf.queries.queue_log(limit=_EVERYTHING) if entry.job_id >= first
    ]
    ticked = {entry.job_id for entry in log if entry.entrypoint == TICK}
    waiting = await hf.queries.browse_queue(entrypoint=TICK, limit=_EVERYTHING)
    ticked |= {job.id for job in waiting if job.id >= first}
    accounts = [
        await _account(hf, name, sorted(ticked), ticks.count)
        if name == TICK
        else await _account(hf, name, ids.get(name, ()), len(ids.get(name, ())))
        for name in ENTRYPOINTS
    ]
    ends = Counter(entry.job_id for entry in log if entry.status in FINAL)
    return Ledger(
        accounts=tuple(accounts),
        recoveries=tuple(
            Recovery(entry.job_id, entry.claimed_by) for entry in log if was_recovered(entry)
        ),
        ended_twice=tuple(job_id for job_id, times in ends.items() if times > 1),
    )


async def _account(hf: Holdfast, entrypoint: str, ids: Sequence[JobId], enqueued: int) -> Account:
    statuses = await hf.store.jobs.statuses(ids)
    counts = Counter(statuses.values())
    return Account(
        entrypoint,
        enqueued=enqueued,
        successful=counts[Status.SUCCESSFUL],
        exception=counts[Status.EXCEPTION],
        failed=counts[Status.FAILED],
        canceled=counts[Status.CANCELED],
        waiting=sum(counts[status] for status in ACTIVE),
    )


def was_recovered(entry: LogEntry) -> bool:
    """Back in the queue because its lease ran out."""
    reasons = (TRANSITIONS[Verb.RECOVER].reason, RECOVER_OUTAGE.reason)
    return entry.status is Status.QUEUED and entry.reason in reasons
