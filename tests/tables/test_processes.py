"""Real worker processes on the article's table: killed, frozen, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from tests.cli.running import Bench, until
from tests.tables import article
from tests.tables.three_tables import session

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from tests.servers import Database

T = TypeVar("T")

REMINDERS = """
import asyncio, os, time
from datetime import timedelta
from holdfast import Holdfast, TableQueue
from jobs import note

hf = Holdfast.connect(os.environ["HOLDFAST_DSN"])
lease = timedelta(seconds=float(os.environ.get("LEASE", "3")))

@hf.table(TableQueue("email_snoozes", lease=lease))
async def remind(row):
    note("began", row["id"], os.getpid())
    while not os.path.exists("go"):
        if os.environ.get("BLOCKS"):
            time.sleep(0.01)
        else:
            await asyncio.sleep(0.01)
    note("finished", row["id"], os.getpid())
"""

QUICK = ("--heartbeat-timeout", "1s", "--dequeue-timeout", "100ms", "--log-level", "debug")


@pytest.fixture
def bench(tmp_path: Path, pg18: Database) -> Iterator[Bench]:
    """A folder with the program, and a database that has the article's table and no other."""
    made = Bench(tmp_path, pg18.dsn)
    (tmp_path / "reminders.py").write_text(REMINDERS)
    sql(made, lambda connection: connection.execute(article.statement("table")))
    try:
        yield made
    finally:
        made.close()


def sql(bench: Bench, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    async def main() -> T:
        async with session(bench.dsn) as connection:
            return await work(connection)

    return asyncio.run(main())


def add(bench: Bench, count: int) -> None:
    sql(
        bench,
        lambda connection: connection.execute(
            "insert into email_snoozes (user_email, message_id, remind_at)"
            " select 'ann@example.org', n::text, now() from generate_series(1, $1::int) n",
            count,
        ),
    )


def count(bench: Bench, condition: str) -> int:
    statement = f"select count(*) from email_snoozes where {condition}"
    return sql(bench, lambda connection: connection.fetchval(statement))


def dump(bench: Bench) -> list[str]:
    statement = "select t::text || ' ' || t.xmin::text from email_snoozes t order by id"
    return [row[0] for row in sql(bench, lambda connection: connection.fetch(statement))]


def test_the_rows_of_a_killed_worker_all_come_back_and_finish(bench: Bench) -> None:
    add(bench, 50)
    first = bench.start("reminders:hf", *QUICK, "--concurrency", "50")
    bench.noted("began", 50)
    assert count(bench, "claimed_at is not null") == 50
    first.send(signal.SIGKILL)
    first.ended()
    assert count(bench, "claimed_at is not null") == 50

    bench.go()
    second = bench.start("reminders:hf", *QUICK)
    until(lambda: count(bench, "inactive") == 50, "all rows are done")
    second.send(signal.SIGTERM)

    assert second.ended() == 0, second.log
    finished = bench.journal("finished")
    # Suspects run in a process of their own.
    assert str(first.process.pid) not in {pid for _, _, pid in finished}
    assert sorted(int(number) for _, number, _ in finished) == list(range(1, 51))
    # The recovery is on record, and has cost none of the fifty an attempt.
    assert count(bench, "attempts = 0 and last_error = 'stale claim recovered'") == 50
    assert count(bench, "claimed_at is null and claim_token is null and claimed_by is null") == 50


def test_a_frozen_worker_that_wakes_up_late_changes_nothing_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(bench, 3)
    with monkeypatch.context() as context:
        context.setenv("BLOCKS", "1")
        frozen = bench.start("reminders:hf", *QUICK)
    bench.noted("began", 1)
    frozen.send(signal.SIGSTOP)
    bench.go()
    successor = bench.start("reminders:hf", *QUICK)
    until(lambda: count(bench, "inactive") == 3, "all rows are done")
    before = dump(bench)

    frozen.send(signal.SIGCONT)
    until(lambda: frozen.log.count("lease lost") >= 3, "the frozen worker hears of its loss")
    for worker in (frozen, successor):
        worker.send(signal.SIGTERM)
        assert worker.ended() == 0, worker.log

    assert dump(bench) == before
    late = [pid for _, _, pid in bench.journal("finished") if pid == str(frozen.process.pid)]
    assert late, "the frozen handler never came to its end"
    assert "lease lost; outcome succeeded discarded" in frozen.log
    told = [line for line in frozen.log.splitlines() if "lease lost" in line]
    assert all(" INFO " in line for line in told), told


def test_a_worker_that_is_asked_to_stop_releases_its_rows(bench: Bench) -> None:
    add(bench, 5)
    worker = bench.start("reminders:hf", "--drain-timeout", "0s", *QUICK)
    bench.noted("began", 5)
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0, worker.log
    assert count(bench, "claimed_at is null and attempts = 0 and not inactive") == 5


def test_the_rows_of_a_dead_process_come_back_at_once_under_a_supervisor(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASE", "3600")
    add(bench, 10)
    fleet = bench.start("reminders:hf", "--processes", "2", *QUICK)
    began = bench.noted("began", 10)
    victim = int(began[0][2])
    os.kill(victim, signal.SIGKILL)
    bench.go()
    until(lambda: count(bench, "inactive") == 10, "all rows are done")
    fleet.send(signal.SIGTERM)
    assert fleet.ended() == 0, fleet.log


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("drop table email_snoozes", "there is no table 'email_snoozes'"),
        ("alter table email_snoozes drop claim_token", "column 'claim_token' (claim_token)"),
    ],
)
def test_a_table_that_does_not_fit_ends_the_command_with_one_line(
    bench: Bench, change: str, words: str
) -> None:
    sql(bench, lambda connection: connection.execute(change))
    code, log = bench.run("reminders:hf")
    assert code != 0
    assert words in log
    assert "Traceback" not in log


def test_a_missing_index_is_warned_of_once_and_the_work_goes_on(bench: Bench) -> None:
    add(bench, 1)
    bench.go()
    sql(bench, lambda connection: connection.execute("drop index idx_email_snoozes_due"))
    code, log = bench.run("reminders:hf", "--mode", "drain")
    assert code == 0, log
    ddl = (
        'create index concurrently on "email_snoozes" ("remind_at", "id") '
        'where "inactive" = false and "claimed_at" is null;'
    )
    assert log.count(ddl) == 1
    assert log.count("no index has the order column 'remind_at'") == 1
    assert count(bench, "inactive") == 1
