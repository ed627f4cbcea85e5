"""Case files: held jobs are listed, sent back, edited, or resolved for good. Each act is logged."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from holdfast.app import Holdfast
from holdfast.cli.command import FAILED, App, example, say
from holdfast.cli.confirm import Yes, confirm
from holdfast.cli.connect import actor, on_holdfast, options_of
from holdfast.cli.output import line, moment, print_json, shorten, size, table
from holdfast.cli.records import job_record
from holdfast.cli.values import is_stdin, parse_duration, parse_id, read_payload
from holdfast.errors import InvalidInput
from holdfast.models import HeldFilter, Job, JobId, Requeued

_RATE = re.compile(r"(\d+)(?:/(s|m|h))?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, None: 1}

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Reason = Annotated[str | None, typer.Option(help="Why, for the log.")]
_Id = Annotated[str, typer.Argument(metavar="ID", help="The id of a held job.")]
_Entrypoint = Annotated[str | None, typer.Option(help="Only of this entrypoint.")]
_Error = Annotated[str | None, typer.Option(help="Only with this in the last error.")]
_Since = Annotated[str | None, typer.Option(help="Only those held within this time: 2h.")]
_Older = Annotated[str | None, typer.Option(help="Only those held for longer: 7d.")]

_WOULD_GO = "would be requeued"
_GOOD = (Requeued.REQUEUED, _WOULD_GO)
_WORDS = {
    Requeued.REQUEUED: "",
    Requeued.KEY_TAKEN: "another job with its dedupe key is queued or runs",
    Requeued.NOT_HELD: "is in the queue but not held",
    Requeued.NOT_FOUND: "is not in the queue",
}


def register(app: App) -> None:
    app.command(
        rich_help_panel="Look",
        epilog=example("holdfast failed -n 100", "holdfast failed --entrypoint mail --since 2h"),
    )(failed)
    app.command(
        rich_help_panel="Act",
        epilog=example(
            "holdfast requeue 42 43 44 --reason 'smtp is back'",
            "holdfast requeue --error ConnectionError --older-than 1h --dry-run",
            "holdfast requeue --entrypoint mail --rate 10/s",
        ),
    )(requeue)
    app.command(
        rich_help_panel="Act", epilog=example("holdfast edit 42 '{\"order\": 7}' --reason typo")
    )(edit)
    app.command(
        rich_help_panel="Act",
        epilog=example("holdfast resolve 42 --invalid 'the customer is gone'"),
    )(resolve)


def failed(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("-n", "--limit", help="How many at most.")] = 25,
    entrypoint: _Entrypoint = None,
    error: _Error = None,
    since: _Since = None,
    older_than: _Older = None,
    as_json: _Json = False,
) -> None:
    """List held jobs, newest first; `requeue` sends them back."""
    among = _filter(entrypoint, error, since, older_than)

    async def look(holdfast: Holdfast) -> tuple[list[Job], datetime]:
        found = await holdfast.queries.list_failed_jobs(limit, among=among)
        return found, await holdfast.queries.now()

    jobs, now = on_holdfast(options_of(ctx), look)
    if as_json:
        print_json([job_record(job) for job in jobs])
    elif not jobs:
        line("no job is held" if among == HeldFilter() else "no such job is held")
    else:
        columns = ["id", "entrypoint", "attempts", "created", "payload", "last error"]
        table(columns, [_row(job, now) for job in jobs], right=("id", "attempts", "payload"))


def _row(job: Job, now: datetime) -> list[str | Text]:
    return [
        str(job.id),
        job.entrypoint,
        str(job.attempts),
        moment(job.created, now),
        size(len(job.payload or b"")),
        shorten(job.last_error),
    ]


def requeue(
    ctx: typer.Context,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[IDS...]", help="Ids of held jobs.")
    ] = None,
    entrypoint: _Entrypoint = None,
    error: _Error = None,
    since: _Since = None,
    older_than: _Older = None,
    limit: Annotated[
        int, typer.Option(help="Of those that a filter finds, this many at most.")
    ] = 1000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, help="Give them this cap of attempts.")
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Not faster than this: 10/s, 100/m.")] = None,
    reason: _Reason = None,
    as_json: _Json = False,
) -> None:
    """Send held jobs back with fresh counters: by id, or the newest that a filter finds.

    Exit code 1 unless all went. A dry run also names jobs whose dedupe key another job has.
    """
    among = _filter(entrypoint, error, since, older_than)
    _check_choice(ids, among)
    named = _unique(ids or [])
    pause = _pause(rate)

    async def work(holdfast: Holdfast) -> dict[JobId, str]:
        wanted = named or await _held(holdfast, among, limit)
        if dry_run:
            return await _forecast(holdfast, wanted)
        outcomes: dict[JobId, str] = {}
        for some in [[job_id] for job_id in wanted] if pause else [wanted]:
            outcomes |= await holdfast.queries.requeue_jobs(
                some, actor=actor(), reason=reason, max_attempts=max_attempts
            )
            await asyncio.sleep(pause)
        return outcomes

    outcomes = on_holdfast(options_of(ctx), work)
    if as_json:
        print_json([{"id": job_id, "outcome": outcomes[job_id]} for job_id in outcomes])
    else:
        _tell(outcomes)
    if not named and len(outcomes) == limit:
        again = "" if dry_run else "run it again, or "
        say(f"--limit {limit} was reached and more jobs may be held; {again}raise --limit")
    if any(outcome not in _GOOD for outcome in outcomes.values()):
        raise typer.Exit(FAILED)


def _tell(outcomes: dict[JobId, str]) -> None:
    if not outcomes:
        line("no such job is held")
    for job_id, outcome in outcomes.items():
        words = _WORDS[outcome] if isinstance(outcome, Requeued) else ""
        style = "green" if outcome in _GOOD else "yellow"
        line(Text.assemble(f"{job_id} ", (str(outcome), style), f": {words}" if words else ""))


async def _held(holdfast: Holdfast, among: HeldFilter, limit: int) -> list[JobId]:
    return [job.id for job in await holdfast.queries.list_failed_jobs(limit, among=among)]


async def _forecast(holdfast: Holdfast, ids: Sequence[JobId]) -> dict[JobId, str]:
    """What requeuing these ids would do."""
    forecast = await holdfast.queries.preview_requeue(ids)
    return {
        job_id: _WOULD_GO if outcome is Requeued.REQUEUED else outcome
        for job_id, outcome in forecast.items()
    }


def edit(
    ctx: typer.Context,
    job_id: _Id,
    payload: Annotated[
        str | None, typer.Argument(help="The new payload, or - for standard input.")
    ] = None,
    payload_file: Annotated[Path | None, typer.Option(help="Read it from this file.")] = None,
    reason: _Reason = None,
    yes: Yes = False,
) -> None:
    """Replace the payload of a held job; `requeue` runs it then.

    Asks first, because the old one is not kept.
    """
    new = read_payload(payload, payload_file)
    wanted = parse_id(job_id)
    if new is None:
        raise InvalidInput("there is no new payload; pass it, --payload-file FILE, or - for stdin")
    # What comes out of a pipeline that failed is empty too.
    if not new and is_stdin(payload, payload_file):
        raise InvalidInput(
            f"standard input is empty; for an empty payload write: holdfast edit {wanted} ''"
        )
    options = options_of(ctx)
    if not yes:
        confirm(f"Replace the payload of job {wanted} in {options.describe()}?")

    async def work(holdfast: Holdfast) -> bool:
        return await holdfast.queries.edit_job(wanted, new, actor=actor(), reason=reason)

    _end(wanted, "edited", on_holdfast(options, work))


def resolve(
    ctx: typer.Context,
    job_id: _Id,
    invalid: Annotated[str, typer.Option(help="Why it can never succeed, for the log.")],
    yes: Yes = False,
) -> None:
    """End a held job for good. Asks first."""
    wanted = parse_id(job_id)
    if not yes:
        confirm(f"End job {wanted} in {options_of(ctx).describe()}?")

    async def work(holdfast: Holdfast) -> bool:
        return await holdfast.queries.resolve_job(wanted, invalid, actor=actor())

    _end(wanted, "resolved", on_holdfast(options_of(ctx), work))


def _end(job_id: JobId, done: str, moved: bool) -> None:
    if not moved:
        line(f"{job_id} is not held; `holdfast failed` lists those that are", style="yellow")
        raise typer.Exit(FAILED)
    line(f"{job_id} {done}", style="green")


def _filter(
    entrypoint: str | None, error: str | None, since: str | None, older_than: str | None
) -> HeldFilter:
    return HeldFilter(
        entrypoint=entrypoint,
        error=error,
        since=parse_duration(since, "--since") if since else None,
        older_than=parse_duration(older_than, "--older-than") if older_than else None,
    )


def _check_choice(ids: Sequence[str] | None, among: HeldFilter) -> None:
    if bool(ids) == (among != HeldFilter()):
        raise InvalidInput(
            "say which jobs: IDS, or a filter such as --entrypoint mail, but not both"
        )


def _pause(rate: str | None) -> float:
    """Seconds between two jobs."""
    if rate is None:
        return 0.0
    match = _RATE.fullmatch(rate.strip())
    if not match or int(match[1]) < 1:
        raise InvalidInput(f"--rate {rate!r} is not a rate; write 10/s or 100/m")
    return _SECONDS[match[2]] / int(match[1])


def _unique(ids: Sequence[str]) -> list[JobId]:
    return list(dict.fromkeys(map(parse_id, ids)))
