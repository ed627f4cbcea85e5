"""Takes the steps of a plan, tells how far it has come, and saves what it finds after each."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import psycopg

from bench import facts, record
from bench.plan import LASTING, unneeded
from bench.process import SubjectFailed
from bench.record import DISTURBED, Taken
from bench.results import MEASURES, clock, number

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from bench.plan import Plan, Step
    from bench.record import Record
    from bench.stage import Stage

# Of the kinds of time that the system tells apart: what guests use is part of what users do.
_DISJOINT = 8
# A peer that fails is reported, and does not stop the rest.
_FAILURES = (SubjectFailed, psycopg.Error, psutil.Error)


@dataclass(slots=True)
class Run:
    plan: Plan
    stage: Stage
    record: Record
    target: Path
    console: Console
    repeats: bool = True

    def go(self) -> None:
        """Until all is taken; stopped by hand, it leaves what there is."""
        try:
            self._steps(self.plan.steps())
            self._repeat()
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

    def _repeat(self) -> None:
        """Once more what the machine's host disturbed, in this run or in the one that it goes on
        with, but for what takes minutes."""
        disturbed = self.record.disturbed()
        steps = self.plan.all()
        again = [step for step in steps if step.key in disturbed and step.family not in LASTING]
        if again and self.repeats:
            seconds = sum(self.plan.seconds(again))
            self.console.print(
                f"during {len(again)} steps the host took more than {DISTURBED:.0%} of the "
                f"processors' time: once more, about {clock(seconds)} minutes"
            )
            self._steps(again)

    def _take(self, step: Step) -> Taken:
        began = time.monotonic()
        times = psutil.cpu_times()
        self.stage.notes = {}
        values: dict[str, float] = {}
        failure = None
        try:
            values = self._wanted(step, step.family.run(self.stage, step.subject))
        except _FAILURES as error:
            failure = str(error).strip()
        seconds = round(time.monotonic() - began, 1)
        stolen = _stolen(times, psutil.cpu_times())
        return Taken(*step.key, seconds, values, self.stage.notes, failure, stolen)

    def _wanted(self, step: Step, found: dict[str, float]) -> dict[str, float]:
        return {
            measure: round(value, 4)
            for measure, value in found.items()
            if measure in self.plan.asked and measure not in step.subject.skips
        }


def _stolen(before: Any, after: Any) -> float | None:
    """The share of the time between the two; None where the system does not say."""
    if not hasattr(before, "steal"):
        return None
    spent = [end - start for start, end in zip(before[:_DISJOINT], after[:_DISJOINT], strict=True)]
    share: float = (after.steal - before.steal) / max(sum(spent), 0.01)
    return round(share, 3)


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
