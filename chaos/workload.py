"""The jobs of a run, from a seed. What a job does is in its payload: every attempt does the same."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LIMIT = 2
"""Of the entrypoint `limited`, in the whole fleet."""

HOT_KEYS = 12
TABLE = "chaos_rows"
SCHEDULE = "every_second"
DEPENDENCY = "dependency"
NO_CAP = 1_000_000
"""Recoveries of jobs that the nemesis may hit as often as it likes."""

SHARES: Mapping[str, int] = {
    "fast": 700,
    "long": 120,
    "fail": 50,
    "keyed": 40,
    "limited": 20,
    "cancel": 20,
    "later": 20,
    "weird": 12,
    "guarded": 6,
    "hold": 4,
    "shaky": 7,
    "block": 1,
}
"""Of a thousand jobs. Poison is dealt out by number, since each costs three workers."""

WEIRD = ("nul", "surrogate", "huge", "exit", "unprintable", "base")


@dataclass(frozen=True, slots=True)
class Spec:
    """One job to be enqueued. `uid` tells the checker which job of the seed it is."""

    uid: int
    kind: str
    entrypoint: str
    does: Mapping[str, Any]
    priority: int = 0
    key: str | None = None
    delay: float = 0.0
    max_recoveries: int | None = NO_CAP
    cancel_after: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def payload(self) -> bytes:
        return json.dumps({"uid": self.uid, "kind": self.kind, **self.does}).encode()


def specs(
    seed: int, first: int, count: int, lease: float, shares: Mapping[str, int] | None = None
) -> Iterator[Spec]:
    """Jobs number `first` and on; the same for the same seed, whoever asks."""
    rng = random.Random(f"{seed}:{first}")
    kinds, weights = zip(*(shares or SHARES).items(), strict=True)
    for uid in range(first, first + count):
        [kind] = rng.choices(kinds, weights)
        yield make(uid, kind, lease, rng)


def make(uid: int, kind: str, lease: float, rng: random.Random) -> Spec:
    """A job of one kind."""
    match kind:
        case "fast":
            return Spec(uid, kind, "work", _nap(0.005), priority=rng.randrange(3))
        case "long":
            return Spec(uid, kind, "work", _nap(1.3 * lease))
        case "fail":
            does = {"do": "nap", "seconds": 0.002, "fails": rng.randint(1, 3)}
            return Spec(uid, kind, "work", {**does, "delay": round(rng.uniform(0.05, 0.6), 3)})
        case "keyed":
            key = f"hot:{rng.randrange(HOT_KEYS)}"
            return Spec(uid, kind, "work", _nap(rng.uniform(0.0, 0.3)), key=key)
        case "limited":
            return Spec(uid, kind, "limited", _nap(0.03))
        case "cancel":
            after = rng.uniform(0.0, 0.5)
            delay = rng.choice((0.0, 0.4))
            return Spec(uid, kind, "work", _nap(lease), delay=delay, cancel_after=after)
        case "later":
            return Spec(uid, kind, "work", _nap(0.005), delay=rng.uniform(0.2, 3.0))
        case "weird":
            does = {"do": "raise", "error": rng.choice(WEIRD)}
            return Spec(uid, kind, rng.choice(("fragile", "held")), does)
        case "guarded":
            return Spec(uid, kind, "guarded", {"do": "call", "delay": 0.2})
        case "hold":
            return Spec(uid, kind, "held", {"do": "raise", "error": "plain"})
        case "shaky":
            return Spec(uid, kind, "work", _nap(0.2), max_recoveries=None)
        case "block":
            return Spec(uid, kind, "work", {"do": "block", "seconds": 2 * lease})
        case "poison":
            return Spec(uid, kind, "poison", {"do": "die"}, max_recoveries=None)
        case _:
            raise ValueError(f"there is no kind of job {kind!r}")


def _nap(seconds: float) -> dict[str, Any]:
    return {"do": "nap", "seconds": round(seconds, 4)}
