"""The programs of the README and of the page for PgQueuer's users run as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.M | re.S)


def program(page: str) -> str:
    """The first Python block of a page."""
    found = BLOCK.search((ROOT / page).read_text("utf-8"))
    assert found is not None
    return found[1]


def python(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def directory(server_directory: Path) -> Path:
    return server_directory


def test_the_program_of_the_readme_prints_its_result(directory: Path) -> None:
    (directory / "shop.py").write_text(program("README.md"), "utf-8")
    assert python("shop.py", cwd=directory).splitlines() == ["order 7 is on its way by air"]


def test_the_program_for_pgqueuers_users_greets_and_succeeds(directory: Path) -> None:
    (directory / "first.py").write_text(program("docs/from-pgqueuer.md"), "utf-8")
    assert python("first.py", cwd=directory).splitlines() == [
        "hello world",
        "[(1, <Status.SUCCESSFUL: 'successful'>)]",
    ]


def test_the_module_of_the_readme_runs_under_the_command(directory: Path) -> None:
    (directory / "shop.py").write_text(program("README.md"), "utf-8")
    holdfast = ("-m", "holdfast", "--embedded=shop-data")
    python(*holdfast, "install", cwd=directory)
    python(*holdfast, "enqueue", "shop.ship", '{"order_id": 7}', cwd=directory)
    python("-m", "holdfast", "run", "shop:hf", "--mode", "drain", cwd=directory)
    assert '"successful"' in python(*holdfast, "log", "--json", cwd=directory)
