"""`holdfast workers`: list the workers, release the jobs of a dead one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from holdfast.app import Holdfast
from holdfast.cli.command import FAILED, App, example, say
from holdfast.cli.confirm import Yes, confirm
from holdfast.cli.connect import actor, on_holdfast, options_of
from holdfast.cli.output import clean, line, moment, print_json, relative, table
from holdfast.cli.records import worker_record
from holdfast.models import JobId, WorkerInfo

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: App) -> None:
    group = App(help="List the workers, or release the jobs of a dead one.")
    group.callback(
        invoke_without_command=True,
        epilog=example("holdfast workers", "holdfast workers release web1:4711:9f8e7d6c"),
    )(workers)
    group.command(
        "release",
        epilog=example("holdfast workers release web1:4711:9f8e7d6c --reason 'host is gone'"),
    )(release)
    app.add_typer(group, name="workers", rich_help_panel="Look")


def release(
    ctx: typer.Context,
    worker: Annotated[str, typer.Argument(metavar="ID", help="As `holdfast workers` lists it.")],
    reason: Annotated[str | None, typer.Option(help="Why, for the log.")] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also if it still reports; its handlers are asked to stop."),
    ] = False,
    yes: Yes = False,
    as_json: _Json = False,
) -> None:
    """Release the jobs of a dead worker now, before its leases expire. Asks first.

    A worker that reported within its heartbeat_timeout is refused. Nothing is counted against the
    jobs, and each has a log row.
    """
    options = options_of(ctx)
    if not yes:
        confirm(f"Release the jobs of worker {worker} in {options.describe()}?")

    async def work(holdfast: Holdfast) -> tuple[list[JobId], bool]:
        queries = holdfast.queries
        found = await queries.release_worker(worker, actor=actor(), reason=reason, force=force)
        return found, bool(found) or any(w.id == worker for w in await queries.list_workers())

    released, known = on_holdfast(options, work)
    if not known:
        say(f"there is no worker {worker!r}; `holdfast workers` lists them")
        raise typer.Exit(FAILED)
    if as_json:
        print_json({"worker": worker, "released": released})
    elif not released:
        line(clean(f"worker {worker} has no job"))
    else:
        for job_id in released:
            line(Text.assemble(f"{job_id} ", ("released", "green")))


def workers(ctx: typer.Context, as_json: _Json = False) -> None:
    """List the workers as they last reported themselves, or release the jobs of a dead one."""
    if ctx.invoked_subcommand is not None:
        return

    async def look(holdfast: Holdfast) -> tuple[list[WorkerInfo], datetime]:
        return await holdfast.queries.list_workers(), await holdfast.queries.now()

    found, now = on_holdfast(options_of(ctx), look)
    if as_json:
        print_json([worker_record(worker) for worker in found])
    elif not found:
        line("no worker has reported itself")
    else:
        columns = ["worker", "host", "pid", "version", "state", "running", "heartbeat", "started"]
        rows = [_worker_row(worker, now) for worker in found]
        spare = ("host", "pid", "version", "started")
        table([*columns, "entrypoints"], rows, right=("pid", "running"), spare=spare)


def _worker_row(worker: WorkerInfo, now: datetime) -> list[str | Text]:
    silent = not worker.alive_at(now)
    return [
        worker.id,
        worker.host,
        str(worker.pid),
        worker.version,
        "silent" if silent else worker.state,
        f"{worker.running}/{worker.concurrency}",
        Text(relative(worker.heartbeat, now), style="red" if silent else ""),
        moment(worker.started_at, now),
        ", ".join(worker.entrypoints),
    ]
