"""The jobs of a run, from a seed. What a job does is in its payload, the same at each attempt."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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
"""Of a thousand jobs. Poison jobs are counted apart, because each kills three workers."""

WEIRD = ("nul", "surrogate", "huge", "exit", "unprintable", "base")


@dataclass(frozen=True, slots=True)
class Spec:
    """One job to be enqueued. By `uid` the checker knows which job of the seed it is."""

    uid: int
    kind: str
    entrypoint: str
    does: Mapping[str, Any]
    priority: int = 0
    key: str | None = None
    delay: float = 0.0
    max_recoveries: int | None = NO_CAP
    cancel_after: float | None = None

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
    return _KINDS[kind](Spec(uid, kind, "work", {}), lease, rng)


def _fail(spec: Spec, _: float, rng: random.Random) -> Spec:
    does = {"do": "nap", "seconds": 0.002, "fails": rng.randint(1, 3)}
    return replace(spec, does={**does, "delay": round(rng.uniform(0.05, 0.6), 3)})


def _keyed(spec: Spec, _: float, rng: random.Random) -> Spec:
    key = f"hot:{rng.randrange(HOT_KEYS)}"
    return replace(spec, does=_nap(rng.uniform(0.0, 0.3)), key=key)


def _cancel(spec: Spec, lease: float, rng: random.Random) -> Spec:
    after, delay = rng.uniform(0.0, 0.5), rng.choice((0.0, 0.4))
    return replace(spec, does=_nap(lease), delay=delay, cancel_after=after)


def _weird(spec: Spec, _: float, rng: random.Random) -> Spec:
    does = {"do": "raise", "error": rng.choice(WEIRD)}
    return replace(spec, entrypoint=rng.choice(("fragile", "held")), does=does)


def _nap(seconds: float) -> dict[str, Any]:
    return {"do": "nap", "seconds": round(seconds, 4)}


_KINDS: Mapping[str, Callable[[Spec, float, random.Random], Spec]] = {
    "fast": lambda spec, _, rng: replace(spec, does=_nap(0.005), priority=rng.choice((0, 0, 0, 1))),
    "long": lambda spec, lease, _: replace(spec, does=_nap(1.3 * lease)),
    "fail": _fail,
    "keyed": _keyed,
    "limited": lambda spec, _, __: replace(spec, entrypoint="limited", does=_nap(0.03)),
    "cancel": _cancel,
    "later": lambda spec, _, rng: replace(spec, does=_nap(0.005), delay=rng.uniform(0.2, 3.0)),
    "weird": _weird,
    "guarded": lambda spec, _, __: replace(
        spec, entrypoint="guarded", does={"do": "call", "delay": 0.2}
    ),
    "hold": lambda spec, _, __: replace(
        spec, entrypoint="held", does={"do": "raise", "error": "plain"}
    ),
    # With the usual cap: what the nemesis hits three times is held.
    "shaky": lambda spec, _, __: replace(spec, does=_nap(0.2), max_recoveries=None),
    "block": lambda spec, lease, _: replace(spec, does={"do": "block", "seconds": 2 * lease}),
    "once": lambda spec, _, __: replace(spec, does=_nap(0.0), key=f"once:{spec.uid}"),
    "poison": lambda spec, _, __: replace(
        spec, entrypoint="poison", does={"do": "die"}, max_recoveries=None
    ),
}
