"""The examples of the README run as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
EXAMPLES = re.findall(r"<!-- example: [^>]*-->\n```python\n(.*?)```", README, flags=re.S)


def python(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def directory(server_directory: Path) -> Path:
    return server_directory


def test_the_first_example_greets_and_succeeds(directory: Path) -> None:
    (directory / "first.py").write_text(EXAMPLES[0], "utf-8")
    assert python("first.py", cwd=directory).splitlines() == [
        "hello world",
        "[(1, <Status.SUCCESSFUL: 'successful'>)]",
    ]


def test_the_module_runs_under_the_command(directory: Path) -> None:
    (directory / "myapp.py").write_text(EXAMPLES[1], "utf-8")
    holdfast = ("-m", "holdfast", "--embedded=my-first-queue")
    python(*holdfast, "install", cwd=directory)
    python(*holdfast, "enqueue", "send_email", "hello", cwd=directory)
    python("-m", "holdfast", "run", "myapp:hf", "--mode", "drain", cwd=directory)
    assert '"successful"' in python(*holdfast, "log", "--json", cwd=directory)
