"""The fault harness stays outside of what is shipped, and its planted bugs fit the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "holdfast"


def test_the_shipped_package_knows_nothing_of_the_harness() -> None:
    mentions = [
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*")
        if path.suffix in (".py", ".sql")
        and any(word in path.read_text() for word in ("import chaos", "from chaos", "mutant"))
    ]

    assert mentions == []


PLANTING = """
import os
from chaos.mutants import MUTANTS, plant

assert MUTANTS
for name in MUTANTS:
    if (child := os.fork()) == 0:
        plant(name, 1.0)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(name)
"""


def test_every_planted_bug_still_fits_the_code() -> None:
    command = [sys.executable, "-c", PLANTING]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, ""), done.stderr
