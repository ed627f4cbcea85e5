"""Bar charts as SVG, written by hand so that nothing needs to be installed for them."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from bench.results import MEASURES, Figure, number

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WIDTH, LABEL, BAR, GAP, GROUP = 760, 190, 18, 6, 16
OURS, LIMIT, PEER = "#1f6feb", "#8b949e", "#d29922"


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
    "bench-steady": Chart("Steady state, jobs a second", ("steady_first", "steady_worst")),
    "bench-xmin": Chart("Beside an open transaction, jobs a second", ("xmin_first", "xmin_last")),
    "bench-backlog": Chart(
        "Length of the queue, jobs a second", ("backlog_10k", "backlog_1m", "backlog_1m_lanes")
    ),
}


def draw_all(figures: Sequence[Figure], folder: Path, footer: str) -> list[Path]:
    """A file for each chart that has something to show; charts without figures are removed."""
    drawn = []
    for name, chart in CHARTS.items():
        path = folder / f"{name}.svg"
        shown = [one for one in figures if one.measure in chart.measures]
        if shown:
            path.write_text(draw(chart, shown, footer), "utf-8")
            drawn.append(path)
        else:
            path.unlink(missing_ok=True)
    return drawn


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
    height = y + 36
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img">',
            f"<title>{escape(chart.title)}</title>",
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


def _text(x: float, y: float, words: str, style: str | None = None) -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y}"{kind}>{escape(words)}</text>'
