"""The inspection of a table queue: which rows are stuck, their worker, age, failures, reason and
next time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.stores.postgres.tables.fit import fit
from holdfast.stores.postgres.tables.render import render

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from holdfast.stores.postgres.drivers.base import Driver
    from holdfast.table import TableQueue


@dataclass(frozen=True, slots=True)
class Case:
    """A row that asks for attention."""

    key: str
    state: str
    claimed_by: str | None
    claimed_for: timedelta | None
    attempts: int
    last_error: str | None
    due: datetime


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rows there are of each kind."""

    due: int
    later: int
    claimed: int
    retired: int
    done: int


async def inspect(driver: Driver, queue: TableQueue, limit: int) -> tuple[Counts, list[Case]]:
    """Look at the live table."""
    statements = render((await fit(driver, queue)).demand())
    values = {"now": None, "lease": queue.lease, "limit": limit}
    count, cases = statements["count"], statements["inspect"]
    [numbers] = await driver.fetch(count.text, count.args(values))
    found = await driver.fetch(cases.text, cases.args(values))
    return Counts(*numbers), [Case(*row) for row in found]
