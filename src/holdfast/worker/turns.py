"""Lets no more jobs of an entrypoint start than its executor can run at once, nor be claimed.

An executor with a capacity gives its entrypoint so many slots of its own beside the worker's own.
Before each claim its room is told: what these can take, and what they would have claimed ahead.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.worker.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from holdfast.models import Job, Room, Want
    from holdfast.settings import WorkerSettings
    from holdfast.worker.hand import Lease


@dataclass(slots=True)
class _Places:
    """Of one entrypoint."""

    slots: Slots
    room: Room
    """What was left of it after the last claim."""
    freed: int = 0
    """How many slots became free since that claim was sent."""


class Turns:
    """A job that waited inside its executor could not be told from one that runs: its timeout
    would pass, and a worker that stops would wait for it instead of handing it back."""

    def __init__(
        self,
        wants: Sequence[Want],
        settings: WorkerSettings,
        start: Callable[[Sequence[Lease]], None],
        hand_back: Callable[[Sequence[Lease]], None],
        changed: Callable[[], None],
    ) -> None:
        self._start = start
        self._changed = changed
        self._places = {
            want.entrypoint: _Places(
                Slots(replace(settings, concurrency=want.room.left), start, hand_back), want.room
            )
            for want in wants
            if want.room is not None
        }
        self._all_have_places = len(self._places) == len(wants)

    def __len__(self) -> int:
        """How many jobs wait for their turn."""
        return sum(len(places.slots) for places in self._places.values())

    @property
    def full(self) -> bool:
        """No entrypoint has room for another job."""
        return self._all_have_places and not any(
            places.slots.room > 0 for places in self._places.values()
        )

    @property
    def reopened(self) -> bool:
        """There is room again where the last claim took all there was."""
        return any(places.room.left <= 0 < places.slots.room for places in self._places.values())

    def offer(self, coming: Iterable[Job]) -> None:
        """Tell the next claim how much room there is beside jobs that have yet to begin."""
        if not self._places:
            return
        count = Counter(job.entrypoint for job in coming)
        for name, places in self._places.items():
            places.freed = 0
            places.room.left = max(0, places.slots.room - count[name])

    def expect(self, *, steady: bool) -> None:
        """After a claim: where it took all there was room for, more may be waiting."""
        for places in self._places.values():
            if steady and places.room.left <= 0:
                places.slots.expect(places.freed)
            else:
                places.slots.expect_none()

    def begin(self, leases: Sequence[Lease]) -> None:
        """Start them now, or when their turn comes."""
        if not self._places:
            self._start(leases)
            return
        others: list[Lease] = []
        by_entrypoint: defaultdict[str, list[Lease]] = defaultdict(list)
        for lease in leases:
            name = lease.entrypoint.name
            (by_entrypoint[name] if name in self._places else others).append(lease)
        self._start(others)
        for name, some in by_entrypoint.items():
            self._places[name].slots.begin(some)

    def ended(self, lease: Lease) -> None:
        """Its place is free for the next, unless its thread could not be stopped and has it."""
        places = self._places.get(lease.entrypoint.name)
        if places is None:
            return
        if lease.cancellation.runs_on is None:
            self._free(places)
        else:
            self._free_after(lease.cancellation.runs_on, places)

    def unstarted(self, leases: Iterable[Lease]) -> None:
        """They had a place, and are handed back instead."""
        for lease in leases:
            if places := self._places.get(lease.entrypoint.name):
                places.slots.ended()

    def take_waiting(self) -> list[Lease]:
        """What has not started, to be handed back."""
        return [lease for places in self._places.values() for lease in places.slots.take_waiting()]

    def _free(self, places: _Places) -> None:
        places.freed += 1
        places.slots.ended()
        self._changed()

    def _free_after(self, thread: Future[Any], places: _Places) -> None:
        loop = asyncio.get_running_loop()

        def ended(_: Future[Any]) -> None:
            # By then the worker may have stopped, and its event loop with it.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._free, places)

        thread.add_done_callback(ended)
