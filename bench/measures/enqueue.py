"""How fast jobs get in."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from bench.process import wait_until

if TYPE_CHECKING:
    from bench.contestants import Contestant
    from bench.stage import Stage

BATCH = 1000
TASKS = 200
CONNECTIONS = 20
PRODUCERS = 8
_PATIENCE = 30.0
# One batch of a slow subject may last long after the time is up.
_BATCH_PATIENCE = 120.0
WITHOUT_NOTIFY = "without_notify"


def single(stage: Stage, subject: Contestant) -> dict[str, float]:
    """One after the other on one connection."""
    return {"enqueue_single": _enqueue(stage, subject, "single", stage.sizes_of(subject).single)}


def bulk(stage: Stage, subject: Contestant) -> dict[str, float]:
    """In batches, ids returned."""
    count = stage.sizes_of(subject).bulk
    return {"enqueue_bulk": _enqueue(stage, subject, "bulk", count, batch=BATCH)}


def concurrent(stage: Stage, subject: Contestant) -> dict[str, float]:
    """Single enqueues, each awaited, from many tasks of one process."""
    count, crowd = stage.sizes_of(subject).concurrent, {"tasks": TASKS, "connections": CONNECTIONS}
    return {"enqueue_concurrent": _enqueue(stage, subject, "concurrent", count, **crowd)}


def _enqueue(stage: Stage, subject: Contestant, order: str, count: int, **how: int) -> float:
    """Jobs a second of one process, once it is connected; the tables must hold them all."""
    seconds = stage.sizes_of(subject).enqueue_seconds
    with stage.database(subject) as database, stage.start(subject, database) as process:
        process.ask("connect", connections=how.get("connections", 1))
        done = process.ask(order, count=count, seconds=seconds, patience=_BATCH_PATIENCE, **how)
        stage.expect(subject, database, done["count"])
    return float(done["count"] / (done["ended"] - done["began"]))


def producers(stage: Stage, subject: Contestant) -> dict[str, float]:
    """Processes that commit singles while a worker listens; for us also without NOTIFY.

    There the worker looks for work all the time: one that never heard of it would leave all the
    processors to the producers. Once before and once after, as in drains.
    """
    if subject.name != "holdfast":
        return {"enqueue_producers": _produce(stage, subject)}
    before = _produce(stage, subject, "--quiet")
    found = _produce(stage, subject)
    stage.notes[WITHOUT_NOTIFY] = (before + _produce(stage, subject, "--quiet")) / 2
    return {"enqueue_producers": found}


def _produce(stage: Stage, subject: Contestant, *options: str) -> float:
    sizes = stage.sizes_of(subject)
    with ExitStack() as stack:
        database = stack.enter_context(stage.database(subject))
        worker = stack.enter_context(stage.start(subject, database, *options))
        worker.ask("work")
        crew = [
            stack.enter_context(stage.start(subject, database, *options)) for _ in range(PRODUCERS)
        ]
        for producer in crew:
            producer.ask("connect", connections=1)
        for producer in crew:
            producer.tell("single", count=sizes.produced, seconds=sizes.enqueue_seconds)
        done = [producer.answer(60.0) for producer in crew]
        wait_until(
            worker.has_begun,
            patience=_PATIENCE,
            what=f"{subject.name}: a job worked off beside the producers",
        )
    began, ended = min(one["began"] for one in done), max(one["ended"] for one in done)
    return float(sum(one["count"] for one in done) / (ended - began))
