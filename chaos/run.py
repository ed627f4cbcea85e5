"""One run: server, workers, producers and nemesis until everything due has ended; the check."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos import schedule, workload
from chaos.checker.check import Verdict, check
from chaos.cluster import Cluster
from chaos.files import SECOND, now
from chaos.nemesis import Nemesis, come_and_go
from chaos.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.schedule import Planned

_DRAIN_PATIENCE = 60.0
_LIVE = f"""
select (select count(*) from holdfast where held_at is null)
     + (select count(*) from {workload.TABLE} where not inactive)
"""


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
    "short": Profile("short", 11.0, 1_500, 15, 3, 8.0, 1),
    "quick": Profile("quick", 225.0, 50_000, 330, 6, 9.0, 6),
    "full": Profile("full", 900.0, 200_000, 1_300, 6, 9.0, 20),
}


def new_directory(prefix: str = "holdfast-chaos-") -> Path:
    """PostgreSQL's account must be able to pass through."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    directory.chmod(0o711)
    return directory


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
    faults = list(
        planned
        or schedule.draw(
            seed,
            seconds=profile.seconds,
            faults=profile.faults,
            workers=profile.workers,
            lease=profile.lease,
            crash_every=profile.crash_every,
        )
    )
    _write_lines(directory / "faults.jsonl", [fault.as_line() for fault in faults])
    plan = _plan(profile, seed, mutant)
    began = now()
    async with Cluster(directory / "pg", binaries=binaries) as cluster:
        say(f"seed {seed}: {profile.jobs} jobs, {profile.workers} workers, {len(faults)} faults")
        stage = Stage(cluster, directory, lease=profile.lease, mutant=mutant)
        async with stage:
            await _play(stage, profile, seed, faults, say)
            plan["drained"] = True
            await _drain(stage, say)
            await _leave(stage)
            await stage.finish()
    plan |= {"seconds": round((now() - began) / SECOND, 1), "ended": now()}
    (directory / "plan.json").write_text(json.dumps(plan))
    say(f"histories in {directory}, now checking")
    return check(directory)


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
    stage: Stage,
    profile: Profile,
    seed: int,
    faults: Sequence[Planned],
    say: Callable[[str], None],
) -> None:
    for n in range(profile.workers):
        await stage.start_worker(
            f"w{n}",
            scheduled=n < 3,
            tables=n != 1,
            concurrency=profile.concurrency,
            batch_size=profile.concurrency,
            drain=profile.drain,
        )
    producers = []
    for n in range(_PRODUCERS):
        first, count = _share(profile, n)
        pace = count / (profile.seconds + 4.0)
        producers.append(
            await stage.start_producer(
                f"p{n}", seed=seed, first=first, count=count, per_second=pace, rows=n == 0
            )
        )
    poison = await _poison(stage, profile, seed)
    await stage.until(lambda: any(stage.proxy.links(name, ["claim"]) for name in stage.workers), 30)
    nemesis = Nemesis(stage, [producer.name for producer in producers])
    breaking = asyncio.create_task(come_and_go(stage, 4.0, 1.2))
    try:
        await nemesis.run(faults)
        say("the last fault is over")
        for producer in (*producers, *poison):
            if not await stage.until(lambda producer=producer: not producer.alive, 120):  # type: ignore[misc]
                raise RuntimeError(f"producer {producer.name} does not come to an end")
    finally:
        breaking.cancel()
        with suppress(asyncio.CancelledError):
            await breaking
        await nemesis.close()


async def _poison(stage: Stage, profile: Profile, seed: int) -> list[Any]:
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


async def _drain(stage: Stage, say: Callable[[str], None]) -> None:
    """No more ticks; then wait until nothing is queued, leased or due."""
    connection = await stage.connect()
    try:
        await connection.execute("update holdfast_schedules set paused = true")

        async def empty() -> bool:
            return int(await connection.fetchval(_LIVE)) == 0

        if not await stage.eventually(empty, _DRAIN_PATIENCE):
            left = await connection.fetchval(_LIVE)
            say(f"{left} jobs did not end within {_DRAIN_PATIENCE:g} s")
    finally:
        await connection.close()


async def _leave(stage: Stage) -> None:
    stage.replacing = False
    await asyncio.gather(*(stage.retire(name) for name in stage.workers))
    await asyncio.sleep(0.1)


def _write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
