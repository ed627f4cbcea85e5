"""Counts the log into the statistics, in bites that end long before their time limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import monotonic

if TYPE_CHECKING:
    from holdfast.stores.postgres.runner import Runner

_LEAST = 1000
"""Transactions in the first bite; those of a worker at full speed have 500 log rows each."""

_SHORT = 0.5
_LONG = 2.0
"""Seconds. A bite below the first may be larger, one above the second has to be smaller."""


class Counting:
    """How many transactions a bite may span, which follows from how long the last one took."""

    def __init__(self) -> None:
        self._span = _LEAST

    async def bite(self, runner: Runner) -> tuple[int, bool]:
        """How many rows were counted, and whether more are to be counted."""
        span, self._span = self._span, _LEAST
        began = monotonic()
        [[counted, more]] = await runner.run("aggregate", span=span)
        took = monotonic() - began
        # Not reached by a bite that failed: the next one is the smallest.
        if more and took < _SHORT:
            span *= 2
        elif took > _LONG:
            span = max(_LEAST, span // 2)
        self._span = span
        return int(counted), more
