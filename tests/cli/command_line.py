"""Runs the real command: as a process of its own, or inside this one where only words matter."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from holdfast.cli import main

COMMAND = [sys.executable, "-m", "holdfast"]
EVIL = "\x1b]0;owned\x07\x1b[31mred\u202e\x9b2J"
"""What a terminal would obey: a title, a colour, a reversal of the text, a cleared screen."""

_KEPT = ("PATH", "HOME", "LANG", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def complains(self, code: int, *words: str) -> None:
        """It ended with that code and exactly one line, which has these words in it."""
        assert self.code == code, self
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("holdfast: "), self.err
        assert "Traceback" not in self.out + self.err
        for word in words:
            assert word in self.err, self.err


def environment(**variables: str) -> dict[str, str]:
    """Nothing of the caller's that could name a database."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | variables


def holdfast(
    *arguments: str | bytes, dsn: str | None = None, stdin: bytes = b"", **variables: str
) -> Done:
    """Run the command as a process; `dsn` is handed over as HOLDFAST_DSN."""
    if dsn is not None:
        variables["HOLDFAST_DSN"] = dsn
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        env=environment(**variables),
        timeout=120,
        check=False,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def inside(*arguments: str) -> Done:
    """Run the command in this process, for cases that need no process of their own."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
    return Done(code, out.getvalue(), err.getvalue())
