"""Takes the steps of a plan, tells how far it has come, and saves what it finds after each."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import psycopg

from bench import facts, record
from bench.plan import unneeded
from bench.process import SubjectFailed
from bench.record import Taken
from bench.results import MEASURES, clock, number

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from bench.plan import Plan, Step
    from bench.record import Record
    from bench.stage import Stage

# A peer that fails is reported, and does not stop the rest.
_FAILURES = (SubjectFailed, psycopg.Error, psutil.Error)


@dataclass(slots=True)
class Run:
    plan: Plan
    stage: Stage
    record: Record
    target: Path
    console: Console

    def go(self) -> None:
        """Until all is taken; stopped by hand, it leaves what there is."""
        try:
            self._steps(self.plan.steps())
        except KeyboardInterrupt:
            self.record.facts["failures"]["the run"] = "stopped by hand; go on with --resume"
        finally:
            self.record.facts["load_at_end"] = os.getloadavg()[0]
            facts.add_source(self.record.facts)
            # A run that came to nothing leaves the figures of the one before.
            if self.record.taken:
                record.save(self.record, self.target)

    def _steps(self, steps: Sequence[Step]) -> None:
        estimates = self.plan.seconds(steps)
        began = time.monotonic()
        for place, step in enumerate(steps):
            taken = self._take(step)
            self.record.add(taken)
            record.save(self.record, self.target)
            elapsed = time.monotonic() - began
            left = _left(elapsed, estimates[: place + 1], estimates[place + 1 :])
            self.console.print(
                f"{place + 1}/{len(steps)} [dim]{clock(elapsed)}, about {clock(left)} left[/] "
                f"{_told(taken)} [dim]({taken.seconds:.1f} s, {estimates[place]:.1f} foretold)",
                highlight=False,
            )
            if key := unneeded(step, steps[place + 1 :]):
                self.stage.forget(key)

    def _take(self, step: Step) -> Taken:
        began = time.monotonic()
        self.stage.notes = {}
        values: dict[str, float] = {}
        failure = None
        try:
            values = self._wanted(step, step.family.run(self.stage, step.subject))
        except _FAILURES as error:
            failure = str(error).strip()
        seconds = round(time.monotonic() - began, 1)
        return Taken(*step.key, seconds, values, self.stage.notes, failure)

    def _wanted(self, step: Step, found: dict[str, float]) -> dict[str, float]:
        return {
            measure: round(value, 4)
            for measure, value in found.items()
            if measure in self.plan.asked and measure not in step.subject.skips
        }


def _left(elapsed: float, past: Sequence[float], coming: Sequence[float]) -> float:
    """What is foretold, corrected by how true it has been; at first that says little."""
    trust = 120.0
    return sum(coming) * (elapsed + trust) / (sum(past) + trust)


def _told(taken: Taken) -> str:
    words = f"round {taken.turn + 1} {taken.subject}"
    if taken.failure is not None:
        return f"{words} [yellow]{taken.family}: {taken.failure}[/]"
    values = [
        f"{measure} {number(value)} {MEASURES[measure].unit}"
        for measure, value in taken.values.items()
    ]
    return f"{words} {', '.join(values)}"
