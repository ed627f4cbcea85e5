"""`holdfast run`: works on jobs, in this process or in several."""

from __future__ import annotations

import asyncio
import os
import socket
from datetime import timedelta
from typing import Annotated

import typer

from holdfast.cli import logs
from holdfast.cli.command import App, example
from holdfast.cli.connect import Options, options_of
from holdfast.cli.logs import LogFormat, LogLevel
from holdfast.cli.target import AppReference
from holdfast.cli.values import parse_duration
from holdfast.cli.work import Plan, work
from holdfast.service import health
from holdfast.service.link import ProcessRole, inherited
from holdfast.service.reload import Reloader, require_watchfiles
from holdfast.service.supervisor import Supervisor
from holdfast.settings import WorkerSettings
from holdfast.worker.claim import QueueExecutionMode

_DEFAULTS = WorkerSettings()
_LOGGING, _HEALTH = "Logging", "Health"


def register(app: App) -> None:
    app.command(
        rich_help_panel="Work",
        epilog=example(
            "holdfast run myapp:main",
            "holdfast run myapp:main --processes 4 --health-port 8080 --log-format json",
            "holdfast run myapp:main --mode drain -- --tenant 7",
        ),
    )(run)


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():g}s"


def run(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:ATTRIBUTE",
            help="A Holdfast object, an async function that returns one, or an async context "
            "manager that yields one. The current folder is searched before installed packages.",
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGUMENT...]", help="For the function, as strings."),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            max=512,
            help="Worker processes. With more than one, a process that dies is replaced and its "
            "jobs start again at once.",
        ),
    ] = 1,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Most jobs claimed at once.")
    ] = _DEFAULTS.batch_size,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency",
            "--max-concurrent-tasks",
            min=1,
            help="Most jobs that run at once in a process.",
        ),
    ] = _DEFAULTS.concurrency,
    connections: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most database connections of a process while it is busy; 4 by default. An idle "
            "one holds at most 2.",
        ),
    ] = None,
    listen_dsn: Annotated[
        str | None,
        typer.Option(
            metavar="DSN",
            envvar="HOLDFAST_LISTEN_DSN",
            show_envvar=False,
            help="Address past a connection pooler, for wake-ups alone; else "
            "HOLDFAST_LISTEN_DSN, else that of the target.",
        ),
    ] = None,
    dequeue_timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="Longest pause between two looks for work.")
    ] = _seconds(_DEFAULTS.dequeue_timeout),
    heartbeat_timeout: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="How long this worker keeps its jobs when it falls silent: the value of the "
            "worker that died counts, so give all workers the same.",
        ),
    ] = _seconds(_DEFAULTS.heartbeat_timeout),
    drain_timeout: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="How long jobs may finish after SIGTERM or Ctrl-C, before they are released; "
            "a second signal releases them at once. The process ends about a second later "
            "whatever its jobs do, with exit code 75 if one could not be stopped.",
        ),
    ] = _seconds(_DEFAULTS.drain_timeout),
    max_loop_block: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="How long a handler may block the event loop. After that, or after its timeout, "
            "the process ends with exit code 76: the job counts as having killed its worker, and "
            "the other jobs are released.",
        ),
    ] = _seconds(_DEFAULTS.max_loop_block),
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Serve this entrypoint; any number of times."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--except", metavar="NAME", help="Do not serve this entrypoint."),
    ] = None,
    mode: Annotated[
        QueueExecutionMode,
        typer.Option(help="Work until stopped, or until nothing is claimable (drain)."),
    ] = QueueExecutionMode.continuous,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Start anew when a Python file below the folder changes."),
    ] = False,
    uvloop: Annotated[
        bool, typer.Option("--uvloop/--no-uvloop", help="Use uvloop where it is installed.")
    ] = True,
    otel: Annotated[
        bool,
        typer.Option(
            "--otel",
            help="Export metrics and traces by the OTEL_* variables, else to the console.",
            rich_help_panel=_HEALTH,
        ),
    ] = False,
    log_level: Annotated[
        LogLevel, typer.Option(help="What is logged on stderr.", rich_help_panel=_LOGGING)
    ] = LogLevel.info,
    log_format: Annotated[
        LogFormat,
        typer.Option(help="Lines for people, or JSON objects.", rich_help_panel=_LOGGING),
    ] = LogFormat.text,
    health_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Serve /livez, /readyz and /metrics over HTTP; 0 takes any free port. With "
            "--processes it speaks for all: live while every worker is, ready while one is, and "
            "metrics summed.",
            rich_help_panel=_HEALTH,
        ),
    ] = None,
    health_host: Annotated[
        str, typer.Option(help="Address to serve it on.", rich_help_panel=_HEALTH)
    ] = "127.0.0.1",
) -> None:
    """Work on jobs until asked to stop.

    A --dsn, --embedded, --prefix or --schema given here is what the target finds in
    HOLDFAST_DSN, HOLDFAST_PREFIX and HOLDFAST_SCHEMA. One that works elsewhere is refused.
    """
    plan = Plan(
        target=AppReference.parse(target, arguments or ()),
        settings=WorkerSettings(
            batch_size=batch_size,
            concurrency=concurrency,
            dequeue_timeout=parse_duration(dequeue_timeout, "--dequeue-timeout"),
            heartbeat_timeout=parse_duration(heartbeat_timeout, "--heartbeat-timeout"),
            drain_timeout=parse_duration(drain_timeout, "--drain-timeout"),
            max_loop_block=parse_duration(max_loop_block, "--max-loop-block"),
        ),
        mode=mode,
        counted=health_port is not None,
        asked=options_of(ctx),
        uvloop=uvloop,
        otel=otel,
        connections=connections,
        listen_dsn=listen_dsn or None,
        only=tuple(only or ()),
        without=tuple(without or ()),
    )
    logs.configure(log_level, log_format)
    _export(options_of(ctx))
    role, parent = inherited() or (None, None)
    patience = plan.settings.drain_timeout.total_seconds()
    if reload and role is None:
        require_watchfiles()
        raise typer.Exit(asyncio.run(_reload(patience)))
    below = role in (ProcessRole.worker, ProcessRole.quarantine)
    served = health_port is not None and not below
    bound = health.bind(health_host, health_port or 0) if served else None
    if processes > 1 and not below:
        drains = mode is QueueExecutionMode.drain
        raise typer.Exit(asyncio.run(_supervise(processes, drains, patience, bound, parent)))
    work(plan, bound=bound, parent=parent, role=role)


async def _reload(patience: float) -> int:
    return await Reloader(patience).run()


async def _supervise(
    count: int,
    drains: bool,
    patience: float,
    bound: socket.socket | None,
    parent: socket.socket | None,
) -> int:
    return await Supervisor(count, drains=drains, patience=patience).run(bound, parent)


def _export(options: Options) -> None:
    """Let the target, and the processes that are started for it, use the same database."""
    if options.dsn is not None and options.source.startswith("--"):
        os.environ["HOLDFAST_DSN"] = options.dsn
    os.environ["HOLDFAST_PREFIX"] = options.prefix
    if options.schema is not None:
        os.environ["HOLDFAST_SCHEMA"] = options.schema
