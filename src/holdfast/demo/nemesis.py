"""The faults of the demo: a worker is killed, one is frozen, and one job kills its workers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

from holdfast.demo.handlers import LEASE, SLOW, SLOW_SECONDS
from holdfast.demo.worker import refusals
from holdfast.lifecycle import Status

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.app import Holdfast
    from holdfast.demo.crew import Crew
    from holdfast.demo.producer import Producer
    from holdfast.models import Job, JobId

Say = Callable[[str], None]

_LOOK = 0.05
_PATIENCE_SECONDS = 45.0
_MOST_RUNNING = 500
_LEASE_SECONDS = f"{LEASE.total_seconds():g} s"


@dataclass(frozen=True, slots=True)
class Incident:
    """A fault of a worker, and the outcomes of the jobs that it held."""

    what: str
    number: int
    jobs: tuple[JobId, ...]
    seconds: float
    """Time until the last of its jobs had another holder or had ended."""


class Nemesis:
    """Strikes only a worker that holds jobs: otherwise there is nothing to see."""

    def __init__(self, hf: Holdfast, crew: Crew, directory: Path, say: Say) -> None:
        self._hf = hf
        self._crew = crew
        self._directory = directory
        self._say = say
        self._poisoning = False
        self._deaths = 0
        self.incidents: list[Incident] = []
        crew.on_death = self._on_death

    async def kill(self, number: int) -> None:
        pid = await self._await_busy(number)
        self._crew.signal(number, signal.SIGKILL)
        began, jobs = monotonic(), await self._held(pid)
        self._say(
            f"Worker {number} is killed (SIGKILL) while it holds {_jobs(len(jobs))}. Their "
            f"leases of {_LEASE_SECONDS} expire, and then the jobs go to other workers."
        )
        await self._await_return(pid, jobs)
        self._note("killed", number, jobs, began)
        self._say(f"… its {_jobs(len(jobs))} came back and were taken up by the others.")
        await self._await_end(jobs)

    async def freeze(self, number: int) -> None:
        pid = await self._await_busy(number)
        self._crew.signal(number, signal.SIGSTOP)
        began, jobs = monotonic(), await self._held(pid)
        self._say(
            f"Worker {number} is frozen (SIGSTOP): its {_jobs(len(jobs))} come back when the "
            f"lease ends. It does not notice the pause."
        )
        await self._await_return(pid, jobs)
        self._note("frozen", number, jobs, began)
        self._say(f"… its {_jobs(len(jobs))} came back and were taken up by the other worker.")
        self._crew.signal(number, signal.SIGCONT)
        self._say(
            f"Worker {number} wakes up (SIGCONT) and reports its old jobs as done. Each report "
            f"names a token that the job no longer has."
        )
        await self._until(self._some_refused, seconds=10)
        refused = len(refusals(self._directory))
        self._say(f"… {refused} late writes were refused: what the new owner wrote stands.")
        await self._await_end(jobs)

    async def poison(self, producer: Producer) -> None:
        self._poisoning = True
        job_id = await producer.poison()
        self._say(f"Job {job_id} is poison: it kills every worker that runs it.")

        async def held() -> bool:
            [(_, status)] = await self._hf.queries.job_status([job_id])
            return status is Status.FAILED

        if await self._until(held):
            self._say(
                f"… job {job_id} is held after {self._deaths} deaths, so that it cannot take the "
                f"fleet down. On its last chance it ran alone, so no other job is suspected."
            )

    def _on_death(self, number: int) -> None:
        if self._poisoning:
            self._deaths += 1
            self._say(f"… worker {number} died of it, the {_ordinal(self._deaths)}; replaced.")

    async def _await_busy(self, number: int) -> int:
        """The pid of the worker once it has begun a slow job that will not end before we strike."""

        async def busy() -> bool:
            now = await self._hf.queries.now()
            fresh = now - timedelta(seconds=SLOW_SECONDS / 2)
            return any(
                job.entrypoint == SLOW and job.claimed_at is not None and job.claimed_at > fresh
                for job in await self._jobs_of(self._crew.pid(number))
            )

        await self._until(busy)
        return self._crew.pid(number)

    async def _held(self, pid: int) -> tuple[JobId, ...]:
        return tuple(job.id for job in await self._jobs_of(pid))

    async def _jobs_of(self, pid: int) -> list[Job]:
        running = await self._hf.queries.list_running_jobs(limit=_MOST_RUNNING)
        return [job for job in running if f":{pid}:" in (job.claimed_by or "")]

    async def _await_return(self, pid: int, jobs: tuple[JobId, ...]) -> None:
        """Until it holds none of them any more, and another worker has claimed those that matter
        here."""

        async def returned() -> bool:
            found = await self._hf.queries.get_jobs(jobs)
            return not any(
                f":{pid}:" in (job.claimed_by or "")
                or (job.entrypoint == SLOW and job.claimed_by is None)
                for job in found
            )

        await self._until(returned)

    async def _await_end(self, jobs: tuple[JobId, ...]) -> None:
        """So that no job is struck twice: it would be suspected, and run alone from then on."""

        async def ended() -> bool:
            found = await self._hf.queries.get_jobs(jobs)
            return not any(job.entrypoint == SLOW for job in found)

        await self._until(ended)

    async def _some_refused(self) -> bool:
        return bool(refusals(self._directory))

    async def _until(
        self, true: Callable[[], Awaitable[bool]], seconds: float = _PATIENCE_SECONDS
    ) -> bool:
        deadline = monotonic() + seconds
        while not await true():
            if monotonic() > deadline:
                self._say("… that takes too long on this machine; going on.")
                return False
            await asyncio.sleep(_LOOK)
        return True

    def _note(self, what: str, number: int, jobs: tuple[JobId, ...], began: float) -> None:
        self.incidents.append(Incident(what, number, jobs, monotonic() - began))


def _jobs(count: int) -> str:
    return f"{count} job" if count == 1 else f"{count} jobs"


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
