"""How long the log is kept, and that the upkeep deletes what has expired."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Retention
from holdfast.errors import InvalidInput
from holdfast.lifecycle import Verb
from tests.conformance.stores import SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.models import JobId
    from tests.conformance.stores import QueueUnderTest

DAY = timedelta(days=1)


async def ended(queue: QueueUnderTest, verb: Verb) -> JobId:
    job = await queue.lease()
    await queue.settle(verb, job, error="no")
    return job.id


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """A row is counted, and may go, when no older transaction runs on the server."""
    async with asyncio.timeout(200):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def kept(queue: QueueUnderTest) -> set[JobId]:
    return {entry.job_id for entry in (await queue.rows()).log}


async def delete_all_expired(queue: QueueUnderTest, left: set[JobId]) -> None:
    async def deleted() -> bool:
        await queue.queries.delete_expired_log()
        return len(await kept(queue)) <= len(left)

    await until(deleted)
    assert await queue.queries.delete_expired_log() == 0
    assert await kept(queue) == left


async def test_by_default_success_is_kept_for_30_days_and_all_else_for_90(
    queue: QueueUnderTest,
) -> None:
    assert await queue.queries.retention() == Retention(30 * DAY, 90 * DAY)
    good, bad = await ended(queue, Verb.COMPLETE), await ended(queue, Verb.FAIL)
    queue.clock.advance(30 * DAY)
    await delete_all_expired(queue, {good, bad})
    queue.clock.advance(SECOND)
    await delete_all_expired(queue, {bad})
    queue.clock.advance(60 * DAY)
    await delete_all_expired(queue, set())
    [*found] = await queue.queries.log_statistics()
    assert sum(statistic.count for statistic in found) == 2, "the rows were counted first"


async def test_a_job_in_the_queue_keeps_its_log_and_a_held_one_for_ever(
    queue: QueueUnderTest,
) -> None:
    await queue.queries.set_retention(Retention(DAY, DAY))
    held, gone = await ended(queue, Verb.HOLD), await ended(queue, Verb.FAIL)
    queue.clock.advance(1000 * DAY)
    await delete_all_expired(queue, {held})
    await queue.queries.requeue_jobs([held])
    await delete_all_expired(queue, {held})
    assert gone not in await kept(queue)


async def test_none_keeps_all(queue: QueueUnderTest) -> None:
    await queue.queries.set_retention(Retention(None, DAY))
    good, bad = await ended(queue, Verb.COMPLETE), await ended(queue, Verb.FAIL)
    queue.clock.advance(10_000 * DAY)
    await delete_all_expired(queue, {good})
    await queue.queries.set_retention(Retention(DAY, None))
    assert await queue.queries.retention() == Retention(DAY, None)
    last = await ended(queue, Verb.FAIL)
    queue.clock.advance(10_000 * DAY)
    await delete_all_expired(queue, {last})
    assert bad != last


async def test_the_upkeep_deletes_what_has_expired(queue: QueueUnderTest) -> None:
    await ended(queue, Verb.COMPLETE)
    queue.clock.advance(31 * DAY)

    async def deleted() -> bool:
        # Each is a worker that has just started: an old one waits before it looks again.
        await queue.worker().leases.housekeep()
        return not await kept(queue)

    if queue.name.startswith("roles"):
        # The role of a worker may not delete from the log: it says so, and goes on.
        assert not await deleted()
    else:
        await until(deleted)


@pytest.mark.parametrize("kept_for", [timedelta(0), -DAY, timedelta.max, 30, "30d"])
def test_a_retention_that_keeps_nothing_is_refused(kept_for: Any) -> None:
    with pytest.raises(InvalidInput, match=r"succeeded must be a positive timedelta.*or None"):
        Retention(succeeded=kept_for)


async def test_what_is_no_retention_is_refused(queue: QueueUnderTest) -> None:
    wrong: Any = DAY
    with pytest.raises(InvalidInput, match="retention must be a Retention"):
        await queue.queries.set_retention(wrong)
