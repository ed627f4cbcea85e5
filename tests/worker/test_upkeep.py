"""One worker does the upkeep for all; another takes over when it ends, dies or freezes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import asyncpg
import pytest

from holdfast import Holdfast, Job
from holdfast.models import UPKEEP, ClaimRule, Duty
from tests.worker.workers import eventually, worker_of, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from holdfast.worker.upkeep import UpkeepDuty
    from tests.servers import Database

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
MAIL = ClaimRule("mail", SECOND)

AGE = """
with aged as (
    update holdfast set heartbeat = heartbeat - interval '2 hours'
)
update holdfast_leases set claimed_at = claimed_at - interval '2 hours'
"""

HOLDER = """
import asyncio, sys
from datetime import timedelta
from holdfast import Holdfast

async def main():
    async with Holdfast.connect(sys.argv[1]) as hf:
        @hf.entrypoint("elsewhere")
        async def elsewhere(job):
            pass
        await hf.run(heartbeat_timeout=timedelta(seconds=1))

asyncio.run(main())
"""


def serve(hf: Holdfast, name: str = "mail") -> asyncio.Queue[Job]:
    """The jobs that a worker ran."""
    ran: asyncio.Queue[Job] = asyncio.Queue()

    @hf.entrypoint(name)
    async def handle(job: Job) -> None:
        ran.put_nowait(job)

    return ran


async def counted(database: Database) -> int:
    connection = await asyncpg.connect(database.dsn)
    try:
        return int(await connection.fetchval("select count(*) from holdfast_statistics"))
    finally:
        await connection.close(timeout=5)


async def can_be_counted(database: Database) -> bool:
    """Whether every transaction is over that is as old as the log, those of other tests as well."""
    connection = await asyncpg.connect(database.dsn)
    try:
        return bool(
            await connection.fetchval(
                "select max(tx) < pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
                " from holdfast_log"
            )
        )
    finally:
        await connection.close(timeout=5)


def duties(fleet: Sequence[Holdfast]) -> list[UpkeepDuty]:
    """Of those that run by now."""
    return [worker.duty for hf in fleet if (worker := hf.queue_manager._worker) is not None]


def holders(fleet: Sequence[Holdfast]) -> list[Holdfast]:
    return [hf for hf in fleet if any(duty.held for duty in duties([hf]))]


@asynccontextmanager
async def elsewhere(database: Database) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker in another process that holds the duty."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, database.dsn)
    connection = await asyncpg.connect(database.dsn)

    async def holds() -> bool:
        return bool(await connection.fetchval("select count(*) from holdfast_upkeep"))

    try:
        await eventually(holds)
        yield process
    finally:
        await connection.close(timeout=5)
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
async def queue(pg18: Database) -> AsyncIterator[Holdfast]:
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()
        yield hf


async def test_one_worker_of_several_does_the_upkeep_and_hands_it_over(
    queue: Holdfast, pg18: Database
) -> None:
    async with AsyncExitStack() as stack:
        fleet = [await stack.enter_async_context(Holdfast.connect(pg18.dsn)) for _ in range(3)]
        for hf in fleet:
            serve(hf)
            await stack.enter_async_context(working(hf, heartbeat_timeout=SECOND))

        async def settled() -> bool:
            knowing = [duty for duty in duties(fleet) if duty.others]
            return len(holders(fleet)) == 1 and len(knowing) == 2

        await eventually(settled)
        [first] = holders(fleet)
        first.shutdown.set()

        async def taken() -> bool:
            return len(holders([hf for hf in fleet if hf is not first])) == 1

        await eventually(taken)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_another_takes_over_from_one_that_is_killed_or_frozen(
    queue: Holdfast, pg18: Database, how: signal.Signals
) -> None:
    async with elsewhere(pg18) as holder:
        ran = serve(queue)
        async with working(queue, heartbeat_timeout=SECOND):
            await queue.queries.enqueue("mail", execute_after=HOUR)
            os.kill(holder.pid, how)

            async def taken() -> bool:
                return holders([queue]) == [queue]

            await eventually(taken)
            # What its duty is for: the job of a worker that died is found.
            await queue.queries.enqueue("lost")
            rule = ClaimRule("lost", timedelta(seconds=0.1))
            [lost] = await queue.store.leases.claim([rule], limit=1, worker="dead")

            async def recovered() -> bool:
                [job] = await queue.queries.get_jobs([lost.id])
                return job.recoveries == 1

            await eventually(recovered)
            if how is signal.SIGSTOP:
                os.kill(holder.pid, signal.SIGCONT)
        assert ran.empty()


async def test_a_holder_that_wakes_up_late_changes_nothing(queue: Holdfast, pg18: Database) -> None:
    """Its statements are on their way with the token of a duty that another has by now."""
    leases, upkeep = queue.store.leases, queue.store.upkeep
    brief = timedelta(milliseconds=1)
    late = await upkeep.hold(UPKEEP, "late", uuid4(), lasts=brief, sent=0.0)
    assert late.held

    async def taken() -> bool:
        return (await upkeep.hold(UPKEEP, "next", uuid4(), lasts=HOUR, sent=0.0)).held

    await eventually(taken)
    await queue.queries.enqueue(["mail"] * 2)
    rule = ClaimRule("mail", brief)
    lost, done = await leases.claim([rule], limit=2, worker="dead")
    await asyncio.sleep(0.01)
    late = Duty(late.token, held=True)
    assert (await leases.recover([MAIL], duty=late)).recovered == ()
    await queue.queries.mark_job_as_cancelled([done.id])
    await eventually(partial(can_be_counted, pg18))
    await leases.housekeep(late)
    assert await counted(pg18) == 0
    await leases.housekeep()
    assert await counted(pg18) == 1
    assert len((await leases.recover([MAIL])).recovered) == 1
    assert (await queue.queries.get_jobs([lost.id]))[0].recoveries == 1


async def test_a_duty_is_one_workers_until_it_expires_or_is_given_up(queue: Holdfast) -> None:
    upkeep = queue.store.upkeep
    mine, yours = uuid4(), uuid4()

    async def ask(token: object) -> bool:
        duty = await upkeep.hold(UPKEEP, "w", token, lasts=HOUR / 10, sent=0.0)  # type: ignore[arg-type]
        return duty.held

    assert [await ask(mine), await ask(yours), await ask(mine)] == [True, False, True]
    await upkeep.release(UPKEEP, yours)
    assert not await ask(yours)
    await upkeep.release(UPKEEP, mine)
    assert await ask(yours)


async def test_an_expiry_beyond_any_duty_keeps_no_worker_from_it(
    queue: Holdfast, pg18: Database
) -> None:
    """The clock was set back while the holder was dying."""
    upkeep = queue.store.upkeep
    await upkeep.hold(UPKEEP, "dead", uuid4(), lasts=24 * HOUR, sent=0.0)
    assert (await upkeep.hold(UPKEEP, "next", uuid4(), lasts=SECOND, sent=0.0)).held


async def test_a_sleeper_that_never_polls_is_woken_for_a_job_without_a_notification(
    queue: Holdfast, pg18: Database
) -> None:
    """The holder serves another entrypoint, and looks for all."""
    async with elsewhere(pg18), Holdfast.connect(pg18.dsn) as sleeper:
        ran = serve(sleeper)
        async with working(sleeper, dequeue_timeout=HOUR, heartbeat_timeout=SECOND):

            async def asleep() -> bool:
                return any(duty.others and not duty.alone for duty in duties([sleeper]))

            await eventually(asleep)
            connection = await asyncpg.connect(pg18.dsn)
            try:
                await connection.execute("insert into holdfast (entrypoint) values ('mail')")
            finally:
                await connection.close(timeout=5)
            async with asyncio.timeout(60):
                assert (await ran.get()).entrypoint == "mail"


async def test_a_sleeper_that_is_left_alone_polls_for_itself(
    queue: Holdfast, pg18: Database
) -> None:
    async with elsewhere(pg18) as holder, Holdfast.connect(pg18.dsn, notify=False) as sleeper:
        ran = serve(sleeper)
        # While another one looks for all, it polls only every thirty seconds.
        async with working(sleeper, dequeue_timeout=SECOND / 2, heartbeat_timeout=SECOND):

            async def asleep() -> bool:
                return any(duty.others and not duty.alone for duty in duties([sleeper]))

            async def left_alone() -> bool:
                return any(duty.held and duty.alone for duty in duties([sleeper]))

            await eventually(asleep)
            holder.terminate()
            await holder.wait()
            await eventually(left_alone)
            await sleeper.queries.enqueue("mail")
            async with asyncio.timeout(10):
                assert (await ran.get()).entrypoint == "mail"


async def test_every_worker_hears_of_recovered_jobs_that_the_holder_does_not_serve(
    queue: Holdfast, pg18: Database
) -> None:
    async with elsewhere(pg18), Holdfast.connect(pg18.dsn) as sleeper:
        ran = serve(sleeper)
        await queue.queries.enqueue("mail")
        rule = ClaimRule("mail", HOUR)
        [lost] = await queue.store.leases.claim([rule], limit=1, worker="dead")
        async with working(sleeper, dequeue_timeout=HOUR, heartbeat_timeout=SECOND):

            async def asleep() -> bool:
                others = any(duty.others for duty in duties([sleeper]))
                return others and worker_of(sleeper).quarantine.idle

            await eventually(asleep)
            connection = await asyncpg.connect(pg18.dsn)
            try:
                await connection.execute(AGE)
            finally:
                await connection.close(timeout=5)
            async with asyncio.timeout(60):
                job = await ran.get()
            assert (job.id, job.recoveries) == (lost.id, 1)
