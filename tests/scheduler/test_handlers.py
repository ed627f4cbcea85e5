"""A schedule's handler may be of every kind that an entrypoint's may, but in another process."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Context, DatabaseRetryEntrypointExecutor, Holdfast, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

Heard = list[tuple[Any, ...]]


def coroutine(heard: Heard) -> tuple[Any, dict[str, Any]]:
    async def handle(schedule: Schedule) -> None:
        heard.append((schedule.name, schedule.slot))

    return handle, {}


def with_context(heard: Heard) -> tuple[Any, dict[str, Any]]:
    async def handle(schedule: Schedule, context: Context) -> None:
        assert context.resources == {"color": "red"}
        heard.append((schedule.name, schedule.slot))

    return handle, {}


def in_thread(heard: Heard) -> tuple[Any, dict[str, Any]]:
    def handle(schedule: Schedule) -> None:
        assert threading.current_thread() is not threading.main_thread()
        heard.append((schedule.name, schedule.slot))

    return handle, {"executor": "thread"}


def as_partial(heard: Heard) -> tuple[Any, dict[str, Any]]:
    async def handle(to: Heard, schedule: Schedule) -> None:
        to.append((schedule.name, schedule.slot))

    return partial(handle, heard), {}


def through_a_factory(heard: Heard) -> tuple[Any, dict[str, Any]]:
    handle, _ = coroutine(heard)
    return handle, {"executor_factory": DatabaseRetryEntrypointExecutor}


@pytest.mark.parametrize(
    "make", [coroutine, with_context, in_thread, as_partial, through_a_factory]
)
async def test_it_gets_the_tick(make: Callable[[Heard], tuple[Any, dict[str, Any]]]) -> None:
    hf = Holdfast.in_memory(resources={"color": "red"})
    heard: Heard = []
    handler, options = make(heard)
    assert hf.schedule("report", "@yearly", **options)(handler) is handler
    await hf.scheduler_manager.register()
    job_id = await hf.schedules.run_now("report")
    async with asyncio.timeout(30):
        await hf.run(mode="drain", signals=False)
    [(name, slot)] = heard
    [(_, status)] = await hf.queries.job_status([job_id])
    assert (name, status) == ("report", "successful")
    assert slot is not None
