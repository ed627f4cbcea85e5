"""A worker whose handler counts in ctx.transaction(). Its arguments: a DSN, and words:

`gated`: a job with a payload waits, once it has counted, until the file that it names is there.
`unfenced`: planted bug. The handler's commit does not ask whose job it is.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta
from pathlib import Path

import uvloop

from holdfast import Context, Holdfast, Job
from holdfast.worker.handler_transaction import HandlerTransaction

LEASE = timedelta(seconds=1)


async def main(dsn: str, *words: str) -> None:
    if "unfenced" in words:
        plant()
    async with Holdfast.connect(dsn) as hf:

        @hf.entrypoint("count", max_recoveries=1000)
        async def count(job: Job, ctx: Context) -> None:
            async with ctx.transaction() as tx:
                await tx.execute("insert into counts values ($1)", job.id)
                if "gated" in words and job.payload:
                    print("waits", flush=True)
                    gate = Path(job.payload.decode())
                    # The event loop is blocked, so that the handler cannot be cancelled.
                    while not gate.exists():  # noqa: ASYNC240
                        time.sleep(0.01)  # noqa: ASYNC251

        await hf.run(heartbeat_timeout=LEASE)


def plant() -> None:
    original = HandlerTransaction._end

    async def end(self: HandlerTransaction, outcome: object) -> bool:
        await original(self, outcome)  # type: ignore[arg-type]
        return True

    HandlerTransaction._end = end  # type: ignore[method-assign]


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*sys.argv[1:]))
