"""Large payloads over a slow link: a claim is made as small as its reply needs it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from holdfast import Holdfast, Job, NewJob
from tests.faults.proxy import Proxy

if TYPE_CHECKING:
    from tests.servers import Database

PAYLOAD = bytes(512 * 1024)
JOBS = 48
RATE = 6e6
DEADLINE = 1.5
"""Seconds for a statement, in which the link takes a third of the payloads and no more."""


async def test_large_payloads_on_a_slow_link_are_worked_off(pg18: Database) -> None:
    ran: Counter[int] = Counter()
    async with (
        Proxy(pg18.dsn, rate=RATE) as proxy,
        Holdfast.connect(pg18.dsn) as near,
        Holdfast.connect(proxy.dsn, timeout=DEADLINE) as far,
    ):
        await near.install()
        await near.queries.enqueue_many([NewJob("large", PAYLOAD) for _ in range(JOBS)])
        done = asyncio.Event()

        @far.entrypoint("large")
        async def large(job: Job) -> None:
            assert len(job.payload or b"") == len(PAYLOAD)
            ran[job.id] += 1
            if len(ran) == JOBS:
                done.set()

        working = asyncio.create_task(far.run(signals=False))
        try:
            async with asyncio.timeout(60):
                await done.wait()
        finally:
            far.shutdown.set()
            await working
        assert set(ran.values()) == {1}
        assert await near.queries.queue_size() == []
