"""One job on the screen of the dashboard: why it does not run, its past, its last traceback."""

from __future__ import annotations

import textwrap

from rich.text import Text

from holdfast.cli.explain import explanation_lines
from holdfast.cli.show import JobLook, job_head, job_timeline, last_traceback


def job_screen(found: JobLook, width: int, room: int) -> list[Text]:
    """The job in `room` lines, with the whole reason why it does not run.

    Of a long past and of a long traceback the ends are kept.
    """
    title, *facts = job_head(found)
    why = [
        Text(words)
        for each in explanation_lines(found.explanation, found.now)
        for words in textwrap.wrap(each.plain, width, subsequent_indent="  ")
    ]
    above = [title, *why, Text(), *facts]
    past = list(job_timeline(found))
    traceback = [Text(each, style="dim") for each in last_traceback(found).splitlines()]
    left = room - len(above)
    # The traceback gets what the past leaves, and at least half of what there is.
    most = max(left - len(traceback) - 2, left // 2)
    parts = above
    if past:
        parts = [*parts, Text(), *_end(past, most - 1)]
    if traceback:
        parts = [*parts, Text(), *_end(traceback, room - len(parts) - 1)]
    for each in parts:
        each.no_wrap, each.overflow = True, "ellipsis"
    return parts[:room]


def _end(lines: list[Text], room: int) -> list[Text]:
    if len(lines) <= room:
        return lines
    kept = lines[len(lines) - max(0, room - 1) :] if room > 1 else []
    return [Text(f"… {len(lines) - len(kept)} lines above", style="dim"), *kept]
