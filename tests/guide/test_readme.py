"""The programs of the README and of the page for PgQueuer's users run as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.command_line import environment

if TYPE_CHECKING:
    from tests.servers import Database

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.M | re.S)


def program(page: str) -> str:
    """The first Python block of a page."""
    found = BLOCK.search((ROOT / page).read_text("utf-8"))
    assert found is not None
    return found[1]


def python(*arguments: str, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def directory(server_directory: Path) -> Path:
    return server_directory


def test_the_program_of_the_readme_prints_its_result(pg18: Database, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(program("README.md"), "utf-8")
    printed = python("shop.py", cwd=tmp_path, DATABASE_URL=pg18.dsn)
    assert printed.splitlines() == ["order 7 is on its way by air"]


def test_the_program_for_pgqueuers_users_greets_and_succeeds(directory: Path) -> None:
    (directory / "first.py").write_text(program("docs/from-pgqueuer.md"), "utf-8")
    assert python("first.py", cwd=directory).splitlines() == [
        "hello world",
        "[(1, <Status.SUCCESSFUL: 'successful'>)]",
    ]


def test_the_module_of_the_readme_runs_under_the_command(pg18: Database, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(program("README.md"), "utf-8")

    def holdfast(*arguments: str) -> str:
        return python("-m", "holdfast", *arguments, cwd=tmp_path, DATABASE_URL=pg18.dsn)

    holdfast("install")
    holdfast("enqueue", "shop.ship", '{"order_id": 7}')
    holdfast("run", "shop:hf", "--mode", "drain")
    assert '"successful"' in holdfast("log", "--json")


def test_the_readme_is_short() -> None:
    words = (ROOT / "README.md").read_text("utf-8").split()
    assert len(words) <= 900, "tables and code included"
