"""What a worker remembers between claims: where each lane goes on, and when to look anew.

A lane is the jobs of one entrypoint and priority in their order. Its floor is the last key
claimed: the next walk of the index starts there, so neither dead rows nor rows in flight are
walked again. What lies below a floor (late commits, released rows) is found by a sweep from the
start. Nothing is ever lost by forgetting this.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from holdfast.clock import monotonic

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.models import Job, Want

_BOTTOM = datetime(1, 1, 1, tzinfo=UTC)
_SHARE_OF_TIME = 20
_CHEAP = 0.005
_LOOK_AROUND = 0.5
_LONGEST_WHILE_DRY = 1.0
_LONGEST = 5.0
_REMEMBERED = 8


@dataclass(slots=True)
class Lane:
    """One entrypoint's jobs of one priority."""

    want: Want
    priority: int
    floor: datetime = _BOTTOM
    floor_id: int = 0
    dry: bool = False

    def took(self, last: Job | None, count: int, share: int) -> None:
        """Remember how far a claim came; fewer rows than asked for means there are no more."""
        if last is not None:
            self.floor, self.floor_id = last.execute_after, last.id
        self.dry = count < share


class Lanes:
    """All lanes of a worker."""

    def __init__(self) -> None:
        self._lanes: list[Lane] = []
        self._known: frozenset[str] = frozenset()
        self._sweep_allowed = 0.0
        self._sweep_overdue = 0.0
        self._costs: deque[float] = deque(maxlen=_REMEMBERED)
        self.put_off = False
        """A claim came short without a sweep, which was not allowed yet."""
        self._due_at: float | None = None
        self._turn = 0

    def knows(self, wants: Iterable[Want]) -> bool:
        return self._known == frozenset(want.entrypoint for want in wants)

    def reset(
        self, wants: Sequence[Want], found: Iterable[tuple[str, int, timedelta | None]]
    ) -> None:
        """Start every lane from its beginning."""
        by_name = {want.entrypoint: want for want in wants}
        place = {name: n for n, name in enumerate(by_name)}
        rows = sorted(found, key=lambda row: place[row[0]])
        self._known = frozenset(by_name)
        self._lanes = [Lane(by_name[name], priority) for name, priority, _ in rows]
        due = min((due for _, _, due in rows if due is not None), default=None)
        self._due_at = None if due is None else monotonic() + due.total_seconds()

    def reopen(self) -> None:
        """Where all lanes are dry, look beyond their floors again: new work is mostly there."""
        if all(lane.dry for lane in self._lanes):
            for lane in self._lanes:
                lane.dry = False

    def priorities(self) -> list[int]:
        return sorted({lane.priority for lane in self._lanes if not lane.dry}, reverse=True)

    def deal(self, priority: int, room: int) -> list[tuple[Lane, int]]:
        """A fair share of the room for each lane that may have more; turns take turns."""
        lanes = [lane for lane in self._lanes if lane.priority == priority and not lane.dry]
        if not lanes:
            return []
        self._turn += 1
        start = self._turn % len(lanes)
        lanes = lanes[start:] + lanes[:start]
        share, rest = divmod(room, len(lanes))
        shares = [share + (place < rest) for place in range(len(lanes))]
        return [(lane, size) for lane, size in zip(lanes, shares, strict=True) if size]

    def may_sweep(self) -> bool:
        return monotonic() >= self._sweep_allowed

    def sweep_due(self) -> bool:
        """While lanes never come back empty, a higher priority would come up unseen."""
        now = monotonic()
        return now >= self._sweep_overdue or (self.put_off and now >= self._sweep_allowed)

    def swept(self, seconds: float) -> None:
        """Sweeps take at most a twentieth of the time, however many dead rows they walk.

        Dead rows make every sweep slow, a busy machine only some: the cheapest of the last ones
        tells. Where lanes are dry only a sweep finds new work, and is not put off for long.
        """
        self._costs.append(seconds)
        cost = min(self._costs)
        now, share = monotonic(), cost * _SHARE_OF_TIME
        self._sweep_allowed = now + (0.0 if cost < _CHEAP else min(share, _LONGEST_WHILE_DRY))
        self._sweep_overdue = now + min(max(share, _LOOK_AROUND), _LONGEST)
        self.put_off = False

    def next_look(self) -> timedelta | None:
        """When a claim may find more: the next deferred job, or a sweep that was put off."""
        now = monotonic()
        looks = [] if self._due_at is None else [self._due_at]
        if self.put_off:
            looks.append(now)
        if not looks:
            return None
        return timedelta(seconds=max(0.0, max(min(looks), self._sweep_allowed) - now))
