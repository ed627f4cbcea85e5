"""What was last seen in the tables of the user's own. Counting such a table reads all of it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed, ConnectionLost, HoldfastError
from holdfast.monitor.reader import Look
from holdfast.redact import redact
from holdfast.stores.postgres.tables.inspect import Case, Counts, inspect
from holdfast.table import TableQueue

EVERY_SECONDS = 10.0
STATEMENTS = 6
"""That one look at a table sends at most, for the budget of the live stream."""
_CASES = 20


@dataclass(frozen=True, slots=True)
class Seen:
    """The counts of a table and the rows that ask for attention, or why it cannot be read."""

    counts: Counts | None = None
    cases: tuple[Case, ...] = ()
    fault: str = ""


class Inspected:
    """Shared by all pages of a process. A table is looked at again when the last look is old."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, Seen]] = {}

    async def look(self, look: Look, name: str, queue: TableQueue) -> Seen:
        until, seen = self._seen.get(name, (0.0, Seen()))
        if monotonic() < until:
            return seen
        look.statements += STATEMENTS
        try:
            # A fault of one table must not end the transaction in which the others are read.
            async with look.driver.transaction() as savepoint:
                counts, cases = await inspect(savepoint, queue, _CASES)
            seen = Seen(counts, tuple(cases))
        except (ConnectionFailed, ConnectionLost):
            raise
        except HoldfastError as error:
            seen = Seen(fault=redact(str(error)))
        self._seen[name] = (monotonic() + EVERY_SECONDS, seen)
        return seen
