"""SECURITY.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_is_named_exists() -> None:
    page = (ROOT / "SECURITY.md").read_text("utf-8")
    files = {file.name for file in (ROOT / "tests").rglob("test_*.py")}
    named = re.findall(r"`(?:tests/[a-z_/]+/)?(test_\w+\.py)`", page)
    assert len(named) > 20
    assert set(named) <= files
    for path in re.findall(r"`(tests/[a-z_/.]+)`", page):
        assert (ROOT / path).exists(), path
