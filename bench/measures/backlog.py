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
_SETTLING = 1.0
NAMES, PRIORITIES = 20, 3


def few(stage: Stage, subject: Contestant) -> dict[str, float]:
    """A warm worker stands still while jobs are enqueued; then it is timed until all are done."""
    sizes, spent, due = stage.sizes, 0.0, 0
    with (
        stage.database(subject) as database,
        stage.start(subject, database) as feeder,
        stage.start(subject, database) as worker,
    ):
        worker.ask("work")
        for turn in range(sizes.few_times + 1):
            jobs = sizes.few if turn else _WARM_UP
            worker.suspend()
            filled(feeder, jobs, sizes.fill_seconds)
            began = time.monotonic()
            worker.resume()
            due += jobs
            spent += _finish(stage, subject, database, worker, due) - began if turn else 0.0
            if not turn:
                _finish(stage, subject, database, worker, due)
    return {"backlog_10k": sizes.few * sizes.few_times / spent}


def _finish(
    stage: Stage, subject: Contestant, database: str, worker: Process, due: int
) -> float:
    wait_until(
        lambda: worker.check() or worker.done >= due,
        patience=_PATIENCE,
        what=f"{subject.name}: the end of {due:,} jobs",
    )
    stage.await_empty(subject, database)
    return time.monotonic()


def many(stage: Stage, subject: Contestant) -> dict[str, float]:
    return {"backlog_1m": _speed(stage, subject, "million")}


def lanes(stage: Stage, subject: Contestant) -> dict[str, float]:
    spread = {"task": "lane", "names": NAMES}
    speed = _speed(stage, subject, "lanes", priorities=PRIORITIES, **spread)
    return {"backlog_1m_lanes": speed}


def _speed(stage: Stage, subject: Contestant, key: str, **spread: Any) -> float:
    """With so many waiting: the speed in a window, after a second to get going."""
    sizes = stage.sizes

    def fill(process: Process) -> None:
        filled(process, sizes.many, sizes.fill_seconds, **spread)

    tasks = {name: spread[name] for name in ("task", "names") if name in spread}
    with (
        stage.database(subject, key, fill, large=True) as database,
        stage.start(subject, database) as worker,
    ):
        worker.ask("work", **tasks)
        wait_until(
            lambda: worker.check() or worker.first is not None,
            patience=_PATIENCE,
            what=f"{subject.name}: the first job",
        )
        began = (worker.first or 0.0) + _SETTLING
        # A window in which the backlog is still nearly as long as at its start.
        most, end = sizes.many // 10, began + sizes.window_seconds
        while time.monotonic() < end and worker.done < most:
            worker.check()
            time.sleep(0.01)
        ended = min(end, worker.samples[-1][0])
        if ended <= began:
            raise SubjectFailed(f"{subject.name}: no jobs in the window")
        return rate_between([worker.samples], began, ended)
