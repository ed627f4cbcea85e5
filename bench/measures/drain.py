"""How fast waiting jobs are worked off, and what each costs."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.process import Process, SubjectFailed, wait_until
from bench.stage import filled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.contestants import Contestant
    from bench.stage import Stage

WAITING, NAPS, CLUTTER = "waiting", "naps", "clutter"
"""Keys of the templates that jobs lie in."""
SAMPLED = 0.01
"""The share of traces that a busy service keeps; all of them are measured beside it."""
PLAIN = "plain"
"""What drains without the difference made, right before and after the one with it."""
_START = 60.0


@dataclass(frozen=True, slots=True)
class Drained:
    jobs: int
    seconds: float
    worker_cpu: float
    server_cpu: float
    wal: int
    megabytes: float

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds


def one(stage: Stage, subject: Contestant) -> dict[str, float]:
    done = _drain_waiting(stage, subject)
    stage.notes["cpu_of_worker"] = done.worker_cpu / done.jobs * 1e6
    stage.notes["cpu_of_postgresql"] = done.server_cpu / done.jobs * 1e6
    return {
        "drain_1": done.rate,
        "busy_rss": done.megabytes,
        "cpu_per_job": (done.worker_cpu + done.server_cpu) / done.jobs * 1e6,
        "wal_per_job": done.wal / done.jobs,
    }


def two(stage: Stage, subject: Contestant) -> dict[str, float]:
    return {"drain_2": _drain_waiting(stage, subject, processes=2).rate}


def defaults(stage: Stage, subject: Contestant) -> dict[str, float]:
    def bare() -> float:
        return _drain_waiting(stage, subject, mode="defaults").rate

    return {"drain_defaults": _beside_plain(stage, subject, _tuned(stage, subject), bare)}


def telemetry(stage: Stage, subject: Contestant) -> dict[str, float]:
    def told() -> float:
        return _drain_waiting(stage, subject, telemetry=SAMPLED).rate

    stage.notes["every_span"] = _drain_waiting(stage, subject, telemetry=1.0).rate
    return {"telemetry_on": _beside_plain(stage, subject, _tuned(stage, subject), told)}


def work_5ms(stage: Stage, subject: Contestant) -> dict[str, float]:
    sizes = stage.sizes_of(subject)

    def fill(process: Process, _database: str) -> None:
        filled(process, sizes.nap, sizes.fill_seconds, task="nap")

    with stage.database(subject, NAPS, fill) as database:
        done = drain(
            stage, subject, database, sizes.nap, sizes.nap_seconds, mode="slots", task="nap"
        )
    return {"work_5ms": done.rate}


def clutter(stage: Stage, subject: Contestant) -> dict[str, float]:
    """Beside deferred jobs and jobs that failed for good and were kept.

    What is drained is enqueued when the database has been copied: the copy of a large one leaves
    the server with other caches than that of a small one. Others have run since those failed: the
    first to come fill the gaps that tracebacks left in the pages of the log, each of which is then
    written once more, and that is not about what lies in the table.
    """
    sizes = stage.sizes_of(subject)

    def fill(process: Process, database: str) -> None:
        filled(process, sizes.lying, sizes.fill_seconds, delay=86400.0)
        filled(process, sizes.lying, sizes.fill_seconds, task="fail")
        with (
            stage.watched(subject, database) as await_empty,
            stage.start(subject.owner, database) as failing,
        ):
            failing.ask("work", task="fail")
            wait_until(
                lambda: failing.has_done(sizes.lying),
                patience=sizes.fill_seconds,
                what=f"{subject.name}: {sizes.lying:,} failures",
            )
            await_empty()
        if subject.name == "holdfast":
            stage.server.tidy(database)
            _drain_fresh(stage, subject, database)

    def without() -> float:
        with stage.database(subject) as database:
            return _drain_fresh(stage, subject, database)

    def beside() -> float:
        with stage.database(subject, CLUTTER, fill) as database:
            return _drain_fresh(stage, subject, database)

    return {"clutter": _beside_plain(stage, subject, without, beside)}


def _drain_fresh(stage: Stage, subject: Contestant, database: str) -> float:
    """Three times as many as are drained elsewhere: two drains of half a second differ by more than
    what lies in the table makes of them."""
    sizes = stage.sizes_of(subject)
    with stage.start(subject.owner, database) as producer:
        filled(producer, sizes.beside, sizes.fill_seconds)
    # A copy of a large database leaves more to be written than one of a small one.
    stage.server.write_back()
    return drain(stage, subject, database, sizes.beside, sizes.drain_seconds).rate


def _tuned(stage: Stage, subject: Contestant) -> Callable[[], float]:
    return lambda: _drain_waiting(stage, subject).rate


def _beside_plain(
    stage: Stage, subject: Contestant, plain: Callable[[], float], other: Callable[[], float]
) -> float:
    """For us, with drains to compare with: a machine's speed may be another one minutes later.

    On both sides, or what comes second would always be on a faster or a slower machine.
    """
    if subject.name != "holdfast":
        return other()
    before = plain()
    found = other()
    stage.notes[PLAIN] = (before + plain()) / 2
    return found


def _drain_waiting(stage: Stage, subject: Contestant, **options: Any) -> Drained:
    sizes = stage.sizes_of(subject)

    def fill(process: Process, _database: str) -> None:
        filled(process, sizes.drain, sizes.fill_seconds)

    with stage.database(subject, WAITING, fill) as database:
        return drain(stage, subject, database, sizes.drain, sizes.drain_seconds, **options)


def drain(
    stage: Stage,
    subject: Contestant,
    database: str,
    count: int,
    seconds: float,
    *,
    processes: int = 1,
    **work: Any,
) -> Drained:
    """From the first handler until the table is empty, or until the time is up."""
    with ExitStack() as stack:
        await_empty = stack.enter_context(stage.watched(subject, database))
        wal, server_cpu = stage.server.wal_position(), stage.server.cpu_seconds()
        crew = [stack.enter_context(stage.start(subject, database)) for _ in range(processes)]
        worker_cpu = sum(process.cpu_seconds() for process in crew)
        for process in crew:
            process.tell("work", **work)
        for process in crew:
            process.answer(_START)
        first, megabytes = _watch(crew, count, seconds)
        done = sum(process.done for process in crew)
        if done > count:
            raise SubjectFailed(f"{subject.name}: {count:,} jobs, but {done:,} runs of handlers")
        ended = await_empty() if done == count else time.monotonic()
        return Drained(
            jobs=done,
            seconds=ended - first,
            worker_cpu=sum(process.cpu_seconds() for process in crew) - worker_cpu,
            server_cpu=stage.server.cpu_seconds() - server_cpu,
            wal=stage.server.wal_position() - wal,
            megabytes=megabytes,
        )


def _watch(crew: Sequence[Process], count: int, seconds: float) -> tuple[float, float]:
    """Until all is done or the time is up; when the first handler began, and the most memory."""
    wait_until(
        lambda: any(process.has_begun() for process in crew),
        patience=_START,
        what=f"{crew[0].name}: the first job",
    )
    first = min(process.first for process in crew if process.first is not None)
    megabytes, looked = max(process.megabytes() for process in crew), time.monotonic()
    while sum(process.done for process in crew) < count and time.monotonic() - first < seconds:
        for process in crew:
            process.check()
        if time.monotonic() - looked > 0.2:
            looked = time.monotonic()
            megabytes = max(megabytes, *(process.megabytes() for process in crew))
        time.sleep(0.005)
    return first, megabytes
