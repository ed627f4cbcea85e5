"""Logs that a cap on attempts has ended the retries of a job, and how to lift it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.task import DefaultCap, ExecutorCap, TaskCap
from holdfast.worker.job_log import log_job

if TYPE_CHECKING:
    from holdfast.models import Held, Job
    from holdfast.task import Entrypoint


def log_retired(
    worker: str, entrypoint: Entrypoint, job: Job, outcome: Held, seconds: float
) -> None:
    """Write the one line about a run whose request for a retry the cap refused, and its error."""
    cap, advice = _described(job, entrypoint)
    count = job.attempts + 1
    words = f"is held after {count} {'attempt' if count == 1 else 'attempts'} by {cap}"
    log_job(
        *(worker, job, logging.WARNING, "retired", words, outcome.traceback),
        seconds=seconds,
        advice=f"; {advice}",
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
