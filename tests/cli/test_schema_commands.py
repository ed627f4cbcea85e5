"""install, upgrade, verify, uninstall and sql."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from holdfast.settings import Names
from holdfast.stores.postgres.migration import migrations
from holdfast.stores.postgres.render import statements
from tests.cli.command_line import holdfast, inside
from tests.postgres.released import schema_of

if TYPE_CHECKING:
    from tests.servers import Database


def _tables(database: Database) -> set[str]:
    with psycopg.connect(database.server_dsn) as connection:
        rows = connection.execute(
            "select tablename from pg_tables where schemaname = %s", [database.schema]
        )
        return {name for (name,) in rows}


def test_tables_come_are_verified_and_go(pg: Database) -> None:
    holdfast("verify", dsn=pg.dsn).complains(4, "holdfast install")
    inside("upgrade", "--dsn", pg.dsn).complains(4, "holdfast install")
    inside("failed", "--dsn", pg.dsn).complains(4, "holdfast install")

    done = holdfast("install", dsn=pg.dsn)
    assert (done.code, done.err) == (0, "")
    assert "applied 0001_initial" in done.out
    assert _tables(pg) >= {"holdfast", "holdfast_log", "holdfast_schedules"}
    assert "nothing to do" in inside("install", "--dsn", pg.dsn).out
    assert "nothing to do" in inside("upgrade", "--dsn", pg.dsn).out
    told = inside("verify", "--json", "--dsn", pg.dsn).json
    assert told == {"ok": True, "error": None, "notify_inserts": False}

    done = holdfast("uninstall", dsn=pg.dsn, stdin=b"n\n")
    assert done.code == 1
    assert "database tests_" in done.err
    assert "with 0 jobs" in done.err
    assert _tables(pg)
    assert holdfast("uninstall", dsn=pg.dsn, stdin=b"y\n").code == 0
    assert not _tables(pg)
    assert inside("uninstall", "--yes", "--dsn", pg.dsn).code == 0


def test_install_adds_and_removes_the_trigger_that_wakes_workers(pg: Database) -> None:
    done = inside("install", "--notify-inserts", "--dsn", pg.dsn)
    assert "rows that plain SQL inserts wake workers" in done.out
    assert inside("verify", "--json", "--dsn", pg.dsn).json["notify_inserts"] is True
    assert "wake workers" in inside("verify", "--dsn", pg.dsn).out
    done = inside("install", "--no-notify-inserts", "--dsn", pg.dsn)
    assert "wait for the next poll" in done.out
    assert inside("verify", "--json", "--dsn", pg.dsn).json["notify_inserts"] is False
    with psycopg.connect(pg.dsn, autocommit=True) as connection:
        connection.execute(inside("sql", "notify-inserts").out.encode())
    assert inside("verify", "--json", "--dsn", pg.dsn).json["notify_inserts"] is True
    inside("install", "--breakers-only", "--notify-inserts", "--dsn", pg.dsn).complains(
        2, "notify_inserts"
    )


def test_prefix_and_schema_choose_other_tables(pg18: Database) -> None:
    place = ("--dsn", pg18.server_dsn, "--schema", pg18.schema)
    assert inside("install", *place, "--prefix", "jobs").code == 0
    assert inside(*place, "--prefix", "jobs", "verify").code == 0
    inside("verify", *place).complains(4, "prefix 'holdfast'", pg18.schema)
    assert "jobs_log" in _tables(pg18)


def test_tables_of_a_newer_version_are_refused(pg18: Database) -> None:
    inside("install", "--dsn", pg18.dsn)
    with psycopg.connect(pg18.dsn, autocommit=True) as connection:
        connection.execute("insert into holdfast_migrations values (9999, 'future')")
    inside("verify", "--dsn", pg18.dsn).complains(4, "version 9999")
    done = inside("verify", "--json", "--dsn", pg18.dsn)
    assert done.code == 4
    assert "9999" in done.json["error"]


def test_upgrade_prints_a_plan_and_changes_nothing(pg18: Database) -> None:
    inside("upgrade", "--plan", "--dsn", pg18.dsn).complains(4, "holdfast install")
    with psycopg.connect(pg18.dsn, autocommit=True) as connection:
        connection.execute(schema_of("0.1").encode())
    done = inside("upgrade", "--plan", "--dsn", pg18.dsn)
    assert all(m.name in done.out for m in migrations()[7:])
    planned = inside("upgrade", "--plan", "--json", "--dsn", pg18.dsn).json["plan"]
    assert [entry["name"] for entry in planned] == [m.name for m in migrations()[7:]]
    if migrations()[7:]:
        inside("verify", "--dsn", pg18.dsn).complains(4, "version 7, this Holdfast needs")
    done = holdfast("upgrade", dsn=pg18.dsn)
    assert done.code == 0
    assert all(f"applied {m.name}" in done.err for m in migrations()[7:])
    assert inside("upgrade", "--plan", "--dsn", pg18.dsn).out == "nothing to do\n"


def test_the_printed_scripts_install_and_uninstall(pg18: Database) -> None:
    with psycopg.connect(pg18.dsn, autocommit=True) as connection:
        connection.execute(holdfast("sql", "install").out.encode())
        assert inside("verify", "--dsn", pg18.dsn).code == 0
        connection.execute(inside("sql", "uninstall").out.encode())
    assert not _tables(pg18)


def test_sql_is_deterministic_and_needs_no_database() -> None:
    for name in ("install", "claim"):
        # Two processes, because the order of a set differs between them.
        first, second = holdfast("sql", name), inside("sql", name)
        assert (first.code, first.err) == (0, "")
        assert first == second


def test_upgrade_sql_begins_after_the_version_installed() -> None:
    everything = inside("sql", "upgrade").out
    assert everything.startswith("begin;\n")
    assert inside("sql", "upgrade", "--since", "9999").out.startswith("--")


def test_every_statement_of_the_engine_is_printed_as_sql(pg18: Database) -> None:
    inside("install", "--dsn", pg18.dsn)
    names = inside("sql", "list").out.split()
    scripts = {"install", "uninstall", "upgrade", "grants", "notify-inserts"}
    assert set(names) == {*scripts, *statements(Names()).names()}
    with psycopg.connect(pg18.dsn) as connection:
        for name in statements(Names()).names():
            text = inside("sql", name).out
            assert text.startswith(f"-- {name}")
            # The server parses the whole text, so anything but SQL would be an error.
            connection.execute(f'prepare "{name}" as {text}'.encode())


@pytest.mark.parametrize("verb", ["enqueue", "retire"])
def test_a_verb_with_variants_prints_them_all(verb: str) -> None:
    variants = [name for name in statements(Names()).names() if name.startswith(f"{verb}:")]
    text = inside("sql", verb).out
    assert [line for line in text.splitlines() if line.startswith("-- ")] == [
        line for name in variants for line in inside("sql", name).out.splitlines()[:1]
    ]


def test_sql_honours_prefix_and_schema() -> None:
    text = inside("sql", "claim", "--prefix", "jobs", "--schema", "app").out
    assert '"app"."jobs"' in text
    assert "holdfast" not in text


def test_verify_reports_leases_without_bookkeeping(pg18: Database) -> None:
    inside("install", "--dsn", pg18.dsn)
    inside("enqueue", "mail", "--dsn", pg18.dsn)
    with psycopg.connect(pg18.dsn, autocommit=True) as connection:
        connection.execute(
            "update holdfast set status = 'picked', claim_token = gen_random_uuid(),"
            " claimed_by = 'gone', claimed_at = now(), heartbeat = now(), lease = '30 s'"
        )
    done = holdfast("verify", dsn=pg18.dsn)
    done.complains(4, "1 jobs are leased without a row in", "holdfast_leases", "running worker")
    assert inside("verify", "--json", "--dsn", pg18.dsn).json["ok"] is False
