"""Settings of a process of the harness: plain values, as JSON on its command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self


class Plan:
    """A frozen dataclass with a text form."""

    __slots__ = ()

    def dumps(self) -> str:
        return json.dumps(asdict(self))  # type: ignore[call-overload]

    @classmethod
    def loads(cls, text: str) -> Self:
        values: dict[str, Any] = json.loads(text)
        return cls(**values)


@dataclass(frozen=True, slots=True)
class WorkerPlan(Plan):
    """How one worker process works."""

    name: str
    dsn: str
    directory: str
    lease: float
    concurrency: int = 40
    batch_size: int = 40
    poll: float = 2.0
    drain: float = 5.0
    timeout: float = 4.0
    """Of every statement: short, so that a silent connection is given up within a run."""
    ping: float = 10.0
    entrypoints: tuple[str, ...] = ()
    """Which of those there are; empty: all."""
    scheduled: bool = False
    tables: bool = False
    snoozes: bool = False
    """Serve the user's table."""
    counting: bool = False
    """Serve the tasks that count, and nothing else."""
    max_block: float | None = None
    """Seconds for which a handler may block the event loop, after which the process is killed."""
    connections: int | None = None
    """With 7 each purpose has a connection of its own, which faults can then be aimed at."""
    trip: str | None = None
    """The step of the worker that raises an unexpected error once: "settle" or "dispatch"."""
    mutant: str | None = None
    skew: float = 0.0
    """Seconds by which this process's wall clock is wrong."""


@dataclass(frozen=True, slots=True)
class ProducerPlan(Plan):
    """What one producer process enqueues, and how fast."""

    name: str
    dsn: str
    directory: str
    seed: int
    lease: float
    first: int
    count: int
    per_second: float
    shares: dict[str, int] | None = None
    """Of each kind of job, if not those of the workload."""
    script: list[dict[str, Any]] | None = None
    """Jobs to be enqueued one after the other instead of the seeded ones."""
    calls_at_once: int = 4
    jobs_at_once: int = 20
    """In one call, at most."""
    capped: bool = False
    """Jobs keep the usual cap of recoveries."""
    rows: bool = False
    mutant: str | None = None
    skew: float = 0.0


@dataclass(frozen=True, slots=True)
class OldPlan(Plan):
    """How a program of a released version works. With a count it is a producer."""

    name: str
    dsn: str
    directory: str
    lease: float
    release: str
    concurrency: int = 10
    seed: int = 0
    first: int = 0
    count: int = 0
    per_second: float = 10.0
    shares: dict[str, int] | None = None
    skew: float = 0.0
