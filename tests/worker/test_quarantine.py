"""Jobs that a worker died with run again, suspects alone, and neither stops the other jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest

from holdfast import Holdfast, Job, RetryRequested, Status
from holdfast.lifecycle import TRANSITIONS, Verb
from holdfast.models import Change, ClaimRule, LeaseKey
from holdfast.worker import claim
from holdfast.worker.quarantine import FIRST_ALLOWANCE, Suspects
from tests.worker.workers import Gauge, Watch, ends, eventually, the_log, worker_of, working

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.models import JobId
    from tests.servers import Database
    from tests.worker.conftest import NewWorker

HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=30)
SHORT = timedelta(seconds=1)
"""A lease whose sweeps come three times a second."""


async def holds(true: Callable[[], bool]) -> None:
    """Wait for what raises no event."""

    async def ask() -> bool:
        return true()

    await eventually(ask)


async def die_with(hf: Holdfast, *names: str, deaths: int = 1) -> list[JobId]:
    """Enqueue jobs, and have a worker die with all of them."""
    job_ids = await hf.queries.enqueue(list(names))
    rules = [ClaimRule(name, LEASE, max_recoveries=9) for name in dict.fromkeys(names)]
    leases = hf.store.leases
    for _ in range(deaths):
        taken = [
            *await leases.claim(rules, limit=1000, worker="dead", sweep=True),
            *await leases.claim_recovered(rules, limit=1000, worker="dead", suspects=False),
        ]
        assert {job.id for job in taken} == set(job_ids)
        await leases.recover(rules, worker="dead")
    return job_ids


async def put_off(hf: Holdfast, name: str, delay: timedelta) -> None:
    """Have another worker retry the recovered job of this name, so that it is due later."""
    rule = ClaimRule(name, LEASE, max_recoveries=9)
    [job] = await hf.store.leases.claim_recovered([rule], limit=1, worker="w", suspects=False)
    assert job.claim_token is not None
    change = Change(LeaseKey(job.id, job.claim_token), delay=delay, error="not yet")
    await hf.store.leases.change(TRANSITIONS[Verb.RETRY], [change])


class Handlers:
    """Suspects that note what their worker holds beside them, and other jobs."""

    def __init__(self, *workers: Holdfast) -> None:
        self.order: list[str] = []
        self.suspects = Gauge()
        self.recovered = Gauge()
        self.beside: list[int] = []
        self.go = asyncio.Event()
        """Lets suspects and recovered jobs end."""
        self.release = asyncio.Event()
        """Lets long jobs end."""
        for hf in workers:
            self._register(hf)

    def _register(self, hf: Holdfast) -> None:
        @hf.entrypoint("suspect")
        async def suspect(job: Job) -> None:
            self.order.append("suspect")
            with self.suspects:
                running = await hf.store.jobs.list_running(1000)
                mine = [other for other in running if other.claimed_by == job.claimed_by]
                self.beside.append(len(mine) - 1)
                await self.go.wait()

        @hf.entrypoint("recovered")
        async def recovered(job: Job) -> None:
            with self.recovered:
                await self.go.wait()

        @hf.entrypoint("long")
        async def long(job: Job) -> None:
            self.order.append("long")
            await self.release.wait()

        @hf.entrypoint("fresh")
        async def fresh(job: Job) -> None:
            self.order.append("fresh")


async def test_suspects_run_alone_and_none_is_held(hf: Holdfast) -> None:
    handlers = Handlers(hf)
    handlers.go.set()
    jobs = await die_with(hf, *["suspect"] * 6, deaths=2)
    await ends(hf.run(mode="drain", dequeue_timeout=HOUR))

    assert (handlers.suspects.total, handlers.suspects.most) == (6, 1)
    assert handlers.beside == [0] * 6
    for job in jobs:
        assert [entry.reason for entry in await the_log(hf, job)] == ["lease_expired"] * 2 + [None]


async def test_a_drain_ends_only_when_recovered_jobs_and_suspects_are_done(hf: Holdfast) -> None:
    handlers = Handlers(hf)
    handlers.go.set()
    await die_with(hf, *["suspect"] * 3, deaths=2)
    await die_with(hf, *["recovered"] * 20)
    await hf.queries.enqueue(["fresh"] * 3)
    await ends(hf.run(mode="drain", dequeue_timeout=HOUR, concurrency=2))

    assert await hf.queries.queue_size() == []
    assert Counter(handlers.order) == {"suspect": 3, "fresh": 3}
    assert handlers.recovered.total == 20


async def test_recovered_jobs_run_beside_others_a_few_at_a_time(hf: Holdfast) -> None:
    handlers, watch = Handlers(hf), Watch(hf)
    await die_with(hf, *["recovered"] * 60)
    await hf.queries.enqueue(["fresh"] * 50)
    async with working(hf, dequeue_timeout=HOUR):
        await watch.until_settled(50)
        await holds(lambda: handlers.recovered.now > 0)
        assert (handlers.recovered.now, handlers.recovered.total) == (FIRST_ALLOWANCE,) * 2
        handlers.go.set()
        await watch.until_settled(110)

    assert handlers.recovered.most <= 4 * FIRST_ALLOWANCE


async def test_a_recovered_job_that_is_put_off_comes_back_when_it_is_due(hf: Holdfast) -> None:
    ran: list[int] = []

    @hf.entrypoint("recovered")
    async def recovered(job: Job) -> None:
        ran.append(job.attempts)
        if not job.attempts:
            raise RetryRequested(timedelta(milliseconds=100), "not yet")

    watch = Watch(hf)
    await die_with(hf, "recovered")
    async with working(hf, heartbeat_timeout=HOUR, dequeue_timeout=HOUR):
        await watch.until_settled(2)
    assert ran == [0, 1]


async def test_what_another_worker_recovers_is_found_by_the_next_sweep(hf: Holdfast) -> None:
    handlers, watch = Handlers(hf), Watch(hf)
    handlers.go.set()
    rules = [ClaimRule("recovered", LEASE)]
    await hf.queries.enqueue("recovered")
    [job] = await hf.store.leases.claim(rules, limit=1, worker="dead", sweep=True)
    async with working(hf, heartbeat_timeout=SHORT, dequeue_timeout=HOUR):
        await hf.queries.enqueue("fresh")
        await watch.until_settled(1)
        assert (await hf.store.leases.recover(rules, worker="dead")).recovered == (job.id,)
        await watch.until_settled(2)
    assert handlers.recovered.total == 1


async def test_a_busy_worker_drains_for_a_suspect(hf: Holdfast) -> None:
    handlers, watch = Handlers(hf), Watch(hf)
    handlers.go.set()
    await die_with(hf, "suspect", deaths=2)
    await put_off(hf, "suspect", SHORT)
    await hf.queries.enqueue(["long"])
    async with working(hf, heartbeat_timeout=LEASE, dequeue_timeout=HOUR):
        await holds(lambda: handlers.order == ["long"])
        await holds(lambda: worker_of(hf).quarantine.suspect_due)
        handlers.release.set()
        await watch.until_settled(2)

    assert handlers.beside == [0]


async def test_jobs_that_outlast_a_lease_do_not_stop_the_worker_for_a_suspect(hf: Holdfast) -> None:
    handlers, watch = Handlers(hf), Watch(hf)
    handlers.go.set()
    await die_with(hf, "suspect", deaths=2)
    await put_off(hf, "suspect", SHORT)
    await hf.queries.enqueue(["long"])
    async with working(hf, heartbeat_timeout=SHORT, dequeue_timeout=HOUR):
        await holds(lambda: handlers.order == ["long"])
        # The worker drains for the suspect in vain.
        await holds(lambda: worker_of(hf).quarantine.pause > SHORT.total_seconds())
        for count in range(1, 4):
            await hf.queries.enqueue(["fresh"])
            await watch.until_settled(count)
        assert handlers.suspects.total == 0
        handlers.release.set()
        await watch.until_settled(5)

    assert handlers.beside == [0]


async def test_other_jobs_come_between_the_suspects(hf: Holdfast) -> None:
    """Those that waited while a suspect ran go before the next suspect."""
    handlers, watch = Handlers(hf), Watch(hf)
    await die_with(hf, *["suspect"] * 3, deaths=2)
    async with working(hf, heartbeat_timeout=LEASE, dequeue_timeout=HOUR):
        await watch.until(lambda: bool(watch.claims))
        await hf.queries.enqueue(["fresh"] * 15)
        handlers.go.set()
        await watch.until_settled(18)

    assert handlers.order[:16] == ["suspect", *["fresh"] * 15]
    assert handlers.beside == [0] * 3


async def test_while_one_worker_runs_a_suspect_another_does_the_rest(new_worker: NewWorker) -> None:
    first, second = new_worker(), new_worker()
    handlers, watch = Handlers(first, second), Watch(first, second)
    await die_with(first, *["suspect"] * 10, deaths=2)
    async with working(first, heartbeat_timeout=LEASE):
        await holds(lambda: handlers.suspects.now == 1)
        async with working(second, heartbeat_timeout=LEASE):
            await first.queries.enqueue(["fresh"] * 20)
            await watch.until_settled(20)
            assert (handlers.suspects.now, handlers.suspects.total) == (1, 1)
            handlers.go.set()

            async def done() -> bool:
                return await first.queries.queue_size() == []

            await eventually(done)

    assert handlers.suspects.total == 10
    assert handlers.beside == [0] * 10


async def test_of_workers_that_start_together_one_runs_a_suspect(
    new_pg_worker: NewWorker, pg18: Database
) -> None:
    workers = [new_pg_worker() for _ in range(4)]
    handlers, watch = Handlers(*workers), Watch(*workers)
    await die_with(workers[0], *["suspect"] * 8, deaths=2)
    await workers[0].queries.enqueue(["fresh"] * 20)

    async def all_claim() -> bool:
        waiting = (
            "select count(*) from pg_locks where not granted and relation = 'holdfast'::regclass"
        )
        return await witness.fetchval(waiting) == len(workers)

    async with AsyncExitStack() as stack:
        witness = await asyncpg.connect(pg18.dsn)
        stack.push_async_callback(witness.close)
        async with witness.transaction():
            # All see the suspects, and none sees that another one runs them.
            await witness.execute("lock table holdfast in share row exclusive mode")
            for hf in workers:
                await stack.enter_async_context(working(hf, heartbeat_timeout=LEASE))
            await eventually(all_claim)
        await watch.until_settled(20)
        await holds(lambda: handlers.suspects.total > 0)
        assert (handlers.suspects.now, handlers.suspects.total) == (1, 1)
        handlers.go.set()

        async def done() -> bool:
            return await workers[0].queries.queue_size() == []

        await eventually(done)

    assert (handlers.suspects.total, handlers.beside) == (8, [0] * 8)


@pytest.mark.parametrize("deaths", [1, 2])
async def test_recovered_jobs_are_found_at_start_up(hf: Holdfast, deaths: int) -> None:
    handlers, watch = Handlers(hf), Watch(hf)
    handlers.go.set()
    [job_id] = await die_with(hf, "suspect", deaths=deaths)
    async with working(hf, heartbeat_timeout=HOUR, dequeue_timeout=HOUR):
        [(job, _, _)] = await watch.until_settled(1)
    assert job.id == job_id
    assert (await the_log(hf, job_id))[-1].status is Status.SUCCESSFUL


async def test_a_worker_that_leaves_suspects_does_everything_else(hf: Holdfast) -> None:
    handlers, watch = Handlers(hf), Watch(hf)
    handlers.go.set()
    hf.queue_manager.treat_suspects(Suspects.leave)
    await die_with(hf, "suspect", deaths=2)
    await die_with(hf, *["recovered"] * 3)
    async with working(hf, heartbeat_timeout=LEASE, dequeue_timeout=HOUR):
        await hf.queries.enqueue(["fresh"] * 30)
        await watch.until_settled(33)
        assert hf.queue_manager.suspects_wait
        assert handlers.suspects.total == 0
        hf.queue_manager.treat_suspects(Suspects.run)
        await watch.until_settled(34)

    assert handlers.beside == [0]


async def test_a_quarantine_worker_claims_suspects_only_and_ends(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "_QUIET_SECONDS", 0.5)
    handlers = Handlers(hf)
    handlers.go.set()
    hf.queue_manager.treat_suspects(Suspects.only)
    await die_with(hf, *["suspect"] * 3, deaths=2)
    [recovered] = await die_with(hf, "recovered")
    [fresh] = await hf.queries.enqueue(["fresh"])

    await ends(hf.run(dequeue_timeout=HOUR))

    assert handlers.beside == [0] * 3
    left = await hf.queries.browse_queue()
    assert sorted(job.id for job in left) == sorted([recovered, fresh])
