"""Clients whose replies are dropped, or whose connections fall silent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from chaos.figures.base import Measured, figure, judged, most
from chaos.files import SECOND, now
from chaos.scenarios.enqueuing import drop_replies
from chaos.stage import Stage
from devtools.cluster import HOST
from holdfast import DatabaseError, Holdfast, JobId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from chaos.cluster import Cluster

_LEASE = 30.0
_ENQUEUES = 10_000


@figure("dropped replies", "10,000 enqueues: no job is made twice and none is lost")
async def dropped_replies(cluster: Cluster, directory: Path) -> Measured:
    """Every reply that comes when the last loss is over is dropped, after the commit."""
    async with Stage(cluster, directory, lease=_LEASE, probing=False) as stage:
        producer = await stage.start_producer(
            "p",
            seed=1,
            first=0,
            count=_ENQUEUES,
            per_second=float(_ENQUEUES),
            shares={"fast": 1, "once": 1},
            jobs_at_once=1,
            calls_at_once=8,
        )
        dropped = await drop_replies(stage, producer, 0.02)
        await stage.finish()
    verdict = judged(directory, lease=_LEASE)
    twice = len(verdict.violations["I-14 lost replies make no duplicates"])
    calls = sum(call.op == "enqueue" for call in verdict.history.calls)
    unknown = sum(call.outcome == "info" for call in verdict.history.calls)
    values = {
        "enqueues": _ENQUEUES,
        "calls": calls,
        "replies_dropped": dropped,
        "outcome_unknown": unknown,
        "duplicates": twice,
        "lost": len(verdict.violations["I-1 nothing is lost"]),
    }
    return Measured(verdict.count == 0 and dropped >= _ENQUEUES // 100, values)


_CALLS: Mapping[str, Callable[[Holdfast], Awaitable[object]]] = {
    "enqueue": lambda hf: hf.queries.enqueue("work"),
    "cancel": lambda hf: hf.queries.mark_job_as_cancelled([JobId(1)]),
    "requeue": lambda hf: hf.queries.requeue_jobs([JobId(1)]),
    "get": lambda hf: hf.queries.get_jobs([JobId(1)]),
    "size": lambda hf: hf.queries.queue_size(),
    "log": lambda hf: hf.queries.queue_log(),
    "workers": lambda hf: hf.queries.list_workers(),
}
_BOUND = 10.0


@figure("silent connection", "every call ends within 10 s")
async def silent_connection(cluster: Cluster, directory: Path) -> Measured:
    """Both drivers; connections that worked before, and connections that are made anew."""
    async with Stage(cluster, directory, lease=_LEASE, probing=False) as stage:

        async def took(driver: Any, name: str, warm: bool) -> float:
            link = f"{driver}-{name}-{warm}"
            port = await stage.proxy.open(link)
            dsn = f"postgresql://postgres@{HOST}:{port}/chaos"
            async with Holdfast.connect(dsn, driver=driver) as hf:
                if warm:
                    await hf.queries.queue_size()
                await stage.proxy.silence(link)
                began = now()
                try:
                    await _CALLS[name](hf)
                except DatabaseError:
                    return (now() - began) / SECOND
                finally:
                    stage.proxy.cut(link)
            raise RuntimeError(f"{name} was answered through a silent connection")

        kinds = [(d, n, w) for d in ("asyncpg", "psycopg") for n in _CALLS for w in (True, False)]
        seconds = await asyncio.gather(*(took(*kind) for kind in kinds))
    values = {"calls": len(kinds), "longest_s": most(seconds), "shortest_s": round(min(seconds), 3)}
    return Measured(max(seconds) <= _BOUND, values)
