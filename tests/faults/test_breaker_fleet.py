"""A fleet and a dependency that goes down, hangs and comes back."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from holdfast import Breaker, BreakerState, Holdfast, Status
from tests.faults import breaker_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.servers import Database

PROCESSES = 8
JOBS = 60
PATIENCE = 120.0


@contextmanager
def fleet(dsn: str, directory: Path) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """Worker processes by their ids; those that are left are asked to stop, and then made to."""
    command = [sys.executable, breaker_worker.__file__, dsn, str(directory)]
    workers = [subprocess.Popen(command) for _ in range(PROCESSES)]
    try:
        yield {worker.pid: worker for worker in workers}
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(PATIENCE)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


class Story:
    """What the test does to the dependency, and what it sees of the calls and the breaker."""

    def __init__(self, hf: Holdfast, directory: Path) -> None:
        self.hf = hf
        self._directory = directory
        (directory / "calls").touch()

    def weather(self, word: str) -> None:
        # In one step: a worker must not read half of it.
        new = self._directory / "weather.new"
        new.write_text(word)
        new.rename(self._directory / "weather")

    def calls(self, weather: str) -> list[dict[str, Any]]:
        lines = (self._directory / "calls").read_text().splitlines()
        return [call for call in map(json.loads, lines) if call["weather"] == weather]

    async def breaker(self) -> Breaker:
        [breaker] = await self.hf.queries.list_breakers()
        return breaker

    async def until_breaker(self, true: Callable[[Breaker], bool]) -> Breaker:
        async with asyncio.timeout(PATIENCE):
            while not true(found := await self.breaker()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return found

    async def until_all_listen(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(await self.hf.queries.list_workers()) < PROCESSES:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def until_a_call_hangs(self) -> int:
        async with asyncio.timeout(PATIENCE):
            while not (hanging := self.calls("hanging")):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return int(hanging[0]["pid"])

    async def until_nothing_waits(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.hf.queries.queue_size():  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def attempts_spent(database: Database) -> int:
    with psycopg.connect(database.dsn) as connection:
        done = connection.execute("select status, attempt from holdfast_log").fetchall()
    succeeded = [attempt for status, attempt in done if status == Status.SUCCESSFUL]
    assert len(succeeded) == JOBS
    return sum(succeeded)


@pytest.mark.timeout(480)
async def test_eight_processes_spare_a_dependency_and_outlive_the_holder_of_a_probe(
    pg18: Database, tmp_path: Path
) -> None:
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()
        story = Story(hf, tmp_path)
        story.weather("down")
        await hf.queries.enqueue(["pay"] * JOBS)
        # Held open until all are there, so that all of them meet the outage.
        began = await hf.queries.open_breaker("stripe", actor="test", reason="not yet")
        with fleet(pg18.dsn, tmp_path) as workers:
            await story.until_all_listen()
            assert story.calls("down") == []
            await hf.queries.close_breaker("stripe")

            opened = began.generation + 2
            await story.until_breaker(lambda breaker: breaker.generation >= opened + 4)
            story.weather("hanging")
            holder = await story.until_a_call_hangs()
            held = await story.breaker()
            assert (held.state, len(held.probes)) == (BreakerState.HALF_OPEN, 1)
            workers[holder].kill()
            story.weather("up")

            closed = await story.until_breaker(lambda row: row.state is BreakerState.CLOSED)
            await story.until_nothing_waits()

    half_opened = (closed.generation - opened) // 2
    assert half_opened >= 3
    spared = len(story.calls("down")) + len(story.calls("hanging"))
    assert spared <= breaker_worker.STRIPE.threshold + PROCESSES + half_opened
    assert attempts_spent(pg18) <= len(story.calls("down"))
    killed = {call["job"] for call in story.calls("hanging") if call["pid"] == holder}
    assert killed <= {call["job"] for call in story.calls("up")}
