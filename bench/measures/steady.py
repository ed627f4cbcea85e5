"""Whether the speed lasts: minutes with a short queue, alone and beside an open transaction."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from bench.measures.windows import rates
from bench.process import Process, SubjectFailed, wait_until

if TYPE_CHECKING:
    from bench.contestants import Contestant
    from bench.stage import Stage

WINDOW = 10.0
BATCH = 1000
SERIES = "series"
_START = 60.0


def free(stage: Stage, subject: Contestant) -> dict[str, float]:
    series = _series(stage, subject, held=False)
    stage.notes[SERIES] = series
    return {"steady_first": series[0], "steady_worst": min(series)}


def held(stage: Stage, subject: Contestant) -> dict[str, float]:
    series = _series(stage, subject, held=True)
    stage.notes[SERIES] = series
    return {"xmin_first": series[0], "xmin_last": series[-1]}


def _series(stage: Stage, subject: Contestant, *, held: bool) -> list[float]:
    """Jobs a second in windows of 10 s (of a tenth of the time, when that is shorter)."""
    seconds = stage.sizes_of(subject).steady_seconds
    width = min(WINDOW, seconds / 3)
    with (
        stage.database(subject) as database,
        stage.server.held_snapshot(database) if held else nullcontext(),
        stage.start(subject, database) as feeder,
        stage.start(subject, database) as worker,
    ):
        worker.ask("work", sample=0.01)
        first = _keep_fed(worker, feeder, stage.sizes_of(subject).steady_waiting, seconds)
        worker.check()
        series = [
            round(speed, 1) for speed in rates(worker.samples, first, width, int(seconds / width))
        ]
    if not all(series):
        raise SubjectFailed(f"{subject.name}: no job was done for {width:g} s")
    return series


def _keep_fed(worker: Process, feeder: Process, waiting: int, seconds: float) -> float:
    """Enqueue whenever fewer are waiting; when the first handler began."""
    fed, feeding = 0, False
    started = time.monotonic()
    while worker.first is None or time.monotonic() - worker.first < seconds:
        worker.check()
        if worker.first is None and time.monotonic() - started > _START:
            raise SubjectFailed(f"{worker.name}: no job was done within {_START:g} s")
        if feeding and feeder.answered():
            fed += feeder.answer(1.0)["count"]
            feeding = False
        if not feeding and fed - worker.done < waiting:
            feeder.tell("bulk", count=BATCH, seconds=60.0)
            feeding = True
        time.sleep(0.001)
    if feeding:
        feeder.answer(60.0)
    wait_until(lambda: bool(worker.samples), patience=1.0, what=f"{worker.name}: a count")
    return worker.first
