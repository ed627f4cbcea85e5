"""What a figure is: a measurement on a server of the harness, and the bound it must keep."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chaos.checker.check import Verdict, check, spread
from chaos.files import now

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chaos.cluster import Cluster

__all__ = ["FIGURES", "Figure", "Measured", "figure", "judged", "spread"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found, and whether it is within the bound."""

    ok: bool
    values: dict[str, Any]


Measure = Callable[["Cluster", "Path"], Awaitable[Measured]]


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    goal: str
    measure: Measure


FIGURES: dict[str, Figure] = {}


def figure(name: str, goal: str) -> Callable[[Measure], Measure]:
    """Registers a measurement."""

    def register(measure: Measure) -> Measure:
        FIGURES[name] = Figure(name, goal, measure)
        return measure

    return register


def judged(directory: Path, *, lease: float, **plan: Any) -> Verdict:
    """The checker's verdict on the histories that a measurement left."""
    told = {"profile": "figure", "seed": 0, "lease": lease, "ended": now(), **plan}
    (directory / "plan.json").write_text(json.dumps(told))
    return check(directory)


def most(seconds: Sequence[float]) -> float:
    return round(max(seconds), 3)
