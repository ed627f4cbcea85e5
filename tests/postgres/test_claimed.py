"""A claim returns its jobs' instants as they are in the rows, to the microsecond."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast.models import ClaimRule, NewJob
from tests.postgres import tables

if TYPE_CHECKING:
    from tests.servers import Database

RULE = ClaimRule("mail", lease=timedelta(seconds=30))

PAST = ["1999-12-31 23:59:59.999999+00", "2001-02-03 04:05:06.000001+00", "1969-12-31 00:00+00"]


@pytest.mark.parametrize("instant", [None, *PAST])
async def test_a_claim_gives_back_the_instants_of_the_row(
    pg: Database, instant: str | None
) -> None:
    async with tables.installed(pg.dsn) as (connection, store):
        await store.jobs.insert([NewJob("mail") for _ in range(5)], "raise")
        if instant is not None:
            await connection.execute(
                f"update holdfast set created = '{instant}', execute_after = '{instant}',"
                f" last_error_at = '{instant}'"
            )
        jobs = await store.leases.claim([RULE], limit=5, worker="w")
        rows = await connection.fetch("select * from holdfast order by id")
        assert len(jobs) == 5
        for job, row in zip(jobs, rows, strict=True):
            for column in (
                "execute_after", "created", "updated", "heartbeat", "claimed_at", "last_error_at"
            ):  # fmt: skip
                assert getattr(job, column) == row[column], column
