"""The SQL that runs: as committed for review, accepted by every server, rendered from the table.

HOLDFAST_GOLDEN=write .venv/bin/pytest tests/postgres/test_statements.py
writes tests/golden/ anew; read the difference before you commit it.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.lifecycle import LIFECYCLE, LIVE, TRANSITIONS, Effect, Guard, Status
from holdfast.settings import Names
from holdfast.stores.memory import state as memory_state
from holdfast.stores.postgres import migrate, render
from holdfast.stores.postgres.tables.fit import Fit
from holdfast.stores.postgres.tables.render import TableWords
from holdfast.stores.postgres.tables.render import render as render_table
from holdfast.table import TableQueue
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.stores.postgres.render import Statement
    from tests.servers import Database

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
GOLDEN = ROOT / "tests" / "golden"
WRITE = os.environ.get("HOLDFAST_GOLDEN") == "write"

FULL = TableQueue("email_snoozes")
BARE = TableQueue(
    "app.orders", due="ship_at", key="code", order=("priority desc", "ship_at"), max_attempts=5
)
FITS = {
    "table": Fit(FULL, ("id", "subject"), "bigint", dict(FULL.columns())),
    "article_table": Fit(
        FULL,
        ("id", "subject"),
        "bigint",
        {
            part: column
            for part, column in FULL.columns().items()
            if part not in ("heartbeat", "recoveries", "outcome")
        },
        claim_leads=True,
    ),
    "bare_table": Fit(
        BARE,
        ("code",),
        "text",
        {
            part: column
            for part, column in BARE.columns().items()
            if part in ("key", "due", "claim_token", "claimed_at", "attempts", "inactive")
        },
    ),
}
DDL = {
    "table": """create table email_snoozes (
        id bigint primary key, subject text, remind_at timestamptz, claim_token uuid,
        claimed_at timestamptz, attempts integer, inactive boolean, claimed_by text,
        heartbeat timestamptz, recoveries integer, last_error text, last_error_at timestamptz,
        updated_at timestamptz, outcome text, max_attempts integer)""",
    "bare_table": """create temporary table orders (
        code text primary key, priority integer, ship_at timestamptz, claim_token uuid,
        claimed_at timestamptz, attempts integer, inactive boolean)""",
}


def rendered() -> dict[str, Statement]:
    """Every statement, by the path of its golden file."""
    jobs = render.Statements(Names())
    files = {f"jobs/{_file(name)}": jobs[name] for name in jobs.names()}
    for folder, fit in FITS.items():
        files |= {
            f"{folder}/{_file(name)}": statement for name, statement in render_table(fit).items()
        }
    return files


def _file(name: str) -> str:
    return name.replace(":", "-") + ".sql"


def golden(statement: Statement) -> str:
    values = ", ".join(f"${n} {name}" for n, name in enumerate(statement.parameters, start=1))
    lines = [f"-- {statement.name}({values})", *statement.text.strip().splitlines()]
    return "".join(f"{line.rstrip()}\n" for line in lines)


STATEMENTS = rendered()


def reviewed(file: str, text: str) -> str:
    """What is committed, or now is to be."""
    path = GOLDEN / file
    if WRITE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return path.read_text("utf-8")


@pytest.mark.parametrize("file", STATEMENTS)
def test_a_statement_is_as_reviewed(file: str) -> None:
    text = golden(STATEMENTS[file])
    assert reviewed(file, text) == text


def test_the_script_that_installs_is_as_reviewed() -> None:
    script = migrate.install_sql(Names())
    assert reviewed("install.sql", script) == script


def test_the_script_that_wakes_workers_on_inserts_is_as_reviewed() -> None:
    script = migrate.notify_inserts_sql(Names())
    assert reviewed("notify_inserts.sql", script) == script


def test_no_golden_file_has_outlived_its_statement() -> None:
    found = {str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*.sql")}
    outlived = found - {*STATEMENTS, "install.sql", "notify_inserts.sql"}
    for file in outlived if WRITE else ():
        (GOLDEN / file).unlink()
    assert WRITE or not outlived


async def test_every_statement_can_be_prepared(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, _):
        for ddl in DDL.values():
            await connection.execute(ddl)
        for file, statement in STATEMENTS.items():
            text = statement.text.replace('"app"."orders"', '"orders"')
            prepared = await connection.prepare(text)
            assert len(prepared.get_parameters()) == len(statement.parameters), file


@pytest.mark.parametrize("names", [Names("jobs"), Names("jobs", "app")], ids=["prefix", "schema"])
def test_statements_name_only_tables_of_their_prefix_and_schema(names: Names) -> None:
    statements = render.Statements(names)
    for name in statements.names():
        assert "holdfast" not in statements[name].text
        for table in re.findall(r'(\S*"[a-z_]+")', statements[name].text):
            qualified = table.rpartition("::")[2].lstrip("(")
            assert qualified.startswith(names.table()[:-1]) or qualified == '"C"', (name, table)


def test_every_guard_and_effect_means_something_in_both_stores() -> None:
    assert set(render.GUARDS) == set(memory_state.GUARDS) == set(Guard)
    assert set(render.EFFECTS) == set(memory_state.EFFECTS) == set(Effect)


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_every_guard_and_effect_means_something_on_a_table_of_the_user(fit: Fit) -> None:
    words = TableWords(fit)
    assert all(words.guard(guard) for guard in Guard)
    assert all(words._effect(effect) is not None for effect in Effect)


def test_every_transition_is_made_by_some_statement() -> None:
    """Enqueue inserts with the column's default; the others name their target or keep the state."""
    statements = render.Statements(Names())
    texts = {name: statements[name].text for name in statements.names()}
    for row in LIFECYCLE:
        makers = [name for name in texts if name.partition(":")[0] == row.verb]
        makers += ["claim", "recover"] if row.verb == "retire" else []
        assert makers, row.name
        if row.sources and row.target not in row.sources:
            word = f"'{row.target}'::\"holdfast_status\""
            assert any(word in texts[name] for name in makers), row.name


def test_every_write_of_a_worker_names_the_token() -> None:
    for folder, statements in (("jobs", render.Statements(Names())), ("table", None)):
        for row in TRANSITIONS.values():
            if Guard.OWNED not in row.guards:
                continue
            statement = statements[row.name] if statements else render_table(FITS[folder])[row.name]
            place = statement.parameters.index("tokens") + 1
            assert re.search(rf'"?claim_token"? = \(\${place}::uuid\[\]\)', statement.text)


def test_what_leaves_no_row_behind_leaves_a_log_row_in_the_same_statement() -> None:
    statements = render.Statements(Names())
    for row in TRANSITIONS.values():
        if row.logged and row.name in statements.names():
            assert 'insert into "holdfast_log"' in statements[row.name].text, row.name


WORDS = "|".join(Status)
ALLOWED = {
    ("models.py", "canceled"): "why a handler is asked to stop, as it stands in its context",
    ("stores/postgres/tables/render.py", "picked"): "what a template calls a condition",
    ("worker/job_log.py", "failed"): "what a line of the log says to people",
}


def strings(path: Path) -> Iterator[ast.Constant]:
    """The texts in a file that are code, not documentation."""
    tree = ast.parse(path.read_text("utf-8"))
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node


def sources() -> Mapping[str, Path]:
    """By path within the package; the lifecycle itself is where the words live."""
    paths = {str(path.relative_to(SOURCE)): path for path in SOURCE.rglob("*.py")}
    del paths["lifecycle.py"]
    return paths


def test_no_state_word_stands_in_the_engine_outside_the_lifecycle() -> None:
    """In `cli/` and `web/` they are what people read: headings, names of commands, of colours."""
    found = {
        (name, node.value)
        for name, path in sources().items()
        if not name.startswith(("cli/", "web/"))
        for node in strings(path)
        if re.fullmatch(WORDS, str(node.value))
    }
    assert found <= set(ALLOWED)


def test_no_state_word_stands_in_sql_outside_the_migrations() -> None:
    quoted = re.compile(rf"'({WORDS})'")
    templates = (SOURCE / "stores" / "postgres" / "sql").rglob("*.sql")
    for path in templates:
        assert not quoted.search(path.read_text("utf-8")), path
    for name, path in sources().items():
        for node in strings(path):
            assert not quoted.search(str(node.value)), f"{name}:{node.lineno}"


def test_no_code_compares_with_a_state_word() -> None:
    for name, path in sources().items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Compare | ast.MatchValue):
                compared = {str(n.value) for n in ast.walk(node) if isinstance(n, ast.Constant)}
                assert compared.isdisjoint(Status), f"{name}:{node.lineno}"


def test_the_migrations_know_the_states_that_the_lifecycle_knows() -> None:
    script = migrate.install_sql(Names())
    every, live = (", ".join(f"'{status}'" for status in states) for states in (Status, LIVE))
    assert f"enum (\n    {every}\n)" in script
    assert f"check (status in ({live}))" in script
