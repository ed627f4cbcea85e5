"""What the jobs do, and the ledger in which each run is written down outside of the database."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from chaos import snoozes, workload
from chaos.files import Journal, instant
from holdfast import Context, Holdfast, Job, RetryRequested, TableQueue
from holdfast.breaker import BreakerPolicy
from holdfast.events import Event, Lost, Settled, StepFailed
from holdfast.table import linear

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_LOOK = 0.01


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words for it")


class Beyond(BaseException):
    """What `except Exception` does not catch."""


def _error(kind: str) -> BaseException:
    match kind:
        case "nul":
            return RuntimeError("a \0 in the message")
        case "surrogate":
            return RuntimeError("half of a \ud83d pair")
        case "huge":
            return RuntimeError("x" * 5_000_000)
        case "exit":
            return SystemExit(3)
        case "unprintable":
            return Unprintable()
        case "base":
            return Beyond("not an Exception")
        case _:
            return RuntimeError("gate")


class Ledger:
    """Starts and ends of handlers, and what the worker believes became of them."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self._journal = Journal(directory / f"effects-{name}-{os.getpid()}.jsonl")

    def note(self, event: str, **fields: object) -> None:
        self._journal.note(event, **fields)

    def lease(self, event: str, job: Job, **fields: object) -> None:
        """A line about one lease: the job, who claimed it and when."""
        at = instant(job.claimed_at) if job.claimed_at else 0
        self.note(event, q=job.queue, j=job.id, by=job.claimed_by, at=at, **fields)

    def start(self, job: Job, does: Mapping[str, Any]) -> None:
        token = hashlib.sha256(str(job.claim_token).encode()).hexdigest()[:12]
        self.lease(
            "start",
            job,
            pid=os.getpid(),
            tok=token,
            u=does.get("uid"),
            k=does.get("kind"),
            ep=job.entrypoint,
            att=job.attempts,
            rec=job.recoveries,
            due=instant(job.execute_after),
            born=instant(job.created),
            key=job.dedupe_key,
            slot=(job.headers or {}).get("slot"),
        )

    def notify(self, event: Event) -> None:
        """Note, as an observer, which writes of the worker were acknowledged."""
        match event:
            case Settled(_, runs):
                for job, outcome, _ in runs:
                    self.lease("settled", job, how=type(outcome).__name__)
            case Lost(_, job, outcome):
                self.lease("lost", job, how=type(outcome).__name__)
            case StepFailed(_, step, error):
                self.note("step", step=step, error=repr(error))


WITHOUT_BREAKER = ("work", "fragile", "poison", "held", "limited")
"""A worker of these alone claims ahead of its slots."""


class Handlers:
    """The entrypoints of every worker of the harness."""

    def __init__(self, ledger: Ledger, lease: float) -> None:
        self._ledger = ledger
        self._lease = lease

    def register(
        self, hf: Holdfast, only: tuple[str, ...], *, scheduled: bool, tables: bool
    ) -> None:
        policy = BreakerPolicy(
            workload.DEPENDENCY,
            threshold=3,
            cooldown=timedelta(seconds=0.4),
            max_cooldown=timedelta(seconds=1.5),
            probe_lease=timedelta(seconds=2),
        )
        options: dict[str, dict[str, Any]] = {
            "work": {},
            "fragile": {},
            "poison": {},
            "held": {"on_failure": "hold"},
            "limited": {"concurrency_limit": workload.LIMIT},
            "guarded": {"breaker": policy, "max_attempts": None},
        }
        for name, chosen in options.items():
            if not only or name in only:
                hf.entrypoint(name, **chosen)(self.perform)
        if scheduled:
            hf.scheduler_manager.add(workload.SCHEDULE, "* * * * * *", "UTC", "all", "allow")
            hf.entrypoint(workload.SCHEDULE)(self.perform)
        if tables:
            step = timedelta(seconds=0.2)
            lease = timedelta(seconds=self._lease)
            queue = TableQueue(workload.TABLE, due="due", lease=lease, backoff=linear(step, step))
            hf.table(queue, accepts_context=True)(self.perform_row)

    def register_snoozes(self, hf: Holdfast) -> None:
        lease = timedelta(seconds=self._lease)
        hf.table(TableQueue(snoozes.TABLE, lease=lease))(self.perform_snooze)

    async def perform_snooze(self, row: dict[str, Any]) -> None:
        does = json.loads(row["subject"])
        about = {"row": row["id"], "pid": os.getpid(), "deadly": does["deadly"]}
        self._ledger.note("snooze", **about)
        if does["deadly"]:
            os.kill(os.getpid(), signal.SIGKILL)
        while "gate" in does and not (self._ledger.directory / does["gate"]).exists():  # noqa: ASYNC110 - a file
            await asyncio.sleep(_LOOK)
        await asyncio.sleep(does.get("seconds", 0.0))
        self._ledger.note("snoozed", **about)

    async def perform(self, job: Job) -> None:
        await self._run(job, json.loads(job.payload) if job.payload else {})

    async def perform_row(self, row: dict[str, Any], context: Context) -> None:
        whole = context.job._replace(row=row)
        await self._run(whole, {"uid": row["id"], "kind": "row", **json.loads(row["does"])})

    async def _run(self, job: Job, does: Mapping[str, Any]) -> None:
        self._ledger.start(job, does)
        how = "cancelled"
        try:
            await self._act(job, does)
            how = "ok"
        except RetryRequested:
            how = "retry"
            raise
        except asyncio.CancelledError:
            raise
        except BaseException:
            how = "raise"
            raise
        finally:
            self._ledger.lease("end", job, how=how)

    async def _act(self, job: Job, does: Mapping[str, Any]) -> None:
        match does.get("do"):
            case "nap":
                await asyncio.sleep(does["seconds"])
            case "block":
                time.sleep(does["seconds"])  # noqa: ASYNC251 - that is the fault
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "gate":
                await self._gate(job, does)
            case "call":
                if (self._ledger.directory / "down").exists():
                    raise RetryRequested(timedelta(seconds=does["delay"]), "dependency down")
            case "raise":
                raise _error(does["error"])
        if job.attempts < does.get("fails", 0):
            raise RetryRequested(timedelta(seconds=does.get("delay", 0.0)), "not yet")

    async def _gate(self, job: Job, does: Mapping[str, Any]) -> None:
        """Wait for the file that is named for this run, awaiting or blocking, and end."""
        gate = self._ledger.directory / _nth(does["gates"], job.recoveries)
        block = _nth(does.get("block", [False]), job.recoveries)
        while not gate.exists():
            if block:
                time.sleep(_LOOK)  # noqa: ASYNC251 - that is the fault
            else:
                await asyncio.sleep(_LOOK)
        match _nth(does.get("then", ["ok"]), job.recoveries):
            case "retry":
                raise RetryRequested(timedelta(seconds=does.get("delay", 0.0)), "gate")
            case "raise":
                raise _error("plain")


def _nth(choices: Sequence[Any], n: int) -> Any:
    """What is meant for this run; the last is for all that follow."""
    return choices[min(n, len(choices) - 1)]
