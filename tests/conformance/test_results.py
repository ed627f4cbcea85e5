"""Results and progress: only the holder of the token writes them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from holdfast.lifecycle import TRANSITIONS, Status, Verb
from holdfast.models import Change, Progress, ProgressNote, StoredResult
from tests.conformance.stores import holding

if TYPE_CHECKING:
    from holdfast.models import Job
    from tests.conformance.stores import QueueUnderTest

COMPLETE = TRANSITIONS[Verb.COMPLETE]
HOUR = timedelta(hours=1)


async def claimed(queue: QueueUnderTest, count: int) -> list[Job]:
    """Jobs that were just claimed."""
    for _ in range(count):
        await queue.add()
    jobs = await queue.claim()
    assert len(jobs) == count
    return jobs


async def test_a_result_is_stored_with_the_completion(queue: QueueUnderTest) -> None:
    first, second, third = await claimed(queue, 3)
    moved = await queue.store.leases.change(
        COMPLETE,
        [
            Change(holding(first), result=StoredResult('{"a": "\N{SNOWMAN}"}', HOUR)),
            Change(holding(second), result=StoredResult(None, HOUR, "too large")),
        ],
    )
    assert {lease.id for lease in moved} == {first.id, second.id}
    await queue.store.leases.change(COMPLETE, [Change(holding(third))])
    found = await queue.store.results.get([first.id, second.id, third.id])
    assert {key: (each.value, each.error) for key, each in found.items()} == {
        first.id: ('{"a": "\N{SNOWMAN}"}', None),
        second.id: (None, "too large"),
    }


async def test_a_stale_token_stores_no_result(queue: QueueUnderTest) -> None:
    [job] = await claimed(queue, 1)
    stale = holding(job)._replace(token=uuid4())
    result = StoredResult('"mine"', HOUR)
    assert await queue.store.leases.change(COMPLETE, [Change(stale, result=result)]) == []
    assert await queue.store.results.get([job.id]) == {}
    assert (await queue.store.jobs.statuses([job.id]))[job.id] is Status.PICKED


async def test_a_job_that_was_released_takes_no_result_of_its_last_holder(
    queue: QueueUnderTest,
) -> None:
    [job] = await claimed(queue, 1)
    await queue.store.leases.change(TRANSITIONS[Verb.RELEASE], [Change(holding(job))])
    late = Change(holding(job), result=StoredResult('"late"', HOUR))
    assert await queue.store.leases.change(COMPLETE, [late]) == []
    assert await queue.store.results.get([job.id]) == {}


async def test_an_expired_result_is_gone_and_then_deleted(queue: QueueUnderTest) -> None:
    [job] = await claimed(queue, 1)
    result = StoredResult("1", HOUR)
    await queue.store.leases.change(COMPLETE, [Change(holding(job), result=result)])
    queue.clock.advance(HOUR - timedelta(seconds=1))
    await queue.store.leases.housekeep()
    assert set(await queue.store.results.get([job.id])) == {job.id}
    queue.clock.advance(timedelta(seconds=1))
    assert await queue.store.results.get([job.id]) == {}
    await queue.store.leases.housekeep()
    assert await queue.store.results.get([job.id]) == {}


async def test_the_last_progress_counts(queue: QueueUnderTest) -> None:
    first, second = await claimed(queue, 2)
    note = ProgressNote
    await queue.store.leases.note_progress(
        [note(holding(first), Progress(0.25, "a")), note(holding(second), Progress(1.0))]
    )
    queue.clock.advance(timedelta(seconds=1))
    await queue.store.leases.note_progress([note(holding(first), Progress(0.5, "b"))])
    found = await queue.store.results.progress([first.id, second.id])
    assert {key: (each.fraction, each.message) for key, each in found.items()} == {
        first.id: (0.5, "b"),
        second.id: (1.0, None),
    }
    listed = await queue.store.results.list_progress(10)
    assert [key for key, _ in listed] == [first.id, second.id]


async def test_a_stale_token_notes_no_progress(queue: QueueUnderTest) -> None:
    [job] = await claimed(queue, 1)
    stale = holding(job)._replace(token=uuid4())
    notes = [ProgressNote(stale, Progress(0.5))]
    assert await queue.store.leases.note_progress(notes) == []
    assert await queue.store.results.progress([job.id]) == {}
    await queue.store.leases.change(TRANSITIONS[Verb.RELEASE], [Change(holding(job))])
    assert await queue.store.leases.note_progress([ProgressNote(holding(job), Progress(0.5))]) == []
    assert await queue.store.results.progress([job.id]) == {}


async def test_progress_is_deleted_an_hour_after_its_job(queue: QueueUnderTest) -> None:
    ended, held = await claimed(queue, 2)
    notes = [ProgressNote(holding(job), Progress(0.5)) for job in (ended, held)]
    await queue.store.leases.note_progress(notes)
    await queue.store.leases.change(COMPLETE, [Change(holding(ended))])
    await queue.store.leases.change(TRANSITIONS[Verb.HOLD], [Change(holding(held), error="x")])
    queue.clock.advance(HOUR + timedelta(seconds=1))
    await queue.store.leases.housekeep()
    assert set(await queue.store.results.progress([ended.id, held.id])) == {held.id}
