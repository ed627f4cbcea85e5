"""Recurring jobs: one job for each tick, whoever takes it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import DuplicateJobError
from holdfast.lifecycle import Status, Verb
from holdfast.models import ClaimRule, Job, Schedule
from tests.conformance.stores import LEASE, SECOND

if TYPE_CHECKING:
    from tests.conformance.stores import QueueUnderTest

START = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


async def register(queue: QueueUnderTest, name: str = "report", **fields: Any) -> Schedule:
    given: dict[str, Any] = {
        "expression": "* * * * *",
        "timezone": "UTC",
        "misfire": "once",
        "overlap": "allow",
        "first": START,
    } | fields
    return await queue.store.schedules.register(name, **given)


async def only(queue: QueueUnderTest) -> Schedule:
    [schedule] = await queue.store.schedules.all()
    return schedule


async def jobs_of(queue: QueueUnderTest, name: str = "report") -> list[Job]:
    return await queue.store.jobs.browse(status=None, entrypoint=name, limit=100)


async def test_a_new_schedule_waits_for_its_first_tick(queue: QueueUnderTest) -> None:
    schedule = await register(queue, timezone="Europe/Berlin", misfire="all", overlap="skip")
    now = queue.clock.now()
    assert schedule == Schedule(
        id=schedule.id,
        name="report",
        expression="* * * * *",
        timezone="Europe/Berlin",
        misfire="all",
        overlap="skip",
        paused=False,
        next_run=START,
        last_run=None,
        created=now,
        updated=now,
    )
    assert await only(queue) == schedule
    assert await jobs_of(queue) == []


async def test_registering_the_same_again_changes_nothing(queue: QueueUnderTest) -> None:
    schedule = await register(queue)
    queue.clock.advance(SECOND)
    assert await register(queue, first=START + MINUTE) == schedule
    assert await only(queue) == schedule


@pytest.mark.parametrize(
    ("changed", "starts_anew"),
    [
        ({"expression": "@daily"}, True),
        ({"timezone": "Asia/Tokyo"}, True),
        ({"misfire": "all"}, False),
        ({"overlap": "skip"}, False),
    ],
)
async def test_changed_times_start_anew_and_changed_policies_do_not(
    queue: QueueUnderTest, changed: dict[str, Any], starts_anew: bool
) -> None:
    schedule = await register(queue)
    queue.clock.advance(SECOND)
    again = await register(queue, first=START + MINUTE, **changed)
    next_run = START + MINUTE if starts_anew else START
    expected = schedule._replace(next_run=next_run, updated=queue.clock.now(), **changed)
    assert again == expected
    assert await only(queue) == expected


async def test_schedules_are_listed_by_name(queue: QueueUnderTest) -> None:
    for name in ("b", "a", "Z", "é"):
        await register(queue, name)
    assert [schedule.name for schedule in await queue.store.schedules.all()] == ["Z", "a", "b", "é"]


async def test_a_schedule_is_due_at_its_tick_and_not_before(queue: QueueUnderTest) -> None:
    later = await register(queue, "later", first=START + 2 * SECOND)
    sooner = await register(queue, "sooner", first=START + SECOND)
    await register(queue, "stranger")
    names = ["later", "sooner", "unknown"]
    assert await queue.store.schedules.due(names, START) == []
    assert await queue.store.schedules.due(names, START + SECOND) == [sooner]
    assert await queue.store.schedules.due(names, START + MINUTE) == [sooner, later]
    assert await queue.store.schedules.due([], START + MINUTE) == []


async def test_a_tick_becomes_a_job_and_moves_the_schedule_on(queue: QueueUnderTest) -> None:
    schedule = await register(queue)
    queue.clock.advance(SECOND)
    now = queue.clock.now()
    made = await queue.store.schedules.advance(schedule, [START], START + MINUTE)
    assert made is not None
    assert await only(queue) == schedule._replace(
        next_run=START + MINUTE, last_run=START, updated=now
    )
    [job] = await jobs_of(queue)
    assert [job.id] == made
    assert (job.entrypoint, job.status, job.execute_after) == ("report", Status.QUEUED, now)
    assert job.dedupe_key == "schedule:report:2030-01-01T00:00:00+00:00"
    assert job.headers == {"schedule": "report", "slot": "2030-01-01T00:00:00+00:00"}


async def test_a_tick_belongs_to_the_first_that_takes_it(queue: QueueUnderTest) -> None:
    schedule = await register(queue)
    takers = [queue.worker().schedules.advance(schedule, [START], START + MINUTE) for _ in range(5)]
    made = [ids for ids in await asyncio.gather(*takers) if ids is not None]
    assert len(made) == 1
    assert [job.id for job in await jobs_of(queue)] == made[0]


async def test_an_outdated_schedule_advances_nothing(queue: QueueUnderTest) -> None:
    schedule = await register(queue)
    await queue.store.schedules.advance(schedule, [START], START + MINUTE)
    before = await queue.rows()
    outdated = schedule, schedule._replace(next_run=START - MINUTE)
    for seen in outdated:
        assert await queue.store.schedules.advance(seen, [START], START + 9 * MINUTE) is None
    assert await queue.rows() == before


async def test_missed_ticks_become_one_job_each(queue: QueueUnderTest) -> None:
    schedule = await register(queue)
    slots = [START + n * MINUTE for n in range(3)]
    made = await queue.store.schedules.advance(schedule, slots, START + 3 * MINUTE)
    assert made is not None
    assert made == sorted(made)
    found = sorted(await jobs_of(queue))
    assert [(job.headers or {})["slot"] for job in found] == [slot.isoformat() for slot in slots]
    assert (await only(queue)).last_run == slots[-1]


async def test_a_schedule_may_move_on_without_a_job(queue: QueueUnderTest) -> None:
    schedule = await register(queue)
    assert await queue.store.schedules.advance(schedule, [], START + MINUTE) == []
    assert await only(queue) == schedule._replace(next_run=START + MINUTE)


async def test_a_tick_that_has_its_job_already_makes_no_second(queue: QueueUnderTest) -> None:
    schedule = await register(queue)
    triggered = await queue.store.schedules.trigger(schedule, START)
    made = await queue.store.schedules.advance(
        schedule, [START, START + MINUTE], START + 2 * MINUTE
    )
    assert made is not None
    assert len(made) == 1
    assert sorted(job.id for job in await jobs_of(queue)) == [triggered, *made]


@pytest.mark.parametrize("status", [Status.QUEUED, Status.PICKED])
async def test_ticks_that_must_not_overlap_wait_for_the_one_before(
    queue: QueueUnderTest, status: Status
) -> None:
    rule = ClaimRule("report", LEASE)
    schedule = await register(queue, overlap="skip")
    slots = [START, START + MINUTE]
    assert len(await queue.store.schedules.advance(schedule, slots, START + 2 * MINUTE) or []) == 1
    jobs = await queue.claim(rule) if status is Status.PICKED else []
    schedule = await only(queue)
    later = schedule.next_run
    assert await queue.store.schedules.advance(schedule, [later], later + MINUTE) == []
    for job in jobs or await queue.claim(rule):
        await queue.settle(Verb.COMPLETE, job)
    schedule = await only(queue)
    later = schedule.next_run
    assert len(await queue.store.schedules.advance(schedule, [later], later + MINUTE) or []) == 1


async def test_a_job_that_only_has_the_same_entrypoint_is_no_overlap(queue: QueueUnderTest) -> None:
    await queue.add("report")
    schedule = await register(queue, overlap="skip")
    assert len(await queue.store.schedules.advance(schedule, [START], START + MINUTE) or []) == 1


async def test_a_paused_schedule_neither_comes_due_nor_advances(queue: QueueUnderTest) -> None:
    schedule = await register(queue)
    queue.clock.advance(SECOND)
    assert await queue.store.schedules.set_paused("report", True, None)
    paused = await only(queue)
    assert paused == schedule._replace(paused=True, updated=queue.clock.now())
    assert await queue.store.schedules.due(["report"], START + MINUTE) == []
    assert await queue.store.schedules.advance(schedule, [START], START + MINUTE) is None
    assert await only(queue) == paused
    assert await jobs_of(queue) == []


async def test_a_resumed_schedule_starts_from_the_tick_given(queue: QueueUnderTest) -> None:
    schedule = await register(queue)
    await queue.store.schedules.set_paused("report", True, None)
    assert await queue.store.schedules.set_paused("report", False, START + MINUTE)
    assert await only(queue) == schedule._replace(next_run=START + MINUTE)
    assert (await register(queue)).paused is False


async def test_registering_does_not_resume_a_paused_schedule(queue: QueueUnderTest) -> None:
    await register(queue)
    await queue.store.schedules.set_paused("report", True, None)
    assert (await register(queue, expression="@daily")).paused is True


async def test_a_schedule_can_be_triggered_beside_its_ticks(queue: QueueUnderTest) -> None:
    schedule = await register(queue)
    made = await queue.store.schedules.trigger(schedule, START + SECOND)
    [job] = await jobs_of(queue)
    assert job.id == made
    assert job.headers == {"schedule": "report", "slot": "2030-01-01T00:00:01+00:00"}
    assert await only(queue) == schedule
    with pytest.raises(DuplicateJobError):
        await queue.store.schedules.trigger(schedule, START + SECOND)


async def test_a_removed_schedule_is_gone_and_its_jobs_stay(queue: QueueUnderTest) -> None:
    schedule = await register(queue)
    await queue.store.schedules.trigger(schedule, START)
    assert await queue.store.schedules.remove("report") is True
    assert await queue.store.schedules.all() == []
    assert len(await jobs_of(queue)) == 1
    assert await queue.store.schedules.remove("report") is False
    assert await queue.store.schedules.set_paused("report", True, None) is False
    assert await queue.store.schedules.advance(schedule, [START], START + MINUTE) is None


async def test_a_schedule_that_was_removed_and_made_again_is_another(queue: QueueUnderTest) -> None:
    old = await register(queue)
    await queue.store.schedules.remove("report")
    new = await register(queue)
    assert new.id != old.id
    assert await queue.store.schedules.advance(old, [START], START + MINUTE) is None
    assert await queue.store.schedules.advance(new, [START], START + MINUTE) is not None
