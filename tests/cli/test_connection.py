"""How a command finds its database, and what it says when it cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast.cli.connect import Given, Options, resolve
from holdfast.errors import InvalidInput
from tests.cli.command_line import holdfast

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import Database

ALL = {
    "HOLDFAST_DSN": "postgresql://first/a",
    "DATABASE_URL": "postgresql://second/b",
    "PGHOST": "third",
    "PGDATABASE": "c",
}


def test_the_command_line_wins_over_the_environment() -> None:
    assert resolve(Given(dsn="postgresql://typed/x"), ALL).dsn == "postgresql://typed/x"
    options = resolve(Given(embedded="data"), ALL)
    assert (options.dsn, options.embedded, options.source) == (
        "embedded:data",
        "data",
        "--embedded",
    )


def test_the_variables_have_an_order() -> None:
    left = dict(ALL)
    for variable in ("HOLDFAST_DSN", "DATABASE_URL"):
        options = resolve(Given(), left)
        assert (options.dsn, options.source) == (left.pop(variable), variable)
    assert resolve(Given(), left).dsn == "postgresql:///c?host=third"
    assert resolve(Given(), {}) == Options()


def test_pg_variables_are_spelled_out_and_escaped() -> None:
    given = {"PGHOST": "/run/pg", "PGPORT": "5433", "PGUSER": "a@b", "PGDATABASE": "x/y"}
    options = resolve(Given(), given)
    assert conninfo_to_dict(options.target) == {
        "host": "/run/pg",
        "port": "5433",
        "user": "a@b",
        "dbname": "x/y",
    }


def test_an_option_after_the_command_wins_over_one_before_it() -> None:
    before = Given(dsn="postgresql://before/x", prefix="one", schema="s", debug=True)
    after = Given(embedded="data", prefix="two").over(before)
    assert after == Given(embedded="data", prefix="two", schema="s", debug=True)


@pytest.mark.parametrize("name", ["dsn", "embedded", "prefix", "schema"])
def test_an_empty_option_is_refused_and_never_means_what_the_environment_names(name: str) -> None:
    """As from `--dsn "$STAGING_DSN"` with the variable unset."""
    with pytest.raises(InvalidInput, match=f"--{name} is empty"):
        resolve(replace(Given(), **{name: ""}), ALL)  # type: ignore[arg-type]
    before = Given(dsn="postgresql://before/x", prefix="one", schema="s")
    with pytest.raises(InvalidInput, match=f"--{name} is empty"):
        resolve(replace(Given(), **{name: ""}).over(before), {})  # type: ignore[arg-type]


def test_names_of_tables_come_from_the_environment_too() -> None:
    options = resolve(Given(), {"HOLDFAST_PREFIX": "jobs", "HOLDFAST_SCHEMA": "app"})
    assert (options.prefix, options.schema) == ("jobs", "app")
    assert resolve(Given(prefix="typed"), {"HOLDFAST_PREFIX": "jobs"}).prefix == "typed"


def test_a_description_has_no_password_in_it() -> None:
    options = resolve(Given(dsn="postgresql://user:s3cret@host:5432/app"), {})
    assert options.describe() == "host:5432, database app"
    with pytest.raises(InvalidInput, match="--embedded, which needs nothing"):
        Options().describe()


def test_without_a_database_the_way_to_name_one_is_told() -> None:
    holdfast("failed").complains(2, "--dsn", "HOLDFAST_DSN", "DATABASE_URL", "PGHOST", "--embedded")


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_server_that_is_not_there_is_exit_code_3(driver: str) -> None:
    dsn = "postgresql://user:s3cret@127.0.0.1:1/app"
    done = holdfast("failed", "--driver", driver, dsn=dsn)
    done.complains(3, "127.0.0.1:1", "database app")
    assert "s3cret" not in done.err


def test_a_database_that_is_not_there_is_exit_code_3(pg: Database) -> None:
    done = holdfast("failed", "--dsn", pg.server_dsn.rpartition("/")[0] + "/nowhere")
    done.complains(3, "nowhere")


def test_a_dsn_that_cannot_be_read_is_exit_code_2_and_not_repeated() -> None:
    holdfast("failed", dsn="mysql://root@localhost/app").complains(2, "mysql", "postgresql://")
    done = holdfast("failed", dsn="postgresql://user:s3/cret@host/app")
    done.complains(2, "%-escapes")
    assert "cret" not in done.err


def test_debug_shows_where_it_happened() -> None:
    done = holdfast("--debug", "failed", "--dsn", "postgresql://127.0.0.1:1/app")
    assert done.code == 3
    assert "Traceback" in done.err


def test_pg_variables_reach_the_server(pg18: Database) -> None:
    given = conninfo_to_dict(pg18.server_dsn)
    done = holdfast(
        *("install", "--schema", pg18.schema, "--driver", "psycopg"),
        PGHOST=str(given["host"]),
        PGPORT=str(given["port"]),
        PGUSER=str(given["user"]),
        PGDATABASE=str(given["dbname"]),
    )
    assert done.code == 0, done
    assert str(given["dbname"]) in done.out


def test_an_embedded_database_needs_nothing_else(server_directory: Path) -> None:
    place = f"--embedded={server_directory}"
    assert holdfast("install", place).code == 0
    assert holdfast(place, "enqueue", "greet", "world").code == 0
    sizes = holdfast("stats", "--json", "--dsn", f"embedded:{server_directory}").json["queue"]
    assert [(size["entrypoint"], size["count"]) for size in sizes] == [("greet", 1)]
