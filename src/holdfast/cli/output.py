"""The output of commands: tables for people, JSON for scripts, nothing that a terminal would
obey."""

from __future__ import annotations

import base64
import json
import sys
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.lifecycle import SPOKEN, Status

_UNITS = (("d", 86400), ("h", 3600), ("m", 60))
# Without these two many scripts and emoji cannot be written.
_JOINERS = "\u200c\u200d"
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
# No line of a table that goes into a pipe is ever folded.
_PIPE_WIDTH = 10_000
_LONGEST_CELL = 300
_WIDE = 130
_GAP = 2
# On a narrow screen the first column, which names the row, keeps the width of a UUID while each of
# the others still has this much.
_NAME, _LEAST = 36, 10

STYLES: Mapping[Status, str] = {
    Status.QUEUED: "cyan",
    Status.PICKED: "blue",
    Status.SUCCESSFUL: "green",
    Status.EXCEPTION: "red",
    Status.FAILED: "yellow",
    Status.CANCELED: "magenta",
    Status.DELETED: "dim",
}


def console() -> Console:
    """Standard output; colour only on a terminal and unless NO_COLOR is set."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False)


def is_wide(columns: int) -> bool:
    """Whether a line has that many; a pipe has."""
    return console().width >= columns


def clean(text: str, *, keep_lines: bool = False) -> str:
    """Escape what a terminal would act on; job data may come from anywhere."""
    kept = _JOINERS + ("\n\t" if keep_lines else "")
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escape(letter)
        if unicodedata.category(letter) in _UNSAFE and letter not in kept
        else letter
        for letter in text
    )


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def shorten(text: str | None, longest: int = _LONGEST_CELL) -> str:
    """One clean line of at most that many characters."""
    line = clean(text or "")
    return line if len(line) <= longest else line[: longest - 1] + "…"


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    right: Collection[str] = (),
    spare: Collection[str] = (),
) -> None:
    """Print rows under headings; `right` names numbers, `spare` what a narrow screen misses.

    What is too long for its column goes on below it.
    """
    screen = console()
    places = [n for n, name in enumerate(columns) if name not in spare or screen.width >= _WIDE]
    names = [columns[n] for n in places]
    body = [[_cell(row[n]) for n in places] for row in rows]
    wanted = [
        max([cell_len(name), *(cells[n].cell_len for cells in body)])
        for n, name in enumerate(names)
    ]
    least = [
        wide if name in right else min(wide, _LEAST if n else _NAME)
        for n, (name, wide) in enumerate(zip(names, wanted, strict=True))
    ]
    ruled = box.SIMPLE_HEAD if screen.is_terminal else None
    # With a rule there is a space between two columns already.
    padding = (0, _GAP - 1 if ruled else _GAP, 0, 0)
    grid = Table(box=ruled, show_edge=False, pad_edge=False, padding=padding)
    room = screen.width - _GAP * (len(names) - 1)
    for name, wide in zip(names, fit(wanted, least, room), strict=True):
        side: Literal["left", "right"] = "right" if name in right else "left"
        grid.add_column(name, justify=side, width=wide, overflow="fold")
    for cells in body:
        grid.add_row(*cells)
    if screen.is_terminal:
        screen.print(grid)
        return
    with screen.capture() as capture:
        screen.print(grid)
    for row in capture.get().splitlines():
        # A program that reads a pipe need not strip the padding of the last column.
        screen.print(Text(row.rstrip()), soft_wrap=True)


def _cell(value: str | Text) -> Text:
    return value if isinstance(value, Text) else Text(shorten(value))


def fit(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Take from the biggest until all have room: down to `least`, and below only if need be."""
    given = list(wanted)
    for _ in range(sum(wanted) - room):
        ample = [n for n, much in enumerate(given) if much > least[n]]
        some = ample or [n for n, much in enumerate(given) if much > 1]
        if not some:
            break
        given[max(some, key=lambda n: (given[n], n))] -= 1
    return given


def progress_bar(fraction: float) -> str:
    """Progress as ten blocks and a percentage."""
    full = round(fraction * 10)
    return f"{'█' * full}{'░' * (10 - full)} {fraction:.0%}"


def spoken(status: Status) -> str:
    """The word for a state in texts for people, with its own word where that is another."""
    return SPOKEN[status] if SPOKEN[status] == status else f"{SPOKEN[status]} ({status})"


def coloured(status: Status) -> Text:
    return Text(spoken(status), style=STYLES[status])


def line(text: str | Text = "", *, style: str = "") -> None:
    """Print one line (or several, already clean) for a person."""
    console().print(text if isinstance(text, Text) else Text(text, style=style), soft_wrap=True)


def paragraph(text: Text, indent: int) -> None:
    """Print a text that a terminal breaks between words, its later lines indented.

    A pipe gets one line, as does a text that says `no_wrap`, such as a command to copy.
    """
    screen = console()
    if text.no_wrap or not screen.is_terminal or text.cell_len <= screen.width:
        line(text)
        return
    for n, part in enumerate(text.wrap(screen, max(_LEAST, screen.width - indent))):
        part.rstrip()
        line(Text(" " * indent if n else "") + part)


def as_json(value: Any) -> str:
    """ASCII only, so that no control character of any alphabet reaches a terminal."""
    return _ascii(json.dumps(value, default=plain, indent=2))


def compact_json(value: Any) -> str:
    """The same in one line."""
    return _ascii(json.dumps(value, default=plain))


def _ascii(text: str) -> str:
    return text.replace("\x7f", "\\u007f")


def print_json(value: Any) -> None:
    sys.stdout.write(as_json(value) + "\n")


def plain(value: Any) -> Any:
    """The JSON form of a value: ISO times in UTC, durations in seconds, enums as their word."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case timedelta():
            return value.total_seconds()
        case Enum():
            return value.value
        case _:
            return str(value)


def payload_fields(payload: bytes | None) -> dict[str, Any]:
    """A payload as text where it is UTF-8, else as base64; `payload_encoding` says which."""
    if payload is None:
        return {"payload": None, "payload_encoding": None, "payload_size": 0}
    try:
        text, encoding = payload.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(payload).decode("ascii"), "base64"
    return {"payload": text, "payload_encoding": encoding, "payload_size": len(payload)}


def absolute(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def to_the_millisecond(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(" ", "milliseconds").replace("+00:00", "Z")


def relative(instant: datetime, now: datetime) -> str:
    """How long ago, or how soon."""
    gap = (now - instant).total_seconds()
    return f"{duration(gap)} ago" if gap >= 0 else f"in {duration(-gap)}"


def when(instant: datetime | None, now: datetime) -> str:
    """A time both as an age and as an instant."""
    return "" if instant is None else f"{absolute(instant)} ({relative(instant, now)})"


def moment(instant: datetime | None, now: datetime) -> str:
    """For a cell of a table: both ways where the screen is wide enough."""
    if instant is None or console().width >= _WIDE:
        return when(instant, now)
    return relative(instant, now)


def duration(span: timedelta | float) -> str:
    """Two units at most: `3d 4h`, `5m 2s`, `1.2s`, `15ms`."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    parts: list[str] = []
    for unit, size in (*_UNITS, ("s", 1)):
        if whole >= size or parts:
            parts.append(f"{whole // size}{unit}")
            whole %= size
    return " ".join(part for part in parts[:2] if not part.startswith("0"))


def size(octets: int) -> str:
    """`0 B`, `1.5 KB`, `2.0 MB`."""
    amount = float(octets)
    for unit in ("B", "KB"):
        if amount < 1024:
            return f"{octets} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} MB"
