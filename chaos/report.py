"""The table of invariants, the first violation as a timeline, and the report file."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from chaos.files import SECOND

if TYPE_CHECKING:
    from rich.console import Console

    from chaos.checker.check import Verdict
    from chaos.checker.history import History
    from chaos.checker.model import Fault, Story, Violation

FLEET = "fleet"
"""The profile with many workers."""

DEFAULT = Path(__file__).parent / "report.json"
_AROUND = 3 * SECOND
_MOST_LINES = 60


def show(verdict: Verdict, console: Console) -> None:
    """Print the verdict."""
    report = verdict.report()
    table = Table(title=f"chaos, profile {report['profile']}, seed {report['seed']}")
    table.add_column("invariant")
    table.add_column("violations", justify="right")
    for name, count in report["invariants"].items():
        table.add_row(name, f"[red]{count}[/red]" if count else "0")
    console.print(table)
    times = report["recovery_s"]
    console.print(
        f"{report['jobs']} jobs in {report['seconds']} s; {report['faults']} faults, "
        f"{report['faults_effective']} hit a live lease or call; dead worker to restart of its "
        f"jobs: p50 {times['p50']} s, p99 {times['p99']} s, max {times['max']} s"
    )
    if verdict.resumes:
        first = report["first_claim_s"]
        console.print(
            f"server accepts connections to first claim: p50 {first['p50']} s, "
            f"p99 {first['p99']} s, max {first['max']} s"
        )
    if verdict.vacuous:
        console.print("[red]vacuous: fewer than 80 % of the faults hit a live lease[/red]")
    if (first := verdict.first) is not None:
        console.print(f"\n[red]{first.invariant}[/red]: {first.text}")
        for line in timeline(verdict.history, first):
            console.print(line, highlight=False, markup=False)


def timeline(history: History, violation: Violation) -> list[str]:
    """Everything known of the job concerned, with the faults around it."""
    events: list[tuple[int, str]] = []
    story = history.stories.get(violation.job) if violation.job is not None else None
    if story is not None:
        events += _events(story)
    elif violation.t is not None:
        events.append((violation.t, violation.text))
    if events:
        since, until = min(events)[0] - _AROUND, max(events)[0] + _AROUND
        events += [
            (fault.t, f"  {_named(fault)}")
            for fault in (*history.faults, *history.stalls)
            if since <= fault.t <= until
        ]
    events.sort()
    return [f"{_clock(t)}  {text}" for t, text in events[:_MOST_LINES]]


def _named(fault: Fault) -> str:
    whom = f"{fault.worker} (pid {fault.pid})" if fault.pid else fault.worker or "all"
    return f"{fault.kind} {whom}, {(fault.until - fault.t) / SECOND:.2f} s"


def _events(story: Story) -> list[tuple[int, str]]:
    events: list[tuple[int, str]] = []
    if story.spec is not None and story.invoked is not None and story.acknowledged is not None:
        events.append((story.invoked, f"client asks for job {story.job}: {story.spec}"))
        events.append((story.acknowledged, "client gets its id"))
    for run in story.runs:
        lease = f"lease of {run.key.by} at {_clock(run.key.at)}"
        events.append((run.start, f"handler starts, {lease}"))
        if run.end is not None:
            events.append((run.end, f"handler ends: {run.how}, {lease}"))
    for row in story.log:
        lease = f", lease of {row.by} at {_clock(row.at)}" if row.at else ""
        counts = f"{row.attempt}/{row.recoveries}"
        events.append((row.t, f"log {row.id}: {row.verb} ({row.reason}) {counts}{lease}"))
    return events


def _clock(t: int) -> str:
    return datetime.fromtimestamp(t / SECOND, UTC).strftime("%H:%M:%S.%f")


def write(path: Path, **parts: Any) -> None:
    """Put new parts into the report; those of an earlier command stay."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **parts}, indent=2) + "\n")


def write_run(path: Path, found: dict[str, Any]) -> None:
    """Put a run into the report; one with many workers beside the others."""
    if found["profile"] == FLEET:
        write(path, fleet=found)
    else:
        write(path, **found)


def merge(path: Path, name: str, parts: dict[str, Any]) -> None:
    """Put new entries into one part of the report; its others stay as they were found before."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    write(path, **{name: {**known.get(name, {}), **parts}})
