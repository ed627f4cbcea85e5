"""The pauses of the memory store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.models import Act, Pause

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from holdfast.stores.memory.state import State


class MemoryPauses:
    """The Pauses facet."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._acts: list[Act] = []

    async def pause(
        self,
        name: str,
        *,
        until: datetime | None,
        lasts: timedelta | None,
        actor: str | None,
        reason: str,
    ) -> Pause:
        now = self._state.now()
        end = now + lasts if until is None and lasts is not None else until
        self._state.pauses[name] = pause = Pause(name, end, actor, reason, now)
        self._log("pause", name, actor, reason)
        return pause

    async def resume(self, name: str, *, actor: str | None, reason: str | None) -> bool:
        held = name in {pause.name for pause in self._state.paused()}
        if self._state.pauses.pop(name, None) is not None:
            self._log("resume", name, actor, reason)
        self._state.announce(self._state.rows.values(), self._state.now())
        return held

    async def all(self) -> list[Pause]:
        return sorted(self._state.paused())

    async def acts(self, limit: int) -> list[Act]:
        return self._acts[: -limit - 1 : -1]

    async def record_act(self, act: str, subject: str, *, actor: str, reason: str | None) -> None:
        self._log(act, subject, actor, reason)

    def _log(self, act: str, name: str, actor: str | None, reason: str | None) -> None:
        self._acts.append(Act(len(self._acts) + 1, self._state.now(), act, name, actor, reason))
