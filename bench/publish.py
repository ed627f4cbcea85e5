"""The table on the terminal, and the tables and plots of the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench import plots
from bench.results import MEASURES, Figure, number, ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "benchmarks.md"


def table(figures: Sequence[Figure]) -> Table:
    """Medians with their ranges, and each as a multiple of Holdfast's."""
    shown = Table(title="medians of the rounds", title_justify="left")
    for name in ("measure", "subject"):
        shown.add_column(name)
    for name in ("median", "range", "unit", "÷ holdfast"):
        shown.add_column(name, justify="right" if name != "unit" else "left")
    last = ""
    for figure in figures:
        if last and figure.measure != last:
            shown.add_section()
        part = ratio(figure, figures)
        shown.add_row(
            figure.measure if figure.measure != last else "",
            figure.subject,
            number(figure.median),
            f"{number(figure.low)} - {number(figure.high)}",
            figure.unit,
            "" if part is None else f"{part:.2f}",
        )
        last = figure.measure
    return shown


def publish(figures: Sequence[Figure], record: Mapping[str, Any]) -> None:
    """Draw the plots, and replace what stands between the markers of the page."""
    kind = "" if record["profile"] == "full" else f"{record['profile']} run, "
    footer = (
        f"{kind}{record['date']}; {record['cores']} cores, PostgreSQL "
        f"{_version(record)}, fsync on; medians, whiskers from lowest to highest round"
    )
    drawn = plots.draw_all(figures, DOCS / "images", footer)
    page = PAGE.read_text("utf-8")
    blocks = {
        "run": _run_block(record),
        "figures": _figures_block(figures),
        "plots": "\n".join(f"![{path.stem}](images/{path.name})" for path in drawn),
    }
    for name, text in blocks.items():
        page = replaced(page, name, text)
    PAGE.write_text(page, "utf-8")


def replaced(page: str, name: str, text: str) -> str:
    """The page with other text between `<!-- name -->` and `<!-- /name -->`."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    found, times = pattern.subn(lambda match: f"{match[1]}{text}\n{match[2]}", page)
    if times != 1:
        raise ValueError(f"{PAGE.name} needs one pair of markers <!-- {name} -->, it has {times}")
    return found


def _version(record: Mapping[str, Any]) -> str:
    return str(record["postgresql"]["server_version"]).split()[0]


def _run_block(record: Mapping[str, Any]) -> str:
    server = record["postgresql"]
    settings = ", ".join(f"{key} = {server[key]}" for key in server if key != "server_version")
    versions = ", ".join(f"{name} {found}" for name, found in record["versions"].items())
    start, end = record["load_at_start"], record["load_at_end"]
    failures = [f"- {who}: {why}" for who, why in record["failures"].items()]
    return "\n".join(
        [
            f"- Kind of run: **{record['profile']}**, on {record['date']}"
            + (f", scale {record['scale']}" if record["scale"] != 1 else ""),
            f"- Machine: {record['cores']} cores ({record['processor']}), "
            f"{record['memory_gb']} GB, {record['system']}",
            f"- Load average before the run {start[0]:.1f}, after it {end[0]:.1f}",
            f"- PostgreSQL {_version(record)}: {settings}",
            f"- Python {record['python']}, asyncpg {record['asyncpg']}, uvloop {record['uvloop']}",
            f"- Versions: {versions}; Holdfast's source has the digest `{record['source']}`",
            *(["", "Not measured, and why:", "", *failures] if failures else []),
        ]
    )


def _figures_block(figures: Sequence[Figure]) -> str:
    subjects = list(dict.fromkeys(figure.subject for figure in figures))
    subjects.sort(key=lambda name: {"holdfast": 0, "limit": 2}.get(name, 1))
    lines = [
        f"| measure | unit | {' | '.join(subjects)} |",
        f"|---|---|{'---|' * len(subjects)}",
    ]
    for measure in dict.fromkeys(figure.measure for figure in figures):
        by_subject = {one.subject: one for one in figures if one.measure == measure}
        cells = [_cell(by_subject.get(name), figures) for name in subjects]
        title = f"{MEASURES[measure].title} (`{measure}`)"
        lines.append(f"| {title} | {MEASURES[measure].unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(figure: Figure | None, figures: Sequence[Figure]) -> str:
    if figure is None:
        return ""
    spread = f"**{number(figure.median)}** ({number(figure.low)} - {number(figure.high)})"
    part = ratio(figure, figures)
    return spread if figure.subject == "holdfast" or part is None else f"{spread} · {part:.2f}"
