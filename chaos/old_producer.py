"""A producer of a released version: `python -m chaos.old_producer PLAN`. It enqueues one by one."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

from chaos import leash, workload
from chaos.files import SECOND, Journal
from chaos.plans import OldPlan
from tests.postgres.released import OldClient


class OldProducer:
    """Enqueues the jobs of a seed one by one, and writes down each call before and after."""

    def __init__(self, plan: OldPlan) -> None:
        self._plan = plan
        self._me = f"client-{plan.name}-{os.getpid()}"
        self._journal = Journal(Path(plan.directory) / f"{self._me}.jsonl")

    async def run(self) -> None:
        """Enqueue all, at the pace of the plan."""
        plan, loop = self._plan, asyncio.get_running_loop()
        began = loop.time()
        client = await OldClient.connect(plan.release, plan.dsn)
        specs = workload.specs(plan.seed, plan.first, plan.count, plan.lease, plan.shares)
        for number, spec in enumerate(specs):
            await asyncio.sleep(max(0.0, began + number / plan.per_second - loop.time()))
            call = f"{self._me}:{number}"
            told = [(spec.uid, spec.kind, spec.entrypoint, spec.key, int(spec.delay * SECOND))]
            self._journal.note("invoke", op="enqueue", c=call, jobs=told)
            job = await client.enqueue(
                spec.entrypoint,
                payload=spec.payload,
                priority=spec.priority,
                delay=timedelta(seconds=spec.delay) if spec.delay else None,
                max_recoveries=spec.max_recoveries,
            )
            self._journal.note("ok", op="enqueue", c=call, ids=[job])
        self._journal.note("done")


if __name__ == "__main__":
    leash.tie()
    asyncio.run(OldProducer(OldPlan.loads(sys.argv[1])).run())
