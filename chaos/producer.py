"""A producer process: `python -m chaos.producer PLAN`. It writes down each call before and after.

`ok` is an acknowledgement, `fail` a refusal that changed nothing, `info` an unknown outcome.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from chaos import leash, workload
from chaos.files import Journal
from chaos.plans import ProducerPlan
from chaos.workload import Spec
from holdfast import (
    ConnectionLost,
    DatabaseError,
    Holdfast,
    HoldfastError,
    InvalidInput,
    JobId,
    NewJob,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

_RETRY = 0.1
_ROW_EVERY = 60
"""One row of the table queue for so many jobs."""

_FIRST_ROW = 1_000_000_000


class Producer:
    """Several callers with a connection each, fed at the pace of the plan."""

    def __init__(self, plan: ProducerPlan) -> None:
        self._plan = plan
        name = f"client-{plan.name}-{os.getpid()}"
        self._journal = Journal(Path(plan.directory) / f"{name}.jsonl")
        self._calls = (f"{name}:{n}" for n in itertools.count())
        self._rng = random.Random(f"{plan.seed}:{plan.name}")
        self._work: asyncio.Queue[list[Spec] | None] = asyncio.Queue(maxsize=plan.calls_at_once)
        self._later: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        callers = [asyncio.create_task(self._caller()) for _ in range(self._plan.calls_at_once)]
        rows = asyncio.create_task(self._rows()) if self._plan.rows else None
        await self._feed()
        for _ in callers:
            await self._work.put(None)
        await asyncio.gather(*callers, *([rows] if rows else []))
        while self._later:
            await asyncio.wait(self._later)
        self._journal.note("done")

    def _specs(self) -> Iterator[Spec]:
        plan = self._plan
        if plan.script is not None:
            return (Spec(**spec) for spec in plan.script)
        specs = workload.specs(plan.seed, plan.first, plan.count, plan.lease, plan.shares)
        return (replace(spec, max_recoveries=None) if plan.capped else spec for spec in specs)

    async def _feed(self) -> None:
        """Batches of random size, so that their average pace is the plan's."""
        loop = asyncio.get_running_loop()
        began, sent = loop.time(), 0
        specs = self._specs()
        most = 1 if self._plan.script is not None else self._plan.jobs_at_once
        while batch := list(itertools.islice(specs, self._rng.randint(1, most))):
            await self._work.put(batch)
            sent += len(batch)
            await asyncio.sleep(max(0.0, began + sent / self._plan.per_second - loop.time()))

    async def _caller(self) -> None:
        async with Holdfast.connect(self._plan.dsn, timeout=4.0) as hf:
            while (batch := await self._work.get()) is not None:
                await self._enqueue(hf, batch)
            while self._later:
                await asyncio.wait(self._later)

    async def _enqueue(self, hf: Holdfast, batch: list[Spec]) -> None:
        """Until the outcome is known, or trying again could make a second job of one."""
        while batch:
            call = next(self._calls)
            told = [(s.uid, s.kind, s.entrypoint, s.key, int(s.delay * 1e6)) for s in batch]
            self._journal.note("invoke", op="enqueue", c=call, jobs=told)
            try:
                ids = await hf.queries.enqueue_many([_new(s) for s in batch], on_conflict="skip")
            except ConnectionLost as error:
                self._journal.note("info", op="enqueue", c=call, error=str(error))
                batch = [spec for spec in batch if spec.key is not None]
            except InvalidInput as error:
                self._journal.note("fail", op="enqueue", c=call, error=str(error), final=True)
                return
            except HoldfastError as error:
                self._journal.note("fail", op="enqueue", c=call, error=str(error))
            else:
                self._journal.note("ok", op="enqueue", c=call, ids=ids)
                self._follow_up(hf, batch, ids)
                return
            await asyncio.sleep(_RETRY)

    def _follow_up(self, hf: Holdfast, batch: Sequence[Spec], ids: Sequence[JobId | None]) -> None:
        for spec, job_id in zip(batch, ids, strict=True):
            if job_id is None:
                continue
            if spec.cancel_after is not None:
                self._do_later(self._cancel(hf, job_id, spec.cancel_after))
            elif spec.kind == "hold":
                self._do_later(self._requeue(hf, job_id, 1.0))

    def _do_later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _cancel(self, hf: Holdfast, job_id: JobId, after: float) -> None:
        await asyncio.sleep(after)
        call = next(self._calls)
        self._journal.note("invoke", op="cancel", c=call, ids=[job_id])
        try:
            moved = await hf.queries.mark_job_as_cancelled([job_id], actor="chaos")
        except DatabaseError as error:
            self._journal.note("info", op="cancel", c=call, error=str(error))
        else:
            self._journal.note("ok", op="cancel", c=call, ids=sorted(moved))

    async def _requeue(self, hf: Holdfast, job_id: JobId, after: float) -> None:
        await asyncio.sleep(after)
        call = next(self._calls)
        self._journal.note("invoke", op="requeue", c=call, ids=[job_id])
        try:
            outcome = await hf.queries.requeue_jobs([job_id], actor="chaos")
        except DatabaseError as error:
            self._journal.note("info", op="requeue", c=call, error=str(error))
        else:
            done = [j for j, became in outcome.items() if became == "requeued"]
            self._journal.note("ok", op="requeue", c=call, ids=done)

    async def _rows(self) -> None:
        """Rows of the table queue; their ids are ours, so that trying again is safe."""
        loop = asyncio.get_running_loop()
        began, count = loop.time(), max(1, self._plan.count // _ROW_EVERY)
        for n in range(count):
            due = began + n * _ROW_EVERY / self._plan.per_second
            await asyncio.sleep(max(0.0, due - loop.time()))
            uid = _FIRST_ROW + self._plan.first + n
            does = json.dumps({"do": "nap", "seconds": 0.05, "fails": n % 3})
            self._journal.note("invoke", op="row", c=str(uid), id=uid)
            while not await self._insert_row(uid, does):  # noqa: ASYNC110 - only time can help
                await asyncio.sleep(_RETRY)
            self._journal.note("ok", op="row", c=str(uid), id=uid)

    async def _insert_row(self, uid: int, does: str) -> bool:
        connection = None
        try:
            # Nothing under a name: a pooler may lie between.
            connection = await asyncpg.connect(self._plan.dsn, timeout=3, statement_cache_size=0)
            await connection.execute(
                f"insert into {workload.TABLE} (id, does, max_attempts) values ($1, $2, 25)"
                " on conflict (id) do nothing",
                uid,
                does,
                timeout=4,
            )
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        finally:
            if connection is not None:
                with suppress(Exception):
                    await connection.close(timeout=1)
        return True


def _new(spec: Spec) -> NewJob:
    return NewJob(
        spec.entrypoint,
        spec.payload,
        spec.priority,
        timedelta(seconds=spec.delay) if spec.delay else None,
        spec.key,
        max_recoveries=spec.max_recoveries,
    )


if __name__ == "__main__":
    leash.tie()
    told = ProducerPlan.loads(sys.argv[1])
    if told.mutant is not None:
        from chaos import mutants

        mutants.plant(told.mutant, told.skew)
    asyncio.run(Producer(told).run())
