"""Runs the benchmark: every measure in interleaved rounds, one table at the end."""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import signal
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import holdfast
from bench import publish, results
from bench.contestants import CONTESTANTS, QUICK, Contestant
from bench.envs import CannotInstall, Installed, install
from bench.measures.families import FAMILIES, Family
from bench.plan import FULL, QUICK_MEASURES, Sizes
from bench.plan import QUICK as QUICK_SIZES
from bench.process import SubjectFailed
from bench.results import MEASURES
from bench.server import DISK, Server, find_binaries
from bench.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

BENCH = Path(__file__).parent
# Where the subjects import it from too.
SOURCE = Path(holdfast.__file__).parent
console = Console()


@dataclass(slots=True)
class Run:
    """What a run is asked to do, and what it has found."""

    asked: Sequence[str]
    subjects: Sequence[Contestant]
    rounds: int
    sizes: Sizes
    installed: dict[str, Installed] = field(default_factory=dict)
    values: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: dict[str, str] = field(default_factory=dict)

    def steps(self) -> Iterator[tuple[Family, int, Contestant]]:
        """Round by round, each beginning with another subject."""
        present = [one for one in self.subjects if one.name in self.installed]
        for family in FAMILIES:
            suited = [one for one in present if family.suits(one, self.asked)]
            for turn in range(self.rounds):
                start = turn % len(suited) if suited else 0
                for subject in (*suited[start:], *suited[:start]):
                    yield family, turn, subject

    def keep(self, subject: Contestant, found: dict[str, float]) -> str:
        for measure, value in found.items():
            if measure in self.asked and measure not in subject.skips:
                self.values[measure, subject.name].append(value)
        measure, value = next(iter(found.items()))
        return f"{measure} {subject.name} {results.number(value)} {MEASURES[measure].unit}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    # The server and the subjects are stopped on the way out, also when somebody stops the run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run = _plan(options)
    _install(run, options.reinstall)
    load, source = os.getloadavg(), source_digest()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-logs-") as logs,
        Server(find_binaries(options.pg), Path(options.data)) as server,
    ):
        facts = _facts(run, options, server, load)
        stage = Stage(server, run.sizes, run.installed, Path(logs))
        try:
            _measure(run, stage)
        except KeyboardInterrupt:
            run.failures["the run"] = "stopped by hand; the figures are those so far"
    if source_digest() != source:
        run.failures["the source"] = "changed during the run: the figures are of no one version"
    facts |= {"load_at_end": os.getloadavg(), "source": source, "failures": run.failures}
    return _tell(run, stage, facts, options)


def source_digest(folder: Path = SOURCE) -> str:
    """What tells one state of the code from another, committed or not."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".sql")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.main", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="Holdfast, PgQueuer and the limit, in 5 minutes")
    add("--only", default="", help=f"measures, with commas: {', '.join(MEASURES)}")
    add("--subjects", default="", help=f"subjects, with commas: {', '.join(CONTESTANTS)}")
    add("--rounds", type=int, default=3, help="how often each is measured (3)")
    add("--scale", type=float, default=1.0, help="smaller counts and times, to try things out")
    add("--pg", default=os.environ.get("BINDIR"), help="folder of PostgreSQL's initdb (BINDIR)")
    add("--data", default=str(DISK), help=f"folder on a real disk for the cluster ({DISK})")
    add("--results", default=str(BENCH / "results.json"), help="the file the figures go to")
    add("--publish", action="store_true", help="write the plots and tables of docs/ from this run")
    add(
        "--reinstall", action="store_true", help="install the peers again, in their newest versions"
    )
    return parser.parse_args(arguments)


def _plan(options: argparse.Namespace) -> Run:
    names = _chosen(options.subjects, CONTESTANTS, QUICK if options.quick else CONTESTANTS)
    asked = _chosen(options.only, MEASURES, QUICK_MEASURES if options.quick else MEASURES)
    sizes = QUICK_SIZES if options.quick else FULL
    if options.scale != 1.0:
        sizes = sizes.scaled(options.scale)
    return Run(asked, [CONTESTANTS[name] for name in names], options.rounds, sizes)


def _chosen(text: str, known: Iterable[str], default: Iterable[str]) -> list[str]:
    names, there = [name.strip() for name in text.split(",") if name.strip()], list(known)
    if unknown := [name for name in names if name not in there]:
        sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join(there)}")
    return names or list(default)


def _install(run: Run, anew: bool) -> None:
    for subject in run.subjects:
        with console.status(f"installing {subject.name}"):
            try:
                run.installed[subject.name] = install(subject, anew=anew)
            except CannotInstall as error:
                run.failures[subject.name] = f"cannot be installed: {error}"
                console.print(f"[yellow]{subject.name} cannot be installed: {error}")


def _measure(run: Run, stage: Stage) -> None:
    steps = list(run.steps())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("", total=len(steps))
        for place, (family, turn, subject) in enumerate(steps):
            words = f"round {turn + 1}/{run.rounds} · {family.gives[0]} · {subject.name}"
            progress.update(bar, description=words)
            try:
                progress.console.print(run.keep(subject, family.run(stage, subject)), style="dim")
            except (SubjectFailed, psycopg.Error, psutil.Error) as error:
                # A peer that fails is reported, and does not stop the rest.
                run.failures[f"{family.gives[0]} {subject.name}"] = str(error).strip()
                progress.console.print(f"[yellow]{family.gives[0]}: {error}")
            progress.advance(bar)
            last = place + 1 == len(steps) or steps[place + 1][0] is not family
            if last and family.fills:
                stage.forget(family.fills)


def _facts(
    run: Run, options: argparse.Namespace, server: Server, load: tuple[float, float, float]
) -> dict[str, object]:
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "profile": "quick" if options.quick else "full",
        "scale": options.scale,
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "asyncpg": version("asyncpg"),
        "uvloop": version("uvloop"),
        "postgresql": server.facts(),
        "versions": {name: one.version for name, one in run.installed.items()},
        "load_at_start": load,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _tell(run: Run, stage: Stage, facts: dict[str, object], options: argparse.Namespace) -> int:
    figures = results.summarise(run.values)
    Console(width=max(console.width, 110)).print(publish.table(figures))
    for subject, reason in run.failures.items():
        console.print(f"[yellow]{subject}: {reason}")
    target = Path(options.results)
    results.write(target, figures)
    record = facts | {"details": stage.details}
    beside = target.with_name(f"{target.stem}-run.json")
    beside.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    if options.publish:
        publish.publish(figures, record)
    return 0 if figures else 1


if __name__ == "__main__":
    sys.exit(main())
