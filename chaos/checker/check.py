"""Runs every invariant over a history and sums up what was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from chaos.checker import clients, leasing, process, progress, state
from chaos.checker.history import History, load, pids_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from chaos.checker.model import Fault, Violation

INVARIANTS: Mapping[str, Callable[[History], Iterator[Violation]]] = {
    "I-1 nothing is lost": state.conservation,
    "I-2 one end": state.one_end,
    "I-3 only the holder settles": leasing.fence,
    "I-4 one lease at a time": leasing.one_lease,
    "I-5 tokens are used once": state.tokens,
    "I-6 counters are right": state.counters,
    "I-7 jobs do not change": state.immutable,
    "I-8 never early": state.not_early,
    "I-9 leases end": leasing.mortal,
    "I-10 an acknowledged outcome stays": state.durable,
    "I-11 log and row agree": state.replay,
    "I-12 failures are explained": state.explained_errors,
    "I-13 one active job per key": clients.dedupe,
    "I-14 lost replies make no duplicates": clients.idempotent,
    "I-15 one job per tick": clients.slots,
    "I-16 limits hold": leasing.limits,
    "I-17 slots are kept": leasing.capacity,
    "I-20 canceled is canceled": clients.cancellation,
    "I-21 refused is refused": clients.refused,
    "I-22 no run outlives its lease": leasing.self_fence,
    "I-23 workers stop in time": process.clean_exit,
    "I-24 no unexplained death": process.no_silent_death,
    "I-25 repeated runs are explained": leasing.explained,
    "I-26 everything due ends": process.drained,
    "I-27 recovered in time": process.recovery,
    "I-28 work resumes": process.resumed,
    "I-29 poison is held alone": process.retired_innocents,
    "I-30 every call is answered": clients.answered,
    "I-31 a death retires no neighbour": process.retired_neighbours,
    "I-32 progress": progress.progress,
    "scenario checks": process.expectations,
}

MOST_VACUOUS = 0.8
"""The part of the faults that must have hit a live lease."""


@dataclass(slots=True)
class Verdict:
    """What a run proved."""

    history: History
    violations: dict[str, list[Violation]]
    faults: int = 0
    effective: int = 0
    recoveries: list[float] = field(default_factory=list)
    resumes: list[float] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """Further figures of this run."""

    @property
    def count(self) -> int:
        return sum(map(len, self.violations.values()))

    @property
    def vacuous(self) -> bool:
        return self.effective < MOST_VACUOUS * self.faults

    @property
    def first(self) -> Violation | None:
        found = [violation for some in self.violations.values() for violation in some[:1]]
        return min(found, key=lambda violation: violation.t or 2**62, default=None)

    def report(self) -> dict[str, Any]:
        """What is published, and nothing else."""
        plan = self.history.plan
        return {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "profile": plan["profile"],
            "seed": plan["seed"],
            "jobs": len(self.history.stories) + len(self.history.table_rows),
            "seconds": plan.get("seconds", 0),
            "faults": self.faults,
            "faults_effective": self.effective,
            "invariants": {name: len(found) for name, found in self.violations.items()},
            "recovery_s": spread(self.recoveries),
            "first_claim_s": spread(self.resumes),
            **self.figures,
        }


def spread(times: Sequence[float]) -> dict[str, float]:
    """Of sorted times."""
    return {
        "p50": percentile(times, 0.5),
        "p99": percentile(times, 0.99),
        "max": percentile(times, 1.0),
    }


def percentile(values: Sequence[float], part: float) -> float:
    """Of sorted values; 0 when there are none."""
    if not values:
        return 0.0
    return round(values[min(len(values) - 1, int(part * len(values)))], 3)


def check(directory: Path) -> Verdict:
    history = load(directory)
    violations = {
        name: [_named(name, violation) for violation in invariant(history)]
        for name, invariant in INVARIANTS.items()
    }
    verdict = Verdict(history, violations)
    verdict.faults = len(history.faults)
    verdict.effective = _effective(history)
    verdict.recoveries = process.recovery_times(history)
    verdict.resumes = process.resume_times(history)
    return verdict


def _named(name: str, violation: Violation) -> Violation:
    violation.invariant = name
    return violation


def _effective(history: History) -> int:
    """How many faults hit a live lease; one aimed at a client must have hit a call."""
    by_pid = pids_of(history)
    every_span = [span for spans in by_pid.values() for span in spans]

    def hit(fault: Fault) -> bool:
        if fault.hit is not None:
            return fault.hit
        spans = every_span if fault.pid is None else by_pid.get(fault.pid, [])
        return any(start <= fault.t < end for start, end in spans)

    return sum(map(hit, history.faults))
