"""`python -m chaos run|check|replay|mutants|figures|page`."""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import shutil
import sys
from pathlib import Path

from rich.console import Console

from chaos import page, report
from chaos.acts import ACTS, ACTS_ALONE, play_all
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
    running = commands.add_parser("run", help="run workers under faults, and check the result")
    running.add_argument("--profile", choices=[*PROFILES, *ACTS_ALONE], default="quick")
    running.add_argument("--seed", type=int, help="of jobs and faults; random unless given")
    running.add_argument("--pg", type=Path, help="folder of PostgreSQL's programs")
    running.add_argument("--mutant", help="plant this bug (see `mutants`)")
    running.set_defaults(command=_run)
    checking = commands.add_parser("check", help="check the histories of a run again")
    checking.set_defaults(command=_check)
    replaying = commands.add_parser("replay", help="run the same seed and schedule of faults again")
    replaying.set_defaults(command=_replay)
    for parser_ in (checking, replaying):
        parser_.add_argument("directory", type=Path, metavar="HISTORY_DIR")
    for parser_ in (running, replaying):
        parser_.add_argument("--keep", action="store_true", help="keep the histories")
    _add_mutants(commands)
    _add_figures(commands)
    paging = commands.add_parser("page", help="write the page about the last report")
    paging.add_argument("--report", type=Path, default=report.DEFAULT)
    paging.set_defaults(command=_page)
    for parser_ in (running, checking, replaying):
        parser_.add_argument("--report", type=Path, default=report.DEFAULT)
    return parser


def _add_mutants(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    planting = commands.add_parser("mutants", help="plant bugs, each of which must be caught")
    planting.add_argument("--only", action="append", metavar="NAME", help="may be repeated")
    planting.add_argument("--keep", action="store_true", help="keep the histories")
    planting.add_argument("--list", action="store_true", help="name them and stop")
    planting.add_argument("--report", type=Path, default=report.DEFAULT)
    planting.add_argument("--pg", type=Path, help="folder of PostgreSQL's programs")
    planting.set_defaults(command=_mutants)


def _add_figures(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    measuring = commands.add_parser("figures", help="measure what a random run does not show")
    measuring.add_argument("--only", action="append", metavar="NAME", help="may be repeated")
    measuring.add_argument("--keep", action="store_true", help="keep the histories")
    measuring.add_argument("--report", type=Path, default=report.DEFAULT)
    measuring.add_argument("--pg", type=Path, help="folder of PostgreSQL's programs")
    measuring.set_defaults(command=_figures)


def _run(options: argparse.Namespace, console: Console) -> int:
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    directory = new_directory()
    verdict, acts = asyncio.run(_perform(options, seed, directory, console))
    return _conclude(verdict, acts, options, console, directory)


async def _perform(
    options: argparse.Namespace, seed: int, directory: Path, console: Console
) -> tuple[Verdict | None, dict[str, Verdict]]:
    """The run of the profile; with `full` the acts after it, with some profiles acts alone."""
    verdict = None
    if options.profile in PROFILES:
        verdict = await run(
            PROFILES[options.profile],
            seed,
            directory,
            say=console.print,
            binaries=options.pg,
            mutant=options.mutant,
        )
    acts = ACTS if options.profile == "full" else ACTS_ALONE.get(options.profile, {})
    return verdict, await play_all(acts, seed, directory, console)


def _replay(options: argparse.Namespace, console: Console) -> int:
    plan = json.loads((options.directory / "plan.json").read_text())
    lines = (options.directory / "faults.jsonl").read_text().splitlines()
    directory = new_directory()
    work = run(
        PROFILES[plan["profile"]],
        plan["seed"],
        directory,
        say=console.print,
        mutant=plan["mutant"],
        planned=[Planned(**json.loads(line)) for line in lines],
    )
    return _conclude(asyncio.run(work), {}, options, console, directory)


def _check(options: argparse.Namespace, console: Console) -> int:
    verdict = check(options.directory)
    report.show(verdict, console)
    return _code(verdict)


def _conclude(
    verdict: Verdict | None,
    acts: dict[str, Verdict],
    options: argparse.Namespace,
    console: Console,
    directory: Path,
) -> int:
    """Show, write the report, and keep the histories if there is anything to look for in them."""
    verdicts = [*([verdict] if verdict else []), *acts.values()]
    for shown in verdicts:
        report.show(shown, console)
    if verdict is not None:
        report.write_run(options.report, verdict.report())
    if acts:
        report.merge(options.report, "acts", {name: act.report() for name, act in acts.items()})
    code = max(map(_code, verdicts), default=0)
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


def _figures(options: argparse.Namespace, console: Console) -> int:
    from chaos.figures.command import command

    return command(options, console)


def _page(options: argparse.Namespace, console: Console) -> int:
    if not options.report.exists():
        console.print(f"there is no report {options.report} yet: `make chaos` writes one")
        return 1
    page.write(options.report)
    console.print(f"wrote {page.PATH}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
