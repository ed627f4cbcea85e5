"""A dispatcher whose jobs end when the test says so, with jobs of a store in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast import Holdfast, Job
from holdfast.clock import monotonic
from holdfast.events import Observers
from holdfast.models import ClaimRule, Released
from holdfast.settings import WorkerSettings
from holdfast.worker.batch import ClaimedBatch
from holdfast.worker.dispatcher import Dispatcher
from holdfast.worker.leases import LeaseSet
from holdfast.worker.publish import Publisher
from holdfast.worker.settle import Settler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.models import Capacity
    from holdfast.worker.entrypoint_slots import EntrypointSlots
    from holdfast.worker.leases import Lease


class Desk:
    """Starts what may start at once, as the task pool does. Jobs are known by their payloads."""

    def __init__(self, *rules: ClaimRule, **settings: Any) -> None:
        self.hf = Holdfast.in_memory()
        self._rules = rules or (ClaimRule("quick", timedelta(minutes=1)),)
        for rule in self._rules:

            @self.hf.entrypoint(rule.entrypoint)
            async def handle(job: Job) -> None: ...

        self.lease_set = LeaseSet()
        observers = Observers()
        publisher = Publisher(self.lease_set, observers, worker="me")
        self.settler = Settler(self.hf.sources(), self.lease_set, None, publisher)
        self.dispatcher = Dispatcher(
            self.hf.queue_manager._registry,
            self._rules,
            WorkerSettings(**settings),
            self.lease_set,
            self.settler,
            observers,
            worker="me",
        )
        self.started: list[str] = []
        self.running: list[Lease] = []

    async def claim(self, names: str, entrypoint: str) -> list[Job]:
        payloads: list[bytes | None] = [name.encode() for name in names]
        await self.hf.queries.enqueue([entrypoint] * len(names), payloads)
        rules = [replace(rule, capacity=None) for rule in self._rules]
        return await self.hf.store.leases.claim(rules, limit=len(names), worker="me")

    async def begin(self, names: str, entrypoint: str = "quick") -> list[Lease]:
        jobs = await self.claim(names, entrypoint)
        leases = self.dispatcher.add(ClaimedBatch(jobs, monotonic(), 0.0, {}))
        self.start()
        return leases

    def end(self, lease: Lease | None = None) -> None:
        """End a job, by default the one that runs longest, and start the next."""
        lease = lease or self.running[0]
        if lease in self.running:
            self.running.remove(lease)
        self.dispatcher.done(lease)
        self.start()

    def start(self) -> None:
        while (lease := self.dispatcher.next()) is not None:
            self.running.append(lease)
            self.started.append(name_of(lease))

    @property
    def entrypoints(self) -> EntrypointSlots:
        """Where one of the rules has a bound."""
        assert self.dispatcher.entrypoints is not None
        return self.dispatcher.entrypoints

    @property
    def waiting(self) -> int:
        return len(self.dispatcher.slots) + len(self.dispatcher.entrypoints or ())

    @property
    def released(self) -> list[str]:
        return [name_of(lease) for lease, end in self.settler.endings if isinstance(end, Released)]

    def offered(self, capacity: Capacity, coming: Sequence[Job] = ()) -> int:
        """Return what the next claim may take of a bounded entrypoint."""
        self.entrypoints.offer(coming)
        return capacity.left

    async def until_released(self, count: int) -> None:
        assert await self.lease_set.until(lambda: len(self.released) >= count, seconds=30)


def name_of(lease: Lease) -> str:
    return (lease.job.payload or b"").decode()
