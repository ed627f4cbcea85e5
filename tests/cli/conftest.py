"""Databases for the command: an installed one, and one whose jobs have a past."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast import Holdfast, Job, RetryRequested, Schedule, Status
from tests import servers
from tests.cli.command_line import EVIL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Database, SharedServers


@pytest.fixture
def installed(pg18: Database) -> str:
    """The DSN of a database with empty tables."""

    servers.prepare(pg18.dsn)
    return pg18.dsn


@pytest.fixture(scope="module")
def past(pg_servers: SharedServers) -> Iterator[str]:
    """The DSN of a database with jobs in every state but running; only to be read.

    1 succeeded, 2 and 3 are held, 4 ended in an exception, 5 was retried once and is held,
    6 waits, 7 was canceled.
    """
    with pg_servers.schema(servers.EMBEDDED) as database:
        asyncio.run(_live(database.dsn))
        yield database.dsn


async def _live(dsn: str) -> None:
    async with Holdfast.connect(dsn) as hf:
        await hf.install()
        _register(hf)
        names = ["good", "held", "held", "gone", "flaky"]
        payloads = [b"1", EVIL.encode(), b"\xff\x00", None, b"x" * 3000]
        ids = await hf.queries.enqueue(names, payloads, headers={"tenant": "7"})
        async with asyncio.timeout(30):
            while Status.QUEUED in dict(await hf.queries.job_status(ids)).values():
                await hf.run(mode="drain")
        await hf.queries.enqueue("later", b"soon", execute_after=timedelta(days=400))
        [canceled] = await hf.queries.enqueue("later")
        await hf.queries.mark_job_as_cancelled([canceled], actor="cli:ann@desk", reason="mistake")


def _register(hf: Holdfast) -> None:
    @hf.entrypoint("good")
    async def good(job: Job) -> None:
        pass

    @hf.entrypoint("held", on_failure="hold")
    async def held(job: Job) -> None:
        raise ValueError(f"bad {EVIL}\nsecond line")

    @hf.entrypoint("gone")
    async def gone(job: Job) -> None:
        raise KeyError("lost")

    @hf.entrypoint("flaky", on_failure="hold")
    async def flaky(job: Job) -> None:
        if not job.attempts:
            raise RetryRequested(timedelta(0), "once more")
        raise RuntimeError("no luck")

    @hf.schedule("nightly", "0 3 * * *", timezone="Europe/Berlin")
    async def nightly(schedule: Schedule) -> None:
        pass
