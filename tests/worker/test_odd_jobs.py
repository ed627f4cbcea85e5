"""Jobs that were written by hand, with values for which Python has no counterpart."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Job, Status
from tests.worker.workers import Watch, working

if TYPE_CHECKING:
    from holdfast import Holdfast

SOON = timedelta(milliseconds=20)
DIGITS = "headers = ('[' || repeat('1', 5000) || ']')::jsonb"
READABLE = {
    "due before the first year": "execute_after = '4000-01-01 BC'",
    "created in a year of five digits": "created = '20255-01-01'",
}


@pytest.mark.parametrize("limit", [0, 100])
async def test_one_that_cannot_be_read_is_held_and_the_others_run(
    pg_hf: Holdfast, witness: Any, limit: int
) -> None:
    @pg_hf.entrypoint("greet", concurrency_limit=limit)
    async def greet(job: Job) -> None: ...

    watch = Watch(pg_hf)
    ids = await pg_hf.queries.enqueue(["greet"] * 10)
    await witness.execute(f"update holdfast set {DIGITS} where id = $1", ids[4])
    async with working(pg_hf, dequeue_timeout=SOON, signals=False):
        await watch.until_settled(9)
    assert {job.id for job, _, _ in watch.settled} == {*ids} - {ids[4]}
    status, error = await witness.fetchrow("select status, last_error from holdfast")
    assert status == Status.FAILED
    assert "column 'headers' holds a value that Python cannot read" in error


@pytest.mark.parametrize("what", READABLE)
async def test_an_instant_beyond_the_years_of_python_stops_no_worker(
    pg_hf: Holdfast, witness: Any, what: str
) -> None:
    @pg_hf.entrypoint("greet")
    async def greet(job: Job) -> None: ...

    watch = Watch(pg_hf)
    ids = await pg_hf.queries.enqueue(["greet"] * 10)
    await witness.execute(f"update holdfast set {READABLE[what]} where id = $1", ids[4])
    async with working(pg_hf, dequeue_timeout=SOON, signals=False):
        await watch.until_settled(10)
    assert {job.id for job, _, _ in watch.settled} == {*ids}
