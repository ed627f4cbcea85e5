"""Compares what the workers of a fleet report about themselves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from holdfast.models import WorkerInfo

logger = logging.getLogger("holdfast.worker")


class FleetTimeouts:
    """Warns once when the workers have different values of heartbeat_timeout."""

    def __init__(self) -> None:
        self._known: set[timedelta] = set()

    def check(self, workers: Sequence[WorkerInfo]) -> None:
        """Warn about values that differ, unless all of them were named in a warning before."""
        # This worker reports several times in its timeout, so the newest heartbeat is recent.
        newest = max((worker.heartbeat for worker in workers), default=None)
        by_timeout = {
            worker.heartbeat_timeout: worker.id
            for worker in workers
            if newest
            and worker.heartbeat_timeout
            and newest - worker.heartbeat <= worker.heartbeat_timeout
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
