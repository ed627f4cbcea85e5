"""Logs how jobs ended, and never a payload.

A failure is logged with its message and traceback. Credentials are masked in them, and what they
quote of the payload.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from holdfast.models import Abandoned, Failed, Held, Released, Retried, Succeeded
from holdfast.redact import MASK, secrets_in
from holdfast.retry import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.models import Job, Outcome, TracebackRecord
    from holdfast.worker.write import Ending

logger = logging.getLogger("holdfast.job")

_LONGEST_MESSAGE = 500
_LONGEST_TRACEBACK = 4000
_LEAST_HIDDEN = 4
"""Shorter payloads would mask words that have nothing to do with them."""


def log_ended(worker: str, endings: Sequence[Ending]) -> None:
    """Write a line about each job of one kind of outcome. Success is logged for those who debug."""
    if isinstance(endings[0][1], Succeeded) and not logger.isEnabledFor(logging.DEBUG):
        return
    for lease, outcome in endings:
        level, words, record = _described(outcome)
        name = type(outcome).__name__.lower()
        log_job(worker, lease.job, level, name, words, record, seconds=lease.seconds_run)


def log_job(
    worker: str,
    job: Job,
    level: int,
    outcome: str,
    words: str,
    error: TracebackRecord | None,
    *,
    seconds: float,
    advice: str = "",
) -> None:
    """Write one line, and from a warning on the traceback below it."""
    if not logger.isEnabledFor(level):
        return
    extra: dict[str, object] = {
        "job_id": job.id,
        "entrypoint": job.entrypoint,
        "attempt": job.attempts,
        "worker": worker,
        "outcome": outcome,
        "seconds": round(seconds, 6),
    }
    traceback = None
    if error is not None:
        extra["error_type"] = error.exception_type
        hide = _hider(job)
        words += f" with {error.exception_type}: {_shortened(hide(error.exception_message))}"
        if level >= logging.WARNING:
            traceback = hide(error.traceback).rstrip()[-_LONGEST_TRACEBACK:]
            extra["traceback"] = traceback
    arguments = (job.id, job.entrypoint, words + advice)
    record = logger.makeRecord(
        logger.name, level, __file__, 0, "job %s (%s) %s", arguments, None, extra=extra
    )
    # Where formatters of the standard library look for a traceback.
    record.exc_text = traceback
    logger.handle(record)


def log_after_commit(job: Job, error: BaseException, seconds: float) -> None:
    """Log what a handler raised behind its transaction. The end of its job is committed, so the
    log table has no place for it."""
    words = "is committed with its transaction, but its handler failed behind the block"
    worker = job.claimed_by or ""
    log_job(worker, job, logging.WARNING, "succeeded", words, describe(error), seconds=seconds)


def _hider(job: Job) -> Callable[[str], str]:
    """Masks quotes of the payload in a text: all of the payload, or a value of a JSON payload."""
    payload = (job.payload or b"").decode("utf-8", "replace")
    try:
        hidden = secrets_in(json.loads(payload), [()])
    except (ValueError, RecursionError):
        hidden = set()
    if len(payload) >= _LEAST_HIDDEN:
        hidden.add(payload)

    def hide(text: str) -> str:
        for value in sorted(hidden, key=len, reverse=True):
            text = text.replace(value, MASK)
        return text

    return hide


def _shortened(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]}…"


def _described(outcome: Outcome) -> tuple[int, str, TracebackRecord | None]:
    """Return the level of a line, its words, and the exception behind it."""
    match outcome:
        case Succeeded():
            return logging.DEBUG, "succeeded", None
        case Retried(delay, _, traceback):
            words = f"will be retried in {delay}"
            return logging.INFO, words, traceback
        case Failed(_, traceback):
            return logging.WARNING, "failed", traceback
        case Held(_, traceback):
            return logging.WARNING, "is held", traceback
        case Released(reason):
            return logging.INFO, f"was released ({reason})", None
        case Abandoned(reason):
            return logging.INFO, f"was given up ({reason})", None
