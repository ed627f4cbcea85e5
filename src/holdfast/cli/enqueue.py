"""`holdfast enqueue`: one job, or many alike for a load."""

from __future__ import annotations

import difflib
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

import typer

from holdfast.cli.command import FAILED, App, example, say
from holdfast.cli.connect import Options, open_holdfast, options_of, run_async
from holdfast.cli.output import clean, line, print_json, size
from holdfast.cli.tasks import tasks_of
from holdfast.cli.values import parse_duration, parse_headers, parse_instant, read_payload
from holdfast.client.queries import Queries
from holdfast.errors import DuplicateJobError, InvalidInput, InvalidPayload, PrivilegeMissing
from holdfast.explanation import nearest
from holdfast.models import JobId, NewJob, OnConflict

_BATCH = 1000


def register(app: App) -> None:
    app.command(
        rich_help_panel="Work",
        epilog=example(
            "holdfast enqueue greet world",
            "holdfast enqueue report --payload-file report.json --delay 5m --dedupe-key daily",
            "echo '{\"to\": 7}' | holdfast enqueue mail - --header tenant=7",
        ),
    )(enqueue)


def enqueue(
    ctx: typer.Context,
    entrypoint: Annotated[str, typer.Argument(help="Name of the entrypoint that shall run it.")],
    payload: Annotated[
        str | None, typer.Argument(help="Text handed to the handler; - reads standard input.")
    ] = None,
    payload_file: Annotated[
        Path | None, typer.Option(help="Read the payload from a file.", metavar="FILE")
    ] = None,
    priority: Annotated[int, typer.Option("--priority", "-p", help="Higher runs first.")] = 0,
    delay: Annotated[
        str | None, typer.Option(help="Not before that long from now: 30s, 5m, 1h30m.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="Not before that instant: 2030-01-31T09:00:00Z.")
    ] = None,
    dedupe_key: Annotated[
        str | None, typer.Option(help="Refuse while a job with this key is queued or runs.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="Metadata, any number of times.", metavar="KEY=VALUE")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(help="Cap of attempts, instead of the entrypoint's.")
    ] = None,
    on_conflict: Annotated[
        Literal["raise", "skip"], typer.Option(help="What a dedupe key in use does.")
    ] = "raise",
    app: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:ATTRIBUTE", help="Check the payload against the task of this app."
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Enqueue that many alike, for a load.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Put a job into the queue and print its id."""
    if count > 1 and dedupe_key is not None:
        raise InvalidInput("--count enqueues jobs alike, of which --dedupe-key allows only one")
    content = read_payload(payload, payload_file)
    plain = NewJob(entrypoint, content) if app is None else _checked(app, entrypoint, content)
    job = plain._replace(
        priority=priority,
        execute_after=_due(delay, at),
        dedupe_key=dedupe_key,
        headers={**(plain.headers or {}), **(parse_headers(header or []) or {})} or None,
        max_attempts=max_attempts,
    )
    try:
        done = run_async(lambda: _enqueue(options_of(ctx), job, count, on_conflict))
    except DuplicateJobError as error:
        say(
            f"dedupe key {error.dedupe_key!r} belongs to a job that is queued or runs; "
            f"wait for it to end, or pass --on-conflict skip"
        )
        raise typer.Exit(FAILED) from None
    if as_json:
        ids = [job_id for job_id in done.ids if job_id is not None]
        print_json({"ids": ids, "skipped": count - len(ids)})
    else:
        line(_words(job, done))
    if done.advice is not None:
        say(done.advice)


def _due(delay: str | None, at: str | None) -> timedelta | datetime | None:
    if delay is not None and at is not None:
        raise InvalidInput("--delay and --at are two times; pass one of them")
    if delay is not None:
        return parse_duration(delay, "--delay")
    return None if at is None else parse_instant(at, "--at")


@dataclass(frozen=True, slots=True)
class _Done:
    ids: list[JobId | None]
    seconds: float
    advice: str | None = None


def _checked(app: str, name: str, content: bytes | None) -> NewJob:
    """The job of a task, which may be named by its function alone."""
    known = tasks_of(app)
    found = {
        task.name: task for key, task in known.items() if name in (key, key.rpartition(".")[2])
    }
    if len(found) != 1:
        near = sorted(found) or difflib.get_close_matches(name, known, n=3)
        advice = f"did you mean {' or '.join(near)}?" if near else "`holdfast tasks` lists them"
        raise InvalidInput(f"app {app} has no task {name!r}; {advice}")
    [task] = found.values()
    try:
        return task.job_of(content or b"{}")
    except InvalidPayload as error:
        raise InvalidInput(f"{error}; task {task.name!r} takes {task.signature}") from None


async def _advice(queries: Queries, name: str) -> str | None:
    """Say that no live worker serves the name, and which names like it are served."""
    try:
        workers, now = await queries.list_workers(), await queries.now()
    except PrivilegeMissing:
        return None
    served = {each for worker in workers if worker.alive_at(now) for each in worker.entrypoints}
    if name in served:
        return None
    near = " or ".join(nearest(name, served))
    hint = f"; did you mean {near}?" if near else ""
    return clean(f"no live worker serves {name!r}, so the job waits{hint}")


async def _enqueue(options: Options, job: NewJob, count: int, on_conflict: OnConflict) -> _Done:
    ids: list[JobId | None] = []
    async with open_holdfast(options) as holdfast:
        begun = time.perf_counter()
        while len(ids) < count:
            batch = [job] * min(_BATCH, count - len(ids))
            ids += await holdfast.queries.enqueue_many(batch, on_conflict=on_conflict)
        seconds = time.perf_counter() - begun
        return _Done(ids, seconds, await _advice(holdfast.queries, job.entrypoint))


def _words(job: NewJob, done: _Done) -> str:
    if done.ids == [None]:
        return clean(f"skipped: dedupe key {job.dedupe_key!r} belongs to a job in the queue")
    if len(done.ids) == 1:
        content = "no payload" if job.payload is None else size(len(job.payload))
        return clean(f"job {done.ids[0]} enqueued: {job.entrypoint}, {content}")
    rate = len(done.ids) / max(done.seconds, 1e-9)
    return clean(
        f"{len(done.ids)} jobs enqueued: {job.entrypoint}, ids {done.ids[0]} to {done.ids[-1]}, "
        f"{done.seconds:.2f} s, {rate:,.0f} a second"
    )
