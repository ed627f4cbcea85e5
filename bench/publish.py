"""The tables on the terminal, and the tables and plots of the documentation.

Run as a module, it writes the documentation again from the figures that are there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench import goals, plots, record
from bench.measures import fleet
from bench.measures.drain import PLAIN
from bench.measures.enqueue import WITHOUT_NOTIFY
from bench.measures.steady import EVENED, SERIES
from bench.record import DISTURBED
from bench.results import MEASURES, Figure, number, ratio
from bench.sizes import FULL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.record import Record

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = DOCS / "benchmarks.md"
README = ROOT / "README.md"
WHOLE = ROOT / "bench" / "results.json"
NEWER = ROOT / "bench" / "results-pg18.json"
"""The same run on a newer PostgreSQL, if there is one."""
FLEET = ROOT / "bench" / "results-fleet.json"
"""The measures of fleets, taken by themselves."""
NOTED = {
    ("latency_p50", "latency_p95"): "enqueue to handler start, p95, ms",
    ("enqueue_producers", WITHOUT_NOTIFY): "8 producer processes without NOTIFY, jobs/s",
    ("drain_defaults", PLAIN): "drain, tuned, right before and after the one with defaults, jobs/s",
    ("clutter", PLAIN): "drain right before and after the one beside other jobs, jobs/s",
    ("telemetry_on", PLAIN): "drain without telemetry, right before and after, jobs/s",
    ("telemetry_on", "every_span"): "drain with metrics and a span for every job, jobs/s",
    ("steady_first", EVENED): "worst 10 s ÷ first, by what the host left of the machine",
    ("xmin_first", EVENED): "beside an open transaction, last 10 s ÷ first, by that",
    ("drain_1", "cpu_of_worker"): "CPU of the worker for a job, µs",
    ("drain_1", "cpu_of_postgresql"): "CPU of PostgreSQL for a job, µs",
}
"""What has no line in results.json, by family and name."""
IN_README = ("drain_1", "enqueue_bulk", "latency_p50", "steady_worst", "xmin_last", "backlog_1m")


def table(figures: Sequence[Figure]) -> Table:
    """Medians with their ranges, and each as a multiple of Holdfast's."""
    shown = Table(title="medians of the rounds", title_justify="left")
    for name in ("measure", "subject"):
        shown.add_column(name)
    for name in ("median", "range", "unit", "rounds", "÷ holdfast"):
        shown.add_column(name, justify="left" if name == "unit" else "right")
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
            str(figure.rounds),
            "" if part is None else f"{part:.2f}",
        )
        last = figure.measure
    return shown


def goals_table(found: Record) -> Table:
    shown = Table(title="what Holdfast is built to reach", title_justify="left")
    for name in ("goal", "asked", "found", ""):
        shown.add_column(name)
    for one in goals.judge(found):
        verdict = "reached" if one.reached else "[yellow]not reached"
        shown.add_row(one.goal.what, one.goal.asked, f"{one.value:.2f}", verdict)
    return shown


def publish() -> None:
    """Draw the plots, and replace what stands between the markers of the pages."""
    found = record.load(WHOLE)
    figures, facts = found.figures(), found.facts
    drawn = plots.draw_all(figures, _series(found), DOCS / "images", _footer(facts))
    blocks = {
        "run": _run_block(found),
        "figures": _figures_block(figures),
        "plots": "\n".join(f"![{_title(path)}](images/{path.name})" for path in drawn),
        "notes": _notes_block(found),
        "goals": _goals_block(found),
        "peers": peers_ahead(figures),
        "newer": _newer_block(),
        "fleet": _fleet_block(),
    }
    _rewrite(PAGE, blocks)
    _rewrite(README, {"speed": _readme_block(figures, facts, drawn)})


def _title(picture: Path) -> str:
    """What a picture is called by those who do not see it."""
    return plots.TITLES[picture.stem]


def _series(found: Record) -> plots.Series:
    """Of several rounds the last one is drawn."""
    return {
        (family, subject): series
        for family in plots.LINES
        for subject, series in found.notes(SERIES, family)
    }


def _rewrite(path: Path, blocks: Mapping[str, str]) -> None:
    page = path.read_text("utf-8")
    for name, text in blocks.items():
        page = replaced(page, name, text)
    path.write_text(page, "utf-8")


def replaced(page: str, name: str, text: str) -> str:
    """The page with other text between `<!-- name -->` and `<!-- /name -->`."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    found, times = pattern.subn(lambda match: f"{match[1]}{text}\n{match[2]}", page)
    if times != 1:
        raise ValueError(f"the page needs one pair of markers <!-- {name} -->, it has {times}")
    return found


def _footer(facts: Mapping[str, Any]) -> str:
    kind = "" if facts["profile"] == "full" else f"{facts['profile']} run, "
    return f"{kind}{facts['date']}; {facts['cores']} cores, PostgreSQL {_version(facts)}, fsync on"


def _version(facts: Mapping[str, Any]) -> str:
    return str(facts["postgresql"]["server_version"]).split()[0]


def _run_block(found: Record) -> str:
    facts = found.facts
    server = facts["postgresql"]
    settings = ", ".join(f"{key} = {server[key]}" for key in server if key != "server_version")
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    minutes = sum(one.seconds for one in found.taken) / 60
    sources = ", ".join(f"`{digest}`" for digest in facts["sources"])
    failures = [f"- {who}: {why}" for who, why in found.failures().items()]
    return "\n".join(
        [
            f"- Kind of run: **{facts['profile']}**, on {facts['date']}, {minutes:.0f} minutes"
            + (f", scale {facts['scale']}" if facts["scale"] != 1 else ""),
            f"- Machine: {facts['cores']} cores ({facts['processor']}), "
            f"{facts['memory_gb']} GB, {facts['system']}",
            f"- Load average before the run {facts['load_at_start']:.1f}, "
            f"after it {facts['load_at_end']:.1f}",
            *_disturbances(found),
            f"- PostgreSQL {_version(facts)}: {settings}",
            f"- Python {facts['python']}, asyncpg {facts['asyncpg']}, uvloop {facts['uvloop']}",
            f"- Versions: {versions}; Holdfast's source has the digest {sources}",
            *(["", "Not measured, and why:", "", *failures] if failures else []),
        ]
    )


def _disturbances(found: Record) -> list[str]:
    stolen = found.stolen()
    if not stolen:
        return []
    return [
        f"- The machine's host took {median(stolen):.0%} of the processors' time during a "
        f"step (median; in one of ten more than {stolen[len(stolen) * 9 // 10]:.0%}, at most "
        f"{stolen[-1]:.0%}). Steps with more than {DISTURBED:.0%} were taken once more, and the "
        "less disturbed ones count. Measures that last minutes were not repeated"
    ]


def _figures_block(figures: Sequence[Figure], measures: Sequence[str] | None = None) -> str:
    subjects = list(dict.fromkeys(figure.subject for figure in figures))
    subjects.sort(key=lambda name: {"holdfast": 0, "limit": 2}.get(name, 1))
    lines = [
        f"| measure | unit | rounds | {' | '.join(subjects)} |",
        f"|---|---|---|{'---|' * len(subjects)}",
    ]
    for measure in measures or dict.fromkeys(figure.measure for figure in figures):
        by_subject = {one.subject: one for one in figures if one.measure == measure}
        if not by_subject:
            continue
        cells = [_cell(by_subject.get(name), figures) for name in subjects]
        title = f"{MEASURES[measure].title} (`{measure}`)"
        rounds = max(one.rounds for one in by_subject.values())
        lines.append(f"| {title} | {MEASURES[measure].unit} | {rounds} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(figure: Figure | None, figures: Sequence[Figure]) -> str:
    if figure is None:
        return ""
    spread = f"**{number(figure.median)}**"
    if figure.rounds > 1:
        spread += f" ({number(figure.low)} - {number(figure.high)})"
    part = ratio(figure, figures)
    return spread if figure.subject == "holdfast" or part is None else f"{spread} · {part:.2f}"


def _notes_block(found: Record) -> str:
    lines = ["| what | subject | median |", "|---|---|---|"]
    for (family, name), what in NOTED.items():
        rounds = defaultdict(list)
        for subject, value in found.notes(name, family):
            rounds[subject].append(value)
        lines += [f"| {what} | {who} | {number(median(of))} |" for who, of in rounds.items()]
    return "\n".join(lines)


def _goals_block(found: Record) -> str:
    lines = ["| goal | asked | found | |", "|---|---|---|---|"]
    for one in goals.judge(found):
        verdict = "reached" if one.reached else "**not reached**"
        lines.append(f"| {one.goal.what} | {one.goal.asked} | {one.value:.2f} | {verdict} |")
    return "\n".join(lines)


def _newer_block() -> str:
    if not NEWER.exists():
        return "No run on PostgreSQL 18 is kept here."
    found = record.load(NEWER)
    return "\n\n".join([_run_block(found), _figures_block(found.figures()), _goals_block(found)])


def _fleet_block() -> str:
    if not FLEET.exists():
        return "No run of fleets is kept here."
    found = record.load(FLEET)
    blocks = [_run_block(found), _costs_block(found), _goals_block(found)]
    return "\n\n".join([*blocks, _drains_block(found)])


def _costs_block(found: Record) -> str:
    """The medians of what a fleet of each size costs, for each subject."""
    names = [field.replace("_", " ") for field in fleet.Cost._fields]
    lines = [f"| subject | workers | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for size in fleet.SIZES:
        costs = defaultdict(list)
        for subject, cost in found.notes(f"workers: {size}", fleet.FAMILY):
            costs[subject].append(cost)
        for subject, rounds in costs.items():
            medians = [number(median(cost[name] for cost in rounds)) for name in rounds[0]]
            lines.append(f"| {subject} | {size} | {' | '.join(medians)} |")
    return "\n".join(lines)


def _drains_block(found: Record) -> str:
    two, many = (
        median(value for _, value in found.notes(name, "fleet_drain") if value)
        for name in ("two workers", "fleet")
    )
    return (
        f"Drain of {FULL.fleet:,} jobs: {number(two)} jobs/s by two workers, {number(many)} by "
        f"{fleet.MANY} in {fleet.PROCESSES} processes."
    )


def peers_ahead(figures: Sequence[Figure]) -> str:
    """Every measure in which some peer has the better median."""
    lines = [line for measure in MEASURES if (line := _better_peers(measure, figures))]
    return "\n".join(lines) or "In no measure of this run."


def _better_peers(measure: str, figures: Sequence[Figure]) -> str | None:
    taken = {one.subject: one for one in figures if one.measure == measure}
    ours, sign = taken.get("holdfast"), 1 if MEASURES[measure].better == "more" else -1
    if ours is None:
        return None
    ahead = [
        one
        for one in taken.values()
        if one.subject != "limit" and sign * (one.median - ours.median) > 0
    ]
    if not ahead:
        return None
    said = ", ".join(f"{one.subject} {number(one.median)}" for one in ahead)
    return f"- {MEASURES[measure].title}: {said}; Holdfast {number(ours.median)} {ours.unit}."


def _readme_block(
    figures: Sequence[Figure], facts: Mapping[str, Any], drawn: Sequence[Path]
) -> str:
    shown = [path for path in drawn if path.stem in plots.IN_README]
    pictures = [f"![{_title(path)}](docs/images/{path.name})" for path in shown]
    rows = [_against_the_best(measure, figures) for measure in IN_README]
    return "\n".join(
        [
            f"Medians; {_footer(facts)}.",
            "",
            "| | Holdfast | best peer | ratio |",
            "|---|---:|---:|---:|",
            *rows,
            "",
            *pictures,
        ]
    )


def _against_the_best(measure: str, figures: Sequence[Figure]) -> str:
    """A row of the README: Holdfast, the best of all others, and how many times better."""
    about = MEASURES[measure]
    by_subject = {one.subject: one for one in figures if one.measure == measure}
    ours = by_subject.pop("holdfast")
    by_subject.pop("limit", None)
    more = about.better == "more"
    best = sorted(by_subject.values(), key=lambda one: one.median, reverse=more)[0]
    times = ours.median / best.median if more else best.median / ours.median
    return (
        f"| {about.title}, {about.unit} | **{number(ours.median)}** | "
        f"{number(best.median)} ({best.subject}) | {times:.1f} x |"
    )


if __name__ == "__main__":
    publish()
