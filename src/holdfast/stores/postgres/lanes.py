"""What a worker remembers between claims: where each lane goes on, and when to look around.

A lane is the jobs of one entrypoint and priority in their order. Its floor is the last key
claimed: the next walk of the index starts there, so neither dead rows nor rows in flight are
walked again. A look around finds new lanes, and what lies below a floor (late commits, released
rows) slice by slice: while something keeps dead rows from being removed there may be millions of
them, and a pass over all may take minutes. So every other look is at the slice right below the
floor, where what was committed late mostly is. Nothing is ever lost by forgetting all this.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from holdfast.clock import monotonic

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.models import Job, Want

_BOTTOM = datetime(1, 1, 1, tzinfo=UTC)
_TOP = datetime(9999, 1, 1, tzinfo=UTC)
MOST_OF_A_LANE = 1000
"""What one statement claims of a lane. The planner knows this bound; without one it expects a tenth
of the table, and from a million rows on it has each claim compiled, which takes 30 ms."""
_LAST_ID = 2**63 - 1
_LOWEST, _HIGHEST = -(2**31) - 1, 2**31
_SHARE_OF_TIME = 20
_CHEAP = 0.005
_DEAR = 0.02
_LOOK_AROUND = 0.5
_LONGEST_WHILE_DRY = 1.0
_STEP = 4
_SECOND = timedelta(seconds=1)
_SHORTEST_SLICE = timedelta(milliseconds=50)
_MOST_PARTS = 20
_ALL = timedelta(days=365)
"""A slice this long is as good as everything."""
_FEW = 2
"""So many priorities are tried at once when there is a wake-up, without a look around first."""
_MOST = 1000


@dataclass(slots=True)
class Lane:
    """One entrypoint's jobs of one priority, or a part of them."""

    want: Want
    priority: int
    floor: datetime = _BOTTOM
    floor_id: int = 0
    """Ids begin with 1: with 0 what has the time of the floor is above it."""
    ceiling: datetime = _TOP
    ceiling_id: int = _LAST_ID
    dry: bool = False
    looked_down_to: datetime | None = None
    """How far below the floor this pass has come; None: it begins at the floor."""
    known: bool = False
    """There is work in it for certain, unless somebody else has taken it."""

    @property
    def open(self) -> bool:
        """There may be more in it, and there is room for that."""
        return not self.dry and (self.want.room is None or self.want.room.left > 0)

    def took(self, last: Job | None, count: int, share: int) -> None:
        """Remember how far a claim came; fewer rows than asked for means there are no more."""
        if last is not None:
            self.floor, self.floor_id = last.execute_after, last.id
        self.dry = count < share
        self.want.took(count)

    def touches(self, later: Lane) -> bool:
        """Whether they are parts of one lane with less than a second between them."""
        same = (self.want, self.priority) == (later.want, later.priority)
        return same and later.floor - self.ceiling < _SECOND

    def below(self, ceiling: datetime, length: timedelta) -> Lane | None:
        """The slice from there downwards."""
        if self.floor == _BOTTOM:
            return None
        # Of jobs enqueued together, with one time, some may be above the floor.
        ceiling_id = self.floor_id if ceiling == self.floor else _LAST_ID
        whole = length >= _ALL or ceiling - _BOTTOM <= length
        floor = _BOTTOM if whole else ceiling - length
        return Lane(self.want, self.priority, floor, 0, ceiling, ceiling_id)


class Lanes:
    """All lanes of a worker."""

    def __init__(self) -> None:
        self._lanes: list[Lane] = []
        self._strays: list[Lane] = []
        self._wants: dict[str, Want] = {}
        self._slices: dict[tuple[str, int], Lane] = {}
        self._slice = self._deep_slice = _ALL
        """How long they are right below the floors, and further down."""
        self._at_the_floors = self._pass_begins = True
        self._look_at = 0.0
        self._look_down_at = 0.0
        self.put_off = False
        """The last claim came short, and there is still where to look."""
        self._due_at: float | None = None
        self._turn = 0
        self._looked_down = False

    def knows(self, wants: Iterable[Want]) -> bool:
        return self._wants == {want.entrypoint: want for want in wants}

    def forget(self, wants: Sequence[Want]) -> None:
        """Begin again with everything, for these entrypoints."""
        self._wants = {want.entrypoint: want for want in wants}
        self._lanes, self._strays = [], []
        self._look_at = 0.0

    def look_due(self) -> bool:
        """While lanes never come back empty, a higher priority would come up unseen."""
        now = monotonic()
        return now >= self._look_at or (self.put_off and self.may_look_down())

    def may_look_down(self) -> bool:
        return monotonic() >= self._look_down_at

    @property
    def unfinished(self) -> bool:
        """Not everything below the floors has been looked at, where there is room for it."""
        return not self._looked_down or any(
            lane.looked_down_to is not None for lane in self._lanes if lane.want.fit(1)
        )

    @property
    def _on_the_way_down(self) -> bool:
        return any(lane.looked_down_to is not None for lane in self._lanes)

    def question(self) -> dict[str, Any]:
        """What a look asks: of each lane what is above its floor and in its next slice, and which
        priorities there are between the known ones."""
        if len(self._lanes) > _MOST:
            self.forget(list(self._wants.values()))
        may_look_down = self.may_look_down()
        self._looked_down = may_look_down or all(lane.floor == _BOTTOM for lane in self._lanes)
        slices = self._next_slices() if may_look_down else [None for _ in self._lanes]
        self._slices = {
            (part.want.entrypoint, part.priority): part for part in slices if part is not None
        }
        gaps = [gap for name in self._wants for gap in self._gaps(name)]
        return {
            "entrypoints": [lane.want.entrypoint for lane in self._lanes],
            "priorities": [lane.priority for lane in self._lanes],
            "floors": [lane.floor for lane in self._lanes],
            "floor_ids": [lane.floor_id for lane in self._lanes],
            "slice_floors": [part and part.floor for part in slices],
            "slice_ceilings": [part and part.ceiling for part in slices],
            "slice_ceiling_ids": [part and part.ceiling_id for part in slices],
            "gap_entrypoints": [name for name, _, _ in gaps],
            "gap_tops": [top for _, top, _ in gaps],
            "gap_bottoms": [bottom for _, _, bottom in gaps],
        }

    def _next_slices(self) -> list[Lane | None]:
        self._pass_begins = not self._on_the_way_down
        self._at_the_floors = self._pass_begins or not self._at_the_floors
        if self._at_the_floors:
            return [lane.below(lane.floor, self._slice) for lane in self._lanes]
        deep = self._deep_slice
        return [lane.below(lane.looked_down_to or lane.floor, deep) for lane in self._lanes]

    def answer(
        self,
        found: Iterable[tuple[str, int, bool, bool, timedelta | None, datetime | None, timedelta]],
    ) -> None:
        """What a look found."""
        known = {(lane.want.entrypoint, lane.priority): lane for lane in self._lanes}
        dues: list[timedelta] = []
        longest = timedelta(0)
        self._strays = [lane for lane in self._strays if lane.known and not lane.dry]
        for name, priority, more, stray, due, start, took in found:
            longest = max(longest, took)
            lane = known.get((name, priority))
            if lane is None:
                self._lanes.append(Lane(self._wants[name], priority, start or _BOTTOM))
            else:
                lane.dry = not more
                self._look_down(lane, stray=stray)
            if due is not None:
                dues.append(due)
        place = {name: n for n, name in enumerate(self._wants)}
        self._lanes.sort(key=lambda lane: place[lane.want.entrypoint])
        self._due_at = monotonic() + min(dues).total_seconds() if dues else None
        self._pace(longest.total_seconds())

    def _look_down(self, lane: Lane, *, stray: bool) -> None:
        part = self._slices.get((lane.want.entrypoint, lane.priority))
        if part is None:
            return
        if stray:
            # Looked at again once what is in there has been claimed.
            self._strays.append(part)
        elif part.floor == _BOTTOM:
            lane.looked_down_to = None
        elif lane.looked_down_to is None or not self._at_the_floors:
            lane.looked_down_to = part.floor

    def expect(self, jobs: Iterable[tuple[str, int, datetime]]) -> None:
        """These are claimable again, by entrypoint, priority and time: no look need find them."""
        parts: list[Lane] = []
        for name, priority, after in sorted(job for job in jobs if job[0] in self._wants):
            lane = Lane(self._wants[name], priority, after, 0, after, known=True)
            if parts and parts[-1].touches(lane):
                parts[-1].ceiling = after
            else:
                parts.append(lane)
        # What is scattered widely is left to the looks: each part costs a statement.
        self._strays += parts[:_MOST_PARTS]

    def _pace(self, seconds: float) -> None:
        """Looks take at most a twentieth of the time, however many dead rows they walk.

        Where lanes are dry only a look finds new work, and is not put off for long.
        """
        now = monotonic()
        rest = seconds * _SHARE_OF_TIME
        self._look_at = now + max(rest, _LOOK_AROUND)
        if not self._slices:
            return
        self._look_down_at = now + (0.0 if seconds < _CHEAP else min(rest, _LONGEST_WHILE_DRY))
        if self._at_the_floors:
            self._slice = _next_length(self._slice, seconds)
        else:
            # Far below there is mostly nothing, and slices grow.
            self._deep_slice = _next_length(self._deep_slice, seconds)
        if self._pass_begins:
            self._deep_slice = self._slice

    def reopen(self) -> None:
        """Where no lane is open, look beyond the floors again: new work is mostly there."""
        few = len({lane.priority for lane in self._lanes}) <= _FEW
        if few and not any(lane.open for lane in self._lanes):
            for lane in self._lanes:
                lane.dry = False

    def priorities(self) -> list[int]:
        return sorted({lane.priority for lane in self._open()}, reverse=True)

    def deal(self, priority: int, room: int) -> list[tuple[Lane, int]]:
        """A fair share of the room for each entrypoint that may have more; turns take turns.

        Of an entrypoint one part at a time, first what lies below its floor: it is older.
        """
        first: dict[str, Lane] = {}
        for lane in self._open():
            if lane.priority == priority:
                first.setdefault(lane.want.entrypoint, lane)
        if not first:
            return []
        self._turn += 1
        start = self._turn % len(first)
        lanes = list(first.values())
        lanes = lanes[start:] + lanes[:start]
        shares = _shares(room, [lane.want.fit(MOST_OF_A_LANE) for lane in lanes])
        return [(lane, size) for lane, size in zip(lanes, shares, strict=True) if size]

    def _open(self) -> list[Lane]:
        return [lane for lane in (*self._strays, *self._lanes) if lane.open]

    def _gaps(self, name: str) -> list[tuple[str, int, int]]:
        """Above, between and below the known priorities of an entrypoint."""
        known = [lane.priority for lane in self._lanes if lane.want.entrypoint == name]
        tops = [_HIGHEST, *sorted(known, reverse=True)]
        return [(name, *gap) for gap in zip(tops, [*tops[1:], _LOWEST], strict=True)]

    def next_look(self) -> timedelta | None:
        """When a claim may find more: the next deferred job, or a look that was put off."""
        now = monotonic()
        looks = [] if self._due_at is None else [self._due_at]
        if self.put_off:
            looks.append(self._look_down_at)
        return timedelta(seconds=max(0.0, min(looks) - now)) if looks else None


def _shares(room: int, most: Sequence[int]) -> list[int]:
    """Even ones, but to none more than its most: what it leaves is shared by the others."""
    shares = [0] * len(most)
    hungry: Sequence[int] = range(len(most))
    while room and hungry:
        share, rest = divmod(room, len(hungry))
        for place, who in enumerate(hungry):
            size = min(share + (place < rest), most[who] - shares[who])
            shares[who] += size
            room -= size
        hungry = [who for who in hungry if shares[who] < most[who]]
    return shares


def _next_length(length: timedelta, seconds: float) -> timedelta:
    """Of a slice, after one that took so long."""
    length *= _DEAR / max(seconds, _DEAR / _STEP)
    if seconds > 2 * _DEAR:
        length = min(length, _SECOND)
    return max(min(length, _ALL), _SHORTEST_SLICE)
