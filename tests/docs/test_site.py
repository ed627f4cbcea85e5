"""The site builds without a warning and asks no other host for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.docs.blocks import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("mkdocs", reason="MkDocs is not installed")

LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"(https?:)?//", re.I
)
IMPORTED = re.compile(r"@import|url\(\s*['\"]?https?:", re.I)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(directory)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not LOADED.search(page.read_text("utf-8")), page.relative_to(site)
    for sheet in site.rglob("*.css"):
        assert not IMPORTED.search(sheet.read_text("utf-8")), sheet.relative_to(site)


def test_every_command_and_error_has_a_place(site: Path) -> None:
    from holdfast import errors

    commands = (site / "reference" / "command.html").read_text("utf-8")
    for name in ("holdfast-run", "holdfast-enqueue", "holdfast-requeue", "holdfast-install"):
        assert f'id="{name}"' in commands
    page = (site / "reference" / "errors.html").read_text("utf-8")
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.HoldfastError):
            assert f'id="{name.lower()}"' in page


def test_a_search_finds_the_words_of_everyday_questions(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text("utf-8").lower()
    for word in ("celery", "procrastinate", "sqlalchemy", "requeue", "heartbeat_timeout"):
        assert word in index
