"""Counts the log into the statistics, in batches that end long before their time limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import monotonic

if TYPE_CHECKING:
    from uuid import UUID

    from holdfast.stores.postgres.runner import Runner

_LEAST_TRANSACTIONS = 1000
"""Transactions in the first batch; those of a worker at full speed have 500 log rows each."""

_SHORT_BATCH_SECONDS = 0.5
_LONG_BATCH_SECONDS = 2.0
"""The next batch grows after one shorter than the first, and shrinks after one longer than the
second."""


class StatisticsRollup:
    """Rolls the log up into statistics; a batch spans as many transactions as time allows."""

    def __init__(self) -> None:
        self._span = _LEAST_TRANSACTIONS

    async def count_batch(self, runner: Runner, holder: UUID | None = None) -> tuple[int, bool]:
        """Count one batch. Return how many rows it counted, and whether more are left."""
        span, self._span = self._span, _LEAST_TRANSACTIONS
        began = monotonic()
        [[counted, more]] = await runner.run("aggregate", span=span, holder=holder)
        took = monotonic() - began
        # Not reached by a batch that failed: the next one is the smallest.
        if more and took < _SHORT_BATCH_SECONDS:
            span *= 2
        elif took > _LONG_BATCH_SECONDS:
            span = max(_LEAST_TRANSACTIONS, span // 2)
        self._span = span
        return int(counted), more
