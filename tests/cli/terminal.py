"""A terminal of 80 columns inside this process, and how to read a table on it."""

from __future__ import annotations

import contextlib
import io
import re
from typing import TYPE_CHECKING

import pytest

from holdfast.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

_STYLES = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """Takes what is written and says that it is a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """What a person reads: without colours and without what fills a line up."""
        return [line.rstrip() for line in _STYLES.sub("", self.getvalue()).splitlines()]


@contextlib.contextmanager
def terminal(columns: int = 80) -> Iterator[Terminal]:
    """Standard output is a terminal of that width."""
    screen = Terminal()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(screen):
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("TERM", "xterm-256color")
        yield screen


def on_a_terminal(*arguments: str, columns: int = 80) -> list[str]:
    """The lines that the command prints there; each of them fits."""
    with terminal(columns) as screen, contextlib.suppress(SystemExit):
        main(arguments)
    assert max(map(len, screen.lines)) <= columns, screen.getvalue()
    return screen.lines


def columns_of(lines: list[str]) -> dict[str, str]:
    """The one row of a table by heading; what was folded is joined again, without its spaces."""
    rule = next(n for n, line in enumerate(lines) if set(line.strip()) == {"─"})
    above = next((n for n in range(rule - 1, -1, -1) if not lines[n]), -1) + 1
    block = [*lines[above:rule], *lines[rule + 1 :]]
    wide = max(map(len, block))
    filled = [line.ljust(wide) for line in block]
    # Between two columns are two places that are blank in every line.
    gaps = {n for n in range(wide) if all(line[n] == " " for line in filled)}
    starts = [0, *(n for n in range(2, wide) if n not in gaps and {n - 1, n - 2} <= gaps)]
    found = {}
    for start, end in zip(starts, [*starts[1:], wide], strict=True):
        parts = [line[start:end].strip() for line in filled]
        heading = " ".join(part for part in parts[: rule - above] if part)
        found[heading] = "".join(parts[rule - above :]).replace(" ", "")
    return found
