"""Worker processes of `holdfast run`: stopped, killed, and with jobs that kill them."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from chaos import workload
from chaos.figures.base import Measured, figure, judged, spread
from chaos.files import SECOND, Line, now, read
from chaos.stage import Stage
from devtools.cluster import HOST
from holdfast import Holdfast, Job, NewJob

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from chaos.cluster import Cluster

_ROOT = Path(__file__).parents[2]
_GRACE = 2.0
_BOUND = 1.0
"""Seconds beyond the grace."""

_LEASE = 30.0
_STOPS = ("idle", "waits", "stubborn", "blocks", "thread", "silent", "silent-waits")


class Bench:
    """Commands on one database, each through a link of its own."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._journal = stage.directory / "starts.jsonl"

    def starts(self, **like: object) -> list[Line]:
        return [
            line
            for line in read(self._journal)
            if line["e"] == "start" and all(line[field] == like[field] for field in like)
        ]

    def ages(self) -> dict[int, float]:
        """How long ago each process was started, dead ones included."""
        made = (line for line in read(self._journal) if line["e"] == "made")
        return {line["pid"]: (now() - line["t"]) / SECOND for line in made}

    @asynccontextmanager
    async def command(
        self, link: str, prefix: str, *options: str
    ) -> AsyncIterator[subprocess.Popen[bytes]]:
        """`holdfast run` on the tables of that prefix, ready to work."""
        port = await self._stage.proxy.open(link)
        words = ("-m", "holdfast", "run", "chaos.figures.target:main", *options)
        async with self._process(link, prefix, port, *words) as process:
            yield process

    @asynccontextmanager
    async def program(self, link: str, prefix: str) -> AsyncIterator[subprocess.Popen[bytes]]:
        """A program that calls `hf.run()`, about to work."""
        port = await self._stage.proxy.open(link)
        async with self._process(link, prefix, port, "-m", "chaos.figures.target") as process:
            yield process

    @asynccontextmanager
    async def _process(
        self, link: str, prefix: str, port: int, *words: str
    ) -> AsyncIterator[subprocess.Popen[bytes]]:
        log = self._stage.directory / f"{link}.log"
        process = self._spawn(log, port, prefix, *words)
        try:
            if not await self._stage.until(lambda: " runs " in log.read_text(), 60):
                raise RuntimeError(f"a worker does not start:\n{log.read_text()}")
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def _spawn(self, log: Path, port: int, prefix: str, *words: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "HOLDFAST_DSN": f"postgresql://postgres@{HOST}:{port}/chaos",
            "HOLDFAST_PREFIX": prefix,
            "CHAOS_JOURNAL": str(self._journal),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, *words]
        with log.open("wb") as said:
            return subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=said, stderr=said)


@figure(
    "SIGTERM",
    "ends within the drain timeout and one second, whatever the handler or the database does",
)
async def stops(cluster: Cluster, directory: Path) -> Measured:
    """Stop a worker in each state of its handler and of its database."""
    async with Stage(cluster, directory, lease=_LEASE, probing=False) as stage:
        bench = Bench(stage)
        took = {case: await _stop(bench, stage, case) for case in _STOPS}
    values = {"drain_timeout_s": _GRACE, **{f"{case}_s": round(took[case], 3) for case in took}}
    return Measured(max(took.values()) <= _GRACE + _BOUND, values)


async def _stop(bench: Bench, stage: Stage, case: str) -> float:
    kind = case.removeprefix("silent-")
    busy = kind not in ("idle", "silent")
    prefix = case.replace("-", "_")
    async with Holdfast.connect(stage.dsn, prefix=prefix) as hf:
        await hf.install()
        if busy:
            await hf.queries.enqueue(kind)
    async with bench.command(case, prefix, "--drain-timeout", f"{_GRACE:g}s") as process:
        if busy:
            await stage.until(lambda: bool(bench.starts(ep=kind, pid=process.pid)), 30)
        if case.startswith("silent"):
            await stage.proxy.silence(case)
            # So that a statement is on its way, and stays there.
            await asyncio.sleep(1.0)
        began = now()
        process.send_signal(signal.SIGTERM)
        await stage.until(lambda: process.poll() is not None, 30)
        return (now() - began) / SECOND


_DEATHS = 12
_LONG_ENOUGH = 11.0
"""Seconds after which the supervisor does not take a death for one of the start."""


@figure("supervised death", "jobs of a dead worker start again within one second")
async def supervised(cluster: Cluster, directory: Path) -> Measured:
    """Workers of `holdfast run --processes` are killed; their leases are an hour long."""
    chance = random.Random(6)
    seconds: list[float] = []
    async with Stage(cluster, directory, lease=3600.0, probing=False) as stage:
        bench = Bench(stage)
        options = ("--processes", "3", "--heartbeat-timeout", "1h")
        async with (
            bench.command("supervisor", "holdfast", *options),
            Holdfast.connect(stage.dsn) as hf,
        ):
            for _ in range(_DEATHS):
                seconds += await _die(bench, stage, hf, chance)
    seconds.sort()
    values = {"deaths": _DEATHS, "jobs": len(seconds), "restart_s": spread(seconds)}
    return Measured(seconds[-1] <= _BOUND, values)


async def _die(bench: Bench, stage: Stage, hf: Holdfast, chance: random.Random) -> list[float]:
    """Kill one worker that has jobs; for each of these, the time to its next start."""
    ids = set(await hf.queries.enqueue(["hangs-once"] * 6))

    def started(recoveries: int) -> list[Line]:
        return [line for line in bench.starts(rec=recoveries) if line["j"] in ids]

    def holders() -> list[int]:
        ages = bench.ages()
        return [line["pid"] for line in started(0) if ages[line["pid"]] > _LONG_ENOUGH]

    await stage.until(lambda: len(started(0)) == len(ids) and bool(holders()), 60)
    victim = chance.choice(holders())
    lost = {line["j"] for line in started(0) if line["pid"] == victim}
    died = now()
    os.kill(victim, signal.SIGKILL)
    await stage.until(lambda: {line["j"] for line in started(1)} >= lost, 60)
    await hf.queries.mark_job_as_cancelled(list(ids - lost))
    return [(line["t"] - died) / SECOND for line in started(1) if line["j"] in lost]


_DEADLY, _INNOCENT = 10, 10_000


@figure(
    "poison",
    "20 deadly jobs among 10,000, half of them at once: each is held after three deaths, "
    "and no other job is held",
)
async def poison(cluster: Cluster, directory: Path) -> Measured:
    """Deadly jobs one after the other, then all at once. A worker that dies is replaced at once.

    A death counts for every job that the worker held. Where deadly jobs run together, each has
    three deaths, and only the last one is surely its own.
    """
    lease = 1.5
    async with Stage(cluster, directory, lease=lease, probing=False) as stage:
        for n in range(4):
            await stage.start_worker(f"w{n}")
        producer = await stage.start_producer(
            "p",
            seed=4,
            first=2 * _DEADLY,
            count=_INNOCENT,
            per_second=150.0,
            shares={"fast": 1},
            capped=True,
        )
        async with Holdfast.connect(stage.dsn) as hf:
            alone = [await _held(stage, hf, [uid]) for uid in range(_DEADLY)]
            together = await _held(stage, hf, range(_DEADLY, 2 * _DEADLY))
        await stage.until(lambda: not producer.alive, 120)
        await stage.drained(60)
        await stage.finish()
    verdict = judged(directory, lease=lease, innocent=True, drained=True)
    deadly = [*itertools.chain.from_iterable(alone), *together]
    own = {job.id: len(verdict.history.stories[job.id].runs) for job in deadly}
    found = verdict.violations["I-29 poison is held alone"]
    values = {
        "jobs": len(verdict.history.stories),
        "deadly": len(own),
        "deaths_each": sorted({job.recoveries for job in deadly}),
        "own_deaths_alone": sorted({own[job.id] for [job] in alone}),
        "own_deaths_together": sorted({own[job.id] for job in together}),
        "others_retired": len({violation.job for violation in found}),
    }
    kept = not found and values["deaths_each"] == values["own_deaths_alone"] == [3]
    return Measured(kept, values)


async def _held(stage: Stage, hf: Holdfast, uids: Sequence[int]) -> list[Job]:
    """Enqueue deadly jobs, and wait until all are held."""
    specs = [workload.make(uid, "poison", stage.lease, random.Random(uid)) for uid in uids]
    found = await hf.queries.enqueue_many([NewJob(s.entrypoint, s.payload) for s in specs])
    ids = [job_id for job_id in found if job_id is not None]
    jobs: list[Job] = []

    async def held() -> bool:
        jobs[:] = await hf.queries.get_jobs(ids)
        return all(job.held_at for job in jobs)

    await stage.eventually(held, 120)
    return jobs
