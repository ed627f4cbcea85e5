"""The command line, connected as each role: what it is for works, all else is refused in words."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import httpx
import psycopg
import pytest

from holdfast import (
    BreakerPolicy,
    Holdfast,
    Job,
    PrivilegeMissing,
    RetryRequested,
    Schedule,
    SyncPsycopgDriver,
    TableQueue,
    sync_queries,
)
from holdfast.monitor import snapshot as dashboard_snapshot
from holdfast.settings import Names
from holdfast.stores.postgres.grants import DatabaseRole, grants_sql
from holdfast.web import app
from tests import servers
from tests.cli.command_line import Done, inside
from tests.security.roles import granted
from tests.tables import article
from tests.worker.workers import ends

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.security.roles import Roles
    from tests.servers import SharedServers

WEB_TOKEN = "token-of-a-reader-s-page"  # noqa: S105 - opens a page that lives for a test

GONE = b"""
    insert into holdfast_workers (id, host, pid, version, entrypoints, concurrency, running, state,
                                  started_at, heartbeat)
    values ('gone', 'h', 1, '1', '{}', 1, 0, 'running', now(), now() - interval '30 minutes')
"""

LOOKS = (
    *(("failed",), ("log",), ("stats",), ("workers",), ("schedules", "list"), ("breaker", "list")),
    *(("show", "1"), ("show", "2"), ("dashboard", "--once")),
)


@pytest.fixture
def lived(roles18: Roles) -> Roles:
    """Enqueued by a producer, run by a worker: job 1 succeeded after a retry, 2 and 3 are held."""
    asyncio.run(_live(roles18))
    return roles18


@pytest.fixture(scope="module")
def past(pg_servers: SharedServers) -> Iterator[Roles]:
    """The same, only to be looked at."""
    with pg_servers.schema(servers.EMBEDDED) as database, granted(database) as roles:
        asyncio.run(_live(roles))
        yield roles


async def _live(roles: Roles) -> None:
    async with (
        Holdfast.connect(roles.dsn(DatabaseRole.PRODUCER)) as producer,
        Holdfast.connect(roles.dsn(DatabaseRole.WORKER)) as worker,
    ):
        _register(worker)
        await producer.queries.enqueue(["flaky", "held", "held"], [b"a", b"secret cargo", b"c"])
        for _ in range(2):
            await ends(worker.run(mode="drain"))


def _register(hf: Holdfast) -> None:
    @hf.entrypoint("flaky", breaker=BreakerPolicy("mail"), concurrency_limit=1)
    async def flaky(job: Job) -> None:
        if not job.attempts:
            raise RetryRequested(reason="once more")

    @hf.entrypoint("held", on_failure="hold")
    async def held(job: Job) -> None:
        raise ValueError("no")

    @hf.schedule("nightly", "0 3 * * *")
    async def nightly(schedule: Schedule) -> None: ...


def _as(roles: Roles, role: DatabaseRole, *arguments: str) -> Done:
    return inside(*arguments, "--dsn", roles.dsn(role))


def test_readers_and_operators_see_everything(past: Roles) -> None:
    for role in (DatabaseRole.READER, DatabaseRole.OPERATOR):
        for arguments in LOOKS:
            done = _as(past, role, *arguments)
            assert (done.code, done.err) == (0, ""), (role, arguments, done)
    assert [job["id"] for job in _as(past, DatabaseRole.READER, "failed", "--json").json] == [3, 2]


async def test_a_reader_collects_what_the_dashboard_shows(past: Roles) -> None:
    async with Holdfast.connect(past.dsn(DatabaseRole.READER)) as hf:
        snapshot = await dashboard_snapshot.collect(hf)
    held = next(row for row in snapshot.entrypoints if row.name == "held")
    assert held.failed == 2
    assert [row.name for row in snapshot.schedules] == ["nightly"]


async def test_a_reader_opens_every_page(past: Roles) -> None:
    async with Holdfast.connect(past.dsn(DatabaseRole.READER)) as hf:
        web = app(hf, auth=WEB_TOKEN)
        transport = httpx.ASGITransport(app=web)
        async with httpx.AsyncClient(transport=transport, base_url="http://queue.test") as client:
            await client.get(f"/?token={WEB_TOKEN}")
            for page in web.site.pages:
                answer = await client.get(page.path.replace("{id:int}", "1"))
                assert answer.status_code == 200, (page.name, answer.text)
                assert "could not look" not in answer.text
        await web.aclose()


def test_statistics_inside_a_readers_transaction_leave_it_usable(past: Roles) -> None:
    with psycopg.connect(past.dsn(DatabaseRole.READER)) as connection, connection.transaction():
        queries = sync_queries(SyncPsycopgDriver(connection))
        queries.log_statistics()
        assert queries.list_failed_jobs()


def test_a_reader_sees_payloads_only_where_that_was_granted(roles18: Roles) -> None:
    asyncio.run(_live(roles18))
    for command in (("show", "2"), ("failed",), ("show", "2", "--json")):
        done = _as(roles18, DatabaseRole.READER, *command)
        assert (done.code, done.err) == (0, "")
        assert "secret cargo" not in done.out
    shown = _as(roles18, DatabaseRole.READER, "show", "2")
    assert "not shown: this user may not read payloads" in shown.out
    assert _as(roles18, DatabaseRole.READER, "show", "2", "--json").json["payload_hidden"]
    assert "secret cargo" in _as(roles18, DatabaseRole.OPERATOR, "show", "2").out

    options = [f"--{role}={name}" for role, name in roles18.names.all().items()]
    script = inside("sql", "grants", "--reader-sees-payloads", *options).out
    with roles18.owner() as owner:
        owner.execute(script.encode())
    assert "secret cargo" in _as(roles18, DatabaseRole.READER, "show", "2").out


def test_an_operator_acts(lived: Roles) -> None:
    with lived.owner() as owner:
        owner.execute(GONE)
    acts = (
        ("requeue", "2"),
        ("move", "2", "--to", "quarantine"),
        ("workers", "release", "gone", "--yes"),
        ("cancel", "2", "--yes"),
        ("edit", "3", "new", "--yes"),
        ("delete", "3", "--yes"),
        ("schedules", "pause", "nightly"),
        ("schedules", "resume", "nightly"),
        ("schedules", "run", "nightly"),
        ("schedules", "remove", "nightly", "--yes"),
        ("breaker", "open", "mail", "--reason", "maintenance"),
        ("breaker", "close", "mail"),
    )
    for arguments in acts:
        done = _as(lived, DatabaseRole.OPERATOR, *arguments)
        assert (done.code, done.err) == (0, ""), (arguments, done)
    done = _as(lived, DatabaseRole.OPERATOR, "enqueue", "flaky", "x")
    assert (done.code, "no live worker serves 'flaky'" in done.err) == (0, True), done


def test_a_pruner_prunes(lived: Roles) -> None:
    # What a transaction of another test's database keeps from being counted is left, and said so.
    deadline = time.monotonic() + 200
    left = 1
    while left and time.monotonic() < deadline:
        done = _as(lived, DatabaseRole.PRUNER, "prune", "--older-than", "0s", "--yes", "--json")
        assert (done.code, done.err) == (0, ""), done
        left = done.json["left"]
        assert len(_as(lived, DatabaseRole.READER, "log", "--json").json) == left
    assert left == 0


def test_a_producer_enqueues_and_asks_what_became_of_it(lived: Roles) -> None:
    done = _as(lived, DatabaseRole.PRODUCER, "enqueue", "flaky", "x", "--dedupe-key", "k")
    assert (done.code, done.err) == (0, ""), done
    _as(lived, DatabaseRole.PRODUCER, "enqueue", "flaky", "x", "--dedupe-key", "k").complains(
        1, "'k'"
    )


@pytest.mark.parametrize(
    ("role", "arguments", "needed"),
    [
        (DatabaseRole.READER, ("enqueue", "flaky", "x"), "producer"),
        (DatabaseRole.PRUNER, ("enqueue", "flaky", "x"), "producer"),
        (DatabaseRole.READER, ("requeue", "2"), "operator"),
        (DatabaseRole.READER, ("move", "2", "--to", "quarantine"), "operator"),
        (DatabaseRole.WORKER, ("move", "2", "--to", "quarantine"), "operator"),
        (DatabaseRole.READER, ("cancel", "2", "--yes"), "operator"),
        (DatabaseRole.READER, ("delete", "2", "--yes"), "operator"),
        (DatabaseRole.READER, ("edit", "2", "x", "--yes"), "operator"),
        (DatabaseRole.READER, ("schedules", "pause", "nightly"), "operator"),
        (DatabaseRole.READER, ("schedules", "remove", "nightly", "--yes"), "operator"),
        (DatabaseRole.READER, ("breaker", "open", "mail"), "operator"),
        (DatabaseRole.OPERATOR, ("prune", "--older-than", "0s", "--yes"), "pruner"),
        (DatabaseRole.WORKER, ("prune", "--older-than", "0s", "--yes"), "pruner"),
        (DatabaseRole.WORKER, ("edit", "2", "x", "--yes"), "operator"),
        (DatabaseRole.WORKER, ("schedules", "pause", "nightly"), "operator"),
        (DatabaseRole.PRODUCER, ("failed",), "reader"),
        (DatabaseRole.PRODUCER, ("cancel", "2", "--yes"), "operator"),
        (DatabaseRole.PRODUCER, ("log",), "reader"),
    ],
)
def test_what_a_role_may_not_do_is_refused_with_the_way_out(
    past: Roles, role: DatabaseRole, arguments: tuple[str, ...], needed: str
) -> None:
    before = _as(past, DatabaseRole.READER, "log", "--json").json
    done = _as(past, role, *arguments)
    done.complains(1, "permission denied for table holdfast", "`holdfast sql grants`")
    assert f"the privileges of the {needed}" in done.err
    assert _as(past, DatabaseRole.READER, "log", "--json").json == before


@pytest.mark.parametrize("role", [role for role in DatabaseRole if role is not DatabaseRole.WORKER])
async def test_a_worker_without_the_privileges_of_one_ends_and_says_so(
    roles18: Roles, role: DatabaseRole
) -> None:
    async with Holdfast.connect(roles18.dsn(role)) as hf:

        @hf.entrypoint("any")
        async def handler(job: Job) -> None: ...

        with pytest.raises(PrivilegeMissing, match=r"privileges of the worker.*sql grants"):
            await ends(hf.run())


async def test_a_worker_serves_a_table_of_the_users_own(roles18: Roles) -> None:
    queue = TableQueue("email_snoozes")
    with roles18.owner() as owner:
        owner.execute(article.statement("table").encode())
        owner.execute(
            "insert into email_snoozes (user_email, message_id, remind_at)"
            " values ('ann', 'm', now() - interval '1s')"
        )
    async with Holdfast.connect(roles18.dsn(DatabaseRole.WORKER)) as hf:
        seen: list[Any] = []

        @hf.table(queue)
        async def remind(row: dict[str, Any]) -> None:
            seen.append(row["user_email"])

        with pytest.raises(PrivilegeMissing, match=r"claim on email_snoozes.*sql grants"):
            await ends(hf.run(mode="drain"))
        with roles18.owner() as owner:
            owner.execute(grants_sql(Names(), roles18.names, [queue]).encode())
        await ends(hf.run(mode="drain"))
    assert seen == ["ann"]
    for role in (DatabaseRole.READER, DatabaseRole.OPERATOR):
        done = await asyncio.to_thread(_as, roles18, role, "table", "inspect", "email_snoozes")
        assert (done.code, done.err) == (0, ""), done
