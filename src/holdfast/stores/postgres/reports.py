"""The workers that are alive, as each reports itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.models import UPKEEP

if TYPE_CHECKING:
    from holdfast.models import WorkerInfo
    from holdfast.stores.postgres.runner import Runner


class PostgresReports:
    """Rows of workers, each written by the worker itself."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def report(self, worker: WorkerInfo) -> bool:
        values = worker._asdict()
        # psycopg sends a tuple as a row, not as an array.
        lists = {name: list(values[name]) for name in ("full_entrypoints", "breaker_names")}
        [[vacant]] = await self._runner.run("report", duty=UPKEEP, **{**values, **lists})
        return bool(vacant)

    async def sign_off(self, worker: str) -> None:
        await self._runner.run("sign_off", id=worker)
