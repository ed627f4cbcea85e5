"""What producers, operators and dashboards can ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import JobNotFound
from holdfast.lifecycle import FINAL, LIVE, Status, Verb
from holdfast.models import ClaimRule, JobId, NewJob, QueueSize, WorkerInfo
from tests.conformance.stores import LEASE, SECOND, WANT, ids

if TYPE_CHECKING:
    from tests.conformance.stores import Rig


async def test_get_gives_what_is_in_the_queue_by_id(rig: Rig) -> None:
    first, second, gone = await rig.enqueue(*[NewJob("mail")] * 3)
    await rig.queries.delete_jobs([gone])
    asked = [second, gone, JobId(gone + 1000), first, second]
    assert ids(await rig.queries.get_jobs(asked)) == [first, second]
    assert await rig.queries.get_jobs([]) == []


@pytest.mark.parametrize("status", LIVE)
async def test_the_status_of_a_job_is_that_of_its_row(rig: Rig, status: Status) -> None:
    job = (await rig.job_in(status)).job
    assert await rig.queries.job_status([job.id]) == [(job.id, status)]


async def test_the_status_of_a_job_that_left_is_how_it_ended(rig: Rig) -> None:
    gone = ids(await rig.ended())
    assert await rig.queries.job_status(gone) == list(zip(gone, FINAL, strict=True))


async def test_statuses_come_in_the_order_asked(rig: Rig) -> None:
    done = (await rig.lease()).id
    await rig.cancel(done)
    waiting = await rig.add()
    assert await rig.queries.job_status([waiting, done, waiting]) == [
        (waiting, Status.QUEUED),
        (done, Status.CANCELED),
        (waiting, Status.QUEUED),
    ]
    assert await rig.queries.job_status([]) == []


async def test_an_unknown_id_is_an_error_that_names_it(rig: Rig) -> None:
    known = await rig.add()
    unknown = JobId(known + 1000)
    for question in (rig.queries.job_status([known, unknown]), rig.queries.job_history(unknown)):
        with pytest.raises(JobNotFound, match=f"job {unknown} is neither") as caught:
            await question
        assert caught.value.job_id == unknown


async def test_a_history_tells_a_whole_life_in_order(rig: Rig) -> None:
    job = await rig.lease()
    assert await rig.queries.job_history(job.id) == []
    await rig.add()
    await rig.settle(Verb.RETRY, job, error="no", reason="busy")
    job, other = await rig.claim()
    await rig.settle(Verb.COMPLETE, other)
    await rig.recover(worker="w1")
    [job] = await rig.claim_recovered(worker="w2")
    await rig.settle(Verb.HOLD, job, error="no")
    await rig.queries.requeue_jobs([job.id], actor="ann")
    await rig.cancel(job.id)
    history = await rig.queries.job_history(job.id)
    assert {entry.job_id for entry in history} == {job.id}
    told = [(e.status, e.attempt, e.recoveries, e.claimed_by, e.actor) for e in history]
    assert told == [
        (Status.QUEUED, 0, 0, "w1", None),
        (Status.QUEUED, 1, 0, "w1", None),
        (Status.FAILED, 1, 1, "w2", None),
        (Status.QUEUED, 1, 1, None, "ann"),
        (Status.CANCELED, 0, 0, None, None),
    ]


async def test_held_jobs_are_listed_newest_first(rig: Rig) -> None:
    held = []
    for _ in range(3):
        held.append(await rig.hold())
        rig.clock.advance(SECOND)
    await rig.add()
    assert ids(await rig.queries.list_failed_jobs()) == held[::-1]
    assert ids(await rig.queries.list_failed_jobs(2)) == held[:0:-1]


async def test_running_jobs_are_listed_longest_first(rig: Rig) -> None:
    job_ids = await rig.enqueue(*[NewJob("mail", priority=n) for n in range(3)], NewJob("sms"))
    for _ in range(3):
        await rig.claim(limit=1)
        rig.clock.advance(SECOND)
    assert ids(await rig.queries.list_running_jobs()) == job_ids[2::-1]
    assert ids(await rig.queries.list_running_jobs(1)) == [job_ids[2]]


async def test_the_oldest_claimable_job_tells_how_long_an_entrypoint_waits(rig: Rig) -> None:
    now = rig.clock.now()
    await rig.enqueue(
        NewJob("mail", priority=5, execute_after=now - SECOND),
        NewJob("mail", execute_after=now - 2 * SECOND),
        NewJob("sms", execute_after=now - 3 * SECOND),
        NewJob("later", execute_after=SECOND),
    )
    await rig.claim(ClaimRule("sms", LEASE))
    assert await rig.queries.oldest_waiting() == {"mail": now - 2 * SECOND}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, [4, 3, 2, 1, 0]),
        ({"limit": 2}, [4, 3]),
        ({"entrypoint": "mail"}, [4, 2, 1, 0]),
        ({"status": "failed"}, [2]),
        ({"status": Status.PICKED, "entrypoint": "mail"}, [1, 0]),
        ({"status": "queued", "entrypoint": "sms"}, [3]),
        ({"entrypoint": "fax"}, []),
    ],
)
async def test_the_queue_can_be_browsed(rig: Rig, asked: dict[str, Any], found: list[int]) -> None:
    await rig.enqueue(*[NewJob("mail")] * 3)
    jobs = await rig.claim()
    await rig.settle(Verb.HOLD, jobs[2], error="no")
    others = await rig.enqueue(NewJob("sms"), NewJob("mail"))
    by_age = [*ids(jobs), *others]
    browsed = await rig.queries.browse_queue(**asked)
    assert ids(browsed) == [by_age[place] for place in found]


async def test_the_queue_is_counted_by_kind(rig: Rig) -> None:
    await rig.enqueue(NewJob("sms"), NewJob("mail", priority=2), *[NewJob("mail")] * 2, NewJob("Z"))
    await rig.claim(limit=1)
    expected = [
        QueueSize("Z", 0, Status.QUEUED, 1),
        QueueSize("mail", 0, Status.QUEUED, 2),
        QueueSize("mail", 2, Status.PICKED, 1),
        QueueSize("sms", 0, Status.QUEUED, 1),
    ]
    assert await rig.queries.queue_size() == expected
    assert await rig.queries.queue_size(["sms", "fax", "Z"]) == [expected[0], expected[3]]
    assert await rig.queries.queue_size([]) == []


async def test_an_empty_queue_has_no_size(rig: Rig) -> None:
    assert await rig.queries.queue_size() == []
    assert await rig.queries.oldest_waiting() == {}
    assert await rig.queries.list_running_jobs() == []


def reporting(rig: Rig, name: str, **fields: Any) -> WorkerInfo:
    now = rig.clock.now()
    info = WorkerInfo(name, "host", 1, "0.1", ["mail", "sms"], 10, 0, "running", now, now)
    return info._replace(**fields)


async def test_a_worker_is_known_from_its_report_to_its_sign_off(rig: Rig) -> None:
    first = reporting(rig, "w2")
    await rig.reports.report(first)
    await rig.reports.report(reporting(rig, "w1", entrypoints=[]))
    rig.clock.advance(SECOND)
    later = reporting(
        rig, "w2", entrypoints=["fax"], running=3, concurrency=4, state="draining", host="other",
        full_entrypoints=["fax"], breaker_names=["line"],
    )  # fmt: skip
    await rig.reports.report(later)
    workers = await rig.queries.list_workers()
    assert [worker.id for worker in workers] == ["w1", "w2"]
    assert workers[1] == later._replace(started_at=first.started_at, host="host")
    await rig.reports.sign_off("w2")
    await rig.reports.sign_off("nobody")
    assert [worker.id for worker in await rig.queries.list_workers()] == ["w1"]


async def test_signing_off_leaves_the_jobs_to_their_leases(rig: Rig) -> None:
    await rig.reports.report(reporting(rig, "w1"))
    job = await rig.lease()
    await rig.reports.sign_off("w1")
    assert await rig.row(job.id) == job


async def test_everybody_sees_the_clock_that_decides(rig: Rig) -> None:
    assert await rig.queries.now() == rig.clock.now()
    rig.clock.advance(SECOND)
    assert await rig.worker().jobs.now() == rig.clock.now()


async def test_another_worker_sees_the_same_jobs(rig: Rig) -> None:
    job_id = await rig.add()
    store = rig.worker()
    [job] = await store.leases.claim([WANT], limit=1, worker="w9")
    assert await rig.row(job_id) == job
