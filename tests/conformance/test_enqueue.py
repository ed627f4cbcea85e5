"""What is enqueued is what a worker will get."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from holdfast.lifecycle import Status
from holdfast.models import Job, JobId, LargePayload, NewJob
from holdfast.queries import Queries
from tests.conformance.stores import SECOND, holding, ids

if TYPE_CHECKING:
    from tests.conformance.stores import QueueUnderTest

EVERY_BYTE = bytes(range(256))


async def test_a_new_job_has_no_counts_and_no_lease(
    queue: QueueUnderTest,
) -> None:
    [job_id] = await queue.queries.enqueue("mail")
    now = queue.clock.now()
    assert await queue.row(job_id) == Job(
        id=job_id,
        entrypoint="mail",
        payload=None,
        priority=0,
        status=Status.QUEUED,
        execute_after=now,
        attempts=0,
        recoveries=0,
        max_attempts=None,
        max_recoveries=None,
        dedupe_key=None,
        headers=None,
        created=now,
        updated=now,
        heartbeat=None,
        claim_token=None,
        claimed_by=None,
        claimed_at=None,
        lease=None,
        last_error=None,
        last_error_at=None,
        held_at=None,
    )


async def test_every_field_that_was_given_is_kept(queue: QueueUnderTest) -> None:
    new = NewJob("mail", b"to", 7, SECOND, "key", {"trace": "1"}, max_attempts=5, max_recoveries=2)
    [job_id] = await queue.queries.enqueue_many([new])
    assert job_id is not None
    job = await queue.row(job_id)
    kept = (job.entrypoint, job.payload, job.priority, job.execute_after - queue.clock.now())
    assert kept == ("mail", b"to", 7, SECOND)
    assert (job.dedupe_key, job.headers) == ("key", {"trace": "1"})
    assert (job.max_attempts, job.max_recoveries) == (5, 2)


async def test_a_job_is_kept_alike_alone_and_in_company(queue: QueueUnderTest) -> None:
    instant = datetime(2031, 6, 1, 12, 30, 0, 123456, timezone(timedelta(hours=5, minutes=30)))
    jobs = [
        NewJob("mail"),
        NewJob("mail", b"", -(2**31), SECOND, headers={}, max_attempts=1),
        NewJob("sms", EVERY_BYTE, 2**31 - 1, instant, max_recoveries=2),
        NewJob("mail", None, 1, headers={"escape": r"\u0000 \ud800", "a": [2.5, None]}),
    ]
    together = await queue.queries.enqueue_many(jobs)
    alone = [job_id for job in jobs for job_id in await queue.queries.enqueue_many([job])]
    no_job = JobId(0)
    assert [(await queue.row(job_id or no_job))._replace(id=no_job) for job_id in alone] == [
        (await queue.row(job_id or no_job))._replace(id=no_job) for job_id in together
    ]


@pytest.mark.parametrize(
    "payload", [None, b"", EVERY_BYTE, b"\0" * 100_000], ids=["none", "empty", "all bytes", "long"]
)
async def test_a_payload_comes_back_byte_for_byte(
    queue: QueueUnderTest, payload: bytes | None
) -> None:
    job = await queue.lease(payload=payload)
    assert await queue.store.leases.payloads([holding(job)]) == {holding(job): payload}
    if isinstance(job.payload, LargePayload):
        # The reply to the claim has its size alone.
        assert payload is not None
        assert job.payload.size == len(payload)
    else:
        assert job.payload == payload


async def test_a_payload_is_given_to_the_holder_of_the_lease_alone(queue: QueueUnderTest) -> None:
    job = await queue.lease(payload=b"x")
    stranger = holding(job)._replace(token=uuid4())
    assert await queue.store.leases.payloads([stranger]) == {}


@pytest.mark.parametrize(
    ("headers", "back"),
    [
        (None, None),
        ({}, {}),
        (
            {"a": [1, 2.5, None, {"b": True}], "": "blank"},
            {"a": [1, 2.5, None, {"b": True}], "": "blank"},
        ),
        ({"pair": (1, 2)}, {"pair": [1, 2]}),
        ({"smile": "\N{GRINNING FACE}", "é": "ü"}, {"smile": "\N{GRINNING FACE}", "é": "ü"}),
        ({"escape": r"\u0000 \ud800"}, {"escape": r"\u0000 \ud800"}),
    ],
    ids=["none", "empty", "nested", "tuple", "beyond the BMP", "backslashes"],
)
async def test_headers_come_back_as_json_gives_them(
    queue: QueueUnderTest, headers: Any, back: Any
) -> None:
    [job_id] = await queue.queries.enqueue("mail", headers=headers)
    assert (await queue.row(job_id)).headers == back


@pytest.mark.parametrize("name", ["a b", "naïve", 'it\'s "quoted"', "$1 :name {x} %s", "x" * 200])
async def test_any_readable_name_is_an_entrypoint(queue: QueueUnderTest, name: str) -> None:
    job = await queue.lease(name)
    assert job.entrypoint == name


@pytest.mark.parametrize("priority", [-(2**31), -1, 2**31 - 1])
async def test_priorities_span_the_whole_range(queue: QueueUnderTest, priority: int) -> None:
    assert (await queue.lease(priority=priority)).priority == priority


async def test_parallel_lists_make_one_job_for_each_place(queue: QueueUnderTest) -> None:
    job_ids = await queue.queries.enqueue(
        ["mail", "sms"], [b"1", None], [3, 4], [None, SECOND], ["k", None], [None, {"h": 1}]
    )
    jobs = await queue.queries.get_jobs(job_ids)
    assert ids(jobs) == job_ids
    assert [(job.entrypoint, job.payload, job.priority) for job in jobs] == [
        ("mail", b"1", 3),
        ("sms", None, 4),
    ]
    assert [job.execute_after - queue.clock.now() for job in jobs] == [timedelta(0), SECOND]
    assert [(job.dedupe_key, job.headers) for job in jobs] == [("k", None), (None, {"h": 1})]


async def test_a_single_value_is_repeated_beside_a_list(queue: QueueUnderTest) -> None:
    job_ids = await queue.queries.enqueue("mail", [b"1", b"2", b"3"], 5, max_attempts=2)
    jobs = await queue.queries.get_jobs(job_ids)
    assert {(job.entrypoint, job.priority, job.max_attempts) for job in jobs} == {("mail", 5, 2)}
    assert [job.payload for job in jobs] == [b"1", b"2", b"3"]


async def test_ids_rise_in_the_order_given(queue: QueueUnderTest) -> None:
    payloads = [str(number).encode() for number in range(300)]
    job_ids = await queue.queries.enqueue("mail", payloads)
    assert job_ids == sorted(set(job_ids))
    assert [job.payload for job in await queue.queries.get_jobs(job_ids)] == payloads


async def test_nothing_is_made_of_empty_lists(queue: QueueUnderTest) -> None:
    assert await queue.queries.enqueue([]) == []
    assert await queue.queries.enqueue_many([]) == []
    assert (await queue.rows()).jobs == []


async def test_a_delay_counts_from_the_clock_of_the_store(queue: QueueUnderTest) -> None:
    queue.clock.advance(timedelta(days=3))
    [job_id] = await queue.queries.enqueue("mail", execute_after=timedelta(hours=1))
    assert (await queue.row(job_id)).execute_after == queue.clock.now() + timedelta(hours=1)


@pytest.mark.parametrize("year", [1970, 2031, 9000])
async def test_an_instant_is_kept_in_utc(queue: QueueUnderTest, year: int) -> None:
    instant = datetime(year, 6, 1, 12, 30, 0, 123456, timezone(timedelta(hours=5, minutes=30)))
    [job_id] = await queue.queries.enqueue("mail", execute_after=instant)
    back = (await queue.row(job_id)).execute_after
    assert back.isoformat() == f"{year}-06-01T07:00:00.123456+00:00"


async def test_a_payload_of_exactly_the_limit_is_taken(queue: QueueUnderTest) -> None:
    queries = Queries(queue.store, max_payload=4)
    [job_id] = await queries.enqueue("mail", b"1234")
    assert (await queue.row(job_id)).payload == b"1234"


async def test_enqueuing_and_claiming_write_no_log(queue: QueueUnderTest) -> None:
    await queue.lease()
    assert (await queue.rows()).log == []


async def test_changing_the_headers_of_a_job_in_hand_does_not_change_the_row(
    queue: QueueUnderTest,
) -> None:
    given = {"tags": ["a"]}
    job_id = await queue.add(headers=given)
    given["tags"].append("producer")
    [job] = await queue.claim()
    assert job.headers is not None
    job.headers["tags"].append("handler")
    assert (await queue.row(job_id)).headers == {"tags": ["a"]}
