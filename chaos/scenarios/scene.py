"""What a scenario can use: a stage, a client, gates for handlers, and the ledger."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from chaos import workload
from chaos.files import PATIENCE, SECOND, Journal, Line, now, read_all
from chaos.workload import Spec
from holdfast import Holdfast, JobId, NewJob

if TYPE_CHECKING:
    from chaos.stage import Process, Stage

Play = Callable[["Scene"], Awaitable[None]]

NEVER = "never"
"""A gate that is never opened."""


class Missed(Exception):
    """An expectation failed, and the rest of the scenario depends on it."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario and what the checker needs to know about it."""

    name: str
    play: Play
    lease: float
    exclusive: bool
    """It needs the server for itself, because it crashes it."""
    probing: bool
    plan: dict[str, Any]


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    name: str,
    *,
    lease: float = 1.2,
    exclusive: bool = False,
    probing: bool = True,
    **plan: Any,
) -> Callable[[Play], Play]:
    """Register a scenario. The checker gets `plan`."""

    def register(play: Play) -> Play:
        SCENARIOS[name] = Scenario(name, play, lease, exclusive, probing, plan)
        return play

    return register


class Scene:
    """One run of a scenario."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.plan: dict[str, Any] = {}
        self._uids = itertools.count(1)
        self._expected = Journal(stage.directory / "expectations.jsonl")
        self._client = Journal(stage.directory / "client-scene-0.jsonl")
        stage.replacing = False

    def spec(
        self, kind: str = "nap", entrypoint: str = "work", *, does: dict[str, Any], **more: Any
    ) -> Spec:
        return Spec(next(self._uids), kind, entrypoint, does, **more)

    def nap(self, seconds: float, **more: Any) -> Spec:
        return self.spec(does={"do": "nap", "seconds": seconds}, **more)

    def gated(
        self, *gates: str, entrypoint: str = "work", then: tuple[str, ...] = ("ok",), **more: Any
    ) -> Spec:
        """A job whose n-th run waits for the n-th gate, and ends as `then` says."""
        block = more.pop("block", (False,))
        does = {"do": "gate", "gates": gates, "then": then, "block": block, **more}
        kind = "gate-block" if any(block) else "gate"
        return self.spec(kind, entrypoint, does=does)

    def open(self, gate: str) -> None:
        (self.stage.directory / gate).touch()

    async def worker(self, name: str, **options: Any) -> Process:
        """Start one, and wait until it works."""
        process = await self.stage.start_worker(name, **options)
        await self.demand(
            lambda: self._line("running", name) is not None, 20, f"worker {name} works"
        )
        return process

    def _line(self, event: str, name: str) -> Line | None:
        pid = self.stage.workers[name].pid
        lines = read_all(self.stage.directory, f"effects-{name}-{pid}.jsonl")
        return next((line for line in lines if line["e"] == event), None)

    async def enqueue(self, *specs: Spec) -> list[JobId]:
        """Enqueue over a separate connection, which no fault hits."""
        told = [(s.uid, s.kind, s.entrypoint, s.key, int(s.delay * 1e6)) for s in specs]
        call = f"scene:{next(self._uids)}"
        self._client.note("invoke", op="enqueue", c=call, jobs=told)
        async with Holdfast.connect(self.stage.dsn) as hf:
            jobs = [_new(spec) for spec in specs]
            ids = await hf.queries.enqueue_many(jobs, on_conflict="skip")
        self._client.note("ok", op="enqueue", c=call, ids=ids)
        return [job_id for job_id in ids if job_id is not None]

    async def insert_row(self, spec: Spec) -> None:
        """A row of the table queue."""
        self._client.note("invoke", op="row", c=str(spec.uid), id=spec.uid)
        connection = await self.stage.connect()
        try:
            statement = f"insert into {workload.TABLE} (id, does) values ($1, $2)"
            await connection.execute(statement, spec.uid, json.dumps(spec.does))
        finally:
            await connection.close()
        self._client.note("ok", op="row", c=str(spec.uid), id=spec.uid)

    async def produce(self, name: str, specs: list[Spec], **options: Any) -> Process:
        """A producer process that enqueues these, one by one."""
        script = [_fields(spec) for spec in specs]
        settings = {"seed": 1, "first": 0, "count": len(specs), "per_second": 50.0, **options}
        return await self.stage.start_producer(name, script=script, **settings)

    def lines(self, *events: str) -> list[Line]:
        """Of the ledger, in the order of their instants."""
        found = read_all(self.stage.directory, "effects-*.jsonl")
        return sorted((line for line in found if line["e"] in events), key=lambda line: line["t"])

    def starts(self, spec: Spec) -> list[Line]:
        return [line for line in self.lines("start") if line["u"] == spec.uid]

    async def started(self, spec: Spec, times: int = 1, seconds: float = 15.0) -> None:
        await self.demand(
            lambda: len(self.starts(spec)) >= times,
            seconds,
            f"job {spec.uid} is started for time {times} within {seconds:g} s",
        )

    async def told(self, spec: Spec, pid: int, seconds: float = 8.0) -> None:
        """Wait until that process knows whether its write about the job was accepted."""

        def known() -> bool:
            jobs = {line["j"] for line in self.starts(spec)}
            return any(
                line["j"] in jobs and f":{pid}:" in line["by"]
                for line in self.lines("settled", "lost")
            )

        await self.stage.until(known, PATIENCE * seconds)

    async def demand(self, true: Callable[[], bool], seconds: float, text: str) -> None:
        """Expect it in time, and end the scenario if it does not come."""
        self.expect(await self.stage.until(true, PATIENCE * seconds), text)

    def expect(self, ok: bool, text: str) -> None:
        self._expected.note("expected", ok=ok, text=text)
        if not ok:
            raise Missed(text)

    async def drained(self, seconds: float = 15.0) -> None:
        """Everything that is due ends in time."""
        self.expect(await self.stage.drained(PATIENCE * seconds), f"drained in {seconds:g} s")

    async def ask(self, statement: str, *args: object) -> Any:
        connection = await self.stage.connect()
        try:
            return await connection.fetchval(statement, *args)
        finally:
            await connection.close()

    def kill(self, name: str) -> None:
        self.stage.fault("kill", name)
        self.stage.kill(name)

    def freeze(self, name: str) -> int:
        """The instant; the fault is written down when it is over."""
        self.stage.freeze(name)
        return now()

    def thaw(self, name: str, since: int) -> None:
        seconds = (now() - since) / SECOND
        self.stage.fault("freeze", name, t=since, seconds=seconds + 0.3)
        self.stage.thaw(self.stage.workers[name])

    async def leave(self, *names: str) -> None:
        """SIGTERM, without waiting longer than it may take."""
        for name in names or tuple(self.stage.workers):
            if self.stage.workers[name].alive:
                with suppress(TimeoutError):
                    await self.stage.retire(name, PATIENCE * 8.0)


def _new(spec: Spec) -> NewJob:
    delay = timedelta(seconds=spec.delay) if spec.delay else None
    return NewJob(
        spec.entrypoint,
        spec.payload,
        spec.priority,
        delay,
        spec.key,
        max_recoveries=spec.max_recoveries,
    )


def _fields(spec: Spec) -> dict[str, Any]:
    return {field.name: getattr(spec, field.name) for field in fields(spec)}
