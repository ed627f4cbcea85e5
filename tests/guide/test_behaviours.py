"""docs/source-behaviours.md: every behaviour has a test, and every test that is named exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "source-behaviours.md").read_text("utf-8")
HEADS = ("| behaviour | Holdfast | test |", "| behaviour | test |")
"""Of a table of differences, and of one of what is the same."""
ROW = re.compile(
    r"^\| (?P<behaviour>.+?) \| (?:(?P<ours>.*?) \| )??(?P<tests>[^|]*?) ?\|$", flags=re.M
)
ROWS = [
    (found["behaviour"], found["ours"], re.findall(r"`([\w/]+\.py(?:::\w+)+)`", found["tests"]))
    for found in ROW.finditer(PAGE)
    if found[0] not in HEADS
]


@cache
def names_in(path: Path) -> frozenset[str]:
    """The tests of a file as pytest calls them, without parameters."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}::{inner.name}"
                for inner in node.body
                if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef))
            }
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
    return frozenset(found)


def test_the_page_has_its_rows() -> None:
    assert len(ROWS) > 150
    assert len({behaviour for behaviour, _, _ in ROWS}) == len(ROWS)


def test_every_behaviour_has_a_test() -> None:
    assert [behaviour for behaviour, _, tests in ROWS if not tests] == []


def test_a_table_of_differences_says_what_holdfast_does() -> None:
    assert [behaviour for behaviour, ours, _ in ROWS if ours == ""] == []


@pytest.mark.parametrize("test", sorted({test for _, _, tests in ROWS for test in tests}))
def test_every_test_that_is_named_exists(test: str) -> None:
    file, _, name = test.partition("::")
    path = ROOT / "tests" / file
    assert path.is_file(), file
    assert name in names_in(path)


def test_every_test_of_the_guides_is_named() -> None:
    named = {test for _, _, tests in ROWS for test in tests}
    here = Path(__file__).parent
    for file in ("reliability", "database_retry", "core_concepts", "holding", "table_queue"):
        path = here / f"test_{file}.py"
        tests = {name for name in names_in(path) if name.rpartition("::")[2].startswith("test_")}
        assert {f"guide/{path.name}::{name}" for name in tests} - named == set()
