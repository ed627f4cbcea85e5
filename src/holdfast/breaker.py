"""The rules of a circuit breaker: values in, decision out. Both stores run them on one row.

A breaker stands between the claim and a dependency that may be down. Closed, work flows. After
`threshold` consecutive failures in the whole fleet it opens: none of its work is claimed and no
attempt is spent. After the cooldown it is half open: `probes` permits exist at a time, each a lease
that expires, so a worker that dies with one wedges nothing. A probe's success closes the breaker,
its failure opens it again for twice as long, up to `max_cooldown`.

What a breaker promises about jobs in flight: a job that was claimed before the opening is neither
stopped nor taken back. It runs to its end, its job is settled as ever, and its outcome does not
move the breaker, because it carries the generation of the state it was claimed in and every change
of state begins another. A worker that has a failure to report does so before it claims more of that
work. So a dependency that is down gets at most `threshold` calls, those that were in flight at the
opening (no more than the fleet has slots), and the probes. A probe that runs for longer than
`probe_lease` may be joined by another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from holdfast import checks
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_NAME = 200
_MAX_COUNT = 2**31 - 1
_SHORTEST, _LONGEST = timedelta(milliseconds=1), timedelta(days=36_525)
_NONE = timedelta(0)


class BreakerState(StrEnum):
    """The three words of the database's column."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a breaker opens and how it tries again. It belongs to the code, its state does not."""

    name: str
    threshold: int = 5
    """Consecutive failures in the whole fleet that open it."""
    cooldown: timedelta = timedelta(seconds=30)
    """How long it stays open at first; twice as long after each probe that fails."""
    max_cooldown: timedelta = timedelta(minutes=10)
    probes: int = 1
    """How many jobs may try the dependency at once when the cooldown is over."""
    probe_lease: timedelta = timedelta(seconds=60)
    """A probe without an outcome counts as dead after this time. Jobs must be shorter."""
    ignore: tuple[type[BaseException], ...] = ()
    """Errors that say nothing about the dependency: neither a failure nor a success."""

    def __post_init__(self) -> None:
        faults = [
            *name_faults(self.name),
            *checks.faults(
                checks.integer_fault("threshold", self.threshold, 1),
                checks.integer_fault("probes", self.probes, 1),
            ),
            *self._duration_faults(),
            *self._ignore_faults(),
        ]
        if faults:
            raise InvalidInput(f"breaker {self.name!r:.80}: " + "; ".join(faults))

    def _duration_faults(self) -> list[str]:
        durations = {
            "cooldown": self.cooldown,
            "max_cooldown": self.max_cooldown,
            "probe_lease": self.probe_lease,
        }
        faults = [
            f"{name} must be a timedelta of 1 ms to {_LONGEST.days} days, got {value!r}"
            for name, value in durations.items()
            if not isinstance(value, timedelta) or not _SHORTEST <= value <= _LONGEST
        ]
        if not faults and self.max_cooldown < self.cooldown:
            faults.append(
                f"max_cooldown must be at least the cooldown of {self.cooldown}, "
                f"got {self.max_cooldown}"
            )
        return faults

    def _ignore_faults(self) -> list[str]:
        kinds = self.ignore
        if isinstance(kinds, tuple) and all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
        ):
            return []
        return [f"ignore must be a tuple of exception classes, got {kinds!r}"]


@dataclass(frozen=True, slots=True)
class Breaker:
    """A breaker as it is stored."""

    name: str
    state: BreakerState
    generation: int
    """Raised by every change of state; an outcome counts only for the one it was claimed in."""
    failures: int
    """Consecutive, in the whole fleet."""
    opened_at: datetime | None
    cooldown: timedelta
    """How long it stays open this time; zero while closed or forced."""
    probes: tuple[datetime, ...]
    """When each permit that is out expires."""
    actor: str | None
    """The person who holds it open. It then does not try again by itself."""
    reason: str | None
    updated: datetime

    @classmethod
    def new(cls, name: str, now: datetime) -> Breaker:
        return cls(name, BreakerState.CLOSED, 0, 0, None, _NONE, (), None, None, now)

    @property
    def forced(self) -> bool:
        return self.actor is not None

    @property
    def tries_again_at(self) -> datetime | None:
        """When the cooldown ends. None unless it is open without being held open."""
        if self.state is not BreakerState.OPEN or self.forced or self.opened_at is None:
            return None
        return self.opened_at + self.cooldown


@dataclass(frozen=True, slots=True)
class Admission:
    """The number of jobs that may be claimed now, and the generation that their outcomes carry."""

    generation: int
    allowance: int | None
    """The number of jobs. None means unlimited, because the breaker is closed."""
    expires: datetime | None = None
    """When the permits just granted expire. return_permits() identifies them by it."""
    wait: timedelta | None = None
    """Time until the answer changes by itself. None means that it does not."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Outcomes of one generation, in the order in which the handlers ended. True means success."""

    policy: BreakerPolicy
    generation: int
    verdicts: tuple[bool, ...]


def admit(
    breaker: Breaker, policy: BreakerPolicy, now: datetime, wanted: int
) -> tuple[Breaker, Admission]:
    """Let up to `wanted` jobs through. It grants permits, so the breaker that is returned is
    stored."""
    if breaker.state is BreakerState.CLOSED:
        return breaker, Admission(breaker.generation, None)
    if breaker.state is BreakerState.OPEN:
        until = breaker.tries_again_at
        if until is None or until > now:
            wait = None if until is None else until - now
            return breaker, Admission(breaker.generation, 0, wait=wait)
        if wanted <= 0:
            return breaker, Admission(breaker.generation, 0, wait=_NONE)
        breaker = _enter(breaker, BreakerState.HALF_OPEN, now)
    return _probe(breaker, policy, now, wanted)


def _probe(
    breaker: Breaker, policy: BreakerPolicy, now: datetime, wanted: int
) -> tuple[Breaker, Admission]:
    live = tuple(expiry for expiry in breaker.probes if expiry > now)
    room = policy.probes - len(live)
    granted = max(0, min(wanted, room))
    if not granted:
        # A caller that wanted no permits may ask at once for those that are left.
        wait = _NONE if room > 0 else min(live) - now
        return breaker, Admission(breaker.generation, 0, wait=wait)
    expires = now + policy.probe_lease
    probing = replace(breaker, probes=(*live, *(expires,) * granted), updated=now)
    return probing, Admission(breaker.generation, granted, expires)


def return_permits(
    breaker: Breaker, generation: int, expires: datetime, count: int, now: datetime
) -> Breaker:
    """Return permits that said nothing about the dependency, such as those that found no work.

    A permit that has expired and was granted anew is not returned a second time: it is known by
    its expiry.
    """
    kept = list(breaker.probes)
    for _ in range(count if breaker.generation == generation else 0):
        if expires in kept:
            kept.remove(expires)
    if len(kept) == len(breaker.probes):
        return breaker
    return replace(breaker, probes=tuple(kept), updated=now)


def record(
    breaker: Breaker,
    policy: BreakerPolicy,
    generation: int,
    verdicts: Sequence[bool],
    now: datetime,
) -> Breaker:
    """Count outcomes in their order. Those after a change of state are of a past generation."""
    after = breaker
    for succeeded in verdicts:
        if after.generation != generation:
            break
        after = _count(after, policy, succeeded, now)
    # A success after failures of the same batch may have led back to where it began.
    return breaker if replace(after, updated=breaker.updated) == breaker else after


def _count(breaker: Breaker, policy: BreakerPolicy, succeeded: bool, now: datetime) -> Breaker:
    match breaker.state, succeeded:
        case BreakerState.CLOSED, True:
            return replace(breaker, failures=0, updated=now)
        case BreakerState.CLOSED, False:
            failing = replace(breaker, failures=min(breaker.failures + 1, _MAX_COUNT), updated=now)
            if failing.failures < policy.threshold:
                return failing
            return _open(failing, policy.cooldown, now)
        case BreakerState.HALF_OPEN, True:
            return _close(breaker, now)
        case BreakerState.HALF_OPEN, False:
            failing = replace(breaker, failures=min(breaker.failures + 1, _MAX_COUNT))
            longer = max(breaker.cooldown * 2, policy.cooldown)
            return _open(failing, min(longer, policy.max_cooldown), now)
        case _:
            # Nothing is claimed under an open breaker's generation.
            return breaker


def force(
    breaker: Breaker, state: BreakerState, actor: str, reason: str | None, now: datetime
) -> Breaker:
    """Change the state by hand: open until it is closed by hand, or closed now."""
    if state is BreakerState.OPEN:
        held = breaker if breaker.state is state else _open(breaker, _NONE, now)
        return replace(held, cooldown=_NONE, actor=actor, reason=reason, updated=now)
    if state is not BreakerState.CLOSED:
        raise InvalidInput(f"a breaker can be forced open or closed, not {state!r}")
    if breaker.state is state:
        return replace(breaker, failures=0, updated=now) if breaker.failures else breaker
    return _close(breaker, now)


def _open(breaker: Breaker, cooldown: timedelta, now: datetime) -> Breaker:
    opened = _enter(breaker, BreakerState.OPEN, now)
    return replace(opened, opened_at=now, cooldown=cooldown)


def _close(breaker: Breaker, now: datetime) -> Breaker:
    closed = _enter(breaker, BreakerState.CLOSED, now)
    return replace(closed, failures=0, opened_at=None, cooldown=_NONE, actor=None, reason=None)


def _enter(breaker: Breaker, state: BreakerState, now: datetime) -> Breaker:
    return replace(breaker, state=state, generation=breaker.generation + 1, probes=(), updated=now)


def policy_of(breaker: str | BreakerPolicy) -> BreakerPolicy:
    """A name alone is the policy of that name with the defaults."""
    if isinstance(breaker, BreakerPolicy):
        return breaker
    if not isinstance(breaker, str):
        raise InvalidInput(f"breaker must be a name or a BreakerPolicy, got {breaker!r:.80}")
    return BreakerPolicy(breaker)


def name_faults(name: object) -> list[str]:
    if not isinstance(name, str) or not name:
        return [f"the name must be a string of at least one character, got {name!r:.80}"]
    if len(name) > MAX_NAME:
        return [f"the name has {len(name)} characters, more than the {MAX_NAME} allowed"]
    return checks.faults(checks.unstorable_fault("the name", name))
