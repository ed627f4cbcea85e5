"""The code blocks of the documentation, found and made runnable.

A page is one program: its Python blocks run in order in one namespace. A comment before a block
says what differs:

    <!-- setup                  Python that the reader does not see, run before the blocks
    <!-- not run: reason -->    the next block is only read
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if "learn" not in page.parts  # The tutorial runs as a whole: see test_tutorial.py.
)

_BLOCK = re.compile(
    r"(?:<!-- setup\n(?P<setup>.*?)-->)"
    r"|(?:<!-- not run: (?P<reason>[^>]*?) -->\n+)?^(?P<indent> *)```(?P<language>\w+)?"
    r"(?P<info>[^\n]*)\n(?P<code>.*?)^(?P=indent)```",
    flags=re.M | re.S,
)

PRELUDE = """\
import asyncio
from collections.abc import *
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
import holdfast
from holdfast import *
hf = Holdfast.in_memory()
DSN = ""
"""
"""What every page may use without saying so. DSN is a database of its own when a page runs."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code on a page."""

    page: Path
    line: int
    language: str
    code: str
    hidden: bool = False
    not_run: str | None = None
    info: str = ""
    """What stands behind the language, such as a title."""

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    text = page.read_text("utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code" if match["code"] is not None else 0))
        if match["setup"] is not None:
            found.append(Block(page, line, "python", match["setup"], hidden=True))
        else:
            code = textwrap.dedent(match["code"])
            language = (match["language"] or "").lower()
            reason, info = match["reason"], match["info"].strip()
            found.append(Block(page, line, language, code, not_run=reason, info=info))
    return [block for block in found if block.language in languages]


def program(page: Path) -> list[Block]:
    """The Python blocks of a page that run."""
    return [block for block in blocks(page, "python") if block.not_run is None]
