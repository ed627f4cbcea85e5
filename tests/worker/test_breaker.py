"""A worker before circuit breakers: what it claims, what it spends, and what it reports."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    BreakerPolicy,
    Holdfast,
    InvalidInput,
    InvalidRow,
    Job,
    RetryRequested,
    SchemaMissing,
    Status,
    TableQueue,
)
from holdfast.retry import RemoteError
from holdfast.stores.postgres.migration import migrations
from holdfast.worker.breaker_gate import judge
from tests.worker.breakers import (
    CLOSED,
    OPEN,
    Dependency,
    breaker_of,
    look_around,
    policy,
    serve_others,
    until_breaker,
)
from tests.worker.workers import Gauge, Watch, ends, eventually, working

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.servers import Database
    from tests.worker.conftest import NewWorker


async def test_while_open_nothing_is_claimed_and_no_attempt_is_spent(hf: Holdfast) -> None:
    dependency = Dependency()
    hf.entrypoint("pay", breaker=policy(threshold=3))(dependency)
    serve_others(hf)
    ids = await hf.queries.enqueue(["pay"] * 20)
    watch = Watch(hf)
    async with working(hf, concurrency=1):
        opened = await until_breaker(hf, OPEN)
        await look_around(hf, watch)
    assert (dependency.calls, opened.failures, opened.generation) == (3, 3, 1)
    left = await hf.queries.get_jobs(ids)
    assert [(job.status, job.attempts, job.recoveries) for job in left] == [
        (Status.QUEUED, 0, 0)
    ] * 17


async def test_calls_are_bounded_by_the_threshold_and_the_slots(hf: Holdfast) -> None:
    dependency = Dependency()
    hf.entrypoint("pay", breaker=policy(threshold=3))(dependency)
    serve_others(hf)
    await hf.queries.enqueue(["pay"] * 100)
    watch = Watch(hf)
    async with working(hf, concurrency=5):
        await until_breaker(hf, OPEN)
        await look_around(hf, watch)
    assert dependency.calls <= 3 + 5


async def test_a_breaker_stays_open_when_the_worker_is_replaced(new_worker: NewWorker) -> None:
    dependency = Dependency()
    for hf in (new_worker(), new_worker()):
        hf.entrypoint("pay", breaker=policy())(dependency)
        await hf.queries.enqueue(["pay"] * 3)
        await ends(hf.run(mode="drain", concurrency=1))
        assert dependency.calls == 2
        assert (await breaker_of(hf)).state is OPEN


async def test_outcomes_of_jobs_claimed_before_the_breaker_moved_do_not_count(
    hf: Holdfast,
) -> None:
    running, release = asyncio.Event(), asyncio.Event()

    @hf.entrypoint("pay", breaker=policy())
    async def pay(job: Job) -> None:
        running.set()
        await release.wait()
        raise ConnectionError("down")

    await hf.queries.enqueue(["pay"] * 3)
    watch = Watch(hf)
    async with working(hf, concurrency=3):
        await ends(running.wait())
        await hf.queries.open_breaker("stripe", actor="me", reason="maintenance")
        await hf.queries.close_breaker("stripe")
        release.set()
        await watch.until_settled(3)
    breaker = await breaker_of(hf)
    assert (breaker.state, breaker.failures, breaker.generation) == (CLOSED, 0, 2)


async def test_outcomes_count_in_the_order_in_which_the_handlers_ended(hf: Holdfast) -> None:
    started, release = Gauge(), asyncio.Event()

    @hf.entrypoint("pay", breaker=policy(threshold=5))
    async def pay(job: Job) -> None:
        with started:
            await release.wait()
        if job.id % 2:
            raise ConnectionError("once in a while")

    await hf.queries.enqueue(["pay"] * 40)
    watch = Watch(hf)
    async with working(hf, concurrency=40):

        async def all_started() -> bool:
            return started.now == 40

        await eventually(all_started)
        release.set()
        await watch.until_settled(40)
    breaker = await breaker_of(hf)
    assert (breaker.state, breaker.generation) == (CLOSED, 0)
    assert breaker.failures <= 1


async def test_ignored_errors_neither_open_a_breaker_nor_count_as_success(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.entrypoint("pay", breaker=policy(threshold=3, ignore=(ValueError,)))
    async def pay(job: Job) -> None:
        seen.append(job.id)
        # Down, ignored, down, ignored, …: only what counts follows each other.
        raise (ValueError if job.id % 2 else ConnectionError)("no")

    await hf.queries.enqueue(["pay"] * 20)
    await ends(hf.run(mode="drain", concurrency=1))
    assert (await breaker_of(hf)).state is OPEN
    assert sum(job_id % 2 == 0 for job_id in seen) == 3


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ConnectionError(), False),
        (ValueError(), None),
        (UnicodeError(), None),
        (InvalidRow("no"), None),
        (RetryRequested(), False),
        (RemoteError("ValueError", "no", ""), None),
        (RemoteError("OSError", "no", ""), False),
    ],
)
def test_an_error_counts_unless_it_says_nothing_about_the_dependency(
    error: Exception, verdict: bool | None
) -> None:
    ignoring = policy(ignore=(ValueError,))
    assert judge(error, ignoring) is verdict
    asked = RetryRequested()
    asked.__cause__ = error
    assert judge(asked, ignoring) is verdict


async def test_a_breaker_that_is_held_open_lets_nothing_through_until_it_is_closed(
    hf: Holdfast,
) -> None:
    dependency = Dependency()
    dependency.up = True
    hf.entrypoint("pay", breaker=policy(cooldown=timedelta(milliseconds=1)))(dependency)
    serve_others(hf)
    await hf.queries.open_breaker("stripe", actor="me", reason="maintenance")
    await hf.queries.enqueue(["pay"] * 3)
    watch = Watch(hf)
    async with working(hf):
        await look_around(hf, watch)
        assert dependency.calls == 0
        await hf.queries.close_breaker("stripe")
        await watch.until(lambda: dependency.calls == 3)


async def test_entrypoints_share_a_breaker_by_its_name(hf: Holdfast) -> None:
    dependency = Dependency()
    hf.entrypoint("pay", breaker=policy())(dependency)
    hf.entrypoint("refund", breaker=policy())(dependency)
    await hf.queries.enqueue(["pay", "refund"] * 5)
    await ends(hf.run(mode="drain", concurrency=1))
    assert dependency.calls == 2
    assert (await breaker_of(hf)).state is OPEN


async def test_a_breaker_is_listed_before_its_first_job(hf: Holdfast) -> None:
    hf.entrypoint("pay", breaker="stripe")(Dependency())
    await ends(hf.run(mode="drain"))
    assert (await breaker_of(hf)).state is CLOSED


async def test_one_breaker_has_one_policy(hf: Holdfast) -> None:
    hf.entrypoint("pay", breaker="stripe")(Dependency())
    hf.entrypoint("refund", breaker=BreakerPolicy("stripe"))(Dependency())
    with pytest.raises(InvalidInput, match=r"'pay' and 'void' share the breaker 'stripe'"):
        hf.entrypoint("void", breaker=BreakerPolicy("stripe", threshold=9))(Dependency())
    with pytest.raises(InvalidInput, match="breaker must be a name or a BreakerPolicy, got 7"):
        hf.entrypoint("void", breaker=7)(Dependency())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="the name must be a string"):
        hf.entrypoint("void", breaker="")(Dependency())


async def test_settling_goes_on_when_a_breaker_cannot_be_told(
    pg_hf: Holdfast, witness: Any
) -> None:
    running, release = asyncio.Event(), asyncio.Event()

    @pg_hf.entrypoint("pay", breaker=policy())
    async def pay(job: Job) -> None:
        running.set()
        await release.wait()
        raise ConnectionError("down")

    await pg_hf.queries.enqueue("pay")
    watch = Watch(pg_hf)
    async with working(pg_hf):
        await ends(running.wait())
        await witness.execute("drop table holdfast_breakers")
        release.set()
        await watch.until_settled(1)
        assert await pg_hf.install(only="breakers") == ["0002_breakers"]
        await pg_hf.queries.enqueue("pay")
        await watch.until_settled(2)


ARTICLE = """
create table email_snoozes (
    id bigint generated always as identity primary key,
    remind_at timestamptz not null default now(),
    inactive boolean not null default false,
    claimed_at timestamptz,
    claimed_by text,
    claim_token uuid,
    attempts integer not null default 0,
    max_attempts integer not null default 5,
    last_error text,
    last_error_at timestamptz,
    updated_at timestamptz not null default now()
)
"""


async def test_a_table_queue_needs_no_table_of_holdfast_but_that_of_its_breakers(
    pg18: Database, witness: Any
) -> None:
    await witness.execute(ARTICLE)
    await witness.execute("insert into email_snoozes select from generate_series(1, 5)")
    calls = 0

    async with Holdfast.connect(pg18.dsn) as hf:

        @hf.table(TableQueue("email_snoozes"), breaker=policy())
        async def remind(row: Mapping[str, Any]) -> None:
            nonlocal calls
            calls += 1
            raise ConnectionError("down")

        with pytest.raises(SchemaMissing, match="holdfast install --breakers-only"):
            await ends(hf.run(concurrency=1))
        assert await hf.install(only="breakers") == ["0002_breakers"]
        assert await hf.install(only="breakers") == []
        await ends(hf.run(mode="drain", concurrency=1))
        opened = await breaker_of(hf)
        assert (calls, opened.state) == (2, OPEN)
        spent = await witness.fetch("select attempts from email_snoozes where attempts > 0")
        assert [row[0] for row in spent] == [1, 1]
        # Whoever decides for the rest of Holdfast later keeps the breakers as they are.
        assert await hf.install() == [migration.name for migration in migrations()]
        assert await breaker_of(hf) == opened
        await hf.verify()
        assert await hf.install(only="breakers") == []
        with pytest.raises(InvalidInput, match='only must be "breakers"'):
            await hf.install(only="jobs")  # type: ignore[arg-type]
