"""The circuit breakers of the memory store: the rules applied to a dict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.breaker import (
    Admission,
    Breaker,
    BreakerPolicy,
    BreakerState,
    Verdicts,
    admit,
    force,
    record,
    return_permits,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from holdfast.stores.memory.state import State


class MemoryBreakers:
    """The Breakers facet."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._breakers: dict[str, Breaker] = {}

    async def admit(self, policies: Sequence[BreakerPolicy], wanted: int) -> dict[str, Admission]:
        now = self._state.now()
        admissions: dict[str, Admission] = {}
        for policy in policies:
            breaker, admission = admit(self._get(policy.name, now), policy, now, wanted)
            self._breakers[policy.name] = breaker
            admissions[policy.name] = admission
        return admissions

    async def return_permits(
        self, name: str, generation: int, expires: datetime, count: int
    ) -> None:
        now = self._state.now()
        self._put(return_permits(self._get(name, now), generation, expires, count, now))

    async def record(self, outcomes: Sequence[Verdicts]) -> None:
        now = self._state.now()
        for told in outcomes:
            was = self._get(told.policy.name, now)
            self._put(record(was, told.policy, told.generation, told.verdicts, now))

    async def all(self) -> list[Breaker]:
        return [self._breakers[name] for name in sorted(self._breakers)]

    async def force(
        self, name: str, state: BreakerState, *, actor: str, reason: str | None
    ) -> Breaker:
        now = self._state.now()
        forced = force(self._get(name, now), state, actor, reason, now)
        self._put(forced)
        return forced

    def _get(self, name: str, now: datetime) -> Breaker:
        return self._breakers.get(name) or Breaker.new(name, now)

    def _put(self, breaker: Breaker) -> None:
        """Store a breaker. One that is as new as on its first use needs no row."""
        if breaker.name in self._breakers or breaker != Breaker.new(breaker.name, breaker.updated):
            self._breakers[breaker.name] = breaker
