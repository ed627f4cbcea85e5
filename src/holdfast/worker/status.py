"""How a worker describes itself to others: the row that every renewal writes."""

from __future__ import annotations

import logging
import os
import platform
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING

from holdfast.models import WorkerInfo
from holdfast.worker.quarantine import Suspects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.breaker import BreakerPolicy
    from holdfast.settings import WorkerSettings
    from holdfast.worker.dispatcher import Dispatcher


def say_it_works(worker: str, served: Sequence[str], slots: int, place: str | None) -> None:
    """Log what a worker serves; say it on stderr where the program has not configured logging."""
    names = ", ".join(served) or "nothing"
    where = f" on {place}" if place else ""
    line = f"worker {worker} serves {names} with {slots} slots{where}"
    logger = logging.getLogger("holdfast.worker")
    if logger.hasHandlers():
        logger.info("%s", line)
    else:
        print(f"holdfast: {line}; configure logging to hear more", file=sys.stderr)


@cache
def _version() -> str:
    """Read from disk once: the package may be replaced while the worker runs."""
    return version("holdfast")


@dataclass(slots=True)
class WorkerStatus:
    """The state of one worker. Changed by its event loop, read by the renewing thread."""

    worker: str
    suspects: Suspects = Suspects.run
    state: str = "starting"


class Reporter:
    """Makes the report of a worker, whenever one is due."""

    def __init__(
        self,
        status: WorkerStatus,
        entrypoints: Sequence[str],
        settings: WorkerSettings,
        dispatcher: Dispatcher,
        breakers: Mapping[str, BreakerPolicy] | None = None,
    ) -> None:
        self._status = status
        self._entrypoints = sorted(entrypoints)
        behind = breakers or {}
        self._breakers = [behind[name].name if name in behind else "" for name in self._entrypoints]
        self._settings = settings
        self._dispatcher = dispatcher

    def report(self) -> WorkerInfo:
        """Return the worker as it is now. The store sets the two instants."""
        unset = datetime.now(UTC)
        status, settings = self._status, self._settings
        alone = status.suspects is Suspects.only and status.state == "running"
        return WorkerInfo(
            id=status.worker,
            host=platform.node(),
            pid=os.getpid(),
            version=_version(),
            entrypoints=self._entrypoints,
            concurrency=settings.concurrency,
            running=self._dispatcher.running,
            state="quarantine" if alone else status.state,
            started_at=unset,
            heartbeat=unset,
            heartbeat_timeout=settings.heartbeat_timeout,
            full_entrypoints=self._dispatcher.full_entrypoints,
            breaker_names=self._breakers if any(self._breakers) else [],
        )
