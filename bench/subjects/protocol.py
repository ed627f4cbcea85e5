"""What every subject does alike: orders come in as lines of JSON, answers go out as lines of JSON.

It runs in the environment of a peer, so it imports the standard library alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

PAYLOAD = "x" * 256
NAP = 0.005


class Spec(NamedTuple):
    """A job to be enqueued, before a library makes its own kind of object of it."""

    task: str
    priority: int
    delay: float
    data: str


class Work(NamedTuple):
    """How a worker shall run: which tasks, and in which of the subject's configurations."""

    mode: str
    tasks: Sequence[str]
    telemetry: float | None
    """The share of traces that is sampled; None without telemetry."""


class Tally:
    """What the handlers of this process have done."""

    def __init__(self) -> None:
        self.done = 0
        self.first: float | None = None
        self.latencies: list[float] = []

    def count(self) -> None:
        if self.first is None:
            self.first = time.monotonic()
        self.done += 1

    def stamp(self, sent: str) -> None:
        """Both clocks are CLOCK_MONOTONIC of one machine."""
        self.latencies.append(time.monotonic() - float(sent))
        self.count()


# One for the process: a library may import the subject's module a second time.
TALLY = Tally()


class TaskFailed(Exception):
    """What the handler of the task `fail` raises."""


async def act(task: str, data: str) -> None:
    """The body of every handler that is more than a count."""
    if task == "nap":
        await asyncio.sleep(NAP)
        TALLY.count()
    elif task == "stamp":
        TALLY.stamp(data)
    elif task == "fail":
        TALLY.count()
        raise TaskFailed
    else:
        TALLY.count()


class Subject:
    """A library under measurement; a file of this folder says how each verb is done with it."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    async def install(self) -> None:
        raise NotImplementedError

    async def connect(self, connections: int) -> None:
        """Get ready to enqueue, with at most that many connections."""
        raise NotImplementedError

    async def one(self, task: str, data: str) -> None:
        raise NotImplementedError

    async def many(self, specs: Sequence[Spec]) -> int:
        """Enqueue all in one call; how many the library says it has stored."""
        raise NotImplementedError

    async def work(self, work: Work) -> None:
        """Run a worker until cancelled."""
        raise NotImplementedError


def serve(make: Callable[[str], Subject]) -> None:
    """Obey orders from standard input until it ends."""
    logging.disable(logging.CRITICAL)
    with contextlib.suppress(KeyboardInterrupt):
        _run(_Server(make(sys.argv[1])).obey())
    # Threads and child processes of a library must not keep a finished subject alive.
    os._exit(0)


def _run(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


class _Server:
    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._connections = 0
        self._orders: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._working: list[asyncio.Task[None]] = []
        self._shown = -1

    async def obey(self) -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()
        _say({"answer": "ready"})
        while (order := await self._orders.get()) is not None:
            verb: Callable[..., Awaitable[Any]] = getattr(self, f"_do_{order.pop('do')}")
            try:
                _say({"answer": await verb(**order)})
            except Exception as error:
                _say({"error": f"{type(error).__name__}: {error}"})

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(self._orders.put_nowait, json.loads(line))
        loop.call_soon_threadsafe(self._orders.put_nowait, None)

    async def _do_install(self) -> None:
        await self._subject.install()

    async def _do_connect(self, connections: int) -> None:
        if self._connections != connections:
            await self._subject.connect(connections)
            self._connections = connections

    async def _do_single(self, count: int, seconds: float) -> dict[str, float]:
        await self._do_connect(1)
        return await _timed(self._one, count, seconds)

    async def _one(self) -> int:
        await self._subject.one("noop", PAYLOAD)
        return 1

    async def _do_concurrent(
        self, count: int, seconds: float, tasks: int, connections: int
    ) -> dict[str, float]:
        await self._do_connect(connections)
        began = time.monotonic()
        stretches = [_timed(self._one, count // tasks, seconds) for _ in range(tasks)]
        done = sum(stretch["count"] for stretch in await asyncio.gather(*stretches))
        return {"count": done, "began": began, "ended": time.monotonic()}

    async def _do_bulk(
        self,
        count: int,
        seconds: float,
        batch: int = 1000,
        task: str = "noop",
        names: int = 1,
        priorities: int = 1,
        delay: float = 0.0,
    ) -> dict[str, float]:
        await self._do_connect(1)
        stored = 0

        async def next_batch() -> int:
            nonlocal stored
            size = int(min(batch, count - stored))
            places = range(stored, stored + size)
            stored += await self._subject.many(
                [
                    Spec(
                        task if names == 1 else f"{task}{place % names}",
                        place // names % priorities,
                        delay,
                        PAYLOAD,
                    )
                    for place in places
                ]
            )
            return size

        return await _timed(next_batch, -(-count // batch), seconds)

    async def _do_probe(self, count: int, gap: float) -> None:
        """Single jobs that carry the instant of their enqueue, at irregular distances."""
        await self._do_connect(1)
        for _ in range(count):
            await self._subject.one("stamp", repr(time.monotonic()))
            await asyncio.sleep(gap * random.uniform(0.5, 1.5))  # noqa: S311 (no secret)

    async def _do_work(
        self,
        mode: str = "tuned",
        task: str = "noop",
        names: int = 1,
        sample: float = 0.02,
        telemetry: float | None = None,
        workers: int = 1,
    ) -> None:
        tasks = [task] if names == 1 else [f"{task}{name}" for name in range(names)]
        for _ in range(workers):
            work = self._subject.work(Work(mode, tasks, telemetry))
            self._working.append(asyncio.get_running_loop().create_task(work))
            self._working[-1].add_done_callback(_report_end)
        if sample:
            self._sample(sample)

    def _sample(self, every: float) -> None:
        if TALLY.done != self._shown:
            self._shown = TALLY.done
            _say({"at": time.monotonic(), "done": TALLY.done, "first": TALLY.first})
        asyncio.get_running_loop().call_later(every, self._sample, every)

    async def _do_latencies(self) -> list[float]:
        return TALLY.latencies


async def _timed(
    step: Callable[[], Awaitable[int]], times: int, seconds: float
) -> dict[str, float]:
    """Take the step that often, or until the time is up; when, and how much was done."""
    done, began = 0, time.monotonic()
    now = began
    for _ in range(times):
        done += await step()
        now = time.monotonic()
        if now - began > seconds:
            break
    return {"count": done, "began": began, "ended": now}


def _report_end(working: asyncio.Task[None]) -> None:
    if not working.cancelled() and (error := working.exception()) is not None:
        _say({"died": f"{type(error).__name__}: {error}"})


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
