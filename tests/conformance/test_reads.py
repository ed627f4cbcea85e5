"""What producers, operators and dashboards can ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import JobNotFound
from holdfast.lifecycle import FINAL, LIVE, Status, Verb
from holdfast.models import ClaimRule, JobId, NewJob, QueueSize, WorkerInfo
from tests.conformance.stores import LEASE, RULE, SECOND, ids

if TYPE_CHECKING:
    from tests.conformance.stores import QueueUnderTest


async def test_get_gives_what_is_in_the_queue_by_id(queue: QueueUnderTest) -> None:
    first, second, gone = await queue.enqueue(*[NewJob("mail")] * 3)
    await queue.queries.delete_jobs([gone])
    asked = [second, gone, JobId(gone + 1000), first, second]
    assert ids(await queue.queries.get_jobs(asked)) == [first, second]
    assert await queue.queries.get_jobs([]) == []


@pytest.mark.parametrize("status", LIVE)
async def test_the_status_of_a_job_is_that_of_its_row(
    queue: QueueUnderTest, status: Status
) -> None:
    job = (await queue.job_in(status)).job
    assert await queue.queries.job_status([job.id]) == [(job.id, status)]


async def test_the_status_of_a_job_that_left_is_how_it_ended(queue: QueueUnderTest) -> None:
    gone = ids(await queue.ended())
    assert await queue.queries.job_status(gone) == list(zip(gone, FINAL, strict=True))


async def test_statuses_come_in_the_order_asked(queue: QueueUnderTest) -> None:
    done = (await queue.lease()).id
    await queue.cancel(done)
    waiting = await queue.add()
    assert await queue.queries.job_status([waiting, done, waiting]) == [
        (waiting, Status.QUEUED),
        (done, Status.CANCELED),
        (waiting, Status.QUEUED),
    ]
    assert await queue.queries.job_status([]) == []


async def test_an_unknown_id_is_an_error_that_names_it(queue: QueueUnderTest) -> None:
    known = await queue.add()
    unknown = JobId(known + 1000)
    for question in (
        queue.queries.job_status([known, unknown]),
        queue.queries.job_history(unknown),
    ):
        with pytest.raises(JobNotFound, match=f"job {unknown} is neither") as caught:
            await question
        assert caught.value.job_id == unknown


async def test_a_history_tells_a_whole_life_in_order(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    assert await queue.queries.job_history(job.id) == []
    await queue.add()
    await queue.settle(Verb.RETRY, job, error="no", reason="busy")
    job, other = await queue.claim()
    await queue.settle(Verb.COMPLETE, other)
    await queue.recover(worker="w1")
    [job] = await queue.claim_recovered(worker="w2")
    await queue.settle(Verb.HOLD, job, error="no")
    await queue.queries.requeue_jobs([job.id], actor="ann")
    await queue.cancel(job.id)
    history = await queue.queries.job_history(job.id)
    assert {entry.job_id for entry in history} == {job.id}
    told = [(e.status, e.attempt, e.recoveries, e.claimed_by, e.actor) for e in history]
    assert told == [
        (Status.QUEUED, 0, 0, "w1", None),
        (Status.QUEUED, 1, 0, "w1", None),
        (Status.FAILED, 1, 1, "w2", None),
        (Status.QUEUED, 1, 1, None, "ann"),
        (Status.CANCELED, 0, 0, None, None),
    ]


async def test_held_jobs_are_listed_newest_first(queue: QueueUnderTest) -> None:
    held = []
    for _ in range(3):
        held.append(await queue.hold())
        queue.clock.advance(SECOND)
    await queue.add()
    assert ids(await queue.queries.list_failed_jobs()) == held[::-1]
    assert ids(await queue.queries.list_failed_jobs(2)) == held[:0:-1]


async def test_running_jobs_are_listed_longest_first(queue: QueueUnderTest) -> None:
    job_ids = await queue.enqueue(*[NewJob("mail", priority=n) for n in range(3)], NewJob("sms"))
    for _ in range(3):
        await queue.claim(limit=1)
        queue.clock.advance(SECOND)
    assert ids(await queue.queries.list_running_jobs()) == job_ids[2::-1]
    assert ids(await queue.queries.list_running_jobs(1)) == [job_ids[2]]


async def test_the_oldest_claimable_job_tells_how_long_an_entrypoint_waits(
    queue: QueueUnderTest,
) -> None:
    now = queue.clock.now()
    await queue.enqueue(
        NewJob("mail", priority=5, execute_after=now - SECOND),
        NewJob("mail", execute_after=now - 2 * SECOND),
        NewJob("sms", execute_after=now - 3 * SECOND),
        NewJob("later", execute_after=SECOND),
    )
    await queue.claim(ClaimRule("sms", LEASE))
    assert await queue.queries.oldest_waiting() == {"mail": now - 2 * SECOND}


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
async def test_the_queue_can_be_browsed(
    queue: QueueUnderTest, asked: dict[str, Any], found: list[int]
) -> None:
    await queue.enqueue(*[NewJob("mail")] * 3)
    jobs = await queue.claim()
    await queue.settle(Verb.HOLD, jobs[2], error="no")
    others = await queue.enqueue(NewJob("sms"), NewJob("mail"))
    by_age = [*ids(jobs), *others]
    browsed = await queue.queries.browse_queue(**asked)
    assert ids(browsed) == [by_age[place] for place in found]


async def test_the_queue_is_counted_by_kind(queue: QueueUnderTest) -> None:
    await queue.enqueue(
        NewJob("sms"), NewJob("mail", priority=2), *[NewJob("mail")] * 2, NewJob("Z")
    )
    await queue.claim(limit=1)
    expected = [
        QueueSize("Z", 0, Status.QUEUED, 1),
        QueueSize("mail", 0, Status.QUEUED, 2),
        QueueSize("mail", 2, Status.PICKED, 1),
        QueueSize("sms", 0, Status.QUEUED, 1),
    ]
    assert await queue.queries.queue_size() == expected
    assert await queue.queries.queue_size(["sms", "fax", "Z"]) == [expected[0], expected[3]]
    assert await queue.queries.queue_size([]) == []


async def test_an_empty_queue_has_no_size(queue: QueueUnderTest) -> None:
    assert await queue.queries.queue_size() == []
    assert await queue.queries.oldest_waiting() == {}
    assert await queue.queries.list_running_jobs() == []


def reporting(queue: QueueUnderTest, name: str, **fields: Any) -> WorkerInfo:
    now = queue.clock.now()
    info = WorkerInfo(name, "host", 1, "0.1", ["mail", "sms"], 10, 0, "running", now, now)
    return info._replace(**fields)


async def test_a_worker_is_known_from_its_report_to_its_sign_off(queue: QueueUnderTest) -> None:
    first = reporting(queue, "w2")
    await queue.reports.report(first)
    await queue.reports.report(reporting(queue, "w1", entrypoints=[]))
    queue.clock.advance(SECOND)
    later = reporting(
        queue, "w2", entrypoints=["fax"], running=3, concurrency=4, state="draining", host="other",
        full_entrypoints=["fax"], breaker_names=["line"],
    )  # fmt: skip
    await queue.reports.report(later)
    workers = await queue.queries.list_workers()
    assert [worker.id for worker in workers] == ["w1", "w2"]
    assert workers[1] == later._replace(started_at=first.started_at, host="host")
    await queue.reports.sign_off("w2")
    await queue.reports.sign_off("unknown")
    assert [worker.id for worker in await queue.queries.list_workers()] == ["w1"]


async def test_signing_off_leaves_the_jobs_to_their_leases(queue: QueueUnderTest) -> None:
    await queue.reports.report(reporting(queue, "w1"))
    job = await queue.lease()
    await queue.reports.sign_off("w1")
    assert await queue.row(job.id) == job


async def test_every_reader_sees_the_clock_that_decides(queue: QueueUnderTest) -> None:
    assert await queue.queries.now() == queue.clock.now()
    queue.clock.advance(SECOND)
    assert await queue.worker().jobs.now() == queue.clock.now()


async def test_another_worker_sees_the_same_jobs(queue: QueueUnderTest) -> None:
    job_id = await queue.add()
    store = queue.worker()
    [job] = await store.leases.claim([RULE], limit=1, worker="w9")
    assert await queue.row(job_id) == job
