"""mypy and basedpyright accept good calls of tasks and refuse each bad one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOOD, BAD = HERE / "good.py", HERE / "bad.py"
MYPY_LINE = re.compile(r"tests/typing/(?P<file>\w+\.py):(?P<line>\d+)(?::\d+)?: error:")


def _run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, cwd=ROOT
    )
    return done.stdout


@cache
def _mypy() -> dict[str, set[int]]:
    """The lines with errors in each file, of one run for both."""
    found = _run("mypy", "--strict", "--config-file", "", str(GOOD), str(BAD))
    errors: dict[str, set[int]] = {GOOD.name: set(), BAD.name: set()}
    for match in map(MYPY_LINE.match, found.splitlines()):
        if match:
            errors[match["file"]].add(int(match["line"]))
    return errors


@cache
def _pyright() -> dict[str, set[int]]:
    report = json.loads(
        _run("basedpyright", "--outputjson", "--level", "error", str(GOOD), str(BAD))
    )
    assert report["summary"]["filesAnalyzed"] == 2
    errors: dict[str, set[int]] = {GOOD.name: set(), BAD.name: set()}
    for each in report["generalDiagnostics"]:
        if each["severity"] == "error":
            errors[Path(each["file"]).name].add(each["range"]["start"]["line"] + 1)
    return errors


@pytest.mark.parametrize("check", [_mypy, _pyright])
def test_good_calls_are_accepted(check: Callable[[], dict[str, set[int]]]) -> None:
    assert check()[GOOD.name] == set()


@pytest.mark.parametrize("check", [_mypy, _pyright])
def test_every_bad_call_is_refused_and_no_other_line(
    check: Callable[[], dict[str, set[int]]],
) -> None:
    lines = BAD.read_text("utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# bad")}
    assert len(marked) > 10
    assert check()[BAD.name] == marked
