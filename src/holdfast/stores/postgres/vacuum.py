"""Removes dead rows before they are many.

Autovacuum looks once a minute. At full speed it then finds millions of dead rows and a table of
gigabytes, and the seconds that it takes are missing elsewhere. Dead rows that are removed soon cost
less, and always the same, and their space is used again while it is still in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.settings import Names
    from holdfast.stores.postgres.runner import Runner

_MANY = 100_000
_SHARE = 5
"""Vacuum from this many dead rows on, and from one dead row for _SHARE live ones. Every vacuum
reads all indexes, whatever it removes."""


class Vacuum:
    """Vacuums one set of tables when enough rows are dead."""

    def __init__(self, names: Names) -> None:
        self._table = names.table()
        # Truncation takes an exclusive lock. A second vacuum skips the table instead of
        # waiting for the first.
        options = "truncate off, skip_locked, parallel 0"
        self._vacuum = f"vacuum ({options}) {self._table}, {names.table('_leases')}"
        self._left = 0
        """Dead rows that the last vacuum had to leave because an old transaction may still see
        them. Trying again pays only when their number has doubled."""

    async def run(self, runner: Runner) -> bool:
        """Vacuum if it is worth it, outside any transaction; return whether it ran."""
        if not runner.driver.spare:
            return False
        found = await runner.run("dead_rows", table=self._table)
        if not found:
            return False
        dead, alive = found[0]
        self._left = min(self._left, dead)
        if dead < max(_MANY, alive // _SHARE, 2 * self._left):
            return False
        # In case it fails.
        self._left = dead
        await runner.driver.script(self._vacuum)
        found = await runner.run("dead_rows", table=self._table)
        self._left = found[0][0] if found else dead
        return True
