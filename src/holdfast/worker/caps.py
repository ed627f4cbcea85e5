"""Logs that a cap on attempts has ended the retries of a job, and how to lift it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.task import DefaultCap, ExecutorCap, TaskCap

if TYPE_CHECKING:
    from holdfast.models import Held, Job
    from holdfast.task import Entrypoint

logger = logging.getLogger("holdfast.worker")


def log_retired(
    worker: str, entrypoint: Entrypoint, job: Job, outcome: Held, seconds: float
) -> None:
    """Write the one line about a run whose request for a retry the cap refused."""
    cap, advice = _described(job, entrypoint)
    extra: dict[str, object] = {
        "job_id": job.id,
        "entrypoint": job.entrypoint,
        "attempt": job.attempts,
        "worker": worker,
        "outcome": "retired",
        "seconds": round(seconds, 6),
    }
    if outcome.traceback is not None:
        extra["error_type"] = outcome.traceback.exception_type
    logger.warning(
        "job %s (%s) is held after %d attempts by %s; %s",
        *(job.id, job.entrypoint, job.attempts + 1, cap, advice),
        extra=extra,
    )


def _described(job: Job, entrypoint: Entrypoint) -> tuple[str, str]:
    """Return the cap on the attempts of a job, and how to lift it."""
    name, cap = entrypoint.name, entrypoint.max_attempts
    if job.queue:
        return (
            f"max_attempts={job.max_attempts} of its row or of table queue {name!r}",
            "to lift the cap, raise it there and reactivate the row",
        )
    again = f"`holdfast requeue {job.id} --max-attempts N` gives this job a cap of its own"
    if job.max_attempts is not None:
        return f"its own max_attempts={job.max_attempts}", again
    if isinstance(cap, ExecutorCap):
        return (
            f"max_attempts={cap - 1} of the executor of {name!r}",
            f"to lift the cap, give the executor a larger number; {again}",
        )
    if isinstance(cap, TaskCap):
        return (
            f"retry={cap} of task {name!r}",
            f"to lift the cap, register the task with a larger retry; {again}",
        )
    default = "the default " if isinstance(cap, DefaultCap) else ""
    return (
        f"{default}max_attempts={cap} of entrypoint {name!r}",
        f"to lift the cap, register the entrypoint with max_attempts=N (None: no cap); {again}",
    )
