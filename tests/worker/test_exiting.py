"""sys.exit() outside any handler, in what one has started, leaves no job to its lease."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
import uvloop

from holdfast import Holdfast, Job
from tests.worker.workers import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers import Database

JOBS = 20


def in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 3)


def in_a_task() -> None:
    async def leave() -> None:
        sys.exit(3)

    # The loop ends with it, so that it needs no other keeper.
    asyncio.get_running_loop().create_task(leave())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("leave", [in_a_callback, in_a_task])
@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.SelectorEventLoop])
def test_all_jobs_are_released_when_the_event_loop_is_ended(
    pg18: Database,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    leave: Callable[[], None],
) -> None:
    raised: list[BaseException] = []

    async def work() -> None:
        started = 0
        async with Holdfast.connect(pg18.dsn) as hf:
            await hf.install()

            @hf.entrypoint("wait")
            async def wait(job: Job) -> None:
                nonlocal started
                started += 1
                if started == JOBS:
                    leave()
                await asyncio.Event().wait()

            await hf.queries.enqueue(["wait"] * JOBS)
            await hf.run(signals=False)

    def main() -> None:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(work())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=main)
    thread.start()
    thread.join(PATIENCE)

    assert [type(error) for error in raised] == [SystemExit]
    with psycopg.connect(pg18.dsn) as connection:
        found = connection.execute(
            "select status::text, recoveries, count(*) from holdfast group by 1, 2"
        ).fetchall()
    assert found == [("queued", 0, JOBS)]
