"""A database on a cluster, a proxy before it, the processes of a run: all end with the stage."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import asyncpg

from chaos import dump, shim, snoozes, workload
from chaos.files import OLD_WORKER_PROGRAM, SECOND, WORKER_PROGRAM, Journal, now
from chaos.plans import OldPlan, ProducerPlan, WorkerPlan
from chaos.proxy import Proxy
from devtools.cluster import HOST
from holdfast import Holdfast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from chaos.cluster import Cluster

_ROOT = Path(__file__).parents[1]
_LOOK = 0.03
_PROBE = 0.15

_LIVE = f"""
select (select count(*) from holdfast where held_at is null)
     + (select count(*) from {workload.TABLE} where not inactive)
     + (select count(*) from {snoozes.TABLE} where not inactive)
"""

_ROWS = f"""
create table {workload.TABLE} (
    id bigint primary key,
    does text not null,
    due timestamptz not null default clock_timestamp(),
    claim_token uuid,
    claimed_at timestamptz,
    claimed_by text,
    heartbeat timestamptz,
    attempts integer not null default 0,
    max_attempts integer,
    recoveries integer not null default 0,
    inactive boolean not null default false,
    last_error text,
    last_error_at timestamptz,
    updated_at timestamptz,
    outcome text
);
create index on {workload.TABLE} (due) where not inactive;
create index on {workload.TABLE} (claimed_at) where claimed_at is not null;
create table chaos_probe (n bigint);
insert into chaos_probe values (0);
"""


class Process:
    """One that the stage started. It is known by its name; a successor has the same."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.popen = popen
        self.frozen = False
        self.leaving = False
        """It was stopped or killed on purpose."""
        self.noted = False
        """Its end is in the journal."""

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None


class Stage:
    """Where one run or scenario takes place."""

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        *,
        database: str = "chaos",
        lease: float = 1.5,
        mutant: str | None = None,
        ddl: str = "",
        probing: bool = True,
        tablespace: Path | None = None,
        installed: str | None = None,
    ) -> None:
        """`installed` is a script that makes the tables of another version."""
        self.cluster = cluster
        self.directory = directory
        self.lease = lease
        self.mutant = mutant
        self.database = database
        self._ddl = ddl
        self._probing = probing
        self._tablespace = tablespace
        self._installed = installed
        self.proxy = Proxy(cluster.port)
        self.workers: dict[str, Process] = {}
        self._plans: dict[str, WorkerPlan | OldPlan] = {}
        self._others: list[Process] = []
        self._journal = Journal(directory / "processes.jsonl")
        self._faults = Journal(directory / "nemesis.jsonl")
        self._tasks: list[asyncio.Task[None]] = []
        self.replacing = True
        """Whether a worker that dies has a successor at once."""

    @property
    def dsn(self) -> str:
        """Past the proxy."""
        return self.cluster.dsn(self.database)

    async def connect(self) -> Any:
        return await self.cluster.connect(self.database)

    async def __aenter__(self) -> Self:
        connection = await self.cluster.connect()
        try:
            await connection.execute(f'drop database if exists "{self.database}" with (force)')
            where = ""
            if self._tablespace is not None:
                await connection.execute(f"create tablespace small location '{self._tablespace}'")
                where = " tablespace small"
            await connection.execute(f'create database "{self.database}"{where}')
        finally:
            await connection.close()
        if self._installed is None:
            async with Holdfast.connect(self.dsn) as hf:
                await hf.install()
        connection = await self.connect()
        try:
            if self._installed is not None:
                await connection.execute(self._installed)
            await connection.execute(_ROWS + snoozes.DDL + self._ddl)
        finally:
            await connection.close()
        self._tasks.append(asyncio.create_task(self._watch()))
        if self._probing:
            self._tasks.append(asyncio.create_task(self._probe()))
        return self

    async def __aexit__(self, *failure: object) -> None:
        self.replacing = False
        for process in (*self.workers.values(), *self._others):
            process.leaving = True
            with suppress(ProcessLookupError):
                process.popen.kill()
            process.popen.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.proxy.__aexit__()

    async def start_worker(self, name: str, **options: Any) -> Process:
        """A worker behind a port of its own; `options` are those of WorkerPlan."""
        port = await self.proxy.open(name)
        self._plans[name] = WorkerPlan(
            name=name,
            dsn=f"postgresql://postgres@{HOST}:{port}/{self.database}",
            directory=str(self.directory),
            lease=options.pop("lease", self.lease),
            mutant=self.mutant,
            **options,
        )
        return self._spawn_worker(name)

    async def start_producer(self, name: str, **options: Any) -> Process:
        port = await self.proxy.open(name)
        plan = ProducerPlan(
            name=name,
            dsn=f"postgresql://postgres@{HOST}:{port}/{self.database}",
            directory=str(self.directory),
            lease=self.lease,
            mutant=self.mutant,
            **options,
        )
        process = self._spawn(name, "chaos.producer", plan.dumps())
        self._others.append(process)
        return process

    def start_old(self, name: str, release: str, **options: Any) -> Process:
        """A worker or producer of a release; `options` are those of OldPlan."""
        plan = OldPlan(
            name=name,
            dsn=self.dsn,
            directory=str(self.directory),
            lease=self.lease,
            release=release,
            **options,
        )
        if not plan.count:
            self._plans[name] = plan
            return self._spawn_worker(name)
        process = self._spawn(name, "chaos.old_producer", plan.dumps())
        self._others.append(process)
        return process

    def dismiss(self, name: str) -> None:
        """A worker that dies from now on has no successor."""
        self._others.append(self.workers.pop(name))

    def kill(self, name: str) -> None:
        worker = self.workers[name]
        worker.leaving = True
        worker.popen.kill()

    def freeze(self, name: str) -> None:
        self.workers[name].frozen = True
        self.workers[name].popen.send_signal(signal.SIGSTOP)

    def thaw(self, process: Process) -> None:
        process.frozen = False
        with suppress(ProcessLookupError):
            process.popen.send_signal(signal.SIGCONT)

    async def retire(self, name: str, patience: float = 60.0) -> float:
        """SIGTERM; how many seconds its end took, or how long it was waited for in vain."""
        worker = self.workers[name]
        worker.leaving = True
        self._journal.note("term", name=name, pid=worker.pid)
        began = now()
        with suppress(ProcessLookupError):
            worker.popen.send_signal(signal.SIGTERM)
        await self.until(lambda: worker.noted, patience)
        return (now() - began) / SECOND

    def fault(self, kind: str, worker: str | None = None, **fields: object) -> None:
        """Write down what was done to whom; without a worker, it was done to all."""
        pid = self.workers[worker].pid if worker in self.workers else None
        self._faults.note(kind, worker=worker, pid=pid, **fields)

    async def until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Whether it came true in time."""

        async def asked() -> bool:
            return true()

        return await self.eventually(asked, seconds)

    async def eventually(self, true: Callable[[], Awaitable[bool]], seconds: float) -> bool:
        deadline = now() + seconds * SECOND
        while not await true():
            if now() > deadline:
                return False
            await asyncio.sleep(_LOOK)
        return True

    async def drained(self, seconds: float) -> bool:
        """Whether all that is due ended, without a pause of that length between two ends."""
        connection = await self.connect()
        try:
            left = int(await connection.fetchval(_LIVE))
            deadline = now() + seconds * SECOND
            while left and now() < deadline:
                await asyncio.sleep(_LOOK)
                found = int(await connection.fetchval(_LIVE))
                if found < left:
                    left, deadline = found, now() + seconds * SECOND
        finally:
            await connection.close()
        return left == 0

    async def finish(self) -> None:
        """Write the tables to the histories."""
        await dump.dump(self.dsn, self.directory)

    def _spawn_worker(self, name: str) -> Process:
        plan = self._plans[name]
        wrong_clock = shim.environment(self.directory, plan.skew)
        module = OLD_WORKER_PROGRAM if isinstance(plan, OldPlan) else WORKER_PROGRAM
        self.workers[name] = self._spawn(name, module, plan.dumps(), wrong_clock)
        return self.workers[name]

    def _spawn(
        self, name: str, module: str, plan: str, more: Mapping[str, str] | None = None
    ) -> Process:
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with (self.directory / f"{name}.log").open("ab") as said:
            popen = subprocess.Popen(
                [sys.executable, "-m", module, plan],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(more or {})},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        self._journal.note("spawn", name=name, pid=popen.pid, module=module)
        return Process(name, popen)

    async def _watch(self) -> None:
        """Note who ends, and give dead workers a successor."""
        while True:
            for process in (*self.workers.values(), *self._others):
                if process.alive or process.noted:
                    continue
                process.noted = True
                self._journal.note(
                    "exit",
                    name=process.name,
                    pid=process.pid,
                    code=process.popen.returncode,
                    told=process.leaving,
                )
                if self.replacing and self.workers.get(process.name) is process:
                    self._spawn_worker(process.name)
            await asyncio.sleep(_LOOK)

    async def _probe(self) -> None:
        """Note when the server, or this very process, was slower than any lease can bear."""
        connection: Any = None
        while True:
            began = now()
            await asyncio.sleep(_PROBE)
            if now() - began > (_PROBE + self.lease / 6) * SECOND:
                self._journal.note("stall", since=began)
            asked = now()
            try:
                if connection is None or connection.is_closed():
                    connection = await self.connect()
                await connection.execute("update chaos_probe set n = n + 1", timeout=30)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                self._journal.note("away", since=asked)
            if now() - asked > self.lease / 6 * SECOND:
                self._journal.note("slow", since=asked)
