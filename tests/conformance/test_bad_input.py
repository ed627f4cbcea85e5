"""Bad input is one typed error, in the same words everywhere, and changes nothing."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import HoldfastError, InvalidInput, JobNotFound
from holdfast.models import HeldFilter, NewJob
from holdfast.queries import Queries
from holdfast.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from holdfast.ports import Store
    from tests.conformance.stores import QueueUnderTest

    Call = Callable[[Any], Awaitable[object]]

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
EAST = timezone(timedelta(hours=14))
DEEP: list[Any] = []
DEEP.append(DEEP)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


JOBS: Mapping[str, Mapping[str, tuple[dict[str, Any], str]]] = {
    "times": {
        "delay of a thousand years back": (
            {"execute_after": timedelta(days=-365_000)},
            "must be a delay from -36500 days",
        ),
        "endless delay": ({"execute_after": timedelta.max}, "must be a delay from -36500 days"),
        "naive instant": (
            {"execute_after": datetime(2030, 1, 1)},
            "2030-01-01T00:00:00 has no time",
        ),
        "instant before time": (
            {"execute_after": datetime(1, 1, 1, tzinfo=EAST)},
            r"years 2 to 9998 in UTC, got 0001-01-01T00:00:00\+14:00",
        ),
        "last of all instants": (
            {"execute_after": datetime.max.replace(tzinfo=UTC)},
            "years 2 to 9998 in UTC, got 9999-12-31",
        ),
        "delay as a number": ({"execute_after": 5}, "timedelta or an aware datetime, got 5"),
        "infinite delay": ({"execute_after": float("inf")}, "got inf"),
        "delay that is no number": ({"execute_after": float("nan")}, "got nan"),
        "delay as a text": ({"execute_after": "tomorrow"}, "got 'tomorrow'"),
    },
    "payloads": {
        "payload as a text": ({"payload": "text"}, "payload must be bytes or None, got str"),
        "payload as a buffer": ({"payload": bytearray(b"1")}, "got bytearray; encode it"),
        "payload as a dict": ({"payload": {"a": 1}}, "got dict; encode it"),
        "payload over the limit": ({"payload": bytes(2**20 + 1)}, "payload has 1048577 bytes"),
    },
    "entrypoints": {
        "no entrypoint": ({"entrypoint": None}, "entrypoint must be a string that is not blank"),
        "blank entrypoint": (
            {"entrypoint": " \t"},
            "entrypoint must be a string that is not blank",
        ),
        "long entrypoint": ({"entrypoint": "x" * 201}, "entrypoint has 201 characters"),
        "NUL in the entrypoint": ({"entrypoint": "a\0b"}, r"'a\\x00b' holds a NUL"),
        "surrogate in the entrypoint": ({"entrypoint": "\udc80"}, "lone surrogate"),
    },
    "priorities": {
        "priority as a float": ({"priority": 1.5}, "priority must be an integer .* got 1.5"),
        "priority as a truth": ({"priority": True}, "priority must be an integer .* got True"),
        "priority too high": ({"priority": 2**31}, "got 2147483648"),
        "priority too low": ({"priority": -(2**31) - 1}, "got -2147483649"),
    },
    "keys": {
        "blank key": ({"dedupe_key": ""}, "dedupe_key must be a string that is not blank, got ''"),
        "key as a number": ({"dedupe_key": 7}, "dedupe_key must be a string .* got 7"),
        "long key": ({"dedupe_key": "x" * 2001}, "dedupe_key has 2001 characters"),
        "wide key": ({"dedupe_key": "\N{SNOWMAN}" * 667}, "dedupe_key has 2001 bytes in UTF-8"),
        "NUL in the key": ({"dedupe_key": "\0"}, "dedupe_key .* holds a NUL"),
    },
    "headers": {
        "headers as a text": ({"headers": "a=1"}, "headers must be a mapping with string keys"),
        "headers with numbers as keys": ({"headers": {1: "a"}}, "string keys, got the key 1"),
        "deep headers": ({"headers": {"a": nested(100)}}, "nested more than 100 levels deep"),
        "headers with what is not JSON": ({"headers": {"a": {1}}}, "headers must be JSON"),
        "headers with NaN": ({"headers": {"a": float("nan")}}, "headers must be JSON"),
        "headers without end": ({"headers": {"a": DEEP}}, "headers must be JSON"),
        "NUL in the headers": ({"headers": {"a": ["\0"]}}, "headers hold a NUL"),
        "NUL in the name of a header": ({"headers": {"\\\0": 1}}, "headers hold a NUL"),
        "surrogate in the headers": ({"headers": {"a": "\ud800"}}, "lone surrogate"),
        "low surrogate in the headers": ({"headers": {"a": "\udfff"}}, "lone surrogate"),
        "large headers": ({"headers": {"a": "x" * 65536}}, "headers have 65545 characters"),
    },
    "caps": {
        "no attempts": ({"max_attempts": 0}, "max_attempts must be an integer from 1"),
        "attempts as a text": ({"max_attempts": "3"}, "max_attempts must be .* got '3'"),
    },
}

CALLS: Mapping[str, Mapping[str, tuple[Call, str]]] = {
    "batches": {
        "a bad job among good ones": (
            lambda q: q.enqueue_many([NewJob("a"), NewJob("b", priority=2**40), NewJob("c")]),
            "job 1 of 3: priority must be an integer",
        ),
        "lists of different length": (
            lambda q: q.enqueue(["mail", "mail"], [b"1", b"2", b"3"]),
            "parallel lists must have one length, got entrypoint: 2, payload: 3",
        ),
        "a list as long as none": (
            lambda q: q.enqueue("mail", [b"1"], priority=[]),
            "got payload: 1, priority: 0",
        ),
        "unknown on_conflict": (
            lambda q: q.enqueue("mail", on_conflict="ignore"),
            'on_conflict must be "raise", "skip" or "update_priority", got \'ignore\'',
        ),
        "the third of a batch": (
            lambda q: q.enqueue("mail", [b"1", b"2", "3"]),
            "job 2 of 3: payload must be bytes",
        ),
        "something else than a job": (
            lambda q: q.enqueue_many([NewJob("mail"), {"entrypoint": "mail"}]),
            "job 1 of 2: expected a NewJob",
        ),
        "a job instead of a list": (
            lambda q: q.enqueue_many(NewJob("mail")),
            "jobs must be a list of NewJob",
        ),
        "no recoveries": (
            lambda q: q.enqueue_many([NewJob("mail", max_recoveries=0)]),
            "max_recoveries must be an integer from 1",
        ),
    },
    "requeue": {
        "requeue a text": (lambda q: q.requeue_jobs(["1"]), "integer of at least 1, got '1'"),
        "requeue one id": (
            lambda q: q.requeue_jobs(1),
            r"ids must be a list of job ids, got 1; .*\[1\]",
        ),
        "requeue by a NUL": (lambda q: q.requeue_jobs([1], actor="a\0"), "actor 'a.*' holds a NUL"),
    },
    "edit": {
        "a text as payload": (lambda q: q.edit_job(1, "text"), "payload must be bytes or None"),
        "a long payload": (lambda q: q.edit_job(1, bytes(2**20 + 1)), "payload has 1048577 bytes"),
        "an id that is none": (lambda q: q.edit_job(0, b""), "at least 1, got 0"),
        "by a NUL": (lambda q: q.edit_job(1, b"", actor="\0"), "actor .* holds a NUL"),
        "resolve without a reason": (lambda q: q.resolve_job(1, " "), "a reason, got ' '"),
        "requeue without attempts": (
            lambda q: q.requeue_jobs([1], max_attempts=0),
            "max_attempts must be .* got 0",
        ),
    },
    "held": {
        "of a NUL": (lambda q: q.list_failed_jobs(among=HeldFilter("\0")), "holds a NUL"),
        "with a NUL": (
            lambda q: q.list_failed_jobs(among=HeldFilter(error="\0")),
            "error .* holds a NUL",
        ),
        "in the future": (
            lambda q: q.list_failed_jobs(among=HeldFilter(older_than=-SECOND)),
            "older_than must be a timedelta from 0",
        ),
        "since always": (
            lambda q: q.list_failed_jobs(among=HeldFilter(since=timedelta.max)),
            "since must be a timedelta from 0",
        ),
    },
    "cancel": {
        "cancel zero": (lambda q: q.mark_job_as_cancelled([1, 0]), "at least 1, got 0"),
        "cancel a negative id": (lambda q: q.mark_job_as_cancelled([-1]), "at least 1, got -1"),
        "cancel for a number": (
            lambda q: q.mark_job_as_cancelled([1], reason=7),
            "reason must be a string or None, got 7",
        ),
    },
    "delete": {
        "delete a truth": (lambda q: q.delete_jobs([True]), "at least 1, got True"),
        "delete an id too large": (lambda q: q.delete_jobs([2**63]), "got 9223372036854775808"),
        "delete nothing at all": (lambda q: q.delete_jobs(None), "ids must be a list of job ids"),
        "delete for a surrogate": (lambda q: q.delete_jobs([1], reason="\ud800"), "lone surrogate"),
    },
    "reads": {
        "get a fraction": (lambda q: q.get_jobs([1.0]), "at least 1, got 1.0"),
        "status of a text": (lambda q: q.job_status("12"), "ids must be a list of job ids"),
        "history of a text": (lambda q: q.job_history("1"), "at least 1, got '1'"),
        "no held jobs": (lambda q: q.list_failed_jobs(0), "limit must be .* from 1 to .* got 0"),
        "half a running job": (lambda q: q.list_running_jobs(0.5), "limit must be .* got 0.5"),
    },
    "queue": {
        "browse too many": (lambda q: q.browse_queue(limit=2**31), "got 2147483648"),
        "browse an unknown status": (
            lambda q: q.browse_queue(status="done"),
            "status must be one of queued, picked, .*; got 'done'",
        ),
        "browse a NUL": (lambda q: q.browse_queue(entrypoint="\0"), "entrypoint .* holds a NUL"),
        "size of a text": (lambda q: q.queue_size("mail"), r"write \['mail'\]"),
        "size of a NUL": (lambda q: q.queue_size(["mail", "\0"]), "entrypoint .* holds a NUL"),
    },
    "log": {
        "log of a truth": (lambda q: q.queue_log(limit=True), "limit must be .* got True"),
        "log of an unknown status": (lambda q: q.queue_log(status=3), "status must be one of"),
        "log of a negative time": (
            lambda q: q.queue_log(last=-DAY),
            "last must be a timedelta from 0",
        ),
    },
    "statistics": {
        "statistics of none": (lambda q: q.log_statistics(limit=0), "limit must be .* got 0"),
        "statistics of a number": (lambda q: q.log_statistics(last=60), "last must be .* got 60"),
        "statistics of all time": (lambda q: q.log_statistics(last=timedelta.max), "last must be"),
    },
    "prune": {
        "prune the future": (
            lambda q: q.prune_log(-SECOND),
            "older_than must be a timedelta from 0",
        ),
        "prune all time": (lambda q: q.prune_log(timedelta.max), "older_than must be"),
        "prune none": (lambda q: q.prune_log(DAY, limit=0), "limit must be .* got 0"),
    },
}


async def error_of(store: Store, call: Call) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        await call(Queries(store))
    return caught.value


async def assert_refused(
    queue: QueueUnderTest,
    calls: Mapping[str, tuple[Call, str]],
    kind: type[HoldfastError] = InvalidInput,
) -> None:
    await queue.hold()
    await queue.add(dedupe_key="k")
    before = await queue.rows()
    memory = MemoryStore(queue.clock)
    for case, (call, message) in calls.items():
        error = await error_of(queue.store, call)
        assert (case, type(error)) == (case, kind)
        assert re.search(message, str(error)), (case, error)
        assert str(error) == str(await error_of(memory, call))
    assert await queue.rows() == before


@pytest.mark.parametrize("topic", JOBS)
async def test_a_job_that_can_never_be_stored_is_refused(queue: QueueUnderTest, topic: str) -> None:
    def enqueuing(fields: dict[str, Any]) -> Call:
        return lambda queries: queries.enqueue(**{"entrypoint": "mail", **fields})

    cases = JOBS[topic].items()
    await assert_refused(queue, {case: (enqueuing(bad), words) for case, (bad, words) in cases})


@pytest.mark.parametrize("topic", CALLS)
async def test_a_call_that_makes_no_sense_is_refused(queue: QueueUnderTest, topic: str) -> None:
    await assert_refused(queue, CALLS[topic])


async def test_an_id_that_does_not_exist_is_not_found(queue: QueueUnderTest) -> None:
    unknown = 4_000_000_000_000
    words = f"job {unknown} is neither in the queue nor in the log"
    calls: dict[str, tuple[Call, str]] = {
        "status": (lambda queries: queries.job_status([unknown]), words),
        "history": (lambda queries: queries.job_history(unknown), words),
    }
    await assert_refused(queue, calls, JobNotFound)


async def test_the_farthest_instants_are_no_bad_input(queue: QueueUnderTest) -> None:
    first = datetime(2, 1, 1, tzinfo=UTC)
    last = datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    job_ids = await queue.queries.enqueue("mail", execute_after=[first, last])
    jobs = await queue.queries.get_jobs(job_ids)
    assert [job.execute_after for job in jobs] == [first, last]
    assert [job.id for job in await queue.claim()] == job_ids[:1]
