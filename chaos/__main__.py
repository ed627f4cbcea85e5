"""`python -m chaos run|check|replay|mutants`."""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import shutil
import sys
from pathlib import Path

from rich.console import Console

from chaos import report
from chaos.checker.check import Verdict, check
from chaos.run import PROFILES, new_directory, run
from chaos.schedule import Planned


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console(soft_wrap=True)
    code: int = options.command(options, console)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m chaos", description="Holdfast's fault harness.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    running = commands.add_parser("run", help="workers, faults, and the check of what came of it")
    running.add_argument("--profile", choices=sorted(PROFILES), default="quick")
    running.add_argument("--seed", type=int, help="of jobs and faults; random unless given")
    running.add_argument("--pg", type=Path, help="folder of PostgreSQL's programs")
    running.add_argument("--mutant", help="plant this bug (see `mutants`)")
    running.set_defaults(command=_run)
    checking = commands.add_parser("check", help="check the histories of a run again")
    checking.set_defaults(command=_check)
    replaying = commands.add_parser("replay", help="the same seed and schedule of faults again")
    replaying.set_defaults(command=_replay)
    for parser_ in (checking, replaying):
        parser_.add_argument("directory", type=Path, metavar="HISTORY_DIR")
    for parser_ in (running, replaying):
        parser_.add_argument("--keep", action="store_true", help="keep the histories")
    _add_mutants(commands)
    for parser_ in (running, checking, replaying):
        parser_.add_argument("--report", type=Path, default=report.DEFAULT)
    return parser


def _add_mutants(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    planting = commands.add_parser("mutants", help="plant bugs; every one must be caught")
    planting.add_argument("--only", action="append", metavar="NAME", help="may be repeated")
    planting.add_argument("--keep", action="store_true", help="keep the histories")
    planting.add_argument("--list", action="store_true", help="name them and stop")
    planting.add_argument("--report", type=Path, default=report.DEFAULT)
    planting.add_argument("--pg", type=Path, help="folder of PostgreSQL's programs")
    planting.set_defaults(command=_mutants)


def _run(options: argparse.Namespace, console: Console) -> int:
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    directory = new_directory()
    profile = PROFILES[options.profile]
    work = run(
        profile,
        seed,
        directory,
        say=console.print,
        binaries=options.pg,
        mutant=options.mutant,
    )
    return _conclude(asyncio.run(work), options, console, directory)


def _replay(options: argparse.Namespace, console: Console) -> int:
    plan = json.loads((options.directory / "plan.json").read_text())
    lines = (options.directory / "faults.jsonl").read_text().splitlines()
    planned = [Planned(**{**json.loads(line)}) for line in lines]
    directory = new_directory()
    work = run(
        PROFILES[plan["profile"]],
        plan["seed"],
        directory,
        say=console.print,
        mutant=plan["mutant"],
        planned=planned,
    )
    return _conclude(asyncio.run(work), options, console, directory)


def _check(options: argparse.Namespace, console: Console) -> int:
    verdict = check(options.directory)
    report.show(verdict, console)
    return _code(verdict)


def _conclude(
    verdict: Verdict, options: argparse.Namespace, console: Console, directory: Path
) -> int:
    report.show(verdict, console)
    report.write(options.report, **verdict.report())
    code = _code(verdict)
    if options.keep or code:
        console.print(f"histories: {directory}; python -m chaos check {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return code


def _code(verdict: Verdict) -> int:
    return 1 if verdict.count or verdict.vacuous else 0


def _mutants(options: argparse.Namespace, console: Console) -> int:
    from chaos.mutants import trial

    return trial.command(options, console)


if __name__ == "__main__":
    sys.exit(main())
