"""Tests the checker: a scenario finds nothing without a bug, and each bug planted for it."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.table import Table

from chaos import report
from chaos.checker.check import Verdict, check
from chaos.cluster import Cluster
from chaos.files import PATIENCE, SECOND, now
from chaos.mutants import MUTANTS
from chaos.mutants.base import COULD_NOT, Mutant
from chaos.run import new_directory
from chaos.scenarios import (
    counting,
    enqueuing,
    fencing,
    machinery,
    recovering,
    settling,
    snoozing,
    waking,
)
from chaos.scenarios.scene import SCENARIOS, Missed, Scenario, Scene
from chaos.stage import Stage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from rich.console import Console

__all__ = [
    "command",
    "counting",
    "enqueuing",
    "fencing",
    "machinery",
    "recovering",
    "settling",
    "snoozing",
    "trials",
    "waking",
]

_PLAY_SECONDS = 90.0 * PATIENCE
_AT_ONCE = 2


@dataclass(slots=True)
class Result:
    """What one run of a scenario found."""

    scenario: str
    mutant: str | None
    seconds: float
    found: dict[str, int] = field(default_factory=dict)
    trouble: str = ""
    example: str = ""

    @property
    def clean(self) -> bool:
        return not self.found and not self.trouble

    @property
    def caught(self) -> bool:
        return bool(self.found) and not self.trouble


class Trials:
    """One server for all runs of scenarios, and a database for each run."""

    def __init__(self, cluster: Cluster, directory: Path, keep: bool = False) -> None:
        self._cluster = cluster
        self._directory = directory
        self._keep = keep
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._admission = asyncio.Lock()
        self._numbers = 0

    async def run(self, scenario: Scenario, mutant: Mutant | None) -> Result:
        takes = _AT_ONCE if scenario.exclusive else 1
        async with self._admission:
            # One at a time: two that each have half of the places would wait for each other.
            for _ in range(takes):
                await self._places.acquire()
        try:
            return await self._run(scenario, mutant)
        finally:
            for _ in range(takes):
                self._places.release()

    async def _run(self, scenario: Scenario, mutant: Mutant | None) -> Result:
        self._numbers += 1
        name = f"play{self._numbers}"
        directory = self._directory / name
        directory.mkdir()
        began = now()
        stage = Stage(
            self._cluster,
            directory,
            database=name,
            lease=scenario.lease,
            mutant=mutant.name if mutant else None,
            ddl=mutant.ddl if mutant else "",
            probing=scenario.probing,
        )
        plan = {"profile": scenario.name, "seed": 0, "lease": scenario.lease, **scenario.plan}
        async with stage:
            scene = Scene(stage)
            trouble = await _play(scenario, scene)
            await stage.finish()
        (directory / "plan.json").write_text(json.dumps({**plan, **scene.plan, "ended": now()}))
        result = _judge(check(directory), scenario, mutant, trouble)
        result.seconds = (now() - began) / SECOND
        if not self._keep:
            shutil.rmtree(directory, ignore_errors=True)
        return result


async def _play(scenario: Scenario, scene: Scene) -> str:
    """Why the scenario did not end, unless the bug is the reason."""
    try:
        async with asyncio.timeout(_PLAY_SECONDS):
            await scenario.play(scene)
    except Missed:
        return ""
    except TimeoutError:
        return f"not over after {_PLAY_SECONDS:g} s"
    await scene.leave()
    return ""


def _judge(verdict: Verdict, scenario: Scenario, mutant: Mutant | None, trouble: str) -> Result:
    history = verdict.history
    if any(exit_.code == COULD_NOT for exit_ in history.exits.values()):
        trouble = "could not be planted: the code has changed"
    found = {name: len(some) for name, some in verdict.violations.items() if some}
    first = verdict.first
    example = f"{first.invariant}: {first.text}" if first else ""
    return Result(scenario.name, mutant.name if mutant else None, 0.0, found, trouble, example)


async def trials(
    names: Iterable[str],
    directory: Path,
    *,
    binaries: Path | None = None,
    tell: Callable[[Result], None] = lambda _: None,
    keep: bool = False,
) -> dict[str, Result]:
    """Each mutant on its scenario, and each of these scenarios without any; by name."""
    chosen = [MUTANTS[name] for name in names]
    results: dict[str, Result] = {}

    async def one(key: str, scenario: Scenario, mutant: Mutant | None) -> None:
        results[key] = await on_server.run(scenario, mutant)
        tell(results[key])

    async with Cluster(directory / "pg", binaries=binaries) as cluster:
        on_server = Trials(cluster, directory, keep)
        scenarios = sorted({mutant.scenario for mutant in chosen})
        async with asyncio.TaskGroup() as group:
            for name in scenarios:
                group.create_task(one(f"scenario {name}", SCENARIOS[name], None))
            for mutant in chosen:
                group.create_task(one(mutant.name, SCENARIOS[mutant.scenario], mutant))
    return results


def command(options: argparse.Namespace, console: Console) -> int:
    """`python -m chaos mutants`."""
    names = options.only or list(MUTANTS)
    if unknown := [name for name in names if name not in MUTANTS]:
        console.print(f"there is no mutant {unknown[0]!r}; `--list` names them")
        return 2
    if options.list:
        for mutant in MUTANTS.values():
            console.print(f"{mutant.name}: {mutant.what} ({mutant.scenario})", highlight=False)
        return 0
    directory = new_directory("holdfast-mutants-")

    def tell(result: Result) -> None:
        who = result.mutant or f"(none, scenario {result.scenario})"
        word = result.trouble or result.example or "nothing found"
        console.print(f"{result.seconds:5.1f} s  {who}: {word}", highlight=False, markup=False)

    work = trials(names, directory, binaries=options.pg, tell=tell, keep=options.keep)
    results = asyncio.run(work)
    if not options.keep:
        shutil.rmtree(directory, ignore_errors=True)
    return _conclude(results, names, options, console)


def _conclude(
    results: dict[str, Result], names: list[str], options: argparse.Namespace, console: Console
) -> int:
    table = Table(title="planted bugs")
    for column in ("mutant", "scenario", "caught by"):
        table.add_column(column)
    caught: dict[str, bool] = {}
    for name in names:
        result = results[name]
        sound = results[f"scenario {result.scenario}"].clean
        caught[name] = result.caught and sound
        by = ", ".join(result.found) or result.trouble or "[red]survived[/red]"
        table.add_row(name, result.scenario, by if sound else "[red]scenario is unsound[/red]")
    console.print(table)
    unsound = [key for key, result in results.items() if not result.mutant and not result.clean]
    for key in unsound:
        console.print(f"[red]{key} finds something without a bug[/red]: {results[key].example}")
    console.print(f"{sum(caught.values())} of {len(caught)} caught")
    if options.only:
        report.merge(options.report, "mutants", caught)
    else:
        report.write(options.report, mutants=caught)
    return 0 if all(caught.values()) and not unsound else 1
