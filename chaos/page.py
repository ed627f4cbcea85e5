"""Writes docs/chaos.md from the last report."""

from __future__ import annotations

import inspect
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.acts import ACTS
from chaos.checker.check import INVARIANTS
from chaos.figures import clients, processes, slots
from chaos.figures.base import FIGURES
from chaos.mutants import MUTANTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["PATH", "clients", "filled", "processes", "slots", "write"]
"""The modules of the figures register them."""

PATH = Path(__file__).parents[1] / "docs" / "chaos.md"
_TEXT = Path(__file__).parent / "page.md"
_NONE = "Not run yet."

_RULES: Mapping[str, tuple[int, ...]] = {
    "Jobs": (1, 2, 7, 10, 11, 12, 13, 14, 20, 21),
    "Leases": (3, 4, 5, 9, 22, 25),
    "Counters, limits and failures": (6, 16, 17, 29, 31),
    "Time": (8, 15, 26, 27, 28, 30, 32),
    "Processes": (23, 24),
}
"""The numbers of the invariants by their subject. One that is not here stands at the end."""

_BUGS: Mapping[str, str] = {
    "clients": "Enqueue, cancel, dedupe keys",
    "counting": "Counters",
    "counting_tasks": "Transactions, results and progress of a handler",
    "fencing": "Leases and tokens",
    "machinery": "The steps of a worker",
    "sessions": "Sessions and statements on the server",
    "settling": "Outcomes, stops and outages",
    "snoozing": "Table queues",
    "waking": "Wake-ups and schedules",
}
"""What the bugs of a module of `chaos.mutants` concern."""

_LABELS: Mapping[str, str] = {
    "blocks_s": "handler that blocks the event loop",
    "calls": "calls",
    "deadly": "deadly jobs",
    "deaths": "workers killed",
    "deaths_each": "deaths before each was held",
    "drain_timeout_s": "drain timeout",
    "idle_s": "idle worker",
    "innocent_s": "all innocent",
    "kills": "schedulers killed",
    "longest_s": "the longest call",
    "missing": "ticks missing",
    "others_retired": "other jobs held",
    "own_deaths_alone": "workers that each killed, one deadly job at a time",
    "own_deaths_together": "workers that each killed, all deadly jobs at once",
    "own_deaths": "workers that the killer killed",
    "programs_latency": "latency in two programs, without suspects to beside them",
    "programs_p50_s": "median in two programs",
    "programs_p50_without_s": "the same without suspects",
    "programs_throughput": "throughput in two programs, beside suspects to without them",
    "restart_s": "from death to restart",
    "run_latency": "latency under `holdfast run`, without suspects to beside them",
    "run_p50_s": "median under `holdfast run`",
    "run_p50_without_s": "the same without suspects",
    "run_throughput": "throughput under `holdfast run`, beside suspects to without them",
    "shortest_s": "the shortest call",
    "silent-waits_s": "silent database and a handler that waits",
    "silent_s": "silent database",
    "slots": "ticks",
    "stubborn_s": "handler that ignores its cancellation",
    "thread_s": "handler in a thread",
    "waits_s": "handler that waits",
    "with_a_killer_s": "with a killer among them",
}
"""What a value of a figure is called. Others are called as they are in the report."""


def write(report: Path) -> None:
    """Write the page about a report."""
    PATH.write_text(filled(report), "utf-8")


def filled(report: Path) -> str:
    """The text of the page with what the report says."""
    found: dict[str, Any] = json.loads(report.read_text())
    parts = {
        "summary": _summary(found),
        "run": _run(found),
        "fleet": _run(found["fleet"]) if "fleet" in found else _NONE,
        "invariants": _invariants(found["invariants"]),
        "acts": _acts(found.get("acts", {})),
        "figures": _figures(found.get("figures", {})),
        "mutants": _mutants(found.get("mutants", {})),
    }
    text = _TEXT.read_text("utf-8")
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->", part)
    return text


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def _violations(*runs: Mapping[str, Any]) -> int:
    return sum(sum(run["invariants"].values()) for run in runs)


# -- runs ------------------------------------------------------------------------------------------


def _summary(found: Mapping[str, Any]) -> str:
    rows: list[tuple[object, ...]]
    rows = [("[the last run](#the-last-run)", _said(found), _violations(found))]
    if fleet := found.get("fleet"):
        rows.append(("[thirty workers](#with-thirty-workers)", _said(fleet), _violations(fleet)))
    if acts := found.get("acts"):
        said = f"{len(acts)} runs, {sum(act['jobs'] for act in acts.values()):,} jobs"
        rows.append(("[special runs](#special-runs)", said, _violations(*acts.values())))
    if caught := found.get("mutants"):
        score = f"{sum(caught.get(name, False) for name in MUTANTS)} of {len(MUTANTS)}"
        rows.append(("[planted bugs](#planted-bugs)", f"{score} found by the checker", "-"))
    return _table(["", "what was run", "violations"], rows)


def _said(run: Mapping[str, Any]) -> str:
    return f"{run['jobs']:,} jobs, {run['faults']} faults"


def _run(report: Mapping[str, Any]) -> str:
    date = f"On {report['date']}: " if "date" in report else ""
    command = f"`python -m chaos run --profile {report['profile']} --seed {report['seed']}`"
    rows = [
        ("jobs", f"{report['jobs']:,}"),
        ("duration", f"{report['seconds']:.0f} s"),
        ("faults", f"{report['faults']}, of which {report['faults_effective']} effective"),
        ("violations", _violations(report)),
        ("from a worker's death to the restart of its jobs", _times(report["recovery_s"])),
        ("from the server's return to the first claim", _times(report["first_claim_s"])),
    ]
    machine = "a machine with 2 cores, fsync on"
    return f"{date}{command}, {machine}.\n\n{_table(['', ''], rows)}"


def _times(times: Mapping[str, float]) -> str:
    return f"median {times['p50']:.2f} s, 99 % {times['p99']:.2f} s, at most {times['max']:.2f} s"


def _acts(acts: Mapping[str, dict[str, Any]]) -> str:
    if not acts:
        return _NONE
    seed = next(iter(acts.values()))["seed"]
    rows = [
        (
            " ".join(filter(None, (f"**{name}.**", _meaning(name), _besides(act)))),
            f"{act['jobs']:,}",
            f"{act['faults_effective']} of {act['faults']}",
            _violations(act),
        )
        for name, act in acts.items()
    ]
    dates = sorted({act["date"] for act in acts.values() if "date" in act})
    date = f"On {dates[-1]}: " if dates else ""
    head = ["run", "jobs", "effective faults", "violations"]
    return f"{date}`python -m chaos run --profile acts --seed {seed}`\n\n{_table(head, rows)}"


def _meaning(name: str) -> str:
    play = ACTS.get(name)
    if isinstance(play, partial):
        return "`holdfast upgrade` beside workers of both versions, which are killed."
    return _first_line(play)


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _besides(act: Mapping[str, Any]) -> str:
    said = []
    if first := act["first_claim_s"]["max"]:
        said.append(f"First claim {first:.2f} s after the server was back.")
    if "lost_with_the_tail" in act:
        said.append(f"{act['lost_with_the_tail']} jobs lost, exactly those not replicated.")
    if "longest_stall_s" in act:
        said.append(f"Longest time in which no job ended: {act['longest_stall_s']:.2f} s.")
    if "counted" in act:
        said.append(f"{act['counted']:,} counted, each once.")
    return " ".join(said)


# -- rules -----------------------------------------------------------------------------------------


def _invariants(counts: Mapping[str, int]) -> str:
    by_number = {_number(name): name for name in INVARIANTS}
    grouped = {number for numbers in _RULES.values() for number in numbers}
    rest = tuple(number for number in by_number if number not in grouped)
    head = ["rule", "what must hold", "violations", "number"]
    parts = []
    for subject, numbers in {**_RULES, "Other": rest}.items():
        rows = [_rule(by_number[number], counts) for number in numbers if number in by_number]
        parts.append(f"### {subject}\n\n{_table(head, rows)}" if rows else "")
    return "\n\n".join(filter(None, parts))


def _number(name: str) -> int:
    """The number of an invariant: `I-7 jobs do not change`. 0 is the scenario's own check."""
    first = name.partition(" ")[0]
    return int(first[2:]) if first.startswith("I-") else 0


def _rule(name: str, counts: Mapping[str, int]) -> tuple[object, ...]:
    number = name.partition(" ")[0] if _number(name) else "-"
    title = name.removeprefix(number).strip()
    return title, _first_line(INVARIANTS[name]), counts.get(name, 0), number


# -- bounds ----------------------------------------------------------------------------------------


def _figures(figures: Mapping[str, dict[str, Any]]) -> str:
    if not figures:
        return _NONE
    rows = [
        (
            f"**{name}**: {FIGURES[name].goal if name in FIGURES else found['goal']}",
            "<br>".join(_found(found)),
            "kept" if found["ok"] else "**not kept**",
        )
        for name, found in figures.items()
    ]
    return _table(["bound", "measured", "result"], rows)


def _found(found: Mapping[str, Any]) -> Iterator[str]:
    for name, value in found.items():
        if name not in ("goal", "ok"):
            label = _LABELS.get(name, name.removesuffix("_s").replace("_", " "))
            yield f"{label}: {_value(value, 's' if name.endswith('_s') else '')}"


def _value(value: object, unit: str) -> str:
    if isinstance(value, dict):
        return _times(value)
    if isinstance(value, list):
        return " or ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.2f} {unit}".strip()
    return f"{value:,}" if isinstance(value, int) else str(value)


# -- planted bugs ----------------------------------------------------------------------------------


def _mutants(caught: Mapping[str, bool]) -> str:
    score = sum(caught.get(name, False) for name in MUTANTS)
    parts = [f"{score} of {len(MUTANTS)} were caught."]
    by_module: dict[str, list[str]] = {}
    for name, mutant in MUTANTS.items():
        by_module.setdefault(mutant.patch.__module__.rpartition(".")[2], []).append(name)
    for module, names in by_module.items():
        rows = [
            (MUTANTS[name].what, MUTANTS[name].scenario, _word(caught.get(name)), f"`{name}`")
            for name in names
        ]
        table = _table(["planted bug", "scenario", "result", "name"], rows)
        summary = f"<summary>{_BUGS.get(module, module)}: {len(names)} bugs</summary>"
        parts.append(f"<details markdown>\n{summary}\n\n{table}\n\n</details>")
    return "\n\n".join(parts)


def _word(caught: bool | None) -> str:
    return "not tried" if caught is None else "caught" if caught else "**survived**"
