"""Executes the schedule of faults against workers that hold leases, and records each fault."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from chaos.checker.model import pid_of
from chaos.files import SECOND, now

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from chaos.schedule import Planned
    from chaos.stage import Process, Stage

_DELAY = 0.12
_PATIENCE = 4.0
_OUTAGE = 30.0
_LOOK = 0.02
_HOLDERS = "select distinct claimed_by from holdfast where claim_token is not null"
_SOME_OF = "select from holdfast where claimed_by like $1 limit 3 for update skip locked"
_TROUBLE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


class Nemesis:
    """A fault whose target holds no lease hits the next worker that holds one."""

    def __init__(self, stage: Stage, producers: Sequence[str]) -> None:
        self._stage = stage
        self._producers = producers
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection: Any = None
        self._busy: set[str] = set()
        self._down = False

    async def run(self, schedule: Sequence[Planned]) -> None:
        """Until the last fault is over."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for planned in schedule:
            await asyncio.sleep(max(0.0, began + planned.t - loop.time()))
            self._do(self._strike(planned))
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._connection is not None:
            self._connection.terminate()

    async def _strike(self, planned: Planned) -> None:
        if planned.kind == "crash":
            await self._crash()
            return
        await self._stage.until(lambda: not self._down, _OUTAGE)
        if planned.kind == "drop-enqueue":
            name = self._producers[planned.target % len(self._producers)]
            await self._drop(planned, name, "main", request=b'"uid"')
            return
        victim = await self._victim(planned.target)
        if victim is None:
            self._stage.fault(planned.kind, hit=False)
            return
        self._busy.add(victim.name)
        try:
            await self._hit(planned, victim)
        finally:
            self._busy.discard(victim.name)

    async def _hit(self, planned: Planned, victim: Process) -> None:
        name = victim.name
        match planned.kind:
            case "kill":
                self._stage.fault("kill", name)
                self._stage.kill(name)
            case "freeze":
                await self._freeze(planned, victim)
            case "terminate":
                await self._terminate(planned, name)
            case "cut":
                self._stage.fault("cut", name, seconds=1.0, roles=planned.roles)
                self._stage.proxy.cut(name, planned.roles)
            case "silence":
                await self._silence(planned, name)
            case "slow":
                self._stage.fault("slow", name, seconds=planned.seconds + 1.0)
                self._stage.proxy.slow(name, _DELAY)
                await asyncio.sleep(planned.seconds)
                await self._stage.proxy.flow(name)
            case "lock":
                await self._lock(planned, victim)
            case "drop-claim":
                await self._drop(planned, name, "main", replies=(b'"uid"',))
            case "drop-settle":
                await self._drop(planned, name, "main", replies=(b"INSERT 0 ",))

    async def _freeze(self, planned: Planned, victim: Process) -> None:
        self._stage.fault("freeze", victim.name, seconds=planned.seconds + 0.3)
        self._stage.freeze(victim.name)
        try:
            await asyncio.sleep(planned.seconds)
        finally:
            self._stage.thaw(victim)

    async def _silence(self, planned: Planned, name: str) -> None:
        # What was in flight may take its deadline, and the next try a connection's.
        self._stage.fault("silence", name, seconds=planned.seconds + 4.0, roles=planned.roles)
        await self._stage.proxy.silence(name, planned.roles)
        try:
            await asyncio.sleep(planned.seconds)
        finally:
            await self._stage.proxy.flow(name)

    async def _lock(self, planned: Planned, victim: Process) -> None:
        """Another transaction keeps some of its rows locked."""
        self._stage.fault("lock", victim.name, seconds=planned.seconds + 1.0)
        with suppress(*_TROUBLE):
            connection = await self._stage.connect()
            try:
                async with connection.transaction():
                    await connection.execute(_SOME_OF, f"%:{victim.pid}:%")
                    await asyncio.sleep(planned.seconds)
            finally:
                connection.terminate()

    async def _terminate(self, planned: Planned, name: str) -> None:
        ports = [link.local_port for link in self._stage.proxy.links(name, planned.roles)]
        self._stage.fault("terminate", name, seconds=1.0, roles=planned.roles)
        await self._ask(
            "select pg_terminate_backend(pid) from pg_stat_activity where client_port = any($1)",
            ports,
        )

    async def _drop(self, planned: Planned, name: str, role: str, **fits: Any) -> None:
        trap = self._stage.proxy.trap(name, role, **fits)
        try:
            async with asyncio.timeout(_PATIENCE):
                await trap.sprung.wait()
        except TimeoutError:
            self._stage.proxy.disarm(name, trap)
        hit = trap.sprung.is_set()
        self._stage.fault(planned.kind, name, seconds=1.0, hit=hit)

    async def _crash(self) -> None:
        if self._down:
            return
        self._down = True
        began = now()
        try:
            await self._stage.cluster.crash()
            await self._stage.cluster.start()
        finally:
            self._down = False
        self._stage.fault("crash", t=began, seconds=(now() - began) / SECOND)

    async def _victim(self, target: int) -> Process | None:
        """The target, or the next worker after it, that holds leases and is not being hit."""
        deadline = now() + _PATIENCE * SECOND
        names = sorted(self._stage.workers)
        names = names[target % len(names) :] + names[: target % len(names)]
        while now() < deadline:
            holders = await self._holders()
            for name in names:
                worker = self._stage.workers[name]
                if name not in self._busy and worker.alive and worker.pid in holders:
                    return worker
            await asyncio.sleep(_LOOK)
        return None

    async def _holders(self) -> set[int | None]:
        return {pid_of(row[0]) for row in await self._ask(_HOLDERS)}

    async def _ask(self, statement: str, *args: object) -> list[Any]:
        if self._down:
            return []
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._stage.connect()
            found: list[Any] = await self._connection.fetch(statement, *args, timeout=5)
        except _TROUBLE:
            return []
        return found

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def come_and_go(stage: Stage, every: float, away: float) -> None:
    """The dependency behind the circuit breaker is down now and then; until cancelled."""
    flag = stage.directory / "down"
    try:
        while True:
            await asyncio.sleep(every)
            flag.touch()
            await asyncio.sleep(away)
            with suppress(FileNotFoundError):
                flag.unlink()
    finally:
        with suppress(FileNotFoundError):
            flag.unlink()
