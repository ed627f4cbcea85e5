"""Whether the speed lasts: minutes with a short queue, alone and beside an open transaction."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import psutil

from bench.measures.windows import evened, medians, rates
from bench.process import Process, SubjectFailed, wait_until

if TYPE_CHECKING:
    from bench.contestants import Contestant
    from bench.stage import Stage

WINDOW = 10.0
BATCH = 1000
SERIES = "series"
STOLEN = "stolen"
EFFORT = "effort"
"""CPU time, in µs, of a piece of work that is always the same."""
EVENED = "evened"
_START = 60.0
_SAME_WORK = 1000


def free(stage: Stage, subject: Contestant) -> dict[str, float]:
    series, even = _series(stage, subject, held=False)
    stage.notes[EVENED] = min(even) / even[0]
    return {"steady_first": series[0], "steady_worst": min(series)}


def held(stage: Stage, subject: Contestant) -> dict[str, float]:
    series, even = _series(stage, subject, held=True)
    stage.notes[EVENED] = even[-1] / even[0]
    return {"xmin_first": series[0], "xmin_last": series[-1]}


def _series(stage: Stage, subject: Contestant, *, held: bool) -> tuple[list[float], list[float]]:
    """Jobs a second in windows of 10 s (of a third of the time, when that is shorter), as they were
    and by what the machine could do meanwhile."""
    seconds = stage.sizes_of(subject).steady_seconds
    width = min(WINDOW, seconds / 3)
    with (
        stage.database(subject) as database,
        stage.server.held_snapshot(database) if held else nullcontext(),
        stage.start(subject, database) as feeder,
        stage.start(subject, database) as worker,
    ):
        worker.ask("work", sample=0.01)
        machine = Machine()
        first = _keep_fed(worker, feeder, stage.sizes_of(subject).steady_waiting, seconds, machine)
        worker.check()
        windows = first, width, int(seconds / width)
        series = [round(speed, 1) for speed in rates(worker.samples, *windows)]
    if not all(series):
        raise SubjectFailed(f"{subject.name}: no job was done for {width:g} s")
    stolen = [round(share, 3) for share in rates(machine.stolen, *windows)]
    efforts = [round(effort, 1) for effort in medians(machine.efforts, *windows)]
    stage.notes |= {SERIES: series, STOLEN: stolen, EFFORT: efforts}
    return series, evened(series, stolen, efforts)


def _keep_fed(
    worker: Process,
    feeder: Process,
    waiting: int,
    seconds: float,
    machine: Machine,
) -> float:
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
            machine.look()
        time.sleep(0.001)
    if feeding:
        feeder.answer(60.0)
    wait_until(lambda: bool(worker.samples), patience=1.0, what=f"{worker.name}: a count")
    return worker.first


class Machine:
    """What its host leaves of it: time, and what can be done in that."""

    def __init__(self) -> None:
        self.stolen: list[tuple[float, float]] = []
        """Seconds that were taken of each processor so far, where it is known."""
        self.efforts: list[tuple[float, float]] = []

    def look(self) -> None:
        taken = getattr(psutil.cpu_times(), "steal", 0.0) / (psutil.cpu_count() or 1)
        began = time.thread_time()
        sum(range(_SAME_WORK))
        effort = (time.thread_time() - began) * 1e6
        now = time.monotonic()
        self.stolen.append((now, taken))
        self.efforts.append((now, effort))
