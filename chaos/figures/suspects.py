"""Suspects: how soon innocent ones are done, and what other jobs notice of them."""

from __future__ import annotations

import asyncio
import statistics
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from chaos.figures.base import Measured, figure
from chaos.figures.processes import Bench
from chaos.files import SECOND, now
from chaos.stage import Stage
from holdfast import Holdfast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from chaos.cluster import Cluster

_LEASE = 30.0
_SUSPECTS = 16
_NAP = 10.0
_TIMES = 8.0
"""A quarter of them in each of four processes, which start one after the other."""


async def _suspect(stage: Stage, prefix: str, names: Sequence[str], nap: float) -> None:
    """Insert jobs of which two workers have died."""
    connection = await stage.connect()
    try:
        await connection.execute(
            f"insert into {prefix} (entrypoint, payload, recoveries) "
            "select name, $2, 2 from unnest($1::text[]) as name",
            list(names),
            str(nap).encode(),
        )
    finally:
        await connection.close()


@figure(
    "suspects",
    "16 innocent suspects of 10 s are done within 80 s; a killer among them is held after one "
    "death of its own, and no other job is",
)
async def suspects(cluster: Cluster, directory: Path) -> Measured:
    """Without a killer and with one, each under `holdfast run`."""
    async with Stage(cluster, directory, lease=_LEASE, probing=False) as stage:
        innocent = await _clear(stage, "innocent", ["naps"] * _SUSPECTS)
        half = ["naps"] * (_SUSPECTS // 2)
        deadly = await _clear(stage, "deadly", [*half, "kills", *half])
    held = [*innocent["held"], *deadly["held"]]
    values = {
        "suspects": _SUSPECTS,
        "innocent_s": innocent["seconds"],
        "with_a_killer_s": deadly["seconds"],
        "own_deaths": deadly["deaths"],
        "others_retired": len([name for name in held if name != "kills"]),
    }
    soon = max(innocent["seconds"], deadly["seconds"]) <= _TIMES * _NAP
    return Measured(soon and held == ["kills"] and deadly["deaths"] == 1, values)


async def _clear(stage: Stage, prefix: str, names: Sequence[str]) -> dict[str, Any]:
    bench = Bench(stage)
    async with Holdfast.connect(stage.dsn, prefix=prefix) as hf:
        await hf.install()
        await _suspect(stage, prefix, names, _NAP)

        async def over() -> bool:
            sizes = await hf.queries.queue_size()
            return {size.status for size in sizes} <= {"failed"}

        async with bench.command(prefix, prefix):
            began = now()
            if not await stage.eventually(over, 3 * _TIMES * _NAP):
                raise RuntimeError("the suspects are not done")
            seconds = (now() - began) / SECOND
        held = [job.entrypoint for job in await hf.queries.list_failed_jobs()]
    deaths = len({line["pid"] for line in bench.starts(ep="kills")})
    return {"seconds": round(seconds, 1), "held": held, "deaths": deaths}


_PROBES = 100
_BATCHES, _BATCH = 15, 5_000
_NAPS = {"run": 600.0, "programs": 2.0}
"""Programs run suspects themselves, for a part of the time: short ones show the mean."""

_KEPT = 0.8
_SIDES = ("beside", "without")


@figure(
    "beside suspects",
    "jobs beside suspects keep 0.8 of their latency and throughput, under `holdfast run` and in "
    "two programs",
)
async def beside(cluster: Cluster, directory: Path) -> Measured:
    """Two queues with workers alike. The jobs go to the one with suspects and to the other by
    turns, so both measure the same machine."""
    values: dict[str, Any] = {}
    async with Stage(cluster, directory, lease=_LEASE, probing=False) as stage:
        for kind, count in (("run", 1), ("programs", 2)):
            values |= await _compare(stage, kind, count)
    kept = [values[name] for name in values if name.endswith(("latency", "throughput"))]
    return Measured(min(kept) >= _KEPT, values)


async def _compare(stage: Stage, kind: str, count: int) -> dict[str, Any]:
    bench = Bench(stage)
    queues: dict[str, Holdfast] = {}
    async with AsyncExitStack() as stack:
        for side in _SIDES:
            prefix = f"{kind}_{side}"
            hf = await stack.enter_async_context(Holdfast.connect(stage.dsn, prefix=prefix))
            await hf.install()
            queues[side] = hf
            start = bench.command if kind == "run" else bench.program
            for n in range(count):
                await stack.enter_async_context(start(f"{prefix}_{n}", prefix))
        for hf in queues.values():
            await _work(stage, hf)
        await _suspect(stage, f"{kind}_beside", ["naps"] * _SUSPECTS, _NAPS[kind])
        running = 4 if kind == "run" else 1
        if not await stage.until(lambda: len(bench.starts(ep="naps")) >= running, 120):
            raise RuntimeError("the suspects do not run")
        latency = await _latencies(stage, bench, queues)
        seconds = await _drains(stage, queues)
    return {
        f"{kind}_latency": round(latency["without"] / latency["beside"], 2),
        f"{kind}_throughput": round(seconds["without"] / seconds["beside"], 2),
        f"{kind}_p50_s": round(latency["beside"], 3),
        f"{kind}_p50_without_s": round(latency["without"], 3),
    }


async def _work(stage: Stage, hf: Holdfast, count: int = 1) -> float:
    """Enqueue jobs. Return the seconds until they have ended."""
    began = now()
    await hf.queries.enqueue(["quick"] * count, [None] * count)

    async def over() -> bool:
        return not any(size.entrypoint == "quick" for size in await hf.queries.queue_size())

    if not await stage.eventually(over, 120):
        raise RuntimeError("the jobs do not end")
    return (now() - began) / SECOND


async def _latencies(
    stage: Stage, bench: Bench, queues: Mapping[str, Holdfast]
) -> dict[str, float]:
    """The median for each, in seconds, from before the enqueue to the start."""
    found: dict[str, list[float]] = {side: [] for side in queues}
    for _ in range(_PROBES):
        for side, hf in queues.items():
            started, began = len(bench.starts(ep="work")), now()
            await hf.queries.enqueue("work")
            await stage.until(partial(_more, bench, started), 120)
            found[side].append((bench.starts(ep="work")[-1]["t"] - began) / SECOND)
        await asyncio.sleep(0.05)
    return {side: statistics.median(each) for side, each in found.items()}


def _more(bench: Bench, started: int) -> bool:
    return len(bench.starts(ep="work")) > started


async def _drains(stage: Stage, queues: Mapping[str, Holdfast]) -> dict[str, float]:
    """The mean for each, in seconds."""
    found: dict[str, list[float]] = {side: [] for side in queues}
    for _ in range(_BATCHES):
        for side, hf in queues.items():
            found[side].append(await _work(stage, hf, _BATCH))
    return {side: statistics.fmean(each) for side, each in found.items()}
