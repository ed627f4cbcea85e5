"""Jobs that a filter chooses: each search looks at a bounded number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from holdfast.lifecycle import TRANSITIONS, Status, Verb
from holdfast.models import Job, JobId
from holdfast.monitor.reader import Look
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.binding import JOB_COLUMNS
from holdfast.stores.postgres.pages import LISTED_COLUMNS

ROWS = 50
"""A page of the list."""
WINDOW = 20_000
"""A search looks at this many rows at most, then says how far it came."""
MOST_AT_ONCE = 10_000
"""Jobs that one act touches."""

_FEW = 5000
"""An entrypoint with fewer live jobs is listed from its index, which means sorting them."""

_LEASED = TRANSITIONS[Verb.CLAIM].target
_HELD = TRANSITIONS[Verb.HOLD].target
_TOP = 2**62


@dataclass(frozen=True, slots=True)
class Chosen:
    """A filter; what is not given does not restrict."""

    status: Status | None = None
    entrypoint: str | None = None
    worker: str | None = None
    error: str | None = None
    key: str | None = None
    header: str | None = None
    header_value: str | None = None
    since: timedelta | None = None

    @property
    def scans(self) -> bool:
        """Whether it is searched for among the newest rows, so that older ones may match too."""
        return self.status not in (_LEASED, _HELD)


async def find(
    look: Look, chosen: Chosen, *, before: int = _TOP, limit: int = ROWS, window: int = WINDOW
) -> list[Job]:
    """Jobs below an id, newest first, without what they carry."""
    statement = await _statement(look, chosen, window)
    values = asdict(chosen) | {"before": before, "limit": limit, "window": window}
    return [_job(row) for row in await look.run(statement, **values)]


async def _statement(look: Look, chosen: Chosen, window: int) -> str:
    if chosen.status is _LEASED:
        return "page_jobs_leased"
    if chosen.status is _HELD:
        return "page_jobs_held"
    if chosen.entrypoint is not None:
        *_, looked, _ = await look.one("page_count", entrypoint=chosen.entrypoint)
        # An entrypoint with more jobs than that is found among the newest rows.
        if looked < min(window, _FEW):
            return "page_jobs_of"
    return "page_jobs"


async def reach(look: Look, before: int) -> tuple[int | None, int]:
    """Down to which id a search among the newest rows came, and past how many rows."""
    bottom, looked = await look.one("page_reach", before=before, window=WINDOW)
    return bottom, looked


async def ids(look: Look, chosen: Chosen) -> list[JobId]:
    """All that match, as many as one act touches."""
    found = await find(look, chosen, limit=MOST_AT_ONCE, window=MOST_AT_ONCE)
    return [job.id for job in found]


def _job(row: Sequence[Any]) -> Job:
    values: dict[str, Any] = dict.fromkeys(JOB_COLUMNS)
    values |= dict(zip(LISTED_COLUMNS, row, strict=True))
    values["status"] = rows.status(values["status"])
    job = Job(**values)
    if job.status is _LEASED:
        return job
    # A lease counts only while the row is picked.
    return job._replace(heartbeat=None, claimed_by=None, claimed_at=None, lease=None)
