"""A queue for tests, which can be asked for its jobs and whose time is moved by hand."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast.app import Holdfast
from holdfast.client.tasks import Task
from holdfast.errors import InvalidInput
from holdfast.events import Observers, Retired, Settled
from holdfast.models import (
    ClaimRule,
    Held,
    Job,
    JobId,
    LargePayload,
    LeaseKey,
    NewJob,
    Outcome,
    Succeeded,
)
from holdfast.settings import WorkerSettings
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.drivers import connect
from holdfast.stores.postgres.expired_lease import expire
from holdfast.stores.postgres.store import PostgresStore
from holdfast.task import Registry
from holdfast.worker.claim import QueueExecutionMode
from holdfast.worker.manager import QueueManager

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from holdfast.events import Event
    from holdfast.models import TracebackRecord
    from holdfast.ports import Store
    from holdfast.testing.clock import TravelClock

_MOST = 10_000
_LEASE = timedelta(seconds=30)
_FIELDS = frozenset(Job._fields)

TaskOrName = Task[..., Any] | str


@dataclass(frozen=True, slots=True)
class Performed:
    """The outcome of one run of a job."""

    id: JobId
    outcome: Outcome
    result: Any = None
    """The return value of the task, where it stores its results."""

    @property
    def succeeded(self) -> bool:
        return isinstance(self.outcome, Succeeded)

    @property
    def held(self) -> bool:
        return isinstance(self.outcome, Held)

    @property
    def error(self) -> TracebackRecord | None:
        """The exception of the handler."""
        return getattr(self.outcome, "traceback", None)


@dataclass(frozen=True, slots=True)
class _Adopted:
    """An application's queue, and the parts that it had before."""

    application: Holdfast
    store: Store
    owned: bool
    embedded: Path | None

    @classmethod
    def of(cls, application: Holdfast) -> _Adopted:
        return cls(application, application.store, application._owned, application._embedded)

    def restore(self) -> None:
        self.application._use_store(self.store)
        self.application._owned, self.application._embedded = self.owned, self.embedded


class QueueUnderTest(Holdfast):
    """A Holdfast with more to ask. `adopt(hf)` puts an application's own queue onto it."""

    travel_clock: TravelClock
    dsn: str
    """Of the database, where there is one."""

    def _use_store(self, store: Store) -> None:
        super()._use_store(store)
        for adopted in self._adopted:
            adopted.application._use_store(store)

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        if self._left and self._owned:
            # Adopted applications go on with it, in an event loop of their own.
            self._left = False
            self._use(self._connect())

    def adopt(self, application: Holdfast) -> Holdfast:
        """Have an application's queue use this one until the test ends: what it enqueues comes
        here, and `drain` runs its handlers."""
        self._adopted.append(_Adopted.of(application))
        application._use_store(self.store)
        # Entering and leaving it must neither start nor close what is under test.
        application._owned, application._embedded = False, None
        return application

    @property
    def _adopted(self) -> list[_Adopted]:
        found: list[_Adopted] = self.__dict__.setdefault("adopted", [])
        return found

    def release(self) -> None:
        """Give the adopted queues back as they were."""
        for adopted in reversed(self._adopted):
            adopted.restore()
        self._adopted.clear()

    async def close(self) -> None:
        """Close the connections."""
        await self.store.close()

    def travel(self, by: timedelta) -> None:
        """Move every clock of the queue forward: what is due by then can be claimed."""
        if by < timedelta(0):
            raise InvalidInput(f"time moves forward only, got {by}")
        self.travel_clock.travel(by)

    async def drain(self) -> None:
        """Enqueue the ticks that are due, recover jobs whose leases have expired, and run jobs
        until none is claimable."""
        for application in self._applications():
            await application.sources().recover(application._registry.rules(_LEASE))
            await application.run(mode="drain", signals=False)

    async def perform(self, target: TaskOrName, /, *args: Any, **kwargs: Any) -> Performed:
        """Run one job: its arguments are serialised, claimed and decoded, its outcome is written.

        With the name of an entrypoint it takes the payload. Other jobs stay where they are.
        """
        application, name = self._application_of(target)
        job = target.job(*args, **kwargs) if isinstance(target, Task) else NewJob(name, *args)
        # Under a name that no other job has, so that none but this one runs.
        alone = f"{name}#perform"
        [job_id] = await self.queries.enqueue_many([job._replace(entrypoint=alone)])
        assert job_id is not None  # noqa: S101 - only "skip" gives None
        entrypoint = application._registry.get(name)
        assert entrypoint is not None  # noqa: S101 - _application_of has found it
        registry = Registry()
        registry.add(replace(entrypoint, name=alone))
        first = await _run_once(application, registry)
        assert first is not None  # noqa: S101 - the job was there to be claimed
        stored = first.result if isinstance(first, Succeeded) else None
        result = None if stored is None or stored.value is None else json.loads(stored.value)
        return Performed(job_id, first, result)

    async def claim(self, target: TaskOrName) -> Job:
        """Lease the next job, as a worker does that dies before it has run it."""
        names = _names(target)
        rules = [ClaimRule(name, _LEASE) for name in names]
        jobs = await self.store.leases.claim(rules, limit=1, worker="test", sweep=True)
        if not jobs:
            raise AssertionError(f"no job of {' or '.join(names)} can be claimed now")
        job, token = jobs[0], jobs[0].claim_token
        if token is None or not isinstance(job.payload, LargePayload):
            return job
        key = LeaseKey(job.id, token)
        return job._replace(payload=(await self.store.leases.payloads([key]))[key])

    async def expire_lease(self, job_id: int) -> None:
        """Make a lease as old as if its worker had died, so that `drain` recovers the job."""
        store = self.store
        if isinstance(store, MemoryStore):
            found = store.age_lease(JobId(job_id))
        else:
            assert isinstance(store, PostgresStore)  # noqa: S101 - there is no other
            found = await expire(store, job_id)
        if not found:
            raise AssertionError(f"job {job_id} is not leased")

    async def enqueued(self, target: TaskOrName, /, **expected: Any) -> list[Job]:
        """The jobs of a task or entrypoint with these arguments, oldest first.

        Of a task its arguments are compared, those that are given; of a name the fields of the job,
        such as payload or priority.
        """
        fits = _matcher(target, expected)
        jobs = await self.queries.browse_queue(limit=_MOST)
        return [job for job in reversed(jobs) if job.entrypoint in _names(target) and fits(job)]

    async def assert_enqueued(
        self, target: TaskOrName, /, *, count: int | None = None, **expected: Any
    ) -> Job:
        """Fail unless there is such a job, or that many of them. Return the first."""
        found = await self.enqueued(target, **expected)
        if not found or count not in (None, len(found)):
            wanted = "at least one job" if count is None else f"{count} job(s)"
            raise AssertionError(
                f"expected {wanted} of {_names(target)[0]!r} with {expected}, found {len(found)}; "
                f"in the queue are {await self._listing()}"
            )
        return found[0]

    async def refute_enqueued(self, target: TaskOrName, /, **expected: Any) -> None:
        """Fail if there is such a job."""
        if found := await self.enqueued(target, **expected):
            raise AssertionError(
                f"expected no job of {_names(target)[0]!r} with {expected}, found "
                f"{', '.join(_words(job) for job in found)}"
            )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A transaction for `.on()`: an exception in the block rolls it back."""
        store = self.store
        if isinstance(store, MemoryStore):
            async with store.transaction() as tx:
                yield tx
        else:
            own = connect(self.dsn)
            try:
                async with own.transaction() as driver:
                    yield driver
            finally:
                await own.close()

    def _applications(self) -> list[Holdfast]:
        adopted = [each.application for each in self._adopted]
        return [each for each in (self, *adopted) if len(each._registry)]

    def _application_of(self, target: TaskOrName) -> tuple[Holdfast, str]:
        name = _names(target)[0]
        for application in self._applications():
            if name in application._registry:
                return application, name
        raise InvalidInput(
            f"no handler is registered for {name!r}; call adopt(hf), or include() with its group"
        )

    async def _listing(self) -> str:
        jobs = await self.queries.browse_queue(limit=20)
        return ", ".join(map(_words, reversed(jobs))) or "no jobs"


class _First:
    """Ends a worker with the first outcome."""

    def __init__(self, end: asyncio.Event) -> None:
        self.outcome: Outcome | None = None
        self._end = end

    def notify(self, event: Event) -> None:
        if isinstance(event, (Settled, Retired)) and event.runs and self.outcome is None:
            self.outcome = event.runs[0][1]
            self._end.set()


async def _run_once(application: Holdfast, registry: Registry) -> Outcome | None:
    observers, end = Observers(), asyncio.Event()
    first = _First(end)
    observers.subscribe(first)
    manager = QueueManager(
        application.store,
        registry,
        observers=observers,
        resources=application.resources,
        shutdown=end,
    )
    manager.queries = application.queries
    await manager.run(WorkerSettings(concurrency=1), QueueExecutionMode.drain)
    return first.outcome


def _names(target: TaskOrName) -> tuple[str, ...]:
    return target.names if isinstance(target, Task) else (target,)


def _matcher(target: TaskOrName, expected: dict[str, Any]) -> Callable[[Job], bool]:
    if not isinstance(target, Task):
        if unknown := expected.keys() - _FIELDS:
            raise InvalidInput(f"a job has no field {', '.join(sorted(unknown))}")
        return lambda job: all(getattr(job, name) == value for name, value in expected.items())
    wanted = json.loads(target.codec().encode_some(expected))

    def fits(job: Job) -> bool:
        payload = json.loads(job.payload or b"{}")
        return all(name in payload and payload[name] == wanted[name] for name in wanted)

    return fits


def _words(job: Job) -> str:
    return f"{job.entrypoint}({(job.payload or b'').decode(errors='replace')}) [{job.status}]"
