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
    from tests.conformance.stores import Rig

COMPLETE = TRANSITIONS[Verb.COMPLETE]
HOUR = timedelta(hours=1)


async def claimed(rig: Rig, count: int) -> list[Job]:
    """Jobs that were just claimed."""
    for _ in range(count):
        await rig.add()
    jobs = await rig.claim()
    assert len(jobs) == count
    return jobs


async def test_a_result_is_stored_with_the_completion(rig: Rig) -> None:
    first, second, third = await claimed(rig, 3)
    moved = await rig.store.leases.change(
        COMPLETE,
        [
            Change(holding(first), result=StoredResult('{"a": "\N{SNOWMAN}"}', HOUR)),
            Change(holding(second), result=StoredResult(None, HOUR, "too large")),
        ],
    )
    assert {lease.id for lease in moved} == {first.id, second.id}
    await rig.store.leases.change(COMPLETE, [Change(holding(third))])
    found = await rig.store.results.get([first.id, second.id, third.id])
    assert {key: (each.value, each.error) for key, each in found.items()} == {
        first.id: ('{"a": "\N{SNOWMAN}"}', None),
        second.id: (None, "too large"),
    }


async def test_a_stale_token_stores_no_result(rig: Rig) -> None:
    [job] = await claimed(rig, 1)
    stale = holding(job)._replace(token=uuid4())
    result = StoredResult('"mine"', HOUR)
    assert await rig.store.leases.change(COMPLETE, [Change(stale, result=result)]) == []
    assert await rig.store.results.get([job.id]) == {}
    assert (await rig.store.jobs.statuses([job.id]))[job.id] is Status.PICKED


async def test_a_job_that_was_released_takes_no_result_of_its_last_holder(rig: Rig) -> None:
    [job] = await claimed(rig, 1)
    await rig.store.leases.change(TRANSITIONS[Verb.RELEASE], [Change(holding(job))])
    late = Change(holding(job), result=StoredResult('"late"', HOUR))
    assert await rig.store.leases.change(COMPLETE, [late]) == []
    assert await rig.store.results.get([job.id]) == {}


async def test_an_expired_result_is_gone_and_then_deleted(rig: Rig) -> None:
    [job] = await claimed(rig, 1)
    result = StoredResult("1", HOUR)
    await rig.store.leases.change(COMPLETE, [Change(holding(job), result=result)])
    rig.clock.advance(HOUR - timedelta(seconds=1))
    await rig.store.leases.housekeep()
    assert set(await rig.store.results.get([job.id])) == {job.id}
    rig.clock.advance(timedelta(seconds=1))
    assert await rig.store.results.get([job.id]) == {}
    await rig.store.leases.housekeep()
    assert await rig.store.results.get([job.id]) == {}


async def test_the_last_progress_counts(rig: Rig) -> None:
    first, second = await claimed(rig, 2)
    note = ProgressNote
    await rig.store.leases.note_progress(
        [note(holding(first), Progress(0.25, "a")), note(holding(second), Progress(1.0))]
    )
    rig.clock.advance(timedelta(seconds=1))
    await rig.store.leases.note_progress([note(holding(first), Progress(0.5, "b"))])
    found = await rig.store.results.progress([first.id, second.id])
    assert {key: (each.fraction, each.message) for key, each in found.items()} == {
        first.id: (0.5, "b"),
        second.id: (1.0, None),
    }
    listed = await rig.store.results.list_progress(10)
    assert [key for key, _ in listed] == [first.id, second.id]


async def test_a_stale_token_notes_no_progress(rig: Rig) -> None:
    [job] = await claimed(rig, 1)
    stale = holding(job)._replace(token=uuid4())
    notes = [ProgressNote(stale, Progress(0.5))]
    assert await rig.store.leases.note_progress(notes) == []
    assert await rig.store.results.progress([job.id]) == {}
    await rig.store.leases.change(TRANSITIONS[Verb.RELEASE], [Change(holding(job))])
    assert await rig.store.leases.note_progress([ProgressNote(holding(job), Progress(0.5))]) == []
    assert await rig.store.results.progress([job.id]) == {}


async def test_progress_is_deleted_an_hour_after_its_job(rig: Rig) -> None:
    ended, held = await claimed(rig, 2)
    notes = [ProgressNote(holding(job), Progress(0.5)) for job in (ended, held)]
    await rig.store.leases.note_progress(notes)
    await rig.store.leases.change(COMPLETE, [Change(holding(ended))])
    await rig.store.leases.change(TRANSITIONS[Verb.HOLD], [Change(holding(held), error="x")])
    rig.clock.advance(HOUR + timedelta(seconds=1))
    await rig.store.leases.housekeep()
    assert set(await rig.store.results.progress([ended.id, held.id])) == {held.id}
