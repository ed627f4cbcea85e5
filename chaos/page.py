"""Writes docs/chaos.md from the last report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.checker.check import INVARIANTS
from chaos.mutants import MUTANTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PATH = Path(__file__).parents[1] / "docs" / "chaos.md"
_TEXT = Path(__file__).parent / "page.md"
_NONE = "Not run yet."


def write(report: Path) -> None:
    """Fill the text with what the report says."""
    found: dict[str, Any] = json.loads(report.read_text())
    parts = {
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
    PATH.write_text(text, "utf-8")


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def _run(report: dict[str, Any]) -> str:
    command = f"`python -m chaos run --profile {report['profile']} --seed {report['seed']}`"
    rows = [
        ("jobs", f"{report['jobs']:,}"),
        ("seconds", report["seconds"]),
        ("faults", report["faults"]),
        ("faults that hit a live lease or a call in flight", report["faults_effective"]),
        ("violations", sum(report["invariants"].values())),
        ("from the death of a worker to the restart of its jobs", _times(report["recovery_s"])),
        ("from the server's return to the first claim", _times(report["first_claim_s"])),
    ]
    return f"{command}\n\n{_table(['', ''], rows)}"


def _times(times: dict[str, float]) -> str:
    return f"p50 {times['p50']:.2f} s, p99 {times['p99']:.2f} s, max {times['max']:.2f} s"


def _invariants(counts: dict[str, int]) -> str:
    rows = [
        (name, (check.__doc__ or "").strip().splitlines()[0], counts.get(name, 0))
        for name, check in INVARIANTS.items()
    ]
    return _table(["invariant", "meaning", "violations"], rows)


def _acts(acts: dict[str, dict[str, Any]]) -> str:
    if not acts:
        return _NONE
    seed = next(iter(acts.values()))["seed"]
    rows = [
        (
            name,
            f"{act['jobs']:,}",
            f"{act['faults_effective']} of {act['faults']}",
            sum(act["invariants"].values()),
            _besides(act),
        )
        for name, act in acts.items()
    ]
    head = ["run", "jobs", "effective faults", "violations", "also measured"]
    return f"`python -m chaos run --profile acts --seed {seed}`\n\n{_table(head, rows)}"


def _besides(act: dict[str, Any]) -> str:
    said = []
    if first := act["first_claim_s"]["max"]:
        said.append(f"first claim {first:.2f} s after the promotion")
    if "lost_with_the_tail" in act:
        said.append(
            f"{act['lost_with_the_tail']} acknowledged jobs lost, exactly those not replicated"
        )
    if "longest_stall_s" in act:
        said.append(f"longest time in which no job ended {act['longest_stall_s']:.2f} s")
    return "; ".join(said)


def _figures(figures: dict[str, dict[str, Any]]) -> str:
    if not figures:
        return _NONE
    rows = [
        (name, found["goal"], _found(found), "kept" if found["ok"] else "**not kept**")
        for name, found in figures.items()
    ]
    return _table(["name", "goal", "measured", "result"], rows)


def _found(found: dict[str, Any]) -> str:
    told = {name: value for name, value in found.items() if name not in ("goal", "ok")}
    return ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in told.items())


def _value(value: object) -> str:
    if isinstance(value, dict):
        return _times(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _mutants(caught: dict[str, bool]) -> str:
    rows = [
        (f"`{name}`", mutant.what, mutant.scenario, _word(caught.get(name)))
        for name, mutant in MUTANTS.items()
    ]
    score = f"{sum(caught.get(name, False) for name in MUTANTS)} of {len(MUTANTS)} caught."
    return f"{score}\n\n{_table(['name', 'planted bug', 'scenario', 'result'], rows)}"


def _word(caught: bool | None) -> str:
    return "not tried" if caught is None else "caught" if caught else "**survived**"
