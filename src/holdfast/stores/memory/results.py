"""Results and progress in the memory store."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.lifecycle import TRANSITIONS, Verb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.models import JobId, Progress, StoredResult
    from holdfast.stores.memory.state import State

_KEPT_AFTER_THE_END = timedelta(hours=1)
LEASED = TRANSITIONS[Verb.RENEW].sources


class MemoryResults:
    """The Results facet."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def get(self, ids: Sequence[JobId]) -> dict[JobId, StoredResult]:
        now, stored = self._state.now(), self._state.results
        return {
            job_id: stored[job_id][0]
            for job_id in ids
            if job_id in stored and stored[job_id][1] > now
        }

    async def progress(self, ids: Sequence[JobId]) -> dict[JobId, Progress]:
        found = self._state.progress
        return {job_id: found[job_id] for job_id in ids if job_id in found}

    async def list_progress(self, limit: int) -> list[tuple[JobId, Progress]]:
        rows = self._state.rows
        found = [
            (progress.updated or self._state.now(), job_id, progress)
            for job_id, progress in self._state.progress.items()
            if job_id in rows and rows[job_id].status in LEASED
        ]
        found.sort(key=lambda each: each[:2], reverse=True)
        return [(job_id, progress) for _, job_id, progress in found[:limit]]

    async def listen(self, on_ready: Callable[[], None], on_end: Callable[[JobId], None]) -> None:
        self._state.result_listeners.append(on_end)
        try:
            on_ready()
            await asyncio.Event().wait()
        finally:
            self._state.result_listeners.remove(on_end)


def delete_old(state: State) -> None:
    """Delete what has expired, and the progress of jobs that are gone."""
    now = state.now()
    state.results = {key: each for key, each in state.results.items() if each[1] > now}
    state.progress = {
        key: each
        for key, each in state.progress.items()
        if key in state.rows or (each.updated and each.updated > now - _KEPT_AFTER_THE_END)
    }
