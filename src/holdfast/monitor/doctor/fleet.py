"""The fleet: workers, entrypoints without one, held jobs, pauses, and whether LISTEN works."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.client.queries import Queries
from holdfast.models import HeldFilter
from holdfast.monitor.doctor.finding import Finding, error, warning
from holdfast.shell import shell_word

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from holdfast.models import WorkerInfo
    from holdfast.stores.postgres.store import PostgresStore

_LONG_HELD = timedelta(days=7)
_LONG_PAUSED = timedelta(days=1)
_SILENT = timedelta(seconds=30)
_LISTEN_SECONDS = 5.0


async def check_fleet(store: PostgresStore) -> list[Finding]:
    queries = Queries(store)
    now, workers = await queries.now(), await queries.list_workers()
    found = list(_workers(workers, now))
    served = {name for worker in _alive(workers, now) for name in worker.entrypoints}
    for name in sorted((await queries.oldest_waiting()).keys() - served):
        found.append(
            error(
                "no_worker",
                f"jobs of {name} wait and no live worker serves it",
                f"holdfast explain --entrypoint {shell_word(name)}",
            )
        )
    if await queries.list_failed_jobs(1, among=HeldFilter(older_than=_LONG_HELD)):
        found.append(
            warning(
                "held",
                f"jobs have been held for more than {_LONG_HELD.days} days",
                f"holdfast failed --older-than {_LONG_HELD.days}d",
            )
        )
    for pause in await queries.list_pauses():
        if pause.until is None and now - pause.created > _LONG_PAUSED:
            name = shell_word(pause.name, positional=True) if pause.name else "--all"
            found.append(
                warning(
                    "paused",
                    f"{pause.name or 'everything'} has been paused for "
                    f"{(now - pause.created).days} days: {pause.reason}",
                    f"holdfast resume {name}",
                )
            )
    return found


def _alive(workers: Sequence[WorkerInfo], now: datetime) -> list[WorkerInfo]:
    return [each for each in workers if now - each.heartbeat <= (each.heartbeat_timeout or _SILENT)]


def _workers(workers: Sequence[WorkerInfo], now: datetime) -> Iterator[Finding]:
    alive = _alive(workers, now)
    for worker in workers:
        if worker not in alive:
            yield warning(
                "worker_silent",
                f"worker {worker.id} has been silent for "
                f"{(now - worker.heartbeat).total_seconds():.0f} s",
                f"holdfast workers release {shell_word(worker.id, positional=True)}",
            )
    versions = sorted({worker.version for worker in alive})
    if len(versions) > 1:
        yield warning(
            "versions",
            f"workers of several versions are alive: {', '.join(versions)}",
            "holdfast workers",
        )


async def check_listen(store: PostgresStore) -> list[Finding]:
    """A pooler in transaction mode accepts LISTEN, and nothing is ever heard."""
    heard = asyncio.Event()
    calls = 0

    def on_work() -> None:
        nonlocal calls
        calls += 1
        # The first call only says that listening has begun.
        if calls > 1:
            heard.set()

    listening = asyncio.create_task(store.wakeups.listen(on_work, lambda _: None))
    try:
        async with asyncio.timeout(_LISTEN_SECONDS):
            while not heard.is_set():
                await store.driver.fetch("select pg_notify($1::text, '')", (store.names.channel,))
                await asyncio.wait([asyncio.create_task(heard.wait())], timeout=0.2)
    except TimeoutError:
        return [
            warning(
                "listen",
                "LISTEN hears nothing, as through a pooler in transaction mode, so idle workers "
                "find jobs only when they poll (5 s)",
                "export HOLDFAST_LISTEN_DSN=postgresql://…  # the server itself, past the pooler",
            )
        ]
    finally:
        listening.cancel()
        await asyncio.wait([listening])
    return []
