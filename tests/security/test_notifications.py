"""NOTIFY needs no privilege, so what it says is a hint that is looked into."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast import Holdfast, Job, JobId, Status
from holdfast.settings import Names
from holdfast.stores.postgres.grants import DatabaseRole
from tests.worker.workers import ends, eventually, working

if TYPE_CHECKING:
    import pytest

    from tests.security.roles import Roles

HOUR = timedelta(hours=1)


async def test_a_forged_cancellation_does_not_stop_a_job(roles18: Roles) -> None:
    started, stopped = asyncio.Semaphore(0), dict[JobId, asyncio.Event]()
    async with (
        Holdfast.connect(roles18.dsn(DatabaseRole.WORKER)) as hf,
        Holdfast.connect(roles18.dsn(DatabaseRole.OPERATOR)) as operator,
    ):

        @hf.entrypoint("endless")
        async def endless(job: Job) -> None:
            stopped[job.id] = asyncio.Event()
            started.release()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                stopped[job.id].set()
                raise

        async def listening() -> bool:
            return hf.queue_manager.listening

        # Under a lease of an hour no renewal can be what tells a handler.
        async with working(hf, heartbeat_timeout=HOUR, drain_timeout=timedelta(0)):
            forged, real = await operator.queries.enqueue(["endless", "endless"])
            await ends(started.acquire())
            await ends(started.acquire())
            await eventually(listening)
            with roles18.connection(DatabaseRole.PRODUCER) as producer:
                for words in (f"cancel {forged}", "cancel", "cancel x", f"cancel {9**99}", "\\"):
                    producer.execute("select pg_notify(%s, %s)", [Names().channel, words])
            # Notifications keep their order, so the forged ones were heard before this one.
            await operator.queries.mark_job_as_cancelled([real])
            await ends(stopped[real].wait())
            assert not stopped[forged].is_set()

        assert dict(await operator.queries.job_status([forged, real])) == {
            forged: Status.QUEUED,
            real: Status.CANCELED,
        }


def test_long_names_do_not_share_a_channel() -> None:
    schema = "s" * 31
    channels = {Names("p" * 30 + letter, schema).channel for letter in "abc"}
    assert len(channels) == 3
    assert max(map(len, channels)) <= 63
    assert Names("holdfast", "jobs").channel == "ch_jobs_holdfast"


async def test_notifications_of_nonsense_make_one_line(
    roles18: Roles, caplog: pytest.LogCaptureFixture
) -> None:
    ran = asyncio.Semaphore(0)
    async with (
        Holdfast.connect(roles18.dsn(DatabaseRole.WORKER)) as hf,
        Holdfast.connect(roles18.dsn(DatabaseRole.OPERATOR)) as operator,
    ):

        @hf.entrypoint("plain")
        async def plain(job: Job) -> None:
            ran.release()

        async def listening() -> bool:
            return hf.queue_manager.listening

        async with working(hf):
            await operator.queries.enqueue("plain")
            await ends(ran.acquire())
            await eventually(listening)
            with roles18.connection(DatabaseRole.PRODUCER) as producer:
                producer.execute(
                    "select pg_notify(%s, 'cancel ' || kind || n)"
                    " from generate_series(1, 500) n,"
                    " unnest(array['x', '-', E'\\n', '9999999999999999999']) kind",
                    [Names().channel],
                )
            # Heard after the nonsense: notifications keep their order.
            await operator.queries.enqueue("plain")
            await ends(ran.acquire())

            async def heard() -> bool:
                return bool(caplog.messages)

            await eventually(heard)
    [record] = [each for each in caplog.records if "notification" in each.getMessage()]
    assert not record.exc_info
    assert "'cancel'" in record.getMessage()
