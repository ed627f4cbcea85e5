"""A server on which no session may write temporary files."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from holdfast import Holdfast, HoldfastError

if TYPE_CHECKING:
    from devtools.cluster import Cluster

_JOBS = """
insert into holdfast (entrypoint, priority)
select 'e' || g % 500, g % 3 from generate_series(1, 50000) g
"""
_LOG = """
insert into holdfast_log (
    job_id, status, entrypoint, priority, attempt, recoveries, claimed_at, created
)
select g, 'successful', 'e' || g % 500, g % 3, 0, 0, now(), now() - g % 3600 * interval '1 second'
from generate_series(1, 50000) g
"""


async def test_the_figures_of_a_queue_need_no_temporary_files(controlled_server: Cluster) -> None:
    with psycopg.connect(controlled_server.dsn, autocommit=True) as connection:
        async with Holdfast.connect(controlled_server.dsn) as hf:
            await hf.install()
            connection.execute(_JOBS)
            connection.execute(_LOG)
        for setting in (b"temp_file_limit = 0", b"work_mem = '64kB'"):
            connection.execute(b"alter system set " + setting)
        connection.execute("select pg_reload_conf()")
        async with Holdfast.connect(controlled_server.dsn) as hf:
            sizes = await hf.queries.queue_size()
            found = await hf.queries.log_statistics(last=timedelta(hours=2), limit=10**6)
            assert sum(size.count for size in sizes) == 50_000
            assert sum(bucket.count for bucket in found) == 50_000
            assert len(await hf.queries.queue_log(limit=10_000)) == 10_000
            # In the caller's transaction nothing is repeated, since it is over.
            async with await psycopg.AsyncConnection.connect(controlled_server.dsn) as theirs:
                with pytest.raises(HoldfastError, match="temp_file_limit"):
                    await hf.queries.on(theirs).queue_size()
