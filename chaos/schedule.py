"""What will go wrong and when: drawn from the seed and written down before the run begins."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KINDS: Mapping[str, int] = {
    "kill": 40,
    "freeze": 14,
    "terminate": 14,
    "cut": 8,
    "silence": 6,
    "slow": 6,
    "lock": 8,
    "drop-claim": 6,
    "drop-settle": 6,
    "drop-enqueue": 5,
}
"""Of those that are aimed at one process; the server's crashes have a pace of their own."""

ROLES = ("main", "renew", "listen")


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault: when, what, at whom, for how long, and at which of its connections."""

    t: float
    kind: str
    target: int
    seconds: float = 0.0
    roles: tuple[str, ...] = ()

    def as_line(self) -> dict[str, Any]:
        return asdict(self)


def draw(
    seed: int, *, seconds: float, faults: int, workers: int, lease: float, crash_every: float
) -> list[Planned]:
    """Faults at even pace with jitter, the server's crashes among them."""
    rng = random.Random(f"faults:{seed}")
    crashes = list(_crashes(rng, seconds, crash_every))
    pace = seconds / max(1, faults - len(crashes))
    kinds, weights = zip(*KINDS.items(), strict=True)
    planned = list(crashes)
    t = pace
    while t < seconds:
        [kind] = rng.choices(kinds, weights)
        planned.append(_one(rng, kind, t, workers, lease))
        t += pace * rng.uniform(0.6, 1.4)
    return sorted(planned, key=lambda fault: fault.t)


def _crashes(rng: random.Random, seconds: float, every: float) -> Iterator[Planned]:
    t = every * 0.7
    while every and t < seconds:
        yield Planned(round(t, 3), "crash", 0)
        t += every * rng.uniform(0.8, 1.2)


def _one(rng: random.Random, kind: str, t: float, workers: int, lease: float) -> Planned:
    target = rng.randrange(workers)
    seconds, roles = 0.0, ()  # type: tuple[float, tuple[str, ...]]
    match kind:
        case "freeze":
            seconds = lease * rng.uniform(1.2, 2.2)
        case "silence":
            seconds = lease * rng.uniform(0.4, 2.0)
            roles = rng.choice(((), *((role,) for role in ROLES)))
        case "lock":
            seconds = lease * rng.uniform(0.4, 1.6)
        case "slow":
            seconds = rng.uniform(1.0, 2.5)
        case "terminate" | "cut":
            roles = rng.choice(((), *((role,) for role in ROLES)))
    return Planned(round(t, 3), kind, target, round(seconds, 3), roles)
