"""Charts as SVG, written by hand so that nothing needs to be installed for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from bench.results import MEASURES, Figure, number

if TYPE_CHECKING:
    from pathlib import Path

WIDTH, LABEL, BAR, GAP, GROUP = 760, 190, 18, 6, 16
OURS, LIMIT, PEER = "#1f6feb", "#8b949e", "#d29922"
# Of the charts with lines.
LEFT, NAMES, CEILING, FLOOR, LINE = 64, 140, 52, 300, 16
COLOURS = {
    "holdfast": OURS,
    "limit": LIMIT,
    "pgqueuer": "#d29922",
    "graphile-worker": "#cf222e",
    "pg-boss": "#1a7f37",
}


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    measures: tuple[str, ...]
    one_scale: bool = True
    """Whether bars of different measures can be compared by their lengths."""


CHARTS = {
    "bench-drain": Chart("Jobs worked off a second", ("drain_1", "drain_2", "drain_defaults")),
    "bench-enqueue": Chart(
        "Jobs enqueued a second",
        ("enqueue_single", "enqueue_bulk", "enqueue_concurrent", "enqueue_producers"),
        one_scale=False,
    ),
    "bench-latency": Chart(
        "Enqueue to handler start, ms", ("latency_p50", "latency_p99"), one_scale=False
    ),
    "bench-backlog": Chart(
        "Length of the queue, jobs a second", ("backlog_10k", "backlog_1m", "backlog_1m_lanes")
    ),
}


LINES = {
    "steady_first": ("bench-steady", "Minutes at full speed, jobs a second"),
    "xmin_first": ("bench-xmin", "Minutes beside an open transaction, jobs a second"),
}
"""By the first measure of the family: the name of the file, and the title."""
TITLES = {name: chart.title for name, chart in CHARTS.items()} | dict(LINES.values())
IN_README = ("bench-drain",)

Series = Mapping[tuple[str, str], Sequence[float]]
"""Speeds of windows that follow on each other, by family and subject."""


def draw_all(figures: Sequence[Figure], series: Series, folder: Path, footer: str) -> list[Path]:
    """A file for each chart that has something to show; charts without figures are removed."""
    texts: dict[str, str | None] = {}
    bars = f"{footer}; medians, whiskers from lowest to highest round"
    for name, chart in CHARTS.items():
        shown = [one for one in figures if one.measure in chart.measures]
        texts[name] = draw(chart, shown, bars) if shown else None
    for family, (name, title) in LINES.items():
        lines = {subject: speeds for (of, subject), speeds in series.items() if of == family}
        texts[name] = lines_over_time(title, lines, footer) if lines else None
    for name, text in texts.items():
        if text is None:
            (folder / f"{name}.svg").unlink(missing_ok=True)
        else:
            (folder / f"{name}.svg").write_text(text, "utf-8")
    return [folder / f"{name}.svg" for name, text in texts.items() if text is not None]


def draw(chart: Chart, figures: Sequence[Figure], footer: str) -> str:
    """Horizontal bars of the medians, with whiskers from the lowest to the highest round."""
    parts, y = [_text(16, 28, chart.title, "title")], 44
    for measure in chart.measures:
        group = [one for one in figures if one.measure == measure]
        if not group:
            continue
        y += GROUP
        parts.append(_text(16, y + 4, MEASURES[measure].title, "group"))
        y += GROUP
        top = max(one.high for one in (figures if chart.one_scale else group)) or 1.0
        for figure in group:
            parts += _bar(figure, y, (WIDTH - LABEL - 130) / top)
            y += BAR + GAP
    parts.append(_text(16, y + 22, footer, "note"))
    return _svg(chart.title, parts, y + 36)


def lines_over_time(title: str, lines: Mapping[str, Sequence[float]], footer: str) -> str:
    """A line for each subject through the speeds of its windows, named at its end."""
    top = _round_up(max(max(speeds) for speeds in lines.values()))
    across = (WIDTH - LEFT - NAMES) / max(len(speeds) - 1 for speeds in lines.values())
    parts = [_text(16, 28, title, "title"), *_grid(top)]
    ends = {subject: _height(speeds[-1], top) for subject, speeds in lines.items()}
    names = _apart(ends)
    for subject, speeds in lines.items():
        points = " ".join(
            f"{LEFT + place * across:.1f},{_height(speed, top):.1f}"
            for place, speed in enumerate(speeds)
        )
        colour = COLOURS.get(subject, PEER)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        )
        parts.append(_text(WIDTH - NAMES + 8, names[subject] + 4, subject, colour=colour))
    return _svg(title, [*parts, _text(16, FLOOR + 40, footer, "note")], FLOOR + 54)


def _grid(top: float) -> list[str]:
    parts = [_text(LEFT, FLOOR + 18, "windows of 10 s", "note")]
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _height(top * part, top)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - NAMES}" stroke="#d0d7de" fill="none"/>')
        parts.append(_text(16, y + 4, number(top * part) if part else "0", "note"))
    return parts


def _round_up(speed: float) -> float:
    """To a number that is easily read off an axis."""
    unit = 10.0 ** math.floor(math.log10(speed or 1.0))
    return math.ceil(speed / unit * 2) / 2 * unit


def _height(speed: float, top: float) -> float:
    return FLOOR - (FLOOR - CEILING) * speed / (top or 1.0)


def _apart(heights: Mapping[str, float]) -> dict[str, float]:
    """The same order with room for a line of text between any two."""
    placed: dict[str, float] = {}
    below: float = FLOOR + LINE
    for subject, y in sorted(heights.items(), key=lambda item: -item[1]):
        below = placed[subject] = min(y, below - LINE)
    return placed


def _svg(title: str, parts: Sequence[str], height: int) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            "<style>text { font: 13px sans-serif; fill: #1f2328 } .title { font-size: 17px; "
            "font-weight: bold } .group { font-weight: bold } .note { font-size: 11px; "
            "fill: #656d76 }</style>",
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _bar(figure: Figure, y: int, scale: float) -> list[str]:
    colour = {"holdfast": OURS, "limit": LIMIT}.get(figure.subject, PEER)
    length, middle = figure.median * scale, y + BAR / 2
    low, high = LABEL + figure.low * scale, LABEL + figure.high * scale
    name = "raw limit" if figure.subject == "limit" else figure.subject
    return [
        _text(32, y + 13, name),
        f'<rect x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>',
        f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {y + 5}v8M{high:.1f} {y + 5}v8" '
        f'stroke="#1f2328" fill="none"/>',
        _text(LABEL + max(length, figure.high * scale) + 8, y + 13, _value(figure)),
    ]


def _value(figure: Figure) -> str:
    return f"{number(figure.median)} {figure.unit}"


def _text(
    x: float, y: float, words: str, style: str | None = None, *, colour: str | None = None
) -> str:
    kind = f' class="{style}"' if style else ""
    kind += f' style="fill: {colour}"' if colour else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind}>{escape(words)}</text>'
