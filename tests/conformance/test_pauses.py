"""A person pauses an entrypoint, and no worker claims its jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import InvalidInput, NotPaused
from holdfast.lifecycle import Verb
from holdfast.models import ClaimRule, NewJob, Pause
from holdfast.scheduler.manager import ScheduleQueries
from tests.conformance.stores import LEASE, SECOND, WANT, ids

if TYPE_CHECKING:
    from tests.conformance.stores import Rig

SMS = ClaimRule("sms", LEASE)
START = datetime(2030, 1, 1, tzinfo=UTC)


async def test_a_paused_entrypoint_is_not_claimed_and_others_are(rig: Rig) -> None:
    mail, sms = await rig.enqueue(NewJob("mail"), NewJob("sms"))
    paused = await rig.queries.pause("mail", reason="smtp is down", actor="ann")
    assert paused == Pause("mail", None, "ann", "smtp is down", START)
    assert ids(await rig.claim_any(WANT, SMS)) == [sms]
    assert await rig.queries.list_pauses() == [paused]
    await rig.queries.resume("mail", actor="ben", reason="it is back")
    assert ids(await rig.claim_any(WANT, SMS)) == [mail]
    assert await rig.queries.list_pauses() == []
    told = [(a.act, a.subject, a.actor, a.reason) for a in await rig.queries.list_acts()]
    assert told == [
        ("resume", "mail", "ben", "it is back"),
        ("pause", "mail", "ann", "smtp is down"),
    ]


async def test_everything_can_be_paused(rig: Rig) -> None:
    jobs = await rig.enqueue(NewJob("mail"), NewJob("sms"))
    await rig.queries.pause(everything=True, reason="move")
    assert await rig.claim_any(WANT, SMS) == []
    with pytest.raises(NotPaused, match="mail"):
        await rig.queries.resume("mail")
    await rig.queries.resume(everything=True)
    assert ids(await rig.claim_any(WANT, SMS)) == jobs


@pytest.mark.parametrize("until", [10 * SECOND, START + 10 * SECOND])
async def test_a_pause_ends_at_its_time(rig: Rig, until: Any) -> None:
    job_id = await rig.add()
    paused = await rig.queries.pause("mail", until=until, reason="a while")
    assert paused.until == START + 10 * SECOND
    rig.clock.advance(9 * SECOND)
    assert await rig.claim() == []
    rig.clock.advance(SECOND)
    assert await rig.queries.list_pauses() == []
    assert ids(await rig.claim()) == [job_id]
    with pytest.raises(NotPaused):
        await rig.queries.resume("mail")


async def test_a_paused_job_keeps_its_time_and_its_place(rig: Rig) -> None:
    later, soon = await rig.add(execute_after=2 * SECOND), await rig.add(execute_after=SECOND)
    before = await rig.row(later)
    await rig.queries.pause("mail", reason="wait")
    rig.clock.advance(3 * SECOND)
    assert await rig.claim() == []
    assert await rig.row(later) == before
    await rig.queries.resume("mail")
    assert ids(await rig.claim()) == [soon, later]


async def test_a_running_job_finishes(rig: Rig) -> None:
    job = await rig.lease()
    await rig.queries.pause("mail", reason="wait")
    await rig.settle(Verb.COMPLETE, job)


async def test_recovered_jobs_and_suspects_are_paused_too(rig: Rig) -> None:
    await rig.add()
    await rig.claim()
    await rig.recover(worker="w1")
    await rig.queries.pause("mail", reason="wait")
    assert await rig.claim_any() == []
    waiting = await rig.worker().leases.recovered_waiting([WANT])
    assert (waiting.recovered, waiting.suspects) == (None, None)
    await rig.queries.resume("mail")
    assert len(await rig.claim_any()) == 1


async def test_a_second_pause_replaces_the_first(rig: Rig) -> None:
    await rig.queries.pause("mail", reason="one", until=SECOND)
    await rig.queries.pause("mail", reason="two", actor="ben")
    [pause] = await rig.queries.list_pauses()
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
async def test_what_cannot_be_paused_is_refused(rig: Rig, asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await rig.queries.pause(**asked)
    assert await rig.queries.list_acts() == []


async def test_what_people_do_to_schedules_and_breakers_is_listed(rig: Rig) -> None:
    schedules = ScheduleQueries(rig.store)
    await rig.store.schedules.register("report", "* * * * *", "UTC", "once", "allow", START)
    await schedules.pause("report", actor="ann", reason="month end")
    await schedules.resume("report", actor="ann")
    await schedules.run_now("report", actor="ann")
    await schedules.remove("report", actor="ann")
    await rig.queries.open_breaker("stripe", actor="ben", reason="their maintenance")
    await rig.queries.close_breaker("stripe", actor="ben", reason="it is over")
    # What a program does without naming a person is not listed.
    await rig.queries.open_breaker("stripe")
    told = [(a.act, a.subject, a.actor, a.reason) for a in await rig.queries.list_acts()]
    assert told == [
        ("close breaker", "stripe", "ben", "it is over"),
        ("open breaker", "stripe", "ben", "their maintenance"),
        ("remove schedule", "report", "ann", None),
        ("run schedule", "report", "ann", None),
        ("resume schedule", "report", "ann", None),
        ("pause schedule", "report", "ann", "month end"),
    ]
