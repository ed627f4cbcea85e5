"""Procrastinate on its psycopg connector."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found]
from protocol import Spec, Subject, Work, act, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

SETTINGS: dict[str, dict[str, Any]] = {
    "tuned": {"concurrency": 30, "delete_jobs": "successful"},
    "defaults": {},
    "slots": {"concurrency": 100, "delete_jobs": "successful"},
}
POOL = 20


class ProcrastinateSubject(Subject):
    async def install(self) -> None:
        app = make_app(self.dsn)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def connect(self, connections: int) -> None:
        self._app = make_app(self.dsn, max_size=connections, min_size=connections)
        await self._app.open_async()

    async def one(self, task: str, data: str) -> None:
        await self._app.configure_task(task).defer_async(data=data)

    async def many(self, specs: Sequence[Spec]) -> int:
        stored = 0
        # One call takes one task and one priority; the order within a batch does not matter here.
        alike = sorted(specs, key=lambda spec: spec[:3])
        for (task, priority, delay), group in itertools.groupby(alike, lambda spec: spec[:3]):
            options: dict[str, Any] = {"priority": priority}
            if delay:
                options["schedule_in"] = {"seconds": delay}
            jobs = [{"data": spec.data} for spec in group]
            stored += len(await self._app.configure_task(task, **options).batch_defer_async(*jobs))
        return stored

    async def work(self, work: Work) -> None:
        pool = {} if work.mode == "defaults" else {"min_size": POOL, "max_size": POOL}
        app = make_app(self.dsn, **pool)
        for task in work.tasks:
            register(app, task)
        async with app.open_async():
            await app.run_worker_async(install_signal_handlers=False, **SETTINGS[work.mode])


def make_app(dsn: str, **pool: int) -> Any:
    return App(connector=PsycopgConnector(conninfo=dsn, **pool))


def register(app: Any, task: str) -> None:
    @app.task(name=task)  # type: ignore[untyped-decorator]
    async def handle(data: str) -> None:
        await act(task, data)


if __name__ == "__main__":
    serve(ProcrastinateSubject)
