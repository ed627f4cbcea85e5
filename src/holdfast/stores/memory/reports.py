"""The workers that are alive, as each reports itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.models import WorkerInfo
    from holdfast.stores.memory.state import State


class MemoryReports:
    """Reports of the workers in this process."""

    def __init__(self, state: State, workers: dict[str, WorkerInfo]) -> None:
        self._state = state
        self._workers = workers

    async def report(self, worker: WorkerInfo) -> bool:
        now = self._state.now()
        first = self._workers.get(worker.id, worker._replace(started_at=now))
        self._workers[worker.id] = first._replace(
            entrypoints=list(worker.entrypoints),
            concurrency=worker.concurrency,
            running=worker.running,
            state=worker.state,
            heartbeat=now,
            full_entrypoints=list(worker.full_entrypoints),
            breaker_names=list(worker.breaker_names),
        )
        return False

    async def sign_off(self, worker: str) -> None:
        self._workers.pop(worker, None)
