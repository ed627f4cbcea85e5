"""The pytest plugin in projects of its users: with pytest-asyncio, with anyio, and not used."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SUITE = """
import pytest
from holdfast import TaskGroup

tasks = TaskGroup()
shipped = []

@tasks.task
async def ship(order: int) -> None:
    shipped.append(order)

{mark}
@pytest.mark.parametrize("kind", ["holdfast", "holdfast_pg"])
async def test_an_order_is_shipped(kind, request, holdfast, holdfast_pg):
    queue = holdfast if kind == "holdfast" else holdfast_pg
    queue.include(tasks)
    await ship.enqueue(1)
    await queue.assert_enqueued(ship, order=1)
    await queue.drain()
    assert shipped.pop() == 1
    await queue.refute_enqueued(ship)

def test_without_an_event_loop(holdfast_pg):
    holdfast_pg.include(tasks)
"""
UNUSED = """
import sys

def test_nothing_of_holdfast_is_imported():
    assert not [name for name in sys.modules if name.split(".")[0] in ("holdfast", "asyncpg")]
"""


def run(folder: Path, suite: str, *options: str) -> str:
    (folder / "test_suite.py").write_text(suite)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:randomly"]
    if "no:asyncio" not in options:
        command += ["-o", "asyncio_default_fixture_loop_scope=function"]
    command += options
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    return ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("mark", "options"),
    [
        ("@pytest.mark.asyncio", ("-o", "asyncio_mode=strict")),
        ("", ("-o", "asyncio_mode=auto")),
        ("@pytest.mark.anyio", ("-p", "no:asyncio", "-k", "not trio")),
    ],
    ids=["asyncio", "auto", "anyio"],
)
def test_the_fixtures_work_in_a_suite_of_each_kind(
    tmp_path: Path, holdfast_pg_dsn: str, mark: str, options: tuple[str, ...]
) -> None:
    said = run(tmp_path, SUITE.replace("{mark}", mark), "--holdfast-dsn", holdfast_pg_dsn, *options)
    assert "3 passed" in said, said


def test_a_suite_that_does_not_use_it_imports_nothing(tmp_path: Path) -> None:
    said = run(tmp_path, UNUSED)
    assert "1 passed" in said, said
