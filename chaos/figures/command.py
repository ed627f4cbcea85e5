"""`python -m chaos figures`."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

from chaos import report
from chaos.cluster import Cluster
from chaos.figures import clients, processes, slots, suspects
from chaos.figures.base import FIGURES, Measured
from chaos.run import new_directory

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

__all__ = ["clients", "command", "processes", "slots", "suspects"]


def command(options: argparse.Namespace, console: Console) -> int:
    """Measure one after the other, print, and write what was found to the report."""
    names = options.only or list(FIGURES)
    if unknown := [name for name in names if name not in FIGURES]:
        console.print(f"there is no figure {unknown[0]!r}; there are: {', '.join(FIGURES)}")
        return 2
    directory = new_directory("holdfast-figures-")
    found = asyncio.run(_measure(names, directory, options, console))
    if options.keep:
        console.print(f"histories: {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    parts: dict[str, Any] = {
        name: {"goal": FIGURES[name].goal, "ok": measured.ok, **measured.values}
        for name, measured in found.items()
    }
    report.merge(options.report, "figures", parts)
    return 0 if all(measured.ok for measured in found.values()) else 1


async def _measure(
    names: Sequence[str], directory: Path, options: argparse.Namespace, console: Console
) -> dict[str, Measured]:
    found = {}
    async with Cluster(directory / "pg", binaries=options.pg) as cluster:
        for name in names:
            place = directory / name.replace(" ", "-")
            place.mkdir()
            measured = found[name] = await FIGURES[name].measure(cluster, place)
            word = "" if measured.ok else "[red]beyond its bound[/red] "
            console.print(f"{name}: {word}{measured.values}", highlight=False)
    return found
