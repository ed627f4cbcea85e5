"""The doctor finds what was planted, and says what fixes it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from holdfast import Holdfast, Job, NewJob
from holdfast.models import WorkerInfo
from holdfast.monitor.doctor.server import Server, judge
from holdfast.monitor.doctor.tables import Log, Table, judge_log, judge_table
from holdfast.settings import Retention
from tests.cli.command_line import inside

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers import Database

NOW = datetime(2030, 1, 1, tzinfo=UTC)
WELL = Server(
    standby=False,
    fsync=True,
    full_page_writes=True,
    synchronous_commit="on",
    autovacuum=True,
    notify_usage=0.0,
    connections_left=80,
    now=NOW,
    pid=None,
    age=None,
    query=None,
)


@pytest.mark.parametrize(
    ("ill", "check"),
    [
        ({"standby": True}, "standby"),
        ({"fsync": False}, "durability"),
        ({"full_page_writes": False}, "durability"),
        ({"synchronous_commit": "off"}, "durability"),
        ({"autovacuum": False}, "autovacuum"),
        ({"notify_usage": 0.9}, "notify_queue"),
        ({"connections_left": 3}, "connections"),
        ({"now": NOW - timedelta(minutes=1)}, "clock"),
        ({"pid": 7, "age": timedelta(hours=1), "query": "select"}, "old_transaction"),
    ],
)
def test_what_the_server_says_is_judged(ill: dict[str, Any], check: str) -> None:
    assert list(judge(WELL, NOW)) == []
    assert [each.check for each in judge(replace(WELL, **ill), NOW)] == [check]


TABLE = Table(1000, 10, NOW, 0, 0, 0, (), (), autovacuum=True, vacuum_from=70, now=NOW)
LOG = Log(2**30, None, 1_000_000, 1000, Retention())
KEPT = Retention(None, None)


@pytest.mark.parametrize(
    ("ill", "check"),
    [
        ({"autovacuum": False}, "autovacuum"),
        ({"dead": 600_000}, "dead_rows"),
        ({"dead": 20_000, "vacuumed": NOW - timedelta(hours=1)}, "autovacuum_lag"),
        ({"dead": 20_000, "vacuumed": None}, "autovacuum_lag"),
        ({"index_bytes": 2**30}, "index_bloat"),
    ],
)
def test_what_the_server_says_of_the_table_is_judged(ill: dict[str, Any], check: str) -> None:
    assert list(judge_table("holdfast", TABLE)) == []
    # A worker or autovacuum has just been there: what is left is kept by a transaction.
    assert list(judge_table("holdfast", replace(TABLE, dead=20_000))) == []
    assert [each.check for each in judge_table("holdfast", replace(TABLE, **ill))] == [check]


@pytest.mark.parametrize(
    ("ill", "check"),
    [
        ({"retention": KEPT, "bytes": 2**31}, "retention"),
        ({"bytes": 30 * 2**30}, "log_size"),
        ({"overdue": NOW - timedelta(days=92)}, "retention_overdue"),
    ],
)
def test_the_growth_of_the_log_is_judged(ill: dict[str, Any], check: str) -> None:
    assert list(judge_log(LOG)) == []
    assert list(judge_log(replace(LOG, bytes=0, rows=0))) == []
    [found] = judge_log(replace(LOG, **ill))
    assert found.check == check


def test_a_growing_log_says_how_much_it_is_a_day() -> None:
    [found] = judge_log(replace(LOG, retention=KEPT, bytes=2**31, last_hour=1_000_000))
    assert found.finding == "log rows are kept for ever: 2.0 GiB now, and 48.0 GiB more a day"


async def _install(dsn: str) -> None:
    async with Holdfast.connect(dsn) as hf:
        await hf.install()


async def _enqueue(dsn: str) -> None:
    async with Holdfast.connect(dsn) as hf:
        await hf.queries.enqueue("send_mial")


async def _hold(dsn: str) -> None:
    async with Holdfast.connect(dsn) as hf:

        @hf.entrypoint("mail", on_failure="hold")
        async def mail(job: Job) -> None:
            raise ValueError

        await hf.queries.enqueue_many([NewJob("mail")])
        await hf.run(mode="drain", signals=False)


async def _report(dsn: str, *versions: str) -> None:
    async with Holdfast.connect(dsn) as hf:
        now = await hf.queries.now()
        for version in versions:
            info = WorkerInfo(version, "host", 1, version, [], 1, 0, "running", now, now)
            assert hf.store.reports is not None
            await hf.store.reports.report(info)


def _sql(text: str) -> Callable[[str], None]:
    def run(dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(text.encode())

    return run


def _held_long_ago(dsn: str) -> None:
    asyncio.run(_hold(dsn))
    _sql("update holdfast set held_at = now() - interval '9 days'")(dsn)


def _silent(dsn: str) -> None:
    asyncio.run(_report(dsn, "1.0"))
    _sql("update holdfast_workers set heartbeat = now() - interval '1 hour'")(dsn)


def _leases_emptied(dsn: str) -> None:
    asyncio.run(_enqueue(dsn))
    _sql(
        "update holdfast set status = 'picked', claim_token = gen_random_uuid(), claimed_by = 'w',"
        " claimed_at = now(), heartbeat = now(), lease = interval '30 s'"
    )(dsn)
    _sql("truncate holdfast_leases")(dsn)


@pytest.mark.parametrize(
    ("plant", "check", "code"),
    [
        (_sql("drop index holdfast_ready"), "index_missing", 2),
        (
            _sql(
                "update pg_index set indisvalid = false"
                " where indexrelid = 'holdfast_held'::regclass"
            ),
            "index_invalid",
            2,
        ),
        (_sql("delete from holdfast_migrations where version > 2"), "schema", 2),
        (_sql("drop table holdfast_log cascade"), "schema", 2),
        (_sql("alter table holdfast drop column held_at cascade"), "schema", 2),
        (_sql("alter table holdfast set (autovacuum_enabled = off)"), "autovacuum", 1),
        (
            _sql(
                "insert into holdfast_log (job_id, status, entrypoint, priority, attempt,"
                " recoveries, created)"
                " values (1, 'successful', 'mail', 0, 0, 0, now() - interval '100 days')"
            ),
            "retention_overdue",
            1,
        ),
        (lambda dsn: asyncio.run(_enqueue(dsn)), "no_worker", 2),
        (_held_long_ago, "held", 1),
        (_silent, "worker_silent", 1),
        (lambda dsn: asyncio.run(_report(dsn, "1.0", "2.0")), "versions", 1),
        (_leases_emptied, "leases", 1),
        (
            _sql(
                "insert into holdfast_pauses (name, reason, created)"
                " values ('mail', 'x', now() - interval '3 days')"
            ),
            "paused",
            1,
        ),
    ],
)
def test_a_planted_problem_is_found(
    pg: Database, plant: Callable[[str], None], check: str, code: int
) -> None:
    asyncio.run(_install(pg.dsn))
    plant(pg.dsn)
    done = inside("doctor", "--json", "--dsn", pg.dsn)
    found = {each["check"]: each for each in done.json}
    assert check in found, done
    assert found[check]["command"]
    assert found[check]["severity"] == {1: "warning", 2: "error"}[code]
    assert done.code >= code


def test_the_doctor_prints_findings_and_what_fixes_them(pg: Database) -> None:
    asyncio.run(_install(pg.dsn))
    asyncio.run(_enqueue(pg.dsn))
    told = inside("doctor", "--dsn", pg.dsn)
    assert told.code == 2
    assert "jobs of send_mial wait and no live worker serves it" in told.out
    assert "holdfast explain --entrypoint send_mial" in told.out


def test_a_plan_that_does_not_walk_the_index_is_found(pg: Database) -> None:
    asyncio.run(_install(pg.dsn))
    _sql(
        "insert into holdfast (entrypoint) select 'mail' from generate_series(1, 21000);"
        " analyze holdfast; select pg_stat_force_next_flush()"
    )(pg.dsn)
    separator = "%20" if "options=" in pg.dsn else "?options="
    worse = f"{pg.dsn}{separator}-cenable_indexscan%3Doff%20-cenable_bitmapscan%3Doff"
    checks = [each["check"] for each in inside("doctor", "--json", "--dsn", pg.dsn).json]
    assert "claim_plan" not in checks
    found = {each["check"]: each for each in inside("doctor", "--json", "--dsn", worse).json}
    assert "instead of walking index holdfast_ready" in found["claim_plan"]["finding"]


def test_a_role_that_lacks_what_a_new_version_needs_is_found(pg: Database) -> None:
    asyncio.run(_install(pg.dsn))
    names = {kind: f"{pg.schema}_{kind}" for kind in ("worker", "producer", "reader", "operator")}
    roles = [word for kind, name in names.items() for word in (f"--{kind}", name)]
    roles += ["--pruner", names["worker"]]
    assert inside("sql", "grants", *roles, "--apply", "--dsn", pg.dsn).code == 0
    try:
        assert "grants" not in inside("doctor", "--json", "--dsn", pg.dsn).out
        _sql(f"revoke insert on holdfast_results from {names['worker']}")(pg.dsn)
        found = [each for each in inside("doctor", "--json", "--dsn", pg.dsn).json]
        [lacks] = [each for each in found if each["check"] == "grants"]
        assert lacks["severity"] == "error"
        assert f"role {names['worker']} is used as the worker and lacks insert" in lacks["finding"]
        assert "holdfast_results" in lacks["finding"]
        assert lacks["command"] == f"holdfast sql grants --worker {names['worker']} --apply"
    finally:
        _sql("".join(f"drop owned by {name}; drop role {name};" for name in names.values()))(pg.dsn)
