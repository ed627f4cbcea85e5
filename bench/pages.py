"""How long each page of the web takes on a long queue with a long log.

python -m bench.pages [--jobs 1000000] [--log 10000000] [--goal-ms 200]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import httpx
import psycopg

from devtools.cluster import Cluster, find_binaries, make_passable
from holdfast import Holdfast
from holdfast.web import app

TOKEN = "token-of-the-benchmark"  # noqa: S105 - opens a server that lives for minutes
ROUNDS = 5

JOBS = """
insert into holdfast (entrypoint, priority, dedupe_key, payload, headers, execute_after)
select 'entrypoint_' || n % 20, n % 3, case when n % 5 = 0 then 'key-' || n end, '{"n": 1}',
       '{"tenant": "acme"}',
       now() + case when n % 7 = 0 then interval '1 h' else make_interval(secs => -n / 100.0) end
from generate_series(1, %(jobs)s) n
"""
HELD = """
update holdfast set status = 'failed', held_at = now(), last_error = 'ValueError: number ' || id
where id %% 500 = 0
"""
LOG = """
insert into holdfast_log (job_id, status, entrypoint, priority, attempt, recoveries, claimed_by,
    claimed_at, created)
select n, (case when n %% 400 = 0 then 'exception' else 'successful' end)::holdfast_status,
       'entrypoint_' || n %% 20, 0, 1, 0, 'worker-1', t - interval '1 s', t
from (select n, now() - make_interval(secs => (%(log)s - n) * 86400.0 / %(log)s) as t
      from generate_series(1, %(log)s) n) l
"""
COUNTS = """
insert into holdfast_statistics (bucket, entrypoint, priority, status, count)
select date_bin('1 minute', created, '2000-01-01Z'), entrypoint, priority, status, count(*)
from holdfast_log group by 1, 2, 3, 4
"""
PATHS = (
    *("/", "/?range=24h", "/?range=7d", "/jobs", "/jobs?entrypoint=entrypoint_7"),
    *("/jobs?status=held", "/jobs?status=running", "/jobs?error=number+7", "/jobs?key=key-5"),
    *("/jobs?header=tenant%3Dno", "/jobs?status=successful", "/jobs?status=failed"),
    *("/jobs?status=canceled", "/jobs/500000", "/failures", "/entrypoints", "/workers"),
    *("/schedules", "/breakers", "/system", "/log", "/log?entrypoint=nothing", "/log?who=people"),
    "/log?status=failed&entrypoint=entrypoint_0",
)


def fill(dsn: str, jobs: int, log: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(JOBS.replace(" % ", " %% "), {"jobs": jobs})
        connection.execute(HELD.replace("%%", "%"))
        connection.execute(LOG, {"log": log})
        connection.execute(COUNTS)
        connection.execute("update holdfast_counted set tx = pg_current_xact_id()::text::bigint")
        connection.execute("vacuum analyze")


async def measure(dsn: str, goal: float) -> bool:
    good = True
    async with Holdfast.connect(dsn) as hf:
        web = app(hf, auth=TOKEN)
        transport = httpx.ASGITransport(app=web)
        async with httpx.AsyncClient(transport=transport, base_url="http://bench.test") as client:
            await client.get(f"/?token={TOKEN}")
            for path in PATHS:
                times = []
                for _ in range(ROUNDS):
                    begun = perf_counter()
                    answer = await client.get(path)
                    times.append((perf_counter() - begun) * 1000)
                    if answer.status_code not in (200, 404):
                        times.append(float("inf"))
                middle = statistics.median(times)
                good = good and middle < goal
                print(f"{middle:8.1f} ms  (worst {max(times):7.1f})  {path}", flush=True)
        await web.aclose()
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--log", type=int, default=10_000_000)
    parser.add_argument("--goal-ms", type=float, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "server"
        make_passable(folder.parent)
        with Cluster(folder, binaries=find_binaries()) as server:
            asyncio.run(_install(server.dsn))
            fill(server.dsn, given.jobs, given.log)
            sys.exit(0 if asyncio.run(measure(server.dsn, given.goal_ms)) else 1)


async def _install(dsn: str) -> None:
    async with Holdfast.connect(dsn) as hf:
        await hf.install()


if __name__ == "__main__":
    main()
