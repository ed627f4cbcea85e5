"""`holdfast schedules`: list them, and what an operator does with one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from holdfast.app import Holdfast
from holdfast.cli.command import App, example
from holdfast.cli.confirm import Yes, confirm
from holdfast.cli.connect import Options, actor, on_holdfast, options_of
from holdfast.cli.output import clean, line, moment, print_json, table
from holdfast.cli.records import schedule_record
from holdfast.errors import InvalidInput
from holdfast.models import JobId, Schedule

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Name = Annotated[str, typer.Argument(help="Name of the schedule.")]
_WITH_JSON = ("list", "run")


def register(app: App) -> None:
    group = App(help="List schedules, or act on one.")
    group.callback(
        invoke_without_command=True,
        epilog=example("holdfast schedules", "holdfast schedules pause nightly"),
    )(schedules)
    group.command("list", epilog=example("holdfast schedules list --json"))(list_schedules)
    group.command(epilog=example("holdfast schedules pause nightly"))(pause)
    group.command(epilog=example("holdfast schedules resume nightly"))(resume)
    group.command("run", epilog=example("holdfast schedules run nightly"))(run_now)
    group.command(epilog=example("holdfast schedules remove nightly --yes"))(remove)
    app.add_typer(group, name="schedules", rich_help_panel="Look")


def schedules(ctx: typer.Context, as_json: _Json = False) -> None:
    """List schedules, or act on one."""
    if ctx.invoked_subcommand is None:
        _list(options_of(ctx), as_json=as_json)
    elif as_json:
        raise InvalidInput(_misplaced_json(ctx.invoked_subcommand))


def _misplaced_json(command: str) -> str:
    if command not in _WITH_JSON:
        return f"schedules {command} prints no JSON; leave out --json"
    return f"--json goes last: holdfast schedules {command} --json"


def list_schedules(ctx: typer.Context, as_json: _Json = False) -> None:
    """List the schedules and when they run next."""
    _list(options_of(ctx), as_json=as_json)


def _list(options: Options, *, as_json: bool) -> None:
    async def look(holdfast: Holdfast) -> tuple[list[Schedule], datetime]:
        return await holdfast.schedules.list(), await holdfast.queries.now()

    found, now = on_holdfast(options, look)
    if as_json:
        print_json([schedule_record(schedule) for schedule in found])
    elif not found:
        line("there is no schedule")
    else:
        columns = ["name", "expression", "time zone", "next run", "last run", "misfire", "overlap"]
        table(columns, [_row(schedule, now) for schedule in found], spare=("misfire", "overlap"))


def _row(schedule: Schedule, now: datetime) -> list[str | Text]:
    due = Text("paused", style="yellow") if schedule.paused else moment(schedule.next_run, now)
    return [
        schedule.name,
        schedule.expression,
        schedule.timezone,
        due,
        moment(schedule.last_run, now),
        schedule.misfire,
        schedule.overlap,
    ]


def pause(ctx: typer.Context, name: _Name) -> None:
    """Skip the ticks of a schedule until it is resumed."""

    async def work(holdfast: Holdfast) -> None:
        await holdfast.schedules.pause(name, actor=actor())

    on_holdfast(options_of(ctx), work)
    line(clean(f"schedule {name} is paused"))


def resume(ctx: typer.Context, name: _Name) -> None:
    """Go on with the next tick from now."""

    async def work(holdfast: Holdfast) -> None:
        await holdfast.schedules.resume(name, actor=actor())

    on_holdfast(options_of(ctx), work)
    line(clean(f"schedule {name} runs again"))


def run_now(ctx: typer.Context, name: _Name, as_json: _Json = False) -> None:
    """Enqueue a job of the schedule at once, besides its ticks."""

    async def work(holdfast: Holdfast) -> JobId:
        return await holdfast.schedules.run_now(name, actor=actor())

    job_id = on_holdfast(options_of(ctx), work)
    if as_json:
        print_json({"ids": [job_id]})
    else:
        line(clean(f"job {job_id} enqueued: schedule {name}"))


def remove(ctx: typer.Context, name: _Name, yes: Yes = False) -> None:
    """Delete a schedule; a worker that declares it writes it again when it starts. Asks first."""
    options = options_of(ctx)
    if not yes:
        confirm(f"Remove schedule {name} in {options.describe()}?")

    async def work(holdfast: Holdfast) -> None:
        await holdfast.schedules.remove(name, actor=actor())

    on_holdfast(options, work)
    line(clean(f"schedule {name} is removed"))
