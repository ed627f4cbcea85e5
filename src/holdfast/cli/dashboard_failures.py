"""The latest failures with their tracebacks, on a terminal or in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.cli.dashboard_render import failure_table, headline
from holdfast.cli.output import clean, coloured, relative, shorten
from holdfast.monitor.snapshot import FailureRow, Snapshot

_NO_TRACEBACK = "No traceback: the handler raised nothing, or the log row was deleted."
_LONGEST_NAME = 28


def render_failures(snapshot: Snapshot) -> RenderableType:
    """All of them, each with its whole traceback."""
    parts: list[RenderableType] = [headline(snapshot)]
    if not snapshot.failures:
        parts += [Text(), Text("No failures.", style="dim")]
    for row in snapshot.failures:
        parts += [Text(), _title(row, snapshot), *(Text(each) for each in _lines(row))]
    return Group(*parts)


def failure_screen(snapshot: Snapshot, chosen: int, room: int) -> list[RenderableType]:
    """The list, and the traceback of the chosen failure, in `room` lines.

    The end of a traceback says what went wrong, so of a long one the last lines are kept.
    """
    rows = snapshot.failures
    if not rows:
        return [failure_table(snapshot).draw(0)]
    chosen = min(chosen, len(rows) - 1)
    # A third for the list, with its title and headings. The chosen row is always in it.
    most = max(1, min(len(rows), room // 3 - 2))
    first = max(0, chosen - most + 1)
    listed = failure_table(snapshot, chosen).draw(most, spaced=False, first=first)
    title = Text.assemble("\n", _title(rows[chosen], snapshot))
    return [listed, title, *_tail(_lines(rows[chosen]), rows[chosen], room - most - 4)]


def _title(row: FailureRow, snapshot: Snapshot) -> Text:
    age = relative(min(row.at, snapshot.at), snapshot.at)
    name = shorten(row.entrypoint, _LONGEST_NAME)
    text = Text.assemble((f"job {row.id}  {name}  ", "bold cyan"))
    text.append_text(coloured(row.status))
    text.append(f"  {age}", style="dim")
    return text


def _lines(row: FailureRow) -> Sequence[str]:
    if not row.traceback:
        words = [_NO_TRACEBACK] if not row.error else [shorten(row.error, 200), _NO_TRACEBACK]
        return words
    return clean(row.traceback.rstrip(), keep_lines=True).split("\n")


def _tail(lines: Sequence[str], row: FailureRow, room: int) -> list[RenderableType]:
    if len(lines) <= room:
        return [_uncut(each) for each in lines]
    kept = lines[len(lines) - max(1, room - 1) :]
    above = f"… {len(lines) - len(kept)} lines above; `holdfast show {row.id}` prints all"
    return [Text(above, style="dim", no_wrap=True), *map(_uncut, kept)]


def _uncut(text: str) -> Text:
    """One line of the screen, however long."""
    return Text(text, no_wrap=True, overflow="ellipsis")
