"""What many workers cost beside one: transactions, the start of a job, and a shared backlog."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from bench.process import Process, wait_until
from bench.results import percentile
from bench.stage import filled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.contestants import Contestant
    from bench.stage import Stage

WORKERS = 50
MANY = 200
PROCESSES = 8
SIZES = (1, WORKERS, MANY)
_MANY_OF = frozenset({"holdfast", "pgqueuer"})
"""200 workers of others need more connections than the server has."""

FAMILY = "fleet_transactions"
_GAP = 0.05
_WARM_UP = 20
_WARM_UP_PER_WORKER = 3
"""The first job of a worker prepares its statements, which takes milliseconds. Most get one."""

_WARM_UP_GAP = 0.02
_AT_REST_SECONDS = 2.0
_STARTING_SECONDS = 5.0
_STARTING_SECONDS_PER_WORKER = 0.1
_PATIENCE = 180.0
_COUNTED = (
    "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
)
_SESSIONS = (
    "select count(*) from pg_stat_activity where datname = current_database()"
    " and pid <> pg_backend_pid() and backend_type = 'client backend'"
)
_PRODUCER_SESSIONS = 1
REPORTED_SECONDS = 11.0
"""A session that becomes idle reports what it has done up to ten seconds later."""


class Cost(NamedTuple):
    """What one fleet costs."""

    idle: float
    """Transactions a second of a worker without work."""
    transactions: float
    """Of one job, beyond those of the idle fleet."""
    p50: float
    """Milliseconds from enqueue to handler."""
    p99: float
    connections: float
    """Sessions of each worker while nothing is to do."""


def fleet(stage: Stage, subject: Contestant) -> dict[str, float]:
    """Of 50 workers, beside one. The cost of 200 is noted."""
    sizes = SIZES if subject.name in _MANY_OF else SIZES[:-1]
    costs = {count: _cost(stage, subject, count) for count in sizes}
    stage.notes |= {f"workers: {count}": cost._asdict() for count, cost in costs.items()}
    one, many = costs[1], costs[WORKERS]
    return {
        "fleet_transactions": many.transactions / one.transactions,
        "fleet_p50": many.p50 / one.p50,
        "fleet_p99": many.p99 / one.p99,
        "fleet_idle": many.idle,
    }


def shared_backlog(stage: Stage, subject: Contestant) -> dict[str, float]:
    """The drain of 200 workers in 8 processes, beside that of two workers."""
    two, many = _drain(stage, subject, 2, 1), _drain(stage, subject, PROCESSES, MANY // PROCESSES)
    stage.notes["two workers"], stage.notes["fleet"] = two, many
    return {"fleet_drain": many / two}


def _drain(stage: Stage, subject: Contestant, processes: int, workers: int) -> float:
    """Jobs a second. Warm workers stand still while the jobs are enqueued.

    Otherwise the start of 200 workers, and of their connections, would be measured.
    """
    sizes = stage.sizes_of(subject)
    with (
        stage.database(subject) as database,
        stage.watched(subject, database) as await_empty,
        stage.start(subject, database) as feeder,
        ExitStack() as stack,
    ):
        crew = [stack.enter_context(stage.start(subject, database)) for _ in range(processes)]
        for process in crew:
            process.ask("work", workers=workers)
        for _ in range(_WARM_UP_PER_WORKER * processes * workers):
            filled(feeder, 1, sizes.fill_seconds)
        await_empty()
        time.sleep(_AT_REST_SECONDS)
        due = sum(process.done for process in crew) + sizes.fleet
        for process in crew:
            process.suspend()
        filled(feeder, sizes.fleet, sizes.fill_seconds)
        resumed = time.monotonic()
        for process in crew:
            process.resume()
        wait_until(
            lambda: sum(process.done for process in crew) >= due,
            patience=_PATIENCE,
            what=f"{subject.name}: the end of the backlog",
        )
        return sizes.fleet / (await_empty() - resumed)


def _cost(stage: Stage, subject: Contestant, workers: int) -> Cost:
    probes, warm_up = stage.sizes_of(subject).probes, _WARM_UP + _WARM_UP_PER_WORKER * workers
    with (
        stage.database(subject) as database,
        stage.start(subject, database) as producer,
        _crew(stage, subject, database, workers) as crew,
    ):
        producer.ask("connect", connections=1)
        time.sleep(_STARTING_SECONDS + _STARTING_SECONDS_PER_WORKER * workers)
        # Before the first job: what a session was notified of is counted with its next statement.
        idle, before, began = _idle(stage, database, stage.sizes_of(subject).idle_seconds)
        connections = int(stage.server.ask(_SESSIONS, database)) - _PRODUCER_SESSIONS
        _probe(producer, crew, probes // 2, _GAP)
        spent = _count(stage, database) - before - idle * (time.monotonic() - began)
        _probe(producer, crew, warm_up, _WARM_UP_GAP)
        warm = [len(process.ask("latencies")) for process in crew]
        _probe(producer, crew, probes, _GAP)
        seconds = [
            one
            for process, before_these in zip(crew, warm, strict=True)
            for one in process.ask("latencies")[before_these:]
        ]
    p50, p99 = (percentile(seconds, percent) * 1000 for percent in (50, 99))
    return Cost(idle / workers, spent / (probes // 2), p50, p99, connections / workers)


def _probe(producer: Process, crew: list[Process], count: int, gap: float) -> None:
    """Enqueue jobs one by one, and wait until the last has begun."""
    done = sum(process.done for process in crew)
    producer.ask("probe", count=count, gap=gap, patience=_PATIENCE)
    wait_until(
        lambda: sum(process.done for process in crew) >= done + count,
        patience=_PATIENCE,
        what="the last probe",
    )


@contextmanager
def _crew(
    stage: Stage, subject: Contestant, database: str, workers: int
) -> Iterator[list[Process]]:
    """Workers that share a few processes, all of which wait for probes."""
    count = min(PROCESSES, workers)
    sizes = [workers // count + (place < workers % count) for place in range(count)]
    with ExitStack() as stack:
        crew = [stack.enter_context(stage.start(subject, database)) for _ in sizes]
        for process, size in zip(crew, sizes, strict=True):
            process.ask("work", task="stamp", sample=0.25, workers=size)
        yield crew


def _idle(stage: Stage, database: str, seconds: float) -> tuple[float, int, float]:
    """Transactions a second, and their count at an instant."""
    before, began = _count(stage, database), time.monotonic()
    time.sleep(seconds)
    count, now = _count(stage, database), time.monotonic()
    return (count - before) / (now - began), count, now


def _count(stage: Stage, database: str) -> int:
    time.sleep(REPORTED_SECONDS)
    return int(stage.server.ask(_COUNTED, database))
