"""Commands of an operator on jobs: move, cancel, delete, prune. All but prune are logged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from holdfast.app import Holdfast
from holdfast.cli.command import FAILED, App, example
from holdfast.cli.confirm import Yes, confirm
from holdfast.cli.connect import actor, on_holdfast, options_of
from holdfast.cli.output import line, print_json
from holdfast.cli.values import parse_duration, parse_id
from holdfast.lifecycle import Status
from holdfast.models import JobId, Moved

_PANEL = "Act"
_BITE = 10_000
_NOT_FOUND = "not_found"
_UNCHANGED = "unchanged"

_Ids = Annotated[list[str], typer.Argument(metavar="IDS...", help="Ids of jobs.")]
_Reason = Annotated[str | None, typer.Option(help="Why, for the log.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


_MOVE_WORDS = {
    Moved.MOVED: "",
    Moved.LEASED: "a worker has a live lease on it; --force ends it and stops the handler",
    Moved.KEY_TAKEN: "another job with its dedupe key is queued or runs",
    Moved.NOT_FOUND: "is not in the queue",
}


def register(app: App) -> None:
    app.command(
        rich_help_panel=_PANEL,
        epilog=example("holdfast move 42 43 --to quarantine --reason 'kills its worker'"),
    )(move)
    app.command(rich_help_panel=_PANEL, epilog=example("holdfast cancel 42 --yes"))(cancel)
    app.command(rich_help_panel=_PANEL, epilog=example("holdfast delete 42 43 --yes"))(delete)
    app.command(rich_help_panel=_PANEL, epilog=example("holdfast prune --older-than 30d --yes"))(
        prune
    )


def move(
    ctx: typer.Context,
    ids: _Ids,
    to: Annotated[str, typer.Option(help="The entrypoint whose jobs they become.")],
    reason: _Reason = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also those that a worker runs now; it is asked to stop."),
    ] = False,
    as_json: _Json = False,
) -> None:
    """Queue jobs again under another entrypoint: waiting, held, or left by a dead worker.

    Exit code 1 unless all moved. A held job starts with fresh counters, the others keep theirs.
    """
    wanted = _unique(ids)

    async def work(holdfast: Holdfast) -> dict[JobId, Moved]:
        return await holdfast.queries.move_jobs(
            wanted, to, actor=actor(), reason=reason, force=force
        )

    outcomes = on_holdfast(options_of(ctx), work)
    if as_json:
        print_json([{"id": job_id, "outcome": outcomes[job_id]} for job_id in outcomes])
    else:
        for job_id, outcome in outcomes.items():
            _tell(job_id, outcome, _MOVE_WORDS[outcome], Moved.MOVED)
    if any(outcome is not Moved.MOVED for outcome in outcomes.values()):
        raise typer.Exit(FAILED)


def cancel(
    ctx: typer.Context,
    ids: _Ids,
    reason: _Reason = None,
    yes: Yes = False,
    as_json: _Json = False,
) -> None:
    """Take jobs out of the queue; one that runs is asked to stop. Asks first."""
    wanted, options = _unique(ids), options_of(ctx)
    if not yes:
        confirm(f"Cancel {_count(wanted)} in {options.describe()}?")

    async def work(holdfast: Holdfast) -> list[_Removal]:
        queries = holdfast.queries
        moved = await queries.mark_job_as_cancelled(wanted, actor=actor(), reason=reason)
        return await _removals(holdfast, wanted, moved)

    _report(on_holdfast(options, work), Status.CANCELED, as_json=as_json)


def delete(
    ctx: typer.Context,
    ids: _Ids,
    reason: _Reason = None,
    yes: Yes = False,
    as_json: _Json = False,
) -> None:
    """Delete jobs that wait or are held, not those that run (see cancel). Asks first."""
    wanted, options = _unique(ids), options_of(ctx)
    if not yes:
        confirm(f"Delete {_count(wanted)} in {options.describe()}?")

    async def work(holdfast: Holdfast) -> list[_Removal]:
        moved = await holdfast.queries.delete_jobs(wanted, actor=actor(), reason=reason)
        return await _removals(holdfast, wanted, moved)

    _report(on_holdfast(options, work), Status.DELETED, as_json=as_json)


_Removal = tuple[JobId, bool, Status | None]
"""An id, whether it was removed just now, and where it is or how it ended."""


async def _removals(
    holdfast: Holdfast, wanted: Sequence[JobId], moved: set[JobId]
) -> list[_Removal]:
    known = await holdfast.store.jobs.statuses(wanted)
    return [(job_id, job_id in moved, known.get(job_id)) for job_id in wanted]


def _report(removals: list[_Removal], goal: Status, *, as_json: bool) -> None:
    outcomes = {
        job_id: str(goal) if moved else _NOT_FOUND if status is None else _UNCHANGED
        for job_id, moved, status in removals
    }
    if as_json:
        print_json(
            [
                {"id": job_id, "outcome": outcomes[job_id], "status": status}
                for job_id, _, status in removals
            ]
        )
    else:
        for job_id, moved, status in removals:
            _tell(job_id, outcomes[job_id], "" if moved else _place(status), str(goal))
    if not all(moved for _, moved, _ in removals):
        raise typer.Exit(FAILED)


def _place(status: Status | None) -> str:
    if status is None:
        return "neither in the queue nor in the log"
    running = "; cancel stops a job that runs" if status is Status.PICKED else ""
    return f"it is {status}{running}"


def prune(
    ctx: typer.Context,
    older_than: Annotated[str, typer.Option(help="Age of what goes: 30d, 12h.")],
    yes: Yes = False,
    as_json: _Json = False,
) -> None:
    """Delete old rows of the log; statistics stay. Asks first."""
    age, options = parse_duration(older_than, "--older-than"), options_of(ctx)
    if not yes:
        confirm(f"Delete log rows older than {older_than} in {options.describe()}?")

    async def work(holdfast: Holdfast) -> tuple[int, int]:
        total = 0
        while gone := await holdfast.queries.prune_log(age, limit=_BITE):
            total += gone
        return total, await holdfast.queries.uncounted_log(age)

    rows, left = on_holdfast(options, work)
    if as_json:
        print_json({"deleted": rows, "left": left})
        return
    line(f"{rows} log rows deleted")
    if left:
        line(
            f"{left} log rows left: an open transaction on the server, of any database, is older "
            "than they are, so the statistics lack them; prune again when it has ended"
        )


def _unique(ids: Sequence[str]) -> list[JobId]:
    return list(dict.fromkeys(map(parse_id, ids)))


def _count(ids: Sequence[JobId]) -> str:
    return f"job {ids[0]}" if len(ids) == 1 else f"{len(ids)} jobs"


def _tell(job_id: JobId, outcome: str, words: str, good: str) -> None:
    style = "green" if outcome == good else "yellow"
    line(Text.assemble(f"{job_id} ", (str(outcome), style), f": {words}" if words else ""))
