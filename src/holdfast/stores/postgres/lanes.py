"""What a worker remembers between claims: where each lane goes on, and when to scan.

A lane is the jobs of one entrypoint and priority in their order. Its floor is the last key
claimed: the next walk of the index starts there, so neither dead rows nor rows in flight are
walked again. A scan finds new lanes, and what lies below a floor (late commits, released
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

    from holdfast.models import ClaimRule, Job
    from holdfast.stores.postgres.pauses import PauseView

_BOTTOM = datetime(1, 1, 1, tzinfo=UTC)
_TOP = datetime(9999, 1, 1, tzinfo=UTC)
LANE_COLUMNS = 7
"""Columns of lanes.sql about the lane. One more says whether the entrypoint is paused."""

MOST_OF_A_LANE = 1000
"""The most jobs that one statement claims of a lane. The planner knows this bound; without one it
expects a tenth of the table, and from a million rows on it has each claim compiled, which takes
30 ms."""
_LAST_ID = 2**63 - 1
_LOWEST, _HIGHEST = -(2**31) - 1, 2**31
_SCAN_TIME_DIVISOR = 20
"""A scan that takes one second is followed by this many seconds without another."""
_CHEAP_SCAN_SECONDS = 0.005
"""After a scan shorter than this the next slice is scanned without a pause."""
_SLICE_SECONDS = 0.02
"""Target for the scan of one slice. The length of the next slice follows from it."""
_SCAN_SECONDS = 0.5
_LONGEST_RESCAN_PAUSE_SECONDS = 1.0
_MOST_GROWTH = 4
_SECOND = timedelta(seconds=1)
_SHORTEST_SLICE = timedelta(milliseconds=50)
_MOST_PARTS = 20
_ALL = timedelta(days=365)
"""A slice this long is as good as everything."""
_FEW_PRIORITIES = 2
"""Up to this many priorities are claimed at once on a wake-up, without a scan first."""
_MOST_LANES = 1000


@dataclass(slots=True)
class Lane:
    """One entrypoint's jobs of one priority, or a part of them."""

    rule: ClaimRule
    priority: int
    floor: datetime = _BOTTOM
    floor_id: int = 0
    """Ids begin with 1: with 0 what has the time of the floor is above it."""
    ceiling: datetime = _TOP
    ceiling_id: int = _LAST_ID
    dry: bool = False
    rescanned_to: datetime | None = None
    """How far below the floor this pass has come; None: it begins at the floor."""
    known: bool = False
    """It had work when it was added. Another worker may have claimed it since."""

    @property
    def open(self) -> bool:
        """There may be more in it, and there is room for that."""
        return not self.dry and (self.rule.capacity is None or self.rule.capacity.left > 0)

    def took(self, last: Job | None, count: int, share: int) -> None:
        """Remember how far a claim came; fewer rows than asked for means there are no more."""
        if last is not None:
            self.floor, self.floor_id = last.execute_after, last.id
        self.dry = count < share
        if self.rule.capacity is not None:
            self.rule.capacity.left -= count

    def touches(self, later: Lane) -> bool:
        """Whether they are parts of one lane with less than a second between them."""
        same = (self.rule, self.priority) == (later.rule, later.priority)
        return same and later.floor - self.ceiling < _SECOND

    def below(self, ceiling: datetime, length: timedelta) -> Lane | None:
        """The slice from there downwards."""
        if self.floor == _BOTTOM:
            return None
        # Of jobs enqueued together, with one time, some may be above the floor.
        ceiling_id = self.floor_id if ceiling == self.floor else _LAST_ID
        whole = length >= _ALL or ceiling - _BOTTOM <= length
        floor = _BOTTOM if whole else ceiling - length
        return Lane(self.rule, self.priority, floor, 0, ceiling, ceiling_id)


class Lanes:
    """All lanes of a worker."""

    def __init__(self, pauses: PauseView | None = None) -> None:
        self._pauses = pauses
        """Lanes of paused entrypoints are left alone."""
        self._lanes: list[Lane] = []
        self._late_parts: list[Lane] = []
        self._rules: dict[str, ClaimRule] = {}
        self._slices: dict[tuple[str, int], Lane] = {}
        self._slice = self._deep_slice = _ALL
        """How long they are right below the floors, and further down."""
        self._at_the_floors = self._pass_begins = True
        self._scan_at = 0.0
        self._rescan_at = 0.0
        self.put_off = False
        """The last claim returned fewer jobs than it asked for, and parts are still unscanned."""
        self._due_at: float | None = None
        self._round = 0
        self._rescanned = False

    @property
    def entrypoints(self) -> Iterable[str]:
        return self._rules

    def knows(self, rules: Iterable[ClaimRule]) -> bool:
        return self._rules == {rule.entrypoint: rule for rule in rules}

    def reset(self, rules: Sequence[ClaimRule]) -> None:
        """Drop all lanes and begin again with these entrypoints."""
        self._rules = {rule.entrypoint: rule for rule in rules}
        self._lanes, self._late_parts = [], []
        self._scan_at = 0.0

    def scan_due(self) -> bool:
        """While lanes never come back empty, a higher priority would come up unseen."""
        now = monotonic()
        return now >= self._scan_at or (self.put_off and self.may_rescan())

    def may_rescan(self) -> bool:
        return monotonic() >= self._rescan_at

    @property
    def unfinished(self) -> bool:
        """Whether parts below the floors are unscanned, of entrypoints with capacity left."""
        return not self._rescanned or any(
            lane.rescanned_to is not None for lane in self._lanes if lane.rule.fit(1)
        )

    def question(self) -> dict[str, Any]:
        """Build the arguments of a scan: the floor and the next slice of each lane, and the gaps
        between known priorities."""
        if len(self._lanes) > _MOST_LANES:
            self.reset(list(self._rules.values()))
        may_rescan = self.may_rescan()
        self._rescanned = may_rescan or all(lane.floor == _BOTTOM for lane in self._lanes)
        slices = self._next_slices() if may_rescan else [None for _ in self._lanes]
        self._slices = {
            (part.rule.entrypoint, part.priority): part for part in slices if part is not None
        }
        gaps = [gap for name in self._rules for gap in self._gaps(name)]
        return {
            "entrypoints": [lane.rule.entrypoint for lane in self._lanes],
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
        self._pass_begins = all([lane.rescanned_to is None for lane in self._lanes])
        self._at_the_floors = self._pass_begins or not self._at_the_floors
        if self._at_the_floors:
            return [lane.below(lane.floor, self._slice) for lane in self._lanes]
        deep = self._deep_slice
        return [lane.below(lane.rescanned_to or lane.floor, deep) for lane in self._lanes]

    def answer(
        self,
        found: Iterable[tuple[str, int, bool, bool, timedelta | None, datetime | None, timedelta]],
    ) -> None:
        """Apply the rows of a scan."""
        known = {(lane.rule.entrypoint, lane.priority): lane for lane in self._lanes}
        dues: list[timedelta] = []
        longest = timedelta(0)
        self._late_parts = [lane for lane in self._late_parts if lane.known and not lane.dry]
        for name, priority, more, late, due, start, took in found:
            longest = max(longest, took)
            lane = known.get((name, priority))
            if lane is None:
                self._lanes.append(Lane(self._rules[name], priority, start or _BOTTOM))
            else:
                lane.dry = not more
                self._mark_rescanned(lane, late=late)
            if due is not None:
                dues.append(due)
        if len(self._lanes) > 1:
            place = {name: n for n, name in enumerate(self._rules)}
            self._lanes.sort(key=lambda lane: place[lane.rule.entrypoint])
        self._due_at = monotonic() + min(dues).total_seconds() if dues else None
        self._pace(longest.total_seconds())

    def _mark_rescanned(self, lane: Lane, *, late: bool) -> None:
        part = self._slices.get((lane.rule.entrypoint, lane.priority))
        if part is None:
            return
        if late:
            # Scanned again once its jobs have been claimed.
            self._late_parts.append(part)
        elif part.floor == _BOTTOM:
            lane.rescanned_to = None
        elif lane.rescanned_to is None or not self._at_the_floors:
            lane.rescanned_to = part.floor

    def expect(self, jobs: Iterable[tuple[str, int, datetime]]) -> None:
        """Add jobs known to be claimable again (entrypoint, priority, time). No scan is needed."""
        parts: list[Lane] = []
        for name, priority, after in sorted(job for job in jobs if job[0] in self._rules):
            lane = Lane(self._rules[name], priority, after, 0, after, known=True)
            if parts and parts[-1].touches(lane):
                parts[-1].ceiling = after
            else:
                parts.append(lane)
        # What is scattered widely is left to the scans: each part costs a statement.
        self._late_parts += parts[:_MOST_PARTS]

    def _pace(self, seconds: float) -> None:
        """Scans take at most a twentieth of the time, however many dead rows they walk.

        When lanes are dry only a scan finds new work, so the pause is bounded.
        """
        now = monotonic()
        rest = seconds * _SCAN_TIME_DIVISOR
        self._scan_at = now + max(rest, _SCAN_SECONDS)
        if not self._slices:
            return
        self._rescan_at = now + (
            0.0 if seconds < _CHEAP_SCAN_SECONDS else min(rest, _LONGEST_RESCAN_PAUSE_SECONDS)
        )
        if self._at_the_floors:
            self._slice = _next_length(self._slice, seconds)
        else:
            # Far below there is mostly nothing, and slices grow.
            self._deep_slice = _next_length(self._deep_slice, seconds)
        if self._pass_begins:
            self._deep_slice = self._slice

    def reopen(self) -> None:
        """When no lane is open, claim beyond the floors again: most new work is there."""
        few = len({lane.priority for lane in self._lanes}) <= _FEW_PRIORITIES
        if few and not any(lane.open for lane in self._lanes):
            for lane in self._lanes:
                lane.dry = False

    def priorities(self) -> list[int]:
        return sorted({lane.priority for lane in self._open()}, reverse=True)

    def deal(self, priority: int, room: int) -> list[tuple[Lane, int]]:
        """Divide the capacity fairly among the entrypoints with open lanes, in rotation.

        Each entrypoint claims one part at a time, older jobs below its floor first.
        """
        first: dict[str, Lane] = {}
        for lane in self._open():
            if lane.priority == priority:
                first.setdefault(lane.rule.entrypoint, lane)
        if not first:
            return []
        self._round += 1
        start = self._round % len(first)
        lanes = list(first.values())
        lanes = lanes[start:] + lanes[:start]
        shares = _shares(room, [lane.rule.fit(MOST_OF_A_LANE) for lane in lanes])
        return [(lane, size) for lane, size in zip(lanes, shares, strict=True) if size]

    def _open(self) -> list[Lane]:
        """Lanes that may have more. Each claim asks a few times, so `Lane.open` is spelled out."""
        lanes = [
            lane
            for lane in (*self._late_parts, *self._lanes)
            if not lane.dry and (lane.rule.capacity is None or lane.rule.capacity.left > 0)
        ]
        if self._pauses is None or not self._pauses.paused:
            return lanes
        return [lane for lane in lanes if not self._pauses.covers(lane.rule.entrypoint)]

    def _gaps(self, name: str) -> list[tuple[str, int, int]]:
        """Above, between and below the known priorities of an entrypoint."""
        known = [lane.priority for lane in self._lanes if lane.rule.entrypoint == name]
        tops = [_HIGHEST, *sorted(known, reverse=True)]
        return [(name, *gap) for gap in zip(tops, [*tops[1:], _LOWEST], strict=True)]

    def next_scan(self) -> timedelta | None:
        """Time until a claim may find more: the next deferred job, or a postponed scan."""
        now = monotonic()
        scans = [] if self._due_at is None else [self._due_at]
        if self.put_off:
            scans.append(self._rescan_at)
        return timedelta(seconds=max(0.0, min(scans) - now)) if scans else None


def _shares(room: int, most: Sequence[int]) -> list[int]:
    """Divide evenly, but give none more than its bound. The others share the rest."""
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
    """Length of the next slice, after one that took `seconds`."""
    length *= _SLICE_SECONDS / max(seconds, _SLICE_SECONDS / _MOST_GROWTH)
    if seconds > 2 * _SLICE_SECONDS:
        length = min(length, _SECOND)
    return max(min(length, _ALL), _SHORTEST_SLICE)
