"""What a run has found so far, step by step, in a file that a later run can continue."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from bench import results

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.results import Figure


DISTURBED = 0.1
"""With more of its processors' time taken by its host, a machine says little about a subject."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One step of a plan as it went: what it yielded, or why it did not."""

    family: str
    turn: int
    subject: str
    seconds: float
    values: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    stolen: float | None = None
    """The share of the processors' time that the machine's host took meanwhile."""

    @property
    def disturbed(self) -> bool:
        return (self.stolen or 0.0) > DISTURBED

    @property
    def key(self) -> tuple[str, int, str]:
        return self.family, self.turn, self.subject


@dataclass(slots=True)
class Record:
    """The facts of a run, and its steps."""

    facts: dict[str, Any] = field(default_factory=dict)
    taken: list[Taken] = field(default_factory=list)

    def done(self) -> set[tuple[str, int, str]]:
        return {one.key for one in self.taken if one.failure is None}

    def disturbed(self) -> set[tuple[str, int, str]]:
        return {one.key for one in self.taken if one.disturbed}

    def add(self, taken: Taken) -> None:
        """Of two that were taken of one step the less disturbed one counts; a failure does not."""
        for before in self.taken:
            if before.key == taken.key and before.failure is None:
                worse = (taken.stolen or 0.0) > (before.stolen or 0.0)
                taken = before if taken.failure or worse else taken
        self.taken = [one for one in self.taken if one.key != taken.key]
        self.taken.append(taken)

    def stolen(self) -> list[float]:
        """Of each step of which it is known, in order of size."""
        return sorted(one.stolen for one in self.taken if one.stolen is not None)

    def figures(self) -> list[Figure]:
        rounds: dict[tuple[str, str], list[float]] = defaultdict(list)
        for one in self.taken:
            for measure, value in one.values.items():
                rounds[measure, one.subject].append(value)
        return results.summarise(rounds)

    def rounds(self, measure: str, subject: str) -> dict[int, float]:
        """A measure by round."""
        return {
            one.turn: one.values[measure]
            for one in self.taken
            if one.subject == subject and measure in one.values
        }

    def notes(self, name: str, family: str) -> Iterator[tuple[str, Any]]:
        """What was noted under that name, with the subject."""
        for one in self.taken:
            if one.family == family and name in one.notes:
                yield one.subject, one.notes[name]

    def ratios(self, measure: str, note: str, subject: str) -> Iterator[float]:
        """A measure beside what was noted in the same step."""
        for one in self.taken:
            if one.subject == subject and measure in one.values and one.notes.get(note):
                yield one.values[measure] / one.notes[note]

    def failures(self) -> dict[str, str]:
        failed = {f"{one.family} {one.subject}": one.failure for one in self.taken if one.failure}
        told: dict[str, str] = self.facts.get("failures", {})
        if len(self.facts.get("sources", ())) > 1:
            told = told | {"the source": "changed meanwhile: the figures are of no one version"}
        return told | failed


def beside(results_file: Path) -> Path:
    """The file of the record that belongs to a file of results."""
    return results_file.with_name(f"{results_file.stem}-run.json")


def save(record: Record, results_file: Path) -> None:
    """Both files, each whole at every instant."""
    results_file.parent.mkdir(parents=True, exist_ok=True)
    facts = json.dumps(record.facts, indent=1)
    steps = ",\n".join(json.dumps(asdict(one), ensure_ascii=False) for one in record.taken)
    _replace(beside(results_file), f'{{"facts": {facts},\n"steps": [\n{steps}\n]}}\n')
    _replace(results_file, results.as_text(record.figures()))


class NoSteps(Exception):
    """A file that does not say which steps its figures come from."""


def load(results_file: Path) -> Record:
    found = json.loads(beside(results_file).read_text("utf-8"))
    if "steps" not in found:
        raise NoSteps(f"{beside(results_file)} has no steps: run the benchmark anew, whole")
    return Record(found["facts"], [Taken(**step) for step in found["steps"]])


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text, "utf-8")
    os.replace(fresh, path)
