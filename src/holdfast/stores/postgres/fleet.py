"""Compares what the workers of a fleet report about themselves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.explanation import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from holdfast.models import WorkerInfo

logger = logging.getLogger("holdfast.worker")


def live(workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Return those that have reported within their own timeout."""
    # The worker that asks reports several times in its timeout, so the newest heartbeat is recent.
    newest = max((worker.heartbeat for worker in workers), default=None)
    return [worker for worker in workers if newest and worker.alive_at(newest)]


class FleetTimeouts:
    """Warns once when the workers have different values of heartbeat_timeout."""

    def __init__(self) -> None:
        self._known: set[timedelta] = set()

    def check(self, workers: Sequence[WorkerInfo]) -> None:
        """Warn about values that differ, unless all of them were named in a warning before."""
        by_timeout = {
            worker.heartbeat_timeout: worker.id
            for worker in live(workers)
            if worker.heartbeat_timeout
        }
        values = set(by_timeout)
        if len(values) > 1 and not values <= self._known:
            logger.warning(
                "workers have different values of heartbeat_timeout (%s): when one dies, its jobs "
                "run again after its own value; give all workers the same",
                ", ".join(
                    f"{value.total_seconds():g} s in {by_timeout[value]}"
                    for value in sorted(values)
                ),
            )
            self._known |= values


class UnservedNames:
    """Warns once of each name that jobs are queued under and no live worker serves."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def check(self, workers: Sequence[WorkerInfo], queued: Sequence[str]) -> None:
        """Warn of names that were in no warning before."""
        served = {name for worker in live(workers) for name in worker.entrypoints}
        if not served:
            return
        for name in sorted({*queued} - served - self._warned):
            near = " or ".join(repr(each) for each in nearest(name, served))
            logger.warning(
                "jobs wait under the name %r, which no live worker serves%s",
                name,
                f"; did you mean {near}?" if near else "; start one that registers it",
            )
            self._warned.add(name)
