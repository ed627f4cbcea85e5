"""How long each page of the web, and each explanation, takes on a long queue with a long log.

Last, fifty pages are open at once, and what they cost the database is counted.

python -m bench.pages [--jobs 1000000] [--log 10000000] [--goal-ms 200] [--explain-ms 50]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import httpx
import psycopg

from devtools.cluster import Cluster, find_binaries, make_passable
from holdfast import Holdfast
from holdfast.models import JobId
from holdfast.web import Identity, Role, WebApp, app
from holdfast.web.live import Stream, Topic
from holdfast.web.visit import Address

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TOKEN = "token-of-the-benchmark"  # noqa: S105 - opens a server that lives for minutes
ROUNDS = 5
OPEN_PAGES = 50
MOST_STATEMENTS = 20
"""That 50 open pages may send in a second; the stream looks once a second."""
TICKS = 20

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
LEASED = """
with few as (
    update holdfast set status = 'picked', claim_token = '00000000-0000-0000-0000-000000000001',
        claimed_by = 'worker-1', claimed_at = now() - interval '6 s', heartbeat = now(),
        lease = interval '1 h', attempts = 1
    where id %% 1000 = 1 returning id
), said as (
    insert into holdfast_progress (job_id, fraction, message, updated)
    select id, 0.4, 'page 4 of 10', now() from few
)
insert into holdfast_leases (token, worker, claimed_at, lease, ids)
select '00000000-0000-0000-0000-000000000001', 'worker-1', now(), interval '1 h', array_agg(id)
from few
"""
LIMITED = "insert into holdfast_limits (entrypoint) values ('entrypoint_3')"
LOG = """
insert into holdfast_log (job_id, status, entrypoint, priority, attempt, recoveries, claimed_by,
    claimed_at, created, fingerprint)
select n, (case when n %% 400 = 0 then 'exception' else 'successful' end)::holdfast_status,
       'entrypoint_' || n %% 20, 0, 1, 0, 'worker-1', t - interval '1 s', t,
       case when n %% 400 = 0 then 'mark-' || n / 400 %% 30 end
from (select n, now() - make_interval(secs => (%(log)s - n) * 86400.0 / %(log)s) as t
      from generate_series(1, %(log)s) n) l
"""
HOLDS = """
insert into holdfast_log (job_id, status, entrypoint, priority, attempt, recoveries, claimed_by,
    claimed_at, created, fingerprint, traceback)
select j.id, j.status, j.entrypoint, 0, 1, 0, 'worker-1', now(), now(), 'mark-' || j.id / 500 % 30,
       '{"exception_type": "ValueError", "exception_message": "number 7", "traceback": ""}'
from holdfast j where j.held_at is not null
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
    *("/jobs?status=canceled", "/jobs/500000", "/failures", "/failures?kind=failed"),
    *("/entrypoints", "/workers"),
    *("/schedules", "/breakers", "/system", "/log", "/log?entrypoint=nothing", "/log?who=people"),
    "/log?status=failed&entrypoint=entrypoint_0",
)


def fill(dsn: str, jobs: int, log: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(JOBS.replace(" % ", " %% "), {"jobs": jobs})
        connection.execute(HELD.replace("%%", "%"))
        connection.execute(LEASED.replace("%%", "%"))
        connection.execute(LIMITED)
        connection.execute(LOG, {"log": log})
        connection.execute(HOLDS)
        connection.execute(COUNTS)
        connection.execute("update holdfast_counted set tx = pg_current_xact_id()::text::bigint")
        connection.execute("vacuum analyze")


async def measure(dsn: str, goal: float, explain_goal: float) -> bool:
    async with Holdfast.connect(dsn) as hf:
        web = app(hf, auth=TOKEN)
        transport = httpx.ASGITransport(app=web)
        async with httpx.AsyncClient(transport=transport, base_url="http://bench.test") as client:
            await client.get(f"/?token={TOKEN}")
            good = [await _timed(path, goal, partial(_load, client, path)) for path in PATHS]
        for name, job_id in _examples(dsn).items():
            call = partial(hf.explain, job_id)
            good.append(await _timed(f"explain: {name}", explain_goal, call))
        by_name = partial(hf.explain, entrypoint="entrypoint_7")
        good.append(await _timed("explain: an entrypoint", explain_goal, by_name))
        good.append(await _watched(web))
        await web.aclose()
    return all(good)


async def _timed(what: str, goal: float, call: Callable[[], Awaitable[object]]) -> bool:
    times = []
    for _ in range(ROUNDS):
        begun = perf_counter()
        await call()
        times.append((perf_counter() - begun) * 1000)
    middle = statistics.median(times)
    missed = "" if middle < goal else f"  MISSED: under {goal:g} was asked"
    print(f"{middle:8.1f} ms  (worst {max(times):7.1f})  {what}{missed}", flush=True)
    return middle < goal


async def _load(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    if answer.status_code not in (200, 404):
        raise RuntimeError(f"{path} answered {answer.status_code}")


EXPLAINED = {
    "the first": "id = 2",
    "behind all others": "id = (select max(id) from holdfast where entrypoint = 'entrypoint_7'"
    " and status = 'queued' and priority = 0 and execute_after <= now())",
    "not due": "status = 'queued' and execute_after > now()",
    "under a limit": "status = 'queued' and entrypoint = 'entrypoint_3'",
    "running": "status = 'picked'",
    "held": "status = 'failed'",
}


def _examples(dsn: str) -> dict[str, JobId]:
    """Jobs at both ends of the queue and in other states."""
    with psycopg.connect(dsn) as connection:
        found = {}
        for name, condition in EXPLAINED.items():
            query = f"select id from holdfast where {condition} limit 1"  # noqa: S608 - from above
            [[job_id]] = connection.execute(query.encode()).fetchall()
            found[name] = JobId(job_id)
        return found


async def _watched(web: WebApp) -> bool:
    """Fifty open pages, all different, looked after by one live stream."""
    pages = [Address("", "Job", f"/jobs/{n}", item=(("id", n),)) for n in range(2, OPEN_PAGES - 3)]
    pages += [Address("", "Overview", "/"), Address("", "Overview", "/", "range=7d")]
    pages += [Address("", name, f"/{name.lower()}") for name in ("Jobs", "Failures", "Entrypoints")]
    who = Identity("", Role.OPERATOR)
    live = web.live
    live._streams |= {Stream(Topic(each, who)) for each in pages}
    begun = perf_counter()
    for _ in range(TICKS):
        await live.tick()
    took = (perf_counter() - begun) * 1000 / TICKS
    sent = live.statements / TICKS
    print(f"{OPEN_PAGES} open pages: {sent:.1f} statements a second, {took:.1f} ms a look")
    return sent < MOST_STATEMENTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--log", type=int, default=10_000_000)
    parser.add_argument("--goal-ms", type=float, default=200)
    parser.add_argument("--explain-ms", type=float, default=50)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "server"
        make_passable(folder.parent)
        with Cluster(folder, binaries=find_binaries()) as server:
            asyncio.run(_install(server.dsn))
            print(f"{given.jobs:,} jobs, {given.log:,} log rows", flush=True)
            fill(server.dsn, given.jobs, given.log)
            good = asyncio.run(measure(server.dsn, given.goal_ms, given.explain_ms))
            sys.exit(0 if good else 1)


async def _install(dsn: str) -> None:
    async with Holdfast.connect(dsn) as hf:
        await hf.install()


if __name__ == "__main__":
    main()
