"""The code blocks of the documentation, found and made runnable.

A page is one program: its Python, SQL and shell blocks run in order, on one database. A comment
before a block says what differs:

    <!-- setup                  Python that the reader does not see, run at this place
    <!-- setup sql              the same for SQL
    <!-- not run: reason -->    the next block is only read

What a block prints is compared where the page shows it: below the command of a console block, and
in a block titled "prints" that follows. There `…` stands for any text.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if "learn" not in page.parts  # The tutorial runs as a whole: see test_tutorial.py.
)

_BLOCK = re.compile(
    r"(?:<!-- setup(?P<kind> sql)?\n(?P<setup>.*?)-->)"
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
            kind = "sql" if match["kind"] else "python"
            found.append(Block(page, line, kind, match["setup"], hidden=True))
        else:
            code = textwrap.dedent(match["code"])
            language = (match["language"] or "").lower()
            reason, info = match["reason"], match["info"].strip()
            found.append(Block(page, line, language, code, not_run=reason, info=info))
    return [block for block in found if block.language in languages]


CHAPTERS = sorted((ROOT / "docs" / "learn").glob("[0-9]*.md"))
TITLE = re.compile(r'title="([^"]+)"')


def tutorial_files(*languages: str) -> dict[str, str]:
    """The files of the tutorial, as its last chapter leaves them."""
    found = [block for page in CHAPTERS for block in blocks(page, *languages)]
    return {title[1]: block.code for block in found if (title := TITLE.search(block.info))}


def program(page: Path) -> list[Block]:
    """The Python blocks of a page that run."""
    return [block for block in blocks(page, "python") if block.not_run is None]


@dataclass(frozen=True, slots=True)
class Step:
    """A block that runs, and what it is to print."""

    block: Block
    prints: str | None = None


SHELL = ("sh", "console", "bash")
RUN = ("python", "sql", *SHELL)


def steps(page: Path) -> list[Step]:
    """Every block of a page that runs, in order."""
    found = blocks(page, *RUN, "text")
    behind = [*found, None][1:]
    return [
        Step(block, after.code if after is not None and _is_output(after) else None)
        for block, after in zip(found, behind, strict=True)
        if block.language in RUN and block.not_run is None
    ]


def _is_output(block: Block) -> bool:
    return block.language == "text" and block.info == 'title="prints"'


def typed(code: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, with what it is to print."""
    for part in re.split(r"^\$ ", code, flags=re.M)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


def shows(printed: str, expected: str) -> bool:
    """Whether the parts between the ellipses stand in what was printed, in that order."""
    if not expected.strip():
        return True
    parts = [" ".join(part.split()) for part in expected.split("…")]
    rest = " ".join(printed.split())
    if not rest.startswith(parts[0]) or not rest.endswith(parts[-1]):
        return False
    for part in parts:
        _, found, rest = rest.partition(part) if part else ("", "-", rest)
        if not found:
            return False
    return True
