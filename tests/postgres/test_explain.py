"""Why is this job not running: each reason, produced on a real database."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    BreakerPolicy,
    EntrypointExecutorParameters,
    Holdfast,
    InvalidInput,
    Job,
    JobId,
    JobNotFound,
)
from holdfast.clock import ManualClock
from holdfast.executors import ThreadExecutor
from holdfast.explanation import Code
from holdfast.lifecycle import RETIRE_LAST_RETRY, TRANSITIONS, Verb
from holdfast.models import Change, ClaimRule, LeaseKey, NewJob, WorkerInfo
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from tests.faults.crew import eventually
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.servers import Database

SECOND = timedelta(seconds=1)
LEASE = 30 * SECOND


class Scene:
    """A database with one worker that serves mail."""

    def __init__(self, hf: Holdfast, connection: Any, clock: ManualClock) -> None:
        self.hf, self.connection, self.clock = hf, connection, clock

    async def report(
        self,
        *entrypoints: str,
        running: int = 0,
        worker: str = "w1",
        full: Sequence[str] = (),
        behind: Sequence[str] = (),
    ) -> None:
        now = self.clock.now()
        assert self.hf.store.reports is not None
        info = WorkerInfo(
            worker, "host", 1, "1", [*entrypoints], 2, running, "running", now, now, LEASE
        )
        info = info._replace(full_entrypoints=full, breaker_names=behind)
        await self.hf.store.reports.report(info)

    async def add(self, entrypoint: str = "mail", **options: Any) -> JobId:
        [job_id] = await self.hf.queries.enqueue_many([NewJob(entrypoint, **options)])
        assert job_id is not None
        return job_id

    async def claim(self, **rule: Any) -> Job:
        leases = self.hf.store.leases
        [job] = await leases.claim(
            [ClaimRule("mail", LEASE, **rule)], limit=1, worker="w1", sweep=True
        )
        return job

    async def settle(self, verb: str, job: Job, **fields: Any) -> None:
        assert job.claim_token is not None
        change = Change(LeaseKey(job.id, job.claim_token), **fields)
        assert await self.hf.store.leases.change(TRANSITIONS[verb], [change])

    async def code(self, job_id: JobId) -> Code:
        return (await self.hf.explain(job_id)).code


@asynccontextmanager
async def staged(dsn: str) -> AsyncIterator[Scene]:
    clock = ManualClock()
    async with tables.session(dsn) as connection:
        hf = Holdfast(AsyncpgDriver(connection), clock=clock)
        await hf.install()
        scene = Scene(hf, connection, clock)
        await scene.report("mail")
        yield scene


async def test_a_deferred_job_is_not_due(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        job_id = await scene.add(execute_after=timedelta(hours=1))
        found = await scene.hf.explain(job_id)
        assert (found.code, found.until) == (Code.NOT_DUE, scene.clock.now() + timedelta(hours=1))
        assert found.sentence == "It is due in 1 h."


async def test_a_paused_job_says_by_whom_and_why(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        job_id = await scene.add()
        await scene.hf.queries.pause("mail", reason="smtp is down", actor="ann", until=LEASE)
        found = await scene.hf.explain(job_id)
        assert (found.code, found.command) == (Code.PAUSED, "holdfast resume mail")
        assert found.sentence == "mail is paused by ann: smtp is down."
        assert found.until == scene.clock.now() + LEASE


async def test_a_mistyped_name_has_no_worker_and_near_names(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        await scene.report("send_mail", worker="w2")
        job_id = await scene.add("send_mial")
        found = await scene.hf.explain(job_id)
        assert (found.code, found.details["nearest"]) == (Code.NO_WORKER, ["send_mail"])
        assert found.command == f"holdfast move {job_id} --to send_mail"


async def test_a_silent_worker_serves_nothing(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        job_id = await scene.add()
        scene.clock.advance(LEASE + SECOND)
        assert await scene.code(job_id) is Code.NO_WORKER


async def test_an_open_breaker_says_when_it_tries_again(pg: Database) -> None:
    async with staged(pg.dsn) as scene:

        @scene.hf.entrypoint("mail", breaker=BreakerPolicy("smtp"))
        async def mail(job: Job) -> None:
            """Never runs here."""

        job_id = await scene.add()
        await scene.hf.queries.open_breaker("smtp", actor="ann", reason="maintenance")
        found = await scene.hf.explain(job_id)
        assert (found.code, found.command) == (Code.BREAKER_OPEN, "holdfast breaker close smtp")
        assert "held by ann" in found.sentence


async def test_a_breaker_is_known_from_the_worker_that_serves_the_entrypoint(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        job_id = await scene.add()
        await scene.hf.queries.open_breaker("smtp", actor="ann", reason="maintenance")
        assert await scene.code(job_id) is Code.DUE
        await scene.report("fax", "mail", behind=["", "smtp"])
        assert await scene.code(job_id) is Code.BREAKER_OPEN
        await scene.report("fax", "mail", behind=["smtp", ""])
        assert await scene.code(job_id) is Code.DUE


async def test_a_full_limit_names_the_jobs_under_it(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        running, waiting = await scene.add(), await scene.add()
        await scene.claim(concurrency_limit=1)
        found = await scene.hf.explain(waiting)
        assert (found.code, found.details["running"]) == (Code.LIMIT_FULL, [running])


async def test_a_job_behind_others_says_how_many(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        first = await scene.add()
        job_id = await scene.add(execute_after=scene.clock.now())
        await scene.add(priority=5)
        await scene.add(priority=9, execute_after=timedelta(hours=1))
        found = await scene.hf.explain(job_id)
        assert (found.code, found.details["before"]) == (Code.BEHIND, 2)
        assert await scene.code(first) is Code.BEHIND
        assert (await scene.hf.explain(entrypoint="mail")).code is Code.NOT_DUE


async def test_the_count_of_those_before_is_bounded(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        await scene.connection.execute(
            "insert into holdfast (entrypoint, execute_after)"
            " select 'mail', $1 from generate_series(1, 1500)",
            scene.clock.now() - SECOND,
        )
        found = await scene.hf.explain(await scene.add())
        assert (
            found.sentence == "It is due, and behind at least 1,000 of higher priority or earlier."
        )


async def test_a_claimed_job_says_who_runs_it(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        job_id = await scene.add()
        await scene.claim()
        scene.clock.advance(SECOND)
        found = await scene.hf.explain(job_id)
        assert (found.code, found.until) == (Code.RUNNING, scene.clock.now() + LEASE - SECOND)
        assert found.sentence == "w1 runs it, with a heartbeat 1 s ago."


async def test_a_job_of_a_silent_worker_says_when_it_is_recovered(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        job_id = await scene.add()
        await scene.claim()
        scene.clock.advance(2 * LEASE)
        found = await scene.hf.explain(job_id)
        assert (found.code, found.command) == (Code.WORKER_SILENT, "holdfast workers release w1")
        assert found.until is None
        assert "No live worker serves mail." in found.sentence
        await scene.report("mail", worker="w2")
        found = await scene.hf.explain(job_id)
        assert found.until == scene.clock.now()
        assert found.sentence.endswith("It is recovered when its lease ends.")


async def test_a_suspect_runs_alone(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        job_id = await scene.add(max_recoveries=2)
        await scene.claim()
        await scene.hf.store.leases.recover([ClaimRule("mail", LEASE)], worker="w1")
        assert await scene.code(job_id) is Code.RUNS_ALONE


@pytest.mark.parametrize(
    ("verb", "code"),
    [(Verb.HOLD, Code.HELD), (RETIRE_LAST_RETRY.name, Code.ATTEMPTS_SPENT)],
)
async def test_a_held_job_says_why(pg: Database, verb: str, code: Code) -> None:
    async with staged(pg.dsn) as scene:
        job_id = await scene.add()
        await scene.settle(verb, await scene.claim(), error="refused", max_attempts=1)
        found = await scene.hf.explain(job_id)
        assert (found.code, found.command) == (code, f"holdfast requeue {job_id}")
        await scene.hf.queries.edit_job(job_id, b"{}", actor="ann", reason="typo")
        assert await scene.code(job_id) is code


async def test_a_crash_loop_is_told(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        job_id = await scene.add(max_recoveries=2)
        leases = scene.hf.store.leases
        await scene.claim()
        await leases.recover([ClaimRule("mail", LEASE)], worker="w1")
        rule = ClaimRule("mail", LEASE)
        assert await leases.claim_recovered([rule], limit=1, worker="w1", suspects=True)
        await leases.recover([rule], worker="w1")
        assert await scene.code(job_id) is Code.CRASH_LOOP


async def test_full_slots_are_told(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        job_id = await scene.add()
        await scene.report("mail", running=2)
        assert await scene.code(job_id) is Code.SLOTS_FULL


async def test_full_slots_of_the_entrypoint_itself_are_told(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        job_id = await scene.add()
        await scene.report("mail", "sms", full=["mail"])
        found = await scene.hf.explain(job_id)
        assert (found.code, found.details["own"]) == (Code.SLOTS_FULL, True)
        await scene.report("mail", worker="w2")
        assert await scene.code(job_id) is Code.DUE
        await scene.report("mail", running=2, worker="w2")
        assert await scene.code(job_id) is Code.SLOTS_FULL


async def test_a_worker_whose_threads_are_busy_says_so(pg18: Database) -> None:
    begun, go_on = threading.Event(), threading.Event()
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()

        def one_thread(parameters: EntrypointExecutorParameters) -> ThreadExecutor:
            return ThreadExecutor(parameters, max_workers=1)

        @hf.entrypoint("resize", executor="thread", executor_factory=one_thread)
        def resize(_: Job) -> None:
            begun.set()
            go_on.wait(60)

        await hf.queries.enqueue("resize")
        worker = asyncio.create_task(hf.run(signals=False, heartbeat_timeout=timedelta(seconds=1)))
        try:
            await asyncio.to_thread(begun.wait, 60)
            [waiting] = await hf.queries.enqueue("resize")

            async def told() -> bool:
                return (await hf.explain(waiting)).code is Code.SLOTS_FULL

            await eventually(told)
        finally:
            go_on.set()
            hf.shutdown.set()
            await worker


async def test_a_locked_row_names_the_session(pg: Database) -> None:
    async with staged(pg.dsn) as scene, tables.session(pg.dsn) as other:
        job_id = await scene.add()
        async with other.transaction():
            await other.execute("select from holdfast where id = $1 for update", job_id)
            found = await scene.hf.explain(job_id)
            pid = await other.fetchval("select pg_backend_pid()")
        assert (found.code, found.details["pid"]) == (Code.LOCKED, pid)
        assert await scene.code(job_id) is Code.DUE


async def test_an_ended_job_says_how(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        job_id = await scene.add()
        await scene.hf.queries.mark_job_as_cancelled([job_id], actor="ann", reason="not wanted")
        found = await scene.hf.explain(job_id)
        assert found.code is Code.ENDED
        assert found.sentence == "It has ended: canceled 0 s ago by ann (not wanted)."


async def test_other_tables_are_told(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        job_id = await scene.add()
        await scene.connection.execute("delete from holdfast_migrations where version > 2")
        assert await scene.code(job_id) is Code.SCHEMA


async def test_a_paused_table_queue_is_explained_by_its_name(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        await scene.hf.queries.pause("email_snoozes", reason="relay down", actor="ann")
        found = await scene.hf.explain(entrypoint="email_snoozes")
        assert found.code is Code.PAUSED
        assert found.sentence == "email_snoozes is paused by ann: relay down."
        assert found.command == "holdfast resume email_snoozes"


async def test_nothing_waits_and_an_unknown_job(pg: Database) -> None:
    async with staged(pg.dsn) as scene:
        assert (await scene.hf.explain(entrypoint="mial")).code is Code.NOTHING_WAITS
        with pytest.raises(JobNotFound):
            await scene.hf.explain(77)
        with pytest.raises(InvalidInput):
            await scene.hf.explain()
