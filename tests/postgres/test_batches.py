"""Two batches of the same jobs meet, whose rows lie in the table against the order of their ids."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.lifecycle import TRANSITIONS, Verb
from holdfast.models import Job, LeaseKey
from tests.postgres import tables
from tests.postgres.stage import stage_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from tests.postgres.stage import Session, Stage
    from tests.servers import Database

COMPLETE, HOLD, CANCEL = (TRANSITIONS[verb] for verb in (Verb.COMPLETE, Verb.HOLD, Verb.CANCEL))


@pytest.fixture
async def stage(pg: Database) -> AsyncIterator[Stage]:
    async with stage_on(pg.dsn) as here:
        yield here


BATCHES: dict[str, Callable[[Session, Sequence[Job]], Coroutine[Any, Any, Any]]] = {
    "complete": lambda session, jobs: session.change(COMPLETE, *jobs),
    "hold": lambda session, jobs: session.change(HOLD, *jobs),
    "renew": lambda session, jobs: session.store.leases.renew(
        [LeaseKey(job.id, job.claim_token) for job in jobs if job.claim_token]
    ),
    "cancel": lambda session, jobs: session.remove(CANCEL, *jobs),
}


async def scattered(stage: Stage, number: int) -> list[Job]:
    """Leased jobs, by id, whose rows lie in the table the other way round."""
    await stage.enqueue(number)
    jobs = await stage.a.claim(limit=number)
    await stage.observer.execute("delete from holdfast; delete from holdfast_leases")
    await tables.load(stage.observer, reversed(jobs))
    return jobs


async def in_a_transaction(session: Session, name: str, jobs: Sequence[Job]) -> Any:
    """Where a deadlock is an error, instead of a reason to try again."""
    async with session.connection.transaction():
        return await BATCHES[name](session, jobs)


async def meet(
    stage: Stage, one: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any], middle: Job
) -> tuple[int, int]:
    """Let both go on at once, when one of the rows stops being in their way."""
    async with stage.blocker.transaction():
        await stage.blocker.fetch("select from holdfast where id = $1 for update", middle.id)
        first = await stage.begin(one, stage.a)
        second = await stage.begin(other, stage.b)
    return len(await first), len(await second)


@pytest.mark.parametrize(
    ("one", "other"),
    [("hold", "cancel"), ("hold", "hold"), ("cancel", "hold"), ("complete", "complete")],
)
async def test_batches_in_opposite_order_do_not_deadlock(
    stage: Stage, one: str, other: str
) -> None:
    jobs = await scattered(stage, 200)
    mine = in_a_transaction(stage.a, one, jobs)
    theirs = in_a_transaction(stage.b, other, jobs[::-1])
    first, second = await meet(stage, mine, theirs, jobs[100])
    assert (first, second) == (len(jobs), len(jobs) if (one, other) == ("hold", "cancel") else 0)


@pytest.mark.parametrize(("one", "other"), list(combinations_with_replacement(BATCHES, 2)))
async def test_batches_that_meet_end_with_each_job_settled_once(
    stage: Stage, one: str, other: str
) -> None:
    """Which rows a statement locks first depends on its plan; two that collide try again."""
    jobs = await scattered(stage, 200)
    mine, theirs = BATCHES[one](stage.a, jobs), BATCHES[other](stage.b, jobs[::-1])
    first, second = await meet(stage, mine, theirs, jobs[100])
    assert len(jobs) in (first, second)
    ends = [entry for entry in await tables.log(stage.observer) if entry.claimed_at is not None]
    assert len({entry.job_id for entry in ends}) == len(ends)
