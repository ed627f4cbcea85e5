"""`holdfast tasks`: the names of an application's tasks, and their arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from holdfast.app import Holdfast
from holdfast.cli.command import App, example
from holdfast.cli.output import clean, line, print_json
from holdfast.cli.target import AppReference, load, opened
from holdfast.client.tasks import Task

AppOption = Annotated[
    str,
    typer.Option("--app", metavar="MODULE:ATTRIBUTE", help="The application, as for `run`."),
]


def register(app: App) -> None:
    app.command(
        rich_help_panel="Look", epilog=example("holdfast tasks --app myapp:hf", "… --json")
    )(tasks)


def tasks(
    app: AppOption,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with schemas.")] = False,
) -> None:
    """List the tasks of an application with their signatures; needs no database."""
    found = {task.name: task for task in tasks_of(app).values()}
    if as_json:
        print_json([_record(task) for _, task in sorted(found.items())])
        return
    for name, task in sorted(found.items()):
        line(clean(f"{name}{task.signature}"))
        if aliases := task.options_given.aliases:
            line(clean(f"    also {', '.join(aliases)}"), style="dim")
    if not found:
        line("no tasks; @hf.task registers one", style="dim")


def tasks_of(app: str) -> Mapping[str, Task[..., Any]]:
    """The tasks of an application, by name and alias. A queue object is not connected for it."""
    target = AppReference.parse(app)
    found = load(target)
    return found.tasks if isinstance(found, Holdfast) else asyncio.run(_made(target))


async def _made(target: AppReference) -> Mapping[str, Task[..., Any]]:
    async with opened(target) as holdfast:
        return holdfast.tasks


def _record(task: Task[..., Any]) -> dict[str, Any]:
    return {
        "name": task.name,
        "aliases": list(task.options_given.aliases),
        "signature": str(task.signature),
        "stores_result": task.stores_result,
        "schema": task.codec().schema,
    }
