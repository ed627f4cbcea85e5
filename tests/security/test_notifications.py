"""NOTIFY needs no privilege, so what it says is a hint that is looked into."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast import Holdfast, Job, JobId, Status
from holdfast.settings import Names
from holdfast.stores.postgres.grants import Role
from tests.worker.rig import ends, eventually, working

if TYPE_CHECKING:
    from tests.security.roles import Roles

HOUR = timedelta(hours=1)


async def test_a_forged_cancellation_does_not_stop_a_job(roles18: Roles) -> None:
    started, stopped = asyncio.Semaphore(0), dict[JobId, asyncio.Event]()
    async with (
        Holdfast.connect(roles18.dsn(Role.WORKER)) as hf,
        Holdfast.connect(roles18.dsn(Role.OPERATOR)) as operator,
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
            return hf.queue_manager._claimer.listening

        # Under a lease of an hour no renewal can be what tells a handler.
        async with working(hf, heartbeat_timeout=HOUR, drain_timeout=timedelta(0)):
            forged, real = await operator.queries.enqueue(["endless", "endless"])
            await ends(started.acquire())
            await ends(started.acquire())
            await eventually(listening)
            with roles18.connection(Role.PRODUCER) as producer:
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
