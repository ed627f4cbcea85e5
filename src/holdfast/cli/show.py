"""`holdfast show ID`: a job and its whole history as a timeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from holdfast.app import Holdfast
from holdfast.cli.command import App, example
from holdfast.cli.connect import on_holdfast, options_of
from holdfast.cli.explain import explanation_record, print_explanation
from holdfast.cli.output import (
    STYLES,
    clean,
    coloured,
    compact_json,
    duration,
    line,
    print_json,
    relative,
    shorten,
    size,
    to_the_millisecond,
    when,
)
from holdfast.cli.read import detail
from holdfast.cli.records import job_record, log_record
from holdfast.cli.values import parse_id
from holdfast.explanation import Explanation
from holdfast.lifecycle import Status
from holdfast.models import Job, JobId, LogEntry, Progress
from holdfast.redact import shown_payload

_LONGEST_PAYLOAD = 500
_PAYLOAD = "payload"
_HIDDEN = "not shown: this user may not read payloads and headers"


def register(app: App) -> None:
    app.command(
        rich_help_panel="Look", epilog=example("holdfast show 42", "holdfast show 42 --json")
    )(show)


@dataclass(frozen=True, slots=True)
class _Found:
    job: Job | None
    """None when the job has left the queue; then only the log knows it."""
    history: list[LogEntry]
    status: Status
    now: datetime
    hidden: bool
    """Payload and headers are not for this user."""
    explanation: Explanation
    progress: Progress | None


def show(
    ctx: typer.Context,
    number: Annotated[str, typer.Argument(metavar="ID", help="Id of the job.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a job, where it is, and all that happened to it."""

    job_id = parse_id(number)

    async def look(holdfast: Holdfast) -> _Found:
        queries = holdfast.queries
        [(_, status)] = await queries.job_status([job_id])
        jobs = await queries.get_jobs([job_id])
        history = await queries.job_history(job_id)
        hidden = not await queries.sees_payloads()
        why = await holdfast.explain(job_id)
        progress = (await queries.find_progress([job_id])).get(job_id)
        job, now = jobs[0] if jobs else None, await queries.now()
        return _Found(job, history, status, now, hidden, why, progress)

    found = on_holdfast(options_of(ctx), look)
    if as_json:
        print_json(
            {
                "id": job_id,
                "status": found.status,
                "job": None if found.job is None else job_record(found.job),
                "payload_hidden": found.hidden,
                "progress": None if found.progress is None else asdict(found.progress),
                "history": [log_record(entry) for entry in found.history],
                "explanation": explanation_record(found.explanation),
            }
        )
    else:
        _print(job_id, found)


def _print(job_id: JobId, found: _Found) -> None:
    entrypoint = found.job.entrypoint if found.job else found.history[-1].entrypoint
    line(Text.assemble(f"job {job_id}  {clean(entrypoint)}  ", coloured(found.status)))
    if found.job is not None:
        for name, value in _facts(found.job, found.now):
            words = _HIDDEN if name == _PAYLOAD and found.hidden else value
            line(Text.assemble((f"  {name:14}", "dim"), words))
    else:
        line("  It has left the queue, and its payload with it.", style="dim")
    if found.progress is not None:
        line(Text.assemble(("  progress      ", "dim"), _progress(found.progress, found.now)))
    line()
    _print_timeline(found)
    _print_traceback(found.history)
    line()
    print_explanation(found.explanation, found.now)


def _facts(job: Job, now: datetime) -> Iterator[tuple[str, str]]:
    yield "priority", str(job.priority)
    cap = "" if job.max_attempts is None else f" of {job.max_attempts}"
    yield "attempts", f"{job.attempts}{cap}, recovered {job.recoveries} times"
    yield "due", when(job.execute_after, now)
    if job.dedupe_key is not None:
        yield "dedupe key", shorten(job.dedupe_key)
    if job.headers:
        yield "headers", compact_json(job.headers)
    if job.claimed_by is not None:
        yield "claimed by", shorten(job.claimed_by)
        yield "heartbeat", when(job.heartbeat, now)
    if job.last_error is not None:
        yield "last error", f"{shorten(job.last_error)}, {when(job.last_error_at, now)}"
    yield _PAYLOAD, _payload(shown_payload(job.payload, job.headers))


def _progress(progress: Progress, now: datetime) -> str:
    done = f"{progress.fraction:.0%}, {when(progress.updated, now)}"
    return done if progress.message is None else f"{done}: {shorten(progress.message)}"


def _payload(payload: bytes | None) -> str:
    if payload is None:
        return "none"
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError:
        text = f"{payload[: _LONGEST_PAYLOAD // 4].hex(' ')} (hex)"
    return f"{size(len(payload))}: {shorten(text, _LONGEST_PAYLOAD)}"


@dataclass(frozen=True, slots=True)
class _Event:
    at: datetime
    word: str
    style: str
    words: str


def _events(found: _Found) -> Iterator[_Event]:
    """A log row is the end of a lease, so it tells of two moments: the claim and the outcome."""
    if found.job is not None:
        yield _Event(found.job.created, str(Status.QUEUED), STYLES[Status.QUEUED], "enqueued")
    for entry in found.history:
        if entry.claimed_at is not None:
            yield _claim(entry.claimed_at, entry.claimed_by)
        yield _outcome(entry)
    if found.job is not None and found.job.claimed_at is not None:
        yield _claim(found.job.claimed_at, found.job.claimed_by)


def _claim(at: datetime, worker: str | None) -> _Event:
    return _Event(at, str(Status.PICKED), STYLES[Status.PICKED], f"by {worker or 'unknown'}")


def _outcome(entry: LogEntry) -> _Event:
    ran = "" if entry.claimed_at is None else f"after {duration(entry.created - entry.claimed_at)}"
    parts = [
        ran,
        f"attempt {entry.attempt}",
        f"recovered {entry.recoveries} times" if entry.recoveries else "",
        f"by {entry.actor}" if entry.actor else "",
        detail(entry),
    ]
    words = ", ".join(part for part in parts if part)
    return _Event(entry.created, str(entry.status), STYLES[entry.status], words)


def _print_timeline(found: _Found) -> None:
    for event in _events(found):
        line(
            Text.assemble(
                to_the_millisecond(event.at),
                (f"  {relative(event.at, found.now):>12}  ", "dim"),
                (f"{event.word:11}", event.style),
                shorten(event.words),
            )
        )


def _print_traceback(history: list[LogEntry]) -> None:
    records = [entry.traceback for entry in history if entry.traceback]
    if records and (text := records[-1].get("traceback")):
        line()
        line("Last traceback:")
        line(clean(str(text).rstrip(), keep_lines=True), style="dim")
