"""What must be true of the rows at every moment, whatever happened before."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.lifecycle import ACTIVE, FINAL, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from holdfast.models import Job, JobId, LogEntry
    from tests.postgres.pair import Seen


def each_job_is_in_one_place(seen: Seen, ids: Iterable[JobId]) -> None:
    """In the queue; or the last of its log rows, and no other, says how it ended."""
    queued = {job.id for job in seen.queue}
    for job_id in ids:
        log = seen.log.get(job_id, [])
        ends = [entry for entry in log if entry.status in FINAL]
        assert len(ends) == (job_id not in queued)
        assert not ends or log[-1] is ends[0]


def leases_do_not_overlap(seen: Seen, ids: Iterable[JobId], now: datetime) -> None:
    """Rebuilt from the log alone, but for the lease that goes on."""
    current = {job.id: (job.claimed_at, now) for job in seen.queue if job.claimed_at}
    for job_id in ids:
        spans = list(_ended_leases(seen.log.get(job_id, [])))
        if job_id in current:
            spans.append(current[job_id])
        assert all(start <= end for start, end in spans)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def _ended_leases(log: Iterable[LogEntry]) -> Iterator[tuple[datetime, datetime]]:
    for entry in log:
        if entry.claimed_at is not None:
            yield entry.claimed_at, entry.created


def limits_hold(seen: Seen, limits: Mapping[str, int]) -> None:
    running = Counter(job.entrypoint for job in seen.queue if job.claim_token is not None)
    assert all(running[name] <= limit for name, limit in limits.items())


def tokens_exactly_while_picked(seen: Seen) -> None:
    for job in seen.queue:
        assert (job.claim_token is not None) == (job.status is Status.PICKED)


def keys_have_one_owner(seen: Seen) -> None:
    owners = Counter(job.dedupe_key for job in seen.queue if job.status in ACTIVE)
    assert all(count == 1 for key, count in owners.items() if key is not None)


def counters_are(
    seen: Seen, attempts: Mapping[JobId, int], recoveries: Mapping[JobId, int]
) -> None:
    """As whoever made the calls counted them."""
    for job in seen.queue:
        assert (job.attempts, job.recoveries) == (attempts[job.id], recoveries[job.id])


def facts_are_kept(seen: Seen, born: dict[JobId, Job]) -> None:
    """What a job is never changes; `born` remembers each as it was first seen."""
    for job in seen.queue:
        assert _facts(job) == _facts(born.setdefault(job.id, job))


def _facts(job: Job) -> tuple[object, ...]:
    return job.entrypoint, job.payload, job.headers, job.dedupe_key, job.created, job.priority
