"""Removes dead rows before they are many.

Autovacuum looks once a minute. At full speed it then finds millions of dead rows and a table of
gigabytes, and the seconds that it takes are missing elsewhere. Removed as they come they cost less,
and always the same, and their space is used again while it is still in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.settings import Names
    from holdfast.stores.postgres.runner import Runner

_MANY = 100_000
_SHARE = 5
"""Worth a vacuum: so many dead rows, and one for so many that are not. Every vacuum reads all of
the indexes, whatever it removes."""


class Vacuuming:
    """Of one set of tables."""

    def __init__(self, names: Names) -> None:
        self._table = names.table()
        # To make the file shorter would lock everybody out for a moment; and who comes second does
        # not wait for who came first.
        options = "truncate off, skip_locked, parallel 0"
        self._vacuum = f"vacuum ({options}) {self._table}, {names.table('_leases')}"
        self._left = 0
        """What the last one could not remove, because an old transaction may still see it. To try
        again pays when there is as much again."""

    async def run(self, runner: Runner) -> bool:
        """Whether there was a vacuum, which takes a connection outside any transaction."""
        if not runner.driver.dedicated:
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
