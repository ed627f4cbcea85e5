"""A store under test, a clock to move, and the few steps that every test takes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.lifecycle import TRANSITIONS, Status, Verb
from holdfast.models import (
    Change,
    ClaimRule,
    Job,
    JobId,
    LeaseKey,
    LogEntry,
    NewJob,
    Recovery,
    Schedule,
    Statistic,
    WorkerInfo,
)
from holdfast.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from holdfast.clock import ManualClock
    from holdfast.ports import Reports, Store

LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
INSTANT = timedelta(microseconds=1)
RULE = ClaimRule("mail", LEASE)

_ALL = 10_000


class Rows(NamedTuple):
    """Everything that can be read through the ports."""

    jobs: list[Job]
    log: list[LogEntry]
    schedules: list[Schedule]
    workers: list[WorkerInfo]
    statistics: list[Statistic]


@dataclass(frozen=True, slots=True)
class Leased:
    """A job as its last holder saw it, and the token of the lease before that."""

    job: Job
    stale: UUID


def token_of(job: Job) -> UUID:
    assert job.claim_token is not None
    return job.claim_token


def holding(job: Job) -> LeaseKey:
    return LeaseKey(job.id, token_of(job))


def change(job: Job, **fields: Any) -> Change:
    """What the holder of this lease asks for."""
    return Change(holding(job), **fields)


def ledger(job: Job, *, leased: bool = True) -> dict[str, Any]:
    """What the log says about a job that the end of this lease, or an operator, left there."""
    return {
        "enqueued_at": job.created,
        "due_at": job.execute_after,
        "lease": job.lease if leased else None,
    }


def ids(jobs: list[Job]) -> list[JobId]:
    return [job.id for job in jobs]


class QueueUnderTest:
    """One empty store. Each claim is made by a worker that has just started."""

    def __init__(self, name: str, clock: ManualClock, worker: Callable[[], Store]) -> None:
        self.name = name
        self.clock = clock
        self.worker = worker
        self.store = worker()
        self.queries = Queries(self.store)

    @property
    def reports(self) -> Reports:
        """A store of jobs has a place for them."""
        assert self.store.reports is not None
        return self.store.reports

    async def enqueue(self, *jobs: NewJob) -> list[JobId]:
        found = await self.store.jobs.insert(jobs, "raise")
        return [job_id for job_id in found if job_id is not None]

    async def add(self, entrypoint: str = "mail", **fields: Any) -> JobId:
        [job_id] = await self.enqueue(NewJob(entrypoint, **fields))
        return job_id

    async def claim(self, *rules: ClaimRule, limit: int = 100, worker: str = "w1") -> list[Job]:
        leases = self.worker().leases
        return await leases.claim(rules or (RULE,), limit=limit, worker=worker, sweep=True)

    async def claim_recovered(
        self, *rules: ClaimRule, limit: int = 100, worker: str = "w1", suspects: bool = False
    ) -> list[Job]:
        leases = self.worker().leases
        return await leases.claim_recovered(
            rules or (RULE,), limit=limit, worker=worker, suspects=suspects
        )

    async def claim_any(self, *rules: ClaimRule, limit: int = 100, worker: str = "w1") -> list[Job]:
        """Whatever waits: fresh jobs, then recovered ones, then suspects."""
        jobs = await self.claim(*rules, limit=limit, worker=worker)
        for suspects in (False, True):
            jobs += await self.claim_recovered(
                *rules, limit=limit, worker=worker, suspects=suspects
            )
        return jobs

    async def lease(self, entrypoint: str = "mail", **fields: Any) -> Job:
        """Enqueue a job and claim it, and nothing else."""
        job_id = await self.add(entrypoint, **fields)
        [job] = await self.claim(ClaimRule(entrypoint, LEASE))
        assert job.id == job_id
        return job

    async def change(self, verb: str, *changes: Change) -> set[LeaseKey]:
        return set(await self.store.leases.change(TRANSITIONS[verb], changes))

    async def settle(self, verb: str, job: Job, **fields: Any) -> None:
        """Make a transition that has to succeed."""
        assert await self.change(verb, change(job, **fields)) == {holding(job)}

    async def hold(self, entrypoint: str = "mail", **fields: Any) -> JobId:
        """A job that is held for a person."""
        job = await self.lease(entrypoint, **fields)
        await self.settle(Verb.HOLD, job, error="broken")
        return job.id

    async def recover(self, *rules: ClaimRule, **options: Any) -> Recovery:
        return await self.store.leases.recover(rules or (RULE,), **options)

    async def cancel(self, *job_ids: JobId) -> set[JobId]:
        return await self.queries.mark_job_as_cancelled(job_ids)

    async def row(self, job_id: JobId) -> Job:
        [job] = await self.store.jobs.get([job_id])
        return job

    async def status(self, job_id: JobId) -> Status:
        [(_, status)] = await self.queries.job_status([job_id])
        return status

    async def last_entry(self, job_id: JobId) -> LogEntry:
        return (await self.store.jobs.history(job_id))[-1]

    async def rows(self) -> Rows:
        jobs = self.store.jobs
        return Rows(
            jobs=await jobs.browse(status=None, entrypoint=None, limit=_ALL),
            log=await jobs.log(limit=_ALL, status=None, entrypoint=None),
            schedules=await self.store.schedules.all(),
            workers=await jobs.workers(),
            statistics=await jobs.statistics(since=None, limit=_ALL),
        )

    async def ended(self) -> list[Job]:
        """Jobs as their last holders saw them, one on each of the ways out of the queue."""
        await self.enqueue(*[NewJob("mail")] * 4)
        jobs = await self.claim()
        await self.settle(Verb.COMPLETE, jobs[0])
        await self.settle(Verb.FAIL, jobs[1])
        await self.cancel(jobs[2].id)
        await self.settle(Verb.HOLD, jobs[3], error="broken")
        await self.queries.delete_jobs([jobs[3].id])
        return jobs

    async def job_in(self, status: Status, deaths: int = 0) -> Leased:
        """A job that was retried once and then leased again, on its way to a state.

        Its worker has died `deaths` times since.
        """
        first = await self.lease()
        await self.settle(Verb.RETRY, first, error="not yet")
        [job] = await self.claim()
        for _ in range(deaths):
            await self.recover(worker="w1")
            [job] = await self.claim_any()
        match status:
            case Status.PICKED:
                pass
            case Status.CANCELED:
                assert await self.cancel(job.id) == {job.id}
            case Status.DELETED:
                await self.settle(Verb.HOLD, job, error="broken")
                assert await self.queries.delete_jobs([job.id]) == {job.id}
            case _:
                await self.settle(_WAYS[status], job, error="broken")
        return Leased(job, token_of(first))


_WAYS = {
    Status.QUEUED: Verb.RELEASE,
    Status.FAILED: Verb.HOLD,
    Status.SUCCESSFUL: Verb.COMPLETE,
    Status.EXCEPTION: Verb.FAIL,
}
