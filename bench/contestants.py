"""Who is measured: how each is installed and started, and how its tables show unfinished work."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench.sizes import Pace

SUBJECTS = Path(__file__).parent / "subjects"

_PRODUCING = frozenset({"enqueue_concurrent", "enqueue_producers"})
_WATCHING = frozenset({"idle_statements", "idle_cpu", "idle_rss", "busy_rss"})

_APART = _PRODUCING | _WATCHING | {"drain_2", "drain_defaults", "work_5ms"}
"""What those that joined last leave out, so that a whole run fits into two hours."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A subject of the benchmark."""

    name: str
    script: str
    unfinished: str
    """A condition with its table: the jobs that are due and not finished. Of `now()`, unlike
    `clock_timestamp()`, PostgreSQL knows that an index can tell."""
    kind: Literal["own", "python", "node"] = "python"
    requirements: tuple[str, ...] = ()
    newer: str = ""
    """The oldest Python it runs on, such as "3.12", where that is newer than ours."""
    skips: frozenset[str] = field(default_factory=frozenset)
    pace: Pace = field(default_factory=Pace)
    most_rounds: int | None = None
    """A whole run must fit into two hours, so a subject may be measured less often."""
    shares: str = ""
    """The subject whose tables it uses, if not its own."""

    @property
    def tables(self) -> str:
        return self.shares or self.name

    @property
    def owner(self) -> Contestant:
        """Who makes the tables and fills them."""
        return CONTESTANTS[self.tables]

    @property
    def path(self) -> Path:
        return SUBJECTS / self.script


_OURS = "holdfast where held_at is null and execute_after <= now()"

CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant("holdfast", "holdfast_subject.py", _OURS, "own"),
        Contestant(
            "limit",
            "limit.py",
            _OURS,
            "own",
            # It has no handlers, is never idle for long, and has nothing to configure.
            skips=_PRODUCING
            | _WATCHING
            | {"drain_defaults", "work_5ms", "telemetry_on", "xmin_first", "xmin_last"},
            shares="holdfast",
        ),
        Contestant(
            "pgqueuer",
            "pgqueuer_subject.py",
            "pgqueuer where status in ('queued', 'picked') and execute_after <= now()",
            requirements=("pgqueuer", "asyncpg", "uvloop"),
            pace=Pace(700, 900, 25_000, 9_000, 2_000, 4_000),
        ),
        Contestant(
            "graphile-worker",
            "graphile_worker_subject.mjs",
            "graphile_worker._private_jobs where attempts < max_attempts and run_at <= now()",
            "node",
            ("graphile-worker",),
            pace=Pace(700, 900, 25_000, 25_000, 700, 5_000),
        ),
        Contestant(
            "pg-boss",
            "pg_boss_subject.mjs",
            "pgboss.job where state < 'completed' and start_after <= now()",
            "node",
            ("pg-boss",),
            pace=Pace(400, 800, 25_000, 12_000, 1, 2_000),
        ),
        Contestant(
            "chancy",
            "chancy_subject.py",
            "chancy_jobs where state in ('pending', 'running', 'retrying')"
            " and scheduled_at <= now()",
            requirements=("chancy", "psycopg[binary]", "uvloop"),
            pace=Pace(600, 1_000, 2_500, 1_600, 1),
        ),
        Contestant(
            "procrastinate",
            "procrastinate_subject.py",
            "procrastinate_jobs where status in ('todo', 'doing')"
            " and (scheduled_at is null or scheduled_at <= now())",
            requirements=("procrastinate", "psycopg[binary]", "uvloop"),
            pace=Pace(500, 900, 8_000, 200, 200),
        ),
        Contestant(
            "awa-pg",
            "awa_subject.py",
            "awa.jobs where state in ('available', 'running', 'retryable') and run_at <= now()",
            requirements=("awa-pg", "uvloop"),
            skips=_APART,
            pace=Pace(500, 900, 30_000, 9_000, 4_000),
            most_rounds=1,
        ),
        Contestant(
            "oban",
            "oban_subject.py",
            "oban_jobs where state in ('available', 'executing', 'retryable')"
            " and scheduled_at <= timezone('UTC', now())",
            requirements=("oban",),
            newer="3.12",
            skips=_APART,
            pace=Pace(500, 900, 4_000, 2_500, 1_500),
            most_rounds=1,
        ),
        Contestant(
            "saq",
            "saq_subject.py",
            "saq_jobs where status in ('new', 'queued', 'active')"
            " and scheduled <= extract(epoch from now())",
            requirements=("saq[postgres]", "psycopg[binary]", "uvloop"),
            pace=Pace(500, 900, 500, 300, 200),
        ),
    )
}

QUICK = ("holdfast", "limit", "pgqueuer")
