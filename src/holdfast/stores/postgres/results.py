"""Results and progress in PostgreSQL, and the notifications of new results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.models import JobId, Progress, StoredResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.settings import Names
    from holdfast.stores.postgres.runner import Runner

_INTEGER = re.compile("[0-9]{1,19}", re.ASCII)


class PostgresResults:
    """The Results facet."""

    def __init__(self, runner: Runner, names: Names) -> None:
        self._runner = runner
        self._channel = names.results_channel

    async def get(self, ids: Sequence[JobId]) -> dict[JobId, StoredResult]:
        found = await self._runner.run("results", ids=list(ids))
        return {JobId(row[0]): StoredResult(row[1], error=row[2]) for row in found}

    async def progress(self, ids: Sequence[JobId]) -> dict[JobId, Progress]:
        found = await self._runner.run("progress", ids=list(ids))
        return {JobId(row[0]): Progress(row[1], row[2], row[3]) for row in found}

    async def list_progress(self, limit: int) -> list[tuple[JobId, Progress]]:
        found = await self._runner.run("list_progress", limit=limit)
        return [(JobId(row[0]), Progress(row[1], row[2], row[3])) for row in found]

    async def listen(self, on_ready: Callable[[], None], on_end: Callable[[JobId], None]) -> None:
        def hear(payload: str) -> None:
            # Any role that may connect can send one.
            if _INTEGER.fullmatch(payload):
                on_end(JobId(int(payload)))

        await self._runner.driver.listen(self._channel, hear, on_ready)
