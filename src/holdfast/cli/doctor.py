"""`holdfast doctor`: finds faults of the database and the fleet, and says how to fix them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from holdfast.cli.command import App, example
from holdfast.cli.connect import open_holdfast, options_of, run_async
from holdfast.cli.output import clean, line, paragraph, print_json
from holdfast.monitor.doctor import Finding, Severity, examine

_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
_CODES = {Severity.ERROR: 2, Severity.WARNING: 1}


def register(app: App) -> None:
    app.command(
        rich_help_panel="Look", epilog=example("holdfast doctor", "holdfast doctor --json")
    )(doctor)


def doctor(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Examine the server, the tables and the fleet.

    Exit code 0 without findings, 1 with warnings, 2 with errors.
    """
    options = options_of(ctx)

    async def work() -> list[Finding]:
        async with open_holdfast(options, verify=False) as holdfast:
            return await examine(holdfast.store)

    found = run_async(work)
    if as_json:
        print_json([asdict(each) for each in found])
    elif not found:
        line("nothing is wrong", style="green")
    else:
        for each in found:
            head = (f"{each.severity:8}", _STYLES[each.severity])
            paragraph(Text.assemble(head, clean(each.finding)), indent=8)
            line(f"        {clean(each.command)}", style="dim")
    if found:
        raise typer.Exit(max(_CODES[each.severity] for each in found))
