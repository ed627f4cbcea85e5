"""A person pauses an entrypoint, and no worker claims its jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import InvalidInput, NotPaused
from holdfast.lifecycle import Verb
from holdfast.models import ClaimRule, NewJob, Pause
from holdfast.scheduler.manager import ScheduleQueries
from tests.conformance.stores import LEASE, RULE, SECOND, ids

if TYPE_CHECKING:
    from tests.conformance.stores import QueueUnderTest

SMS = ClaimRule("sms", LEASE)
START = datetime(2030, 1, 1, tzinfo=UTC)


async def test_a_paused_entrypoint_is_not_claimed_and_others_are(queue: QueueUnderTest) -> None:
    mail, sms = await queue.enqueue(NewJob("mail"), NewJob("sms"))
    paused = await queue.queries.pause("mail", reason="smtp is down", actor="ann")
    assert paused == Pause("mail", None, "ann", "smtp is down", START)
    assert ids(await queue.claim_any(RULE, SMS)) == [sms]
    assert await queue.queries.list_pauses() == [paused]
    await queue.queries.resume("mail", actor="ben", reason="it is back")
    assert ids(await queue.claim_any(RULE, SMS)) == [mail]
    assert await queue.queries.list_pauses() == []
    told = [(a.act, a.subject, a.actor, a.reason) for a in await queue.queries.list_acts()]
    assert told == [
        ("resume", "mail", "ben", "it is back"),
        ("pause", "mail", "ann", "smtp is down"),
    ]


async def test_everything_can_be_paused(queue: QueueUnderTest) -> None:
    jobs = await queue.enqueue(NewJob("mail"), NewJob("sms"))
    await queue.queries.pause(everything=True, reason="move")
    assert await queue.claim_any(RULE, SMS) == []
    with pytest.raises(NotPaused, match="mail"):
        await queue.queries.resume("mail")
    await queue.queries.resume(everything=True)
    assert ids(await queue.claim_any(RULE, SMS)) == jobs


@pytest.mark.parametrize("until", [10 * SECOND, START + 10 * SECOND])
async def test_a_pause_ends_at_its_time(queue: QueueUnderTest, until: Any) -> None:
    job_id = await queue.add()
    paused = await queue.queries.pause("mail", until=until, reason="a while")
    assert paused.until == START + 10 * SECOND
    queue.clock.advance(9 * SECOND)
    assert await queue.claim() == []
    queue.clock.advance(SECOND)
    assert await queue.queries.list_pauses() == []
    assert ids(await queue.claim()) == [job_id]
    with pytest.raises(NotPaused):
        await queue.queries.resume("mail")


async def test_a_paused_job_keeps_its_time_and_its_place(queue: QueueUnderTest) -> None:
    later, soon = await queue.add(execute_after=2 * SECOND), await queue.add(execute_after=SECOND)
    before = await queue.row(later)
    await queue.queries.pause("mail", reason="wait")
    queue.clock.advance(3 * SECOND)
    assert await queue.claim() == []
    assert await queue.row(later) == before
    await queue.queries.resume("mail")
    assert ids(await queue.claim()) == [soon, later]


async def test_a_running_job_finishes(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    await queue.queries.pause("mail", reason="wait")
    await queue.settle(Verb.COMPLETE, job)


async def test_recovered_jobs_and_suspects_are_paused_too(queue: QueueUnderTest) -> None:
    await queue.add()
    await queue.claim()
    await queue.recover(worker="w1")
    await queue.queries.pause("mail", reason="wait")
    assert await queue.claim_any() == []
    waiting = await queue.worker().leases.recovered_waiting([RULE])
    assert (waiting.recovered, waiting.suspects) == (None, None)
    await queue.queries.resume("mail")
    assert len(await queue.claim_any()) == 1


async def test_a_second_pause_replaces_the_first(queue: QueueUnderTest) -> None:
    await queue.queries.pause("mail", reason="one", until=SECOND)
    await queue.queries.pause("mail", reason="two", actor="ben")
    [pause] = await queue.queries.list_pauses()
    assert (pause.reason, pause.actor, pause.until) == ("two", "ben", None)


@pytest.mark.parametrize(
    "asked",
    [
        {"name": "mail", "reason": " "},
        {"name": "", "reason": "x"},
        {"reason": "x"},
        {"name": "mail", "everything": True, "reason": "x"},
        {"name": "mail", "reason": "x", "until": datetime(2030, 1, 1)},
        {"name": "mail", "reason": "x", "until": timedelta(seconds=-1)},
        {"name": "mail", "reason": "x", "until": "tomorrow"},
    ],
)
async def test_what_cannot_be_paused_is_refused(
    queue: QueueUnderTest, asked: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        await queue.queries.pause(**asked)
    assert await queue.queries.list_acts() == []


async def test_what_people_do_to_schedules_and_breakers_is_listed(queue: QueueUnderTest) -> None:
    schedules = ScheduleQueries(queue.store)
    await queue.store.schedules.register("report", "* * * * *", "UTC", "once", "allow", START)
    await schedules.pause("report", actor="ann", reason="month end")
    await schedules.resume("report", actor="ann")
    await schedules.run_now("report", actor="ann")
    await schedules.remove("report", actor="ann")
    await queue.queries.open_breaker("stripe", actor="ben", reason="their maintenance")
    await queue.queries.close_breaker("stripe", actor="ben", reason="it is over")
    # What a program does without naming a person is not listed.
    await queue.queries.open_breaker("stripe")
    told = [(a.act, a.subject, a.actor, a.reason) for a in await queue.queries.list_acts()]
    assert told == [
        ("close breaker", "stripe", "ben", "it is over"),
        ("open breaker", "stripe", "ben", "their maintenance"),
        ("remove schedule", "report", "ann", None),
        ("run schedule", "report", "ann", None),
        ("resume schedule", "report", "ann", None),
        ("pause schedule", "report", "ann", "month end"),
    ]
