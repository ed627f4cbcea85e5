"""Any failure of a handler becomes another run, later and later."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidInput, RetryRequested
from holdfast.executors import AbstractEntrypointExecutor, DatabaseRetryEntrypointExecutor
from holdfast.models import Context, Job
from holdfast.retry import describe
from tests.unit.running import fail, make_job, parameters, run, succeed

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.task import Kind


def retrying(func: Callable[..., Any], kind: Kind = "async", **options: Any) -> Any:
    return DatabaseRetryEntrypointExecutor(parameters=parameters(func, kind), **options)


async def fail_async(job: Job) -> None:
    raise ValueError("boom")


@pytest.mark.parametrize(("kind", "func"), [("async", fail_async), ("thread", fail)])
async def test_a_failure_becomes_a_request_for_a_retry(
    kind: Kind, func: Callable[..., Any]
) -> None:
    with pytest.raises(RetryRequested) as caught:
        await run(retrying(func, kind), make_job(attempts=2))
    assert caught.value.delay == timedelta(seconds=4)
    assert caught.value.reason == "boom"
    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_failure_in_a_process_becomes_a_request_for_a_retry() -> None:
    with pytest.raises(RetryRequested) as caught:
        await run(retrying(fail, "process"))
    assert caught.value.reason == "boom"
    record = describe(caught.value)
    assert (record.exception_type, record.exception_message) == ("ValueError", "boom")
    assert "in fail" in record.traceback


async def test_a_handler_that_succeeds_is_left_alone() -> None:
    await run(retrying(succeed))


@pytest.mark.parametrize(("attempts", "expected"), [(4, RetryRequested), (5, ValueError)])
async def test_five_attempts_are_five_retries_and_the_sixth_failure_is_final(
    attempts: int, expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        await run(retrying(fail_async, max_attempts=5), make_job(attempts=attempts))


@pytest.mark.parametrize(
    "error",
    [
        RetryRequested(timedelta(hours=1), "mine"),
        ExceptionGroup("of tasks", [RetryRequested(timedelta(hours=1), "mine")]),
        asyncio.CancelledError(),
        SystemExit(1),
    ],
)
async def test_requests_and_cancellations_pass_unchanged(error: BaseException) -> None:
    async def handler(job: Job) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await retrying(handler).execute(make_job(), Context(make_job(), {}))
    assert caught.value is error
    assert caught.value.__cause__ is None


async def test_a_failure_that_cannot_be_printed_is_retried() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    async def handler(job: Job) -> None:
        raise Odd

    with pytest.raises(RetryRequested) as caught:
        await run(retrying(handler))
    assert caught.value.reason == "<unprintable Odd>"


async def test_another_executor_can_be_wrapped() -> None:
    class Failing(AbstractEntrypointExecutor):
        async def execute(self, job: Job, context: Context) -> None:
            raise ValueError("inner")

    inner = Failing(parameters(succeed))
    with pytest.raises(RetryRequested, match="inner"):
        await run(retrying(succeed, inner=inner))


def test_the_capacity_is_that_of_what_runs_the_handler() -> None:
    assert retrying(fail, "thread").capacity == 32
    assert retrying(fail_async).capacity == 0


def test_the_delays_are_those_of_the_documented_table() -> None:
    executor = retrying(succeed, max_delay=timedelta(seconds=60))
    seconds = [executor.delay(attempt).total_seconds() for attempt in range(8)]
    assert seconds == [1, 2, 4, 8, 16, 32, 60, 60]


@given(
    attempt=st.integers(0, 10**6),
    initial=st.timedeltas(timedelta(0), timedelta.max),
    most=st.timedeltas(timedelta(0), timedelta.max),
    multiplier=st.floats(1, 1e308) | st.floats(1, 1.01) | st.integers(1, 10**400),
)
def test_delays_grow_to_the_cap_for_any_attempt(
    attempt: int, initial: timedelta, most: timedelta, multiplier: float
) -> None:
    executor = retrying(
        succeed, initial_delay=initial, max_delay=most, backoff_multiplier=multiplier
    )
    delay, later = executor.delay(attempt), executor.delay(attempt + 1)
    assert min(initial, most) <= delay <= later <= most
    assert executor.delay(0) == min(initial, most)


async def test_jitter_waits_any_part_of_the_delay() -> None:
    executor = retrying(fail_async, jitter=True, initial_delay=timedelta(seconds=10))
    delays = []
    for _ in range(100):
        with pytest.raises(RetryRequested) as caught:
            await run(executor, make_job(attempts=1))
        delays.append(caught.value.delay)
    assert all(timedelta(0) <= delay <= timedelta(seconds=20) for delay in delays)
    assert min(delays) < timedelta(seconds=10) < max(delays)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_attempts": -1}, "max_attempts must be an integer from 0 to 2147483646, got -1"),
        ({"max_attempts": 2**31 - 1}, "got 2147483647"),
        ({"max_attempts": 1.5}, "got 1.5"),
        ({"initial_delay": 1}, "initial_delay must be a timedelta of zero or more, got 1"),
        ({"max_delay": timedelta(seconds=-1)}, "max_delay must be a timedelta of zero or more"),
        ({"backoff_multiplier": 0.5}, "backoff_multiplier must be a finite number from 1, got 0.5"),
        ({"backoff_multiplier": math.nan}, "got nan"),
        ({"backoff_multiplier": math.inf}, "got inf"),
        ({"backoff_multiplier": "2"}, "got '2'"),
    ],
)
def test_a_backoff_that_can_never_work_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match="DatabaseRetryEntrypointExecutor") as caught:
        retrying(succeed, **options)
    assert said in str(caught.value)
