"""Scans the whole table now and then for leases without a row in the leases table."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from holdfast.clock import monotonic

if TYPE_CHECKING:
    from uuid import UUID

    from holdfast.stores.postgres.runner import Runner

logger = logging.getLogger("holdfast.worker")

_EVERY_SECONDS = 600.0
"""Whoever does the upkeep scans this often."""

_SLICE = 10_000
"""Rows that one statement reads."""


class ClaimRestorer:
    """Writes the missing rows anew. Sweeps then find these jobs as they find all others."""

    def __init__(self) -> None:
        # Workers that were started together must not scan together.
        self._scan_at = monotonic() + _EVERY_SECONDS * _chance()

    async def run(self, runner: Runner, holder: UUID | None = None) -> None:
        if monotonic() < self._scan_at:
            return
        restored, after = 0, 0
        while after is not None:
            [[after, found]] = await runner.run(
                "restore_claims", after=after, limit=_SLICE, holder=holder
            )
            restored += found
        self._scan_at = monotonic() + _EVERY_SECONDS * (0.5 + _chance())
        if restored:
            logger.warning(
                "%d leased jobs had no bookkeeping, as if the table of "
                "leases had been emptied; it is written anew, and sweeps see these jobs again",
                restored,
            )


def _chance() -> float:
    return random.random()  # noqa: S311 - not a secret
