"""The tables of a release are upgraded under load, while a worker is killed every second.

First there are workers and a producer of the release alone. The upgrade is killed once while it
waits for its first lock, and run again. Then workers of both versions serve the same jobs, and at
last those of the release are replaced, one after the other.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from chaos.checker.check import Verdict, check
from chaos.checker.model import Violation, pid_of
from chaos.cluster import Cluster
from chaos.files import PATIENCE, SECOND, now
from chaos.run import drain, leave
from chaos.stage import Stage
from tests.postgres.released import RELEASES, schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from chaos.checker.history import History

    Say = Callable[[str], None]

__all__ = ["LONG", "RELEASES", "SHORT", "Pace", "upgrade"]

_SHARES = {"fast": 84, "long": 12, "later": 4}
"""What the statements of every release can do."""

_MOST_STALL = int(2 * PATIENCE * SECOND)
_OLD = tuple(f"old{n}" for n in range(3))
_NEW = tuple(f"new{n}" for n in range(3))
_KILL_SECONDS = 1.0
_CONCURRENCY = 20
_LOOK = 0.02
_HOLDER_SECONDS = 5.0
_HOLDERS = "select distinct claimed_by from holdfast where claim_token is not null"
_FIRST_OF_NEW = 1_000_000
_PRODUCER_SECONDS = 60.0 * PATIENCE


@dataclass(frozen=True, slots=True)
class Pace:
    """How long each part takes, and how much is enqueued meanwhile."""

    before: float
    """Seconds with the release alone."""
    in_the_way: float
    """Seconds for which a transaction that only reads keeps the upgrade waiting."""
    beside: int
    """Workers killed while both versions work."""
    starting: float
    """Seconds that processes may take to start: jobs come until the last worker is replaced."""
    per_second: float
    """Jobs of each of the two producers."""


SHORT = Pace(before=0.3, in_the_way=0.7, beside=2, starting=3.0, per_second=30)
LONG = Pace(before=3.0, in_the_way=3.0, beside=20, starting=10.0, per_second=60)


async def upgrade(directory: Path, seed: int, say: Say, *, release: str, pace: Pace) -> Verdict:
    """Upgrade from one release. Return the verdict of every invariant, and of `no stall`."""
    async with Cluster(directory / "pg") as cluster:
        stage = Stage(cluster, directory, installed=schema_of(release))
        kills = (pace.beside + len(_OLD)) * _KILL_SECONDS
        seconds = pace.before + pace.in_the_way + kills + pace.starting
        plan = _plan(release, seed, stage.lease)
        async with stage:
            began = now()
            await _play(stage, release, seed, pace, count=int(pace.per_second * seconds))
            ended = now()
            await drain(stage, say)
            await leave(stage)
            await stage.finish()
    plan |= {"seconds": round((now() - began) / SECOND, 1), "ended": now()}
    (directory / "plan.json").write_text(json.dumps(plan))
    verdict = check(directory)
    stalls = list(_stalls(verdict.history, began, ended))
    longest = max(length for length, _ in stalls)
    verdict.violations["no stall"] = [
        Violation("no stall", f"no job ended for {length / SECOND:.1f} s", t=t)
        for length, t in stalls
        if length > _MOST_STALL
    ]
    verdict.figures["longest_stall_s"] = round(longest / SECOND, 2)
    say(f"from {release}: the longest time without an end of a job was {longest / SECOND:.2f} s")
    return verdict


def _plan(release: str, seed: int, lease: float) -> dict[str, Any]:
    return {
        "profile": f"upgrade from {release}",
        "seed": seed,
        "lease": lease,
        "concurrency": _CONCURRENCY,
        "call_seconds": 2.0,
        "drained": True,
        "sustained": True,
    }


async def _play(stage: Stage, release: str, seed: int, pace: Pace, *, count: int) -> None:
    rng = random.Random(f"upgrade:{seed}")
    enqueued = {"seed": seed, "count": count, "per_second": pace.per_second, "shares": _SHARES}
    for name in _OLD:
        stage.start_old(name, release, concurrency=_CONCURRENCY)
    producers = [stage.start_old("old-producer", release, **enqueued)]
    await _until_ended(stage, 1)
    await asyncio.sleep(pace.before)
    killing = asyncio.create_task(_kill_now_and_then(stage, rng))
    try:
        await _upgrade_tables(stage, pace.in_the_way)
        options = {"concurrency": _CONCURRENCY, "batch_size": _CONCURRENCY}
        for name in _NEW:
            await stage.start_worker(name, **options)
        producers.append(
            await stage.start_producer("new-producer", first=_FIRST_OF_NEW, **enqueued)
        )
        await asyncio.sleep(pace.beside * _KILL_SECONDS)
    finally:
        killing.cancel()
        with suppress(asyncio.CancelledError):
            await killing
    for name in _OLD:
        await _kill(stage, [name], successor=False)
        await asyncio.sleep(_KILL_SECONDS)
    for producer in producers:
        if not await stage.until(lambda p=producer: not p.alive, _PRODUCER_SECONDS):  # type: ignore[misc]
            raise RuntimeError(f"producer {producer.name} does not come to an end")


async def _until_ended(stage: Stage, count: int) -> None:
    connection = await stage.connect()
    try:
        ended = "select count(*) >= $1 from holdfast_log"
        while not await connection.fetchval(ended, count):  # noqa: ASYNC110 - another process
            await asyncio.sleep(_LOOK)
    finally:
        await connection.close()


async def _kill_now_and_then(stage: Stage, rng: random.Random) -> None:
    """A worker of either version a second; a successor of the same version follows each."""
    while True:
        names = sorted(stage.workers)
        await _kill(stage, rng.sample(names, len(names)), successor=True)
        await asyncio.sleep(_KILL_SECONDS)


async def _kill(stage: Stage, names: Sequence[str], *, successor: bool) -> None:
    """The first of them that holds a lease, or the first of all when none gets one."""
    deadline = now() + int(_HOLDER_SECONDS * SECOND)
    connection = await stage.connect()
    try:
        found: list[str] = []
        while not found and now() < deadline:
            held = {pid_of(row[0]) for row in await connection.fetch(_HOLDERS)}
            found = [name for name in names if stage.workers[name].pid in held]
            await asyncio.sleep(_LOOK)
    finally:
        connection.terminate()
    name = (found or names)[0]
    stage.fault("kill", name)
    stage.kill(name)
    if not successor:
        stage.dismiss(name)


async def _upgrade_tables(stage: Stage, in_the_way: float) -> None:
    """As a person would, with a backup in the way; the first try is killed."""
    reader = await stage.connect()
    try:
        async with reader.transaction():
            await reader.execute("select count(*) from holdfast, holdfast_log")
            first = await _command(stage)
            await asyncio.sleep(in_the_way)
            assert first.returncode is None, "the reader is in its way"
            first.kill()
            await first.wait()
            second = await _command(stage)
    finally:
        reader.terminate()
    said, _ = await second.communicate()
    if second.returncode:
        raise RuntimeError(f"the upgrade failed:\n{said.decode(errors='replace')}")


async def _command(stage: Stage) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast", "upgrade", "--dsn", stage.dsn,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip


def _stalls(history: History, since: int, until: int) -> Iterator[tuple[int, int]]:
    """Each time between two ends of jobs, without that in which the machine stood still."""
    rows = [row for story in history.stories.values() for row in story.log]
    ends = sorted(row.t for row in rows if row.final and since <= row.t <= until)
    machine = [stall for stall in history.stalls if stall.pid is None and stall.kind == "stall"]
    for before, after in pairwise(ends):
        excused = sum(max(0, min(after, stall.until) - max(before, stall.t)) for stall in machine)
        yield after - before - excused, before
