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
        (lambda dsn: asyncio.run(_enqueue(dsn)), "no_worker", 2),
        (_held_long_ago, "held", 1),
        (_silent, "worker_silent", 1),
        (lambda dsn: asyncio.run(_report(dsn, "1.0", "2.0")), "versions", 1),
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
