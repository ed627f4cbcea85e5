"""One run: server, workers, producers and nemesis until everything due has ended; the check."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos import schedule, workload
from chaos.checker.check import Verdict, check
from chaos.cluster import Cluster
from chaos.files import PATIENCE, SECOND, now
from chaos.handlers import WITHOUT_BREAKER
from chaos.nemesis import Nemesis, come_and_go
from chaos.report import FLEET
from chaos.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from chaos.schedule import Planned
    from chaos.stage import Process

_DRAIN_SECONDS = 20.0 * PATIENCE
_PRODUCER_SECONDS = 120.0 * PATIENCE


@dataclass(frozen=True, slots=True)
class Profile:
    """How much of everything."""

    name: str
    seconds: float
    """From the first fault to the last."""
    jobs: int
    faults: int
    workers: int
    crash_every: float
    poison: int
    lease: float = 1.5
    concurrency: int = 40
    drain: float = 5.0


PROFILES = {
    # Long leases: it must hold on a machine that is busy with other things, too.
    "short": Profile("short", 12.0, 1_200, 14, 3, 8.0, 1, lease=4.0),
    "quick": Profile("quick", 225.0, 52_000, 330, 6, 9.0, 6),
    "full": Profile("full", 540.0, 125_000, 790, 6, 9.0, 12),
    # Thirty processes on a few cores: longer leases, and few slots in each.
    FLEET: Profile(FLEET, 120.0, 12_000, 110, 30, 20.0, 2, lease=4.0, concurrency=8),
}


def new_directory(prefix: str = "holdfast-chaos-") -> Path:
    """PostgreSQL's account must be able to pass through."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    directory.chmod(0o711)
    return directory


@dataclass(slots=True)
class Act:
    """What a run may have besides its schedule."""

    during: Callable[[Stage], Awaitable[None]] | None = None
    """Runs beside the faults, and is waited for."""
    workers: dict[str, Any] = field(default_factory=dict)
    """Options of every worker."""


async def run(
    profile: Profile,
    seed: int,
    directory: Path,
    *,
    say: Callable[[str], None],
    binaries: Path | None = None,
    mutant: str | None = None,
    planned: Sequence[Planned] | None = None,
) -> Verdict:
    """The verdict on one run; its histories stay in `directory`."""
    faults = list(planned or draw(profile, seed))
    say(f"seed {seed}: {profile.jobs} jobs, {profile.workers} workers, {len(faults)} faults")
    async with Cluster(directory / "pg", binaries=binaries) as cluster:
        stage = Stage(cluster, directory, lease=profile.lease, mutant=mutant)
        return await perform(stage, profile, seed, faults, say=say)


def draw(profile: Profile, seed: int) -> list[Planned]:
    return schedule.draw(
        seed,
        seconds=profile.seconds,
        faults=profile.faults,
        workers=profile.workers,
        lease=profile.lease,
        crash_every=profile.crash_every,
    )


async def perform(
    stage: Stage,
    profile: Profile,
    seed: int,
    faults: Sequence[Planned],
    *,
    say: Callable[[str], None],
    act: Act | None = None,
) -> Verdict:
    """A run on a stage of the caller's; then the check of its histories."""
    act = act or Act()
    _write_lines(stage.directory / "faults.jsonl", [fault.as_line() for fault in faults])
    plan = _plan(profile, seed, stage.mutant)
    began = now()
    async with stage:
        await _play(stage, profile, seed, faults, act)
        say("the last fault is over")
        plan["drained"] = True
        await drain(stage, say)
        await leave(stage)
        await stage.finish()
    plan |= {"seconds": round((now() - began) / SECOND, 1), "ended": now()}
    (stage.directory / "plan.json").write_text(json.dumps(plan))
    say(f"histories in {stage.directory}, now checking")
    return check(stage.directory)


def _plan(profile: Profile, seed: int, mutant: str | None) -> dict[str, Any]:
    """What the checker has to know besides the histories."""
    delays = {
        spec.uid: spec.does["delay"]
        for producer in range(_PRODUCERS)
        for spec in _specs(profile, seed, producer)
        if spec.kind == "fail"
    }
    return {
        "profile": profile.name,
        "seed": seed,
        "mutant": mutant,
        "limits": {"limited": workload.LIMIT},
        "delays": delays,
        "sustained": True,
        **{key: value for key, value in asdict(profile).items() if key not in ("name", "jobs")},
    }


_PRODUCERS = 2


def _share(profile: Profile, producer: int) -> tuple[int, int]:
    each = profile.jobs // _PRODUCERS
    return producer * each, each


def _specs(profile: Profile, seed: int, producer: int) -> Any:
    first, count = _share(profile, producer)
    return workload.specs(seed, first, count, profile.lease)


async def _play(
    stage: Stage, profile: Profile, seed: int, faults: Sequence[Planned], act: Act
) -> None:
    await _start_workers(stage, profile, act.workers)
    producers = [await _start_producer(stage, profile, seed, n) for n in range(_PRODUCERS)]
    poison = await _poison(stage, profile, seed)
    await stage.until(lambda: any(stage.proxy.links(name, ["main"]) for name in stage.workers), 30)
    nemesis = Nemesis(stage, [producer.name for producer in producers])
    breaking = asyncio.create_task(come_and_go(stage, 4.0, 1.2))
    try:
        during = [act.during(stage)] if act.during else []
        await asyncio.gather(nemesis.run(faults), *during)
        for producer in (*producers, *poison):
            if not await stage.until(lambda ended=producer: not ended.alive, _PRODUCER_SECONDS):  # type: ignore[misc]
                raise RuntimeError(f"producer {producer.name} does not come to an end")
    finally:
        breaking.cancel()
        with suppress(asyncio.CancelledError):
            await breaking
        await nemesis.close()


async def _start_workers(stage: Stage, profile: Profile, options: dict[str, Any]) -> None:
    skews = options.pop("skews", (0.0,))
    for n in range(profile.workers):
        await stage.start_worker(
            f"w{n}",
            scheduled=n < 3,
            tables=n != 1,
            entrypoints=WITHOUT_BREAKER if n % 2 else (),
            concurrency=profile.concurrency,
            batch_size=profile.concurrency,
            drain=profile.drain,
            skew=skews[n % len(skews)],
            **options,
        )


async def _start_producer(stage: Stage, profile: Profile, seed: int, n: int) -> Process:
    first, count = _share(profile, n)
    pace = count / (profile.seconds + 4.0)
    return await stage.start_producer(
        f"p{n}", seed=seed, first=first, count=count, per_second=pace, rows=n == 0
    )


async def _poison(stage: Stage, profile: Profile, seed: int) -> list[Process]:
    """Jobs that kill their workers, spread over the run."""
    first = 500_000_000
    if not profile.poison:
        return []
    return [
        await stage.start_producer(
            "poison",
            seed=seed,
            first=first,
            count=profile.poison,
            per_second=profile.poison / profile.seconds,
            shares={"poison": 1},
            calls_at_once=1,
        )
    ]


async def drain(stage: Stage, say: Callable[[str], None]) -> None:
    """No more ticks; then wait until nothing is queued, leased or due."""
    connection = await stage.connect()
    try:
        await connection.execute("update holdfast_schedules set paused = true")
    finally:
        await connection.close()
    if not await stage.drained(_DRAIN_SECONDS):
        say(f"jobs are left, and none has ended for {_DRAIN_SECONDS:g} s")


async def leave(stage: Stage) -> None:
    stage.replacing = False
    await asyncio.gather(*(stage.retire(name) for name in stage.workers))
    await asyncio.sleep(0.1)


def _write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
