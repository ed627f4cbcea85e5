"""Whether a long queue is slower than a short one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bench.measures.windows import rate_between
from bench.process import Process, SubjectFailed, wait_until
from bench.stage import filled

if TYPE_CHECKING:
    from bench.contestants import Contestant
    from bench.stage import Stage

_PATIENCE = 60.0
_WARM_UP = 2_000
SETTLING = 2.0
NAMES, PRIORITIES = 20, 3
MILLION, LANES = "million", "lanes"
"""Keys of the templates that jobs lie in."""


def few(stage: Stage, subject: Contestant) -> dict[str, float]:
    """A warm worker stands still while jobs are enqueued; then it is timed until all are done.

    From its first count on: how soon it notices the jobs is a matter of latency, not of speed.
    """
    sizes, jobs, seconds = stage.sizes_of(subject), 0, 0.0
    with (
        stage.database(subject) as database,
        stage.watched(subject, database) as await_empty,
        stage.start(subject, database) as feeder,
        stage.start(subject, database) as worker,
    ):
        worker.ask("work")
        for turn in range(sizes.few_times + 1):
            worker.suspend()
            due, seen = worker.done + (sizes.few if turn else _WARM_UP), len(worker.samples)
            filled(feeder, due - worker.done, sizes.fill_seconds)
            resumed = time.monotonic()
            worker.resume()
            _await_done(worker, due)
            ended = await_empty()
            if turn:
                began, counted = worker.samples[seen]
                if counted == due:
                    began, counted = resumed, due - sizes.few
                jobs, seconds = jobs + due - counted, seconds + ended - began
    return {"backlog_10k": jobs / seconds}


def _await_done(worker: Process, due: int) -> None:
    wait_until(
        lambda: worker.has_done(due),
        patience=_PATIENCE,
        what=f"{worker.name}: the end of {due:,} jobs",
        every=0.002,
    )


def many(stage: Stage, subject: Contestant) -> dict[str, float]:
    return {"backlog_1m": _speed(stage, subject, MILLION)}


def lanes(stage: Stage, subject: Contestant) -> dict[str, float]:
    # A batch is enqueued task by task where a library takes one task in a call.
    spread = {"task": "lane", "names": NAMES, "batch": 500 * NAMES}
    speed = _speed(stage, subject, LANES, priorities=PRIORITIES, **spread)
    return {"backlog_1m_lanes": speed}


def _speed(stage: Stage, subject: Contestant, key: str, **spread: Any) -> float:
    """With so many waiting: the speed in a window, after two seconds or an eighth to get going."""
    sizes = stage.sizes_of(subject)

    def fill(process: Process, _database: str) -> None:
        filled(process, sizes.many, sizes.fill_seconds, **spread)

    tasks = {name: spread[name] for name in ("task", "names") if name in spread}
    with (
        stage.database(subject, key, fill, large=True) as database,
        stage.start(subject, database) as worker,
    ):
        worker.ask("work", **tasks)
        wait_until(
            worker.has_begun,
            patience=_PATIENCE,
            what=f"{subject.name}: the first job",
        )
        wait_until(
            lambda: (
                worker.has_done(sizes.many // 8)
                or time.monotonic() - (worker.first or 0.0) > SETTLING
            ),
            patience=_PATIENCE,
            what=f"{subject.name}: a warm worker",
        )
        began = worker.samples[-1][0]
        # A window in which the backlog is still of the size that it is about.
        most, end = sizes.many * 3 // 8, began + sizes.window_seconds
        while time.monotonic() < end and not worker.has_done(most):
            time.sleep(0.005)
        ended = min(end, worker.samples[-1][0])
        if ended <= began:
            raise SubjectFailed(f"{subject.name}: no jobs in the window")
        return rate_between([worker.samples], began, ended)
