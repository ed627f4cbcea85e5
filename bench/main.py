"""Runs the benchmark: every measure in interleaved rounds, one table at the end."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bench import facts, publish, record
from bench.contestants import CONTESTANTS, QUICK
from bench.envs import CannotInstall, Installed, install
from bench.plan import QUICK_MEASURES, QUICK_ROUNDS, Plan
from bench.record import Record
from bench.results import MEASURES, clock
from bench.run import Run
from bench.server import DISK, Server
from bench.sizes import FULL
from bench.sizes import QUICK as QUICK_SIZES
from bench.stage import Stage
from devtools.cluster import CannotRun, find_binaries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.contestants import Contestant

BENCH = Path(__file__).parent
# What is not a whole run must not take the place of one.
PARTIAL = BENCH / ".run" / "results.json"
console = Console()


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    target = Path(options.results) if options.results else _target(options)
    profile = {"profile": "quick" if options.quick else "full", "scale": options.scale}
    found = _earlier(target, profile) if options.resume else Record()
    # The server and the subjects are stopped on the way out, also when the run is interrupted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    installed = _install(_subjects(options), found, options.reinstall)
    plan = _plan(options, installed, found)
    _tell_plan(plan, target)
    # What is only published again keeps the facts of its run.
    if plan.steps() or (found.disturbed() and not options.publish):
        try:
            _measure(plan, installed, found, target, options, profile)
        except CannotRun as error:
            sys.exit(f"there is no PostgreSQL to measure on: {error}")
    return _tell(found, target, options)


def _measure(
    plan: Plan,
    installed: dict[str, Installed],
    found: Record,
    target: Path,
    options: argparse.Namespace,
    profile: dict[str, Any],
) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-logs-") as logs,
        Server(options.pg or find_binaries(), Path(options.data)) as server,
    ):
        before = found.facts.get("versions", {})
        found.facts |= facts.gather(server, installed) | profile
        # A run that is continued with some subjects has figures of the others as well.
        found.facts["versions"] = before | found.facts["versions"]
        facts.add_source(found.facts)
        stage = Stage(server, plan.sizes, installed, Path(logs))
        Run(plan, stage, found, target, console, repeats=not options.quick).go()


def _binaries(text: str) -> Path | None:
    """None for an empty variable."""
    folder = Path(text).resolve()
    if text and not (folder / "initdb").exists():
        raise argparse.ArgumentTypeError(f"there is no initdb in {folder}")
    return folder if text else None


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.main", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="Holdfast, PgQueuer and the limit, in 5 minutes")
    add("--only", nargs="+", choices=MEASURES, metavar="MEASURE", help=", ".join(MEASURES))
    add("--subjects", nargs="+", choices=CONTESTANTS, metavar="NAME", help=", ".join(CONTESTANTS))
    add("--rounds", type=int, help="how often each is measured (mostly 3 times)")
    add("--resume", action="store_true", help="go on with the run whose figures are there")
    add("--scale", type=float, default=1.0, help="smaller counts and times, to try things out")
    add(
        "--pg",
        type=_binaries,
        default=os.environ.get("BINDIR"),
        help="folder of PostgreSQL's initdb (BINDIR)",
    )
    add("--data", default=str(DISK), help=f"folder on a real disk for the cluster ({DISK})")
    add(
        "--results",
        help=f"the file the figures go to ({publish.WHOLE.name}; of a part, {PARTIAL.parent})",
    )
    add("--publish", action="store_true", help="write the plots and tables of docs/ from this run")
    add(
        "--reinstall", action="store_true", help="install the peers again, in their newest versions"
    )
    return parser.parse_args(arguments)


def _target(options: argparse.Namespace) -> Path:
    return PARTIAL if _is_partial(options) else publish.WHOLE


def _is_partial(options: argparse.Namespace) -> bool:
    return bool(options.quick or options.only or options.subjects or options.scale != 1.0)


def _earlier(target: Path, profile: dict[str, Any]) -> Record:
    """What a run of the same kind has left there."""
    if not record.beside(target).exists():
        return Record()
    try:
        found = record.load(target)
    except record.NoSteps as error:
        sys.exit(str(error))
    kind = {name: found.facts.get(name) for name in profile}
    if kind != profile:
        sys.exit(f"{target} is of another kind of run ({kind}): start anew, without --resume")
    return found


def _subjects(options: argparse.Namespace) -> list[Contestant]:
    names = options.subjects or (QUICK if options.quick else CONTESTANTS)
    return [CONTESTANTS[name] for name in names]


def _plan(options: argparse.Namespace, installed: dict[str, Installed], found: Record) -> Plan:
    sizes = QUICK_SIZES if options.quick else FULL
    if options.scale != 1.0:
        sizes = sizes.scaled(options.scale)
    asked = options.only or (QUICK_MEASURES if options.quick else MEASURES)
    present = [subject for subject in _subjects(options) if subject.name in installed]
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else None)
    return Plan(list(asked), present, sizes, rounds, found.done())


def _install(subjects: list[Contestant], found: Record, anew: bool) -> dict[str, Installed]:
    """Each subject, and whoever makes the tables that it uses."""
    installed, failures = {}, {}
    for subject in dict.fromkeys((*subjects, *(subject.owner for subject in subjects))):
        with console.status(f"installing {subject.name}"):
            try:
                installed[subject.name] = install(subject, anew=anew)
            except CannotInstall as error:
                failures[subject.name] = f"cannot be installed: {error}"
                console.print(f"[yellow]{subject.name} cannot be installed: {error}")
    found.facts["failures"] = failures
    return installed


def _tell_plan(plan: Plan, target: Path) -> None:
    steps = plan.steps()
    by_family: dict[str, float] = {}
    for step, seconds in zip(steps, plan.seconds(steps), strict=True):
        by_family[step.family.name] = by_family.get(step.family.name, 0.0) + seconds
    for name, seconds in by_family.items():
        rounds = len({step.turn for step in steps if step.family.name == name})
        subjects = len({step.subject.name for step in steps if step.family.name == name})
        console.print(
            f"{name:20} {subjects} subjects, {rounds} rounds, about {clock(seconds)}", style="dim"
        )
    whole = clock(sum(by_family.values()))
    console.print(
        f"{len(steps)} steps, about {whole} minutes; {len(plan.done)} were taken before; "
        f"figures go to {target} after each"
    )


def _tell(found: Record, target: Path, options: argparse.Namespace) -> int:
    figures = found.figures()
    wide = Console(width=max(console.width, 110))
    wide.print(publish.table(figures))
    wide.print(publish.goals_table(found))
    for subject, reason in found.failures().items():
        console.print(f"[yellow]{subject}: {reason}")
    if options.publish and target in (publish.WHOLE, publish.NEWER) and not _is_partial(options):
        publish.publish()
    console.print(f"the figures are in {target}")
    return 0 if figures else 1


if __name__ == "__main__":
    sys.exit(main())
