"""mypy and basedpyright accept good calls of tasks and refuse each bad one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOOD, BAD = HERE / "good.py", HERE / "bad.py"
MYPY_LINE = re.compile(r":(\d+)(?::\d+)?: error:")


def _run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, cwd=ROOT
    )
    return done.stdout


def _mypy(file: Path) -> set[int]:
    found = _run("mypy", "--strict", "--config-file", "", str(file))
    lines = [line for line in found.splitlines() if line.startswith("tests")]
    return {int(match[1]) for line in lines if (match := MYPY_LINE.search(line))}


def _pyright(file: Path) -> set[int]:
    report = json.loads(_run("basedpyright", "--outputjson", "--level", "error", str(file)))
    assert report["summary"]["filesAnalyzed"] == 1
    return {
        each["range"]["start"]["line"] + 1
        for each in report["generalDiagnostics"]
        if each["severity"] == "error"
    }


@pytest.mark.parametrize("check", [_mypy, _pyright])
def test_good_calls_are_accepted(check: object) -> None:
    assert callable(check)
    assert check(GOOD) == set()


@pytest.mark.parametrize("check", [_mypy, _pyright])
def test_every_bad_call_is_refused_and_no_other_line(check: object) -> None:
    assert callable(check)
    lines = BAD.read_text("utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# bad")}
    assert len(marked) > 10
    assert check(BAD) == marked
