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
    is_wide,
    line,
    paragraph,
    print_json,
    progress_bar,
    relative,
    shorten,
    size,
    spoken,
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
_WITH_AGO = 100
"""Columns of a screen that has room for how long ago something was."""
_WORD = 19
"""Characters of the widest state, and a space."""
_HIDDEN = "not shown: this user may not read payloads and headers"


def register(app: App) -> None:
    app.command(
        rich_help_panel="Look", epilog=example("holdfast show 42", "holdfast show 42 --json")
    )(show)


@dataclass(frozen=True, slots=True)
class JobLook:
    """The facts about a job."""

    id: JobId
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

    async def look(holdfast: Holdfast) -> JobLook:
        return await look_at_job(holdfast, job_id)

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
        _print(found)


async def look_at_job(hf: Holdfast, job_id: JobId) -> JobLook:
    """Read the facts about a job."""
    queries = hf.queries
    [(_, status)] = await queries.job_status([job_id])
    jobs = await queries.get_jobs([job_id])
    history = await queries.job_history(job_id)
    hidden = not await queries.sees_payloads()
    why = await hf.explain(job_id)
    progress = (await queries.find_progress([job_id])).get(job_id)
    job, now = jobs[0] if jobs else None, await queries.now()
    return JobLook(job_id, job, history, status, now, hidden, why, progress)


def _print(found: JobLook) -> None:
    for each in (*job_head(found), Text()):
        line(each)
    for each in job_timeline(found):
        paragraph(each, indent=8)
    if words := last_traceback(found):
        line()
        line("Last traceback:")
        line(words, style="dim")
    line()
    print_explanation(found.explanation, found.now)


def job_head(found: JobLook) -> Iterator[Text]:
    """Its state, and its payload and headers."""
    entrypoint = found.job.entrypoint if found.job else found.history[-1].entrypoint
    yield Text.assemble(f"job {found.id}  {clean(entrypoint)}  ", coloured(found.status))
    if found.job is None:
        yield Text("  It has left the queue, and its payload with it.", style="dim")
    else:
        for name, value in _facts(found.job, found.now):
            words = _HIDDEN if name == _PAYLOAD and found.hidden else value
            yield Text.assemble((f"  {name:14}", "dim"), words)
    if found.progress is not None:
        yield Text.assemble(("  progress      ", "dim"), _progress(found.progress, found.now))


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
    done = f"{progress_bar(progress.fraction)}, {when(progress.updated, now)}"
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
    status: Status
    words: str


def _events(found: JobLook) -> Iterator[_Event]:
    """A log row is the end of a lease, so it has two moments: the claim and the outcome."""
    if found.job is not None:
        yield _Event(found.job.created, Status.QUEUED, "enqueued")
    for entry in found.history:
        if entry.claimed_at is not None:
            yield _claim(entry.claimed_at, entry.claimed_by)
        yield _outcome(entry)
    if found.job is not None and found.job.claimed_at is not None:
        yield _claim(found.job.claimed_at, found.job.claimed_by)


def _claim(at: datetime, worker: str | None) -> _Event:
    return _Event(at, Status.PICKED, f"by {worker or 'unknown'}")


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
    return _Event(entry.created, entry.status, words)


def job_timeline(found: JobLook) -> Iterator[Text]:
    """What happened to it. A narrow screen misses how long ago that was."""
    wide = is_wide(_WITH_AGO)
    for event in _events(found):
        ago = f"{relative(event.at, found.now):>12}  " if wide else ""
        yield Text.assemble(
            f"{to_the_millisecond(event.at)}  ",
            (ago, "dim"),
            (f"{spoken(event.status):{_WORD}}", STYLES[event.status]),
            shorten(event.words),
        )


def last_traceback(found: JobLook) -> str:
    """The traceback of the last lease that had one; empty without any."""
    records = [entry.traceback for entry in found.history if entry.traceback]
    return (
        clean(str(records[-1].get("traceback") or "").rstrip(), keep_lines=True) if records else ""
    )
