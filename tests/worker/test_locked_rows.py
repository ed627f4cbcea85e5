"""A row that another transaction has locked delays its own job and no other."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Holdfast, Job, Status
from holdfast.models import LeaseKey
from tests.worker.workers import Watch, ending, ends, eventually, the_row, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast import JobId
    from tests.worker.conftest import NewWorker

SECOND = timedelta(seconds=1)


class Steps:
    """Handlers that run until the test lets them end, each by the payload of its job."""

    def __init__(self, hf: Holdfast) -> None:
        self.runs: list[bytes] = []
        self.stopped: list[bytes] = []
        self._may_end: dict[bytes, asyncio.Event] = {}

        @hf.entrypoint("step")
        async def step(job: Job) -> None:
            name = job.payload or b""
            self.runs.append(name)
            try:
                await self._end(name).wait()
            except asyncio.CancelledError:
                self.stopped.append(name)
                raise

    def _end(self, name: bytes) -> asyncio.Event:
        return self._may_end.setdefault(name, asyncio.Event())

    def end(self, *names: bytes) -> None:
        for name in names:
            self._end(name).set()

    async def begun(self, count: int) -> None:
        async def enough() -> bool:
            return len(self.runs) >= count

        await eventually(enough)


@asynccontextmanager
async def locked(witness: Any, job_id: JobId) -> AsyncIterator[None]:
    async with witness.transaction():
        await witness.execute("select from holdfast where id = $1 for update", job_id)
        yield


async def test_the_other_outcomes_are_written(pg_hf: Holdfast, witness: Any) -> None:
    steps, watch = Steps(pg_hf), Watch(pg_hf)
    first, second = await pg_hf.queries.enqueue(["step"] * 2, [b"1", b"2"])
    async with working(pg_hf):
        await steps.begun(2)
        async with locked(witness, first):
            steps.end(b"1", b"2")
            [(settled, _, _)] = await watch.until_settled()
            assert settled.id == second
            [third] = await pg_hf.queries.enqueue("step", b"3")
            steps.end(b"3")
            await watch.until_settled(2)
        await watch.until_settled(3)
    assert [(await ending(pg_hf, each)).status for each in (first, second, third)] == [
        Status.SUCCESSFUL
    ] * 3
    assert steps.runs == [b"1", b"2", b"3"]
    assert not watch.lost


async def test_the_other_leases_are_renewed(
    new_pg_worker: NewWorker, witness: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hf, looker = new_pg_worker(), new_pg_worker()
    steps, watch = Steps(hf), Watch(hf)
    first, second = await hf.queries.enqueue(["step"] * 2, [b"1", b"2"])
    async with working(hf, heartbeat_timeout=2 * SECOND):
        await steps.begun(2)
        async with locked(witness, first):
            since = await looker.queries.now()

            async def outlived_a_lease() -> bool:
                beat = (await the_row(looker, second)).heartbeat
                return beat is not None and beat > since + 3 * SECOND

            await eventually(outlived_a_lease)
            assert (await the_row(looker, second)).recoveries == 0
            # It cannot be told whether its lease lasts.
            assert steps.stopped == [b"1"]
        steps.end(b"1", b"2")
        await watch.until(lambda: {job.id for job, _, _ in watch.settled} >= {first, second})
    assert steps.runs.count(b"2") == 1
    # Tried again and again meanwhile.
    assert sum("outcomes wait for" in text for text in caplog.messages) <= 1
    assert (await ending(hf, second)).status == Status.SUCCESSFUL


async def test_a_lease_that_was_lost_meanwhile_is_told_as_lost(
    pg_hf: Holdfast, witness: Any
) -> None:
    steps, watch = Steps(pg_hf), Watch(pg_hf)
    [job_id] = await pg_hf.queries.enqueue("step", b"1")
    async with working(pg_hf):
        await steps.begun(1)
        async with witness.transaction():
            await witness.execute("delete from holdfast where id = $1", job_id)
            [other] = await pg_hf.queries.enqueue("step", b"2")
            steps.end(b"1", b"2")
            [(settled, _, _)] = await watch.until_settled()
            assert settled.id == other
        [lost] = await watch.until_lost()
    assert lost.job.id == job_id


@pytest.mark.parametrize("waits", [False, True])
async def test_the_store_says_which_rows_are_locked(
    pg_hf: Holdfast, witness: Any, waits: bool
) -> None:
    """Also of a row that is about to leave; not of one that has left, or of one that is free."""
    ids = await pg_hf.queries.enqueue(["step"] * 3)
    leases = pg_hf.store.leases
    Steps(pg_hf)
    rules = pg_hf.queue_manager._registry.rules(30 * SECOND)
    jobs = await leases.claim(rules, limit=3, worker="w")
    held = {job.id: _held(job) for job in jobs}
    await witness.execute("delete from holdfast where id = $1", ids[0])
    async with witness.transaction():
        if waits:
            await witness.execute("delete from holdfast where id = $1", ids[1])
        expected = {held[ids[1]]} if waits else set()
        assert await ends(leases.locked(list(held.values()))) == expected


def _held(job: Job) -> LeaseKey:
    assert job.claim_token is not None
    return LeaseKey(job.id, job.claim_token)
