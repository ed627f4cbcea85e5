"""A database that refuses an outcome, for good or for a while, does not lose it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Holdfast, Job, RetryRequested, Status
from tests.worker.workers import Watch, ending, eventually, the_log, the_row, working

if TYPE_CHECKING:
    from tests.worker.conftest import NewWorker

SECOND = timedelta(seconds=1)


class Censor:
    """A trigger on the log that refuses rows, for the reason and under the condition given."""

    def __init__(self, witness: Any, *, sqlstate: str, when: str) -> None:
        self._witness = witness
        self._sqlstate = sqlstate
        self._when = when

    async def __aenter__(self) -> Censor:
        await self._witness.execute(
            "create sequence refusals; create function refuse() returns trigger language plpgsql as"
            " $$ begin perform nextval('refusals');"
            f" raise exception 'refused' using errcode = '{self._sqlstate}'; end $$;"
            " create trigger refuse before insert on holdfast_log for each row"
            f" when ({self._when}) execute function refuse()"
        )
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._witness.execute("drop trigger if exists refuse on holdfast_log")

    async def until_refused(self, times: int) -> None:
        """A sequence, because it alone remembers what a failed statement did."""

        async def refused() -> bool:
            return await self._witness.fetchval(
                "select is_called and last_value >= $1 from refusals", times
            )

        await eventually(refused)


@pytest.mark.parametrize(
    ("on_failure", "status"), [("delete", Status.EXCEPTION), ("hold", Status.FAILED)]
)
async def test_an_outcome_that_is_refused_is_recorded_without_its_details(
    pg_hf: Holdfast, witness: Any, on_failure: str, status: Status
) -> None:
    @pg_hf.entrypoint("bad", on_failure=on_failure)  # type: ignore[arg-type]
    async def bad(job: Job) -> None:
        raise ValueError("unspeakable")

    @pg_hf.entrypoint("good")
    async def good(job: Job) -> None:
        await asyncio.sleep(0)

    watch = Watch(pg_hf)
    jobs = await pg_hf.queries.enqueue(["bad", "good", "bad", "good"])
    async with (
        Censor(witness, sqlstate="22P05", when="new.traceback is not null"),
        working(pg_hf),
    ):
        await watch.until_settled(4)

    endings = [await ending(pg_hf, job) for job in jobs]
    assert [entry.status for entry in endings] == [status, "successful"] * 2
    assert (endings[0].traceback, endings[0].reason) == (None, "outcome could not be stored")


async def test_a_retry_that_is_refused_is_still_a_retry_after_its_delay(
    pg_hf: Holdfast, witness: Any
) -> None:
    @pg_hf.entrypoint("again")
    async def again(job: Job) -> None:
        raise RetryRequested(timedelta(hours=2), reason="busy")

    watch = Watch(pg_hf)
    [job_id] = await pg_hf.queries.enqueue("again")
    async with (
        Censor(witness, sqlstate="22P05", when="new.traceback is not null"),
        working(pg_hf),
    ):
        await watch.until_settled()

    job, entry = await the_row(pg_hf, job_id), await ending(pg_hf, job_id)
    assert (job.status, job.attempts) == (Status.QUEUED, 1)
    assert job.execute_after - entry.created == timedelta(hours=2)


async def test_the_last_retry_that_is_refused_still_holds_the_job(
    pg_hf: Holdfast, witness: Any
) -> None:
    @pg_hf.entrypoint("again", max_attempts=1)
    async def again(job: Job) -> None:
        raise RetryRequested(reason="busy")

    watch = Watch(pg_hf)
    [job_id] = await pg_hf.queries.enqueue("again")
    async with (
        Censor(witness, sqlstate="22P05", when="new.traceback is not null"),
        working(pg_hf),
    ):
        await watch.until_settled()

    assert (await the_row(pg_hf, job_id)).status == Status.FAILED


@pytest.mark.parametrize("sqlstate", ["53100", "55P03", "57014"])
async def test_an_outcome_is_tried_again_while_the_server_is_in_trouble(
    pg_hf: Holdfast, witness: Any, sqlstate: str
) -> None:
    runs = 0

    @pg_hf.entrypoint("bad")
    async def bad(job: Job) -> None:
        nonlocal runs
        runs += 1
        raise ValueError("worth keeping")

    watch = Watch(pg_hf)
    [job_id] = await pg_hf.queries.enqueue("bad")
    async with working(pg_hf):
        async with Censor(witness, sqlstate=sqlstate, when="true") as censor:
            await censor.until_refused(3)
            assert watch.settled == []
        await watch.until_settled()

    entry = await ending(pg_hf, job_id)
    assert (runs, entry.status, entry.recoveries) == (1, Status.EXCEPTION, 0)
    assert entry.traceback is not None
    assert entry.traceback["exception_message"] == "worth keeping"


async def test_a_job_whose_outcome_is_refused_in_any_form_is_left_to_its_lease(
    new_pg_worker: NewWorker, witness: Any
) -> None:
    """To renew it would hide it for ever; another try may have better luck."""
    first, second = new_pg_worker(), new_pg_worker()
    ran: list[str] = []
    for name, hf in (("first", first), ("second", second)):

        @hf.entrypoint("one")
        async def one(job: Job, name: str = name) -> None:
            ran.append(name)

    lost, settled = Watch(first), Watch(second)
    [job_id] = await first.queries.enqueue("one")
    async with (
        Censor(witness, sqlstate="22P05", when="new.status = 'successful'"),
        working(first, heartbeat_timeout=SECOND),
    ):
        await lost.until_lost()
        first.shutdown.set()
    async with working(second, heartbeat_timeout=SECOND):
        await settled.until_settled()

    assert ran == ["first", "second"]
    log = await the_log(second, job_id)
    assert [entry.status for entry in log] == ["queued", "successful"]
    assert log[-1].recoveries == 1
