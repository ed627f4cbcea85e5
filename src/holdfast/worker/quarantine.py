"""Decides when a worker claims jobs that a worker died with, and how many of them.

When a worker dies, all its jobs are recovered, and nothing tells which of them killed it. So a
recovered job runs beside the others, but only a few recovered jobs run at a time. That bounds how
many jobs the next death can incriminate. A suspect is a job that one more death would retire. It is
claimed while the worker holds no other lease, and the worker claims nothing else until the suspect
is settled. So a suspect whose lease expires ran alone, and only then is it held as a crash loop.

Other jobs must not wait long for suspects. Draining for a suspect and running it take at most a
fifth of the time in which other jobs have work for the worker. Under `holdfast run` other jobs do
not wait at all: suspects run in processes of their own, each alone in its process.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING

from holdfast.clock import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.models import RecoveredWaiting
    from holdfast.worker.leases import Lease, LeaseSet

FIRST_ALLOWANCE = 8
"""Recovered jobs that a new worker runs at a time. It doubles whenever that many were settled."""

PAUSE_FACTOR = 4.0
"""After a suspect that other jobs waited for, the next waits this many times as long as it took."""

WORKERS_PER_SUSPECT = 5
"""Of this many workers of a fleet, one runs a suspect at a time."""

MOST_PROCESSES = 4
"""While fewer suspects than this run in a fleet, a quarantine process asks for another one."""


class Suspects(StrEnum):
    """A worker's treatment of suspects."""

    run = "run"
    """It runs them between its other jobs."""
    leave = "leave"
    """It leaves them to a quarantine process."""
    only = "only"
    """It is a quarantine process: it claims suspects and nothing else."""


class Quarantine:
    """Tracks which recovered jobs and suspects wait, and whether it is their turn."""

    def __init__(
        self,
        lease_set: LeaseSet,
        now: Callable[[], float] = monotonic,
        suspects: Suspects = Suspects.run,
    ) -> None:
        self._lease_set = lease_set
        self._now = now
        self._suspects = suspects
        self._allowance = FIRST_ALLOWANCE
        self._settled = 0
        self._running: list[Lease] = []
        self._recovered_at = math.inf
        """When the first recovered job is due, as far as this worker knows."""
        self._suspect_at = math.inf
        self._crowded = False
        """Enough workers of the fleet run a suspect now."""
        self.turns = 1
        """How many workers of the fleet may run a suspect at a time."""
        self._runs_suspect = False
        self._room_for_process = False
        """Fewer suspects run in the fleet than may run in processes of their own."""
        self._not_before = 0.0
        self.unjudged = False
        """No ordinary claim was answered since the last suspect."""
        self._odd = False
        self._insisting = False
        self.look_due = True
        """Whether to ask the store which recovered jobs wait."""
        self.idle = False
        """Whether no recovered job waits or runs, as far as this worker knows."""

    def _judge(self) -> None:
        """Correct `idle` after a change. Each claim reads it several times."""
        waits = min(self._recovered_at, self._suspect_at) < math.inf
        self.idle = not (waits or self._running or self.look_due)

    @property
    def ready(self) -> bool:
        """Whether there is something to do about recovered jobs now."""
        # Counting what was settled may call for a look.
        return self.room > 0 or self.look_due or self.suspect_due

    @property
    def room(self) -> int:
        """How many recovered jobs may be claimed now. 0 also means that none are due."""
        if self._running:
            self._count_settled()
        if self._now() < self._recovered_at:
            return 0
        return max(0, self._allowance - len(self._running))

    @property
    def only_suspects(self) -> bool:
        """Whether this is a quarantine process."""
        return self._suspects is Suspects.only

    @property
    def takes_turns(self) -> bool:
        """Whether this worker runs suspects between other jobs, for which others must be there."""
        return self._suspects is Suspects.run and not self._insisting

    @property
    def suspect_due(self) -> bool:
        """Whether it is a suspect's turn."""
        return self._now() >= self._next_suspect

    @property
    def suspects_wait(self) -> bool:
        """Whether a suspect is due, for this worker or another process."""
        return self._now() >= self._suspect_at

    @property
    def wants_process(self) -> bool:
        """Whether a process should be started for suspects: the first one, or one more."""
        if self.only_suspects and not (self._runs_suspect and self._room_for_process):
            return False
        return self.suspects_wait

    @property
    def pause(self) -> float:
        """Seconds until recovered jobs or suspects may become claimable."""
        return max(0.0, min(self._recovered_at, self._next_suspect) - self._now())

    @property
    def _next_suspect(self) -> float:
        if self._suspects is Suspects.leave:
            return math.inf
        if self._insisting or self.only_suspects:
            return self._suspect_at
        return math.inf if self._crowded else max(self._suspect_at, self._not_before)

    def share(self, free: int) -> int:
        """Return how many of the free slots are reserved for recovered jobs: at most half of them.

        Of a single slot it is every other one.
        """
        room = self.room
        if not room:
            return 0
        self._odd = not self._odd
        return min(room, (free + self._odd) // 2)

    def treat(self, suspects: Suspects) -> None:
        """Run suspects from now on, or leave them."""
        self._suspects = suspects
        self._lease_set.changed.set()

    def look(self) -> None:
        """Ask the store now which recovered jobs wait."""
        self.look_due = True
        self._judge()
        self._lease_set.changed.set()

    def expect(self, waiting: RecoveredWaiting) -> None:
        """Record the store's answer about waiting jobs."""
        now = self._now()
        self.look_due = False
        self._recovered_at, self._suspect_at = (
            math.inf if due is None else now + due.total_seconds()
            for due in (waiting.recovered, waiting.suspects)
        )
        self.turns = max(1, waiting.workers // WORKERS_PER_SUSPECT)
        self._crowded = waiting.suspects_leased >= self.turns
        self._room_for_process = waiting.suspects_leased < MOST_PROCESSES
        self._judge()
        self._lease_set.changed.set()

    def claimed(self, leases: Iterable[Lease], *, came_short: bool) -> None:
        """Record that this worker begins recovered jobs. A claim that came short left none."""
        self._running.extend(leases)
        if came_short:
            self._recovered_at = math.inf
        self._judge()

    def crowd(self) -> None:
        """Record that other workers run suspects. The next sweep has the store asked again."""
        self._crowded = True

    def began(self) -> None:
        """Record that this worker runs a suspect. Whether others wait is to be asked again."""
        self._runs_suspect = True
        self._suspect_at = math.inf
        self._judge()

    def tried(self, seconds: float, *, ran: bool) -> None:
        """Record how long it took to drain for a suspect and to run it, if it ran at all."""
        self._not_before = self._now() + PAUSE_FACTOR * seconds
        self._runs_suspect = False
        self._suspect_at = math.inf
        self.unjudged = ran
        self.look_due = True
        self._judge()

    def answered(self, found: int) -> None:
        """Record an ordinary claim. If nothing waited for the last suspect, the next may run."""
        if self.unjudged:
            self.unjudged = False
            if not found:
                self._not_before = 0.0

    def insist(self) -> None:
        """Ask the store again, and from now on let suspects run without a pause."""
        self.look_due = self._insisting = True
        self._judge()

    def look_later(self) -> None:
        """Record that the store could not be asked. The next sweep has it asked again."""
        self.look_due = False
        self._judge()

    def _count_settled(self) -> None:
        before = self._running
        self._running = [lease for lease in before if lease in self._lease_set]
        if len(self._running) == len(before):
            return
        self.idle = False
        # One of them may have been put off or released, and is due again later.
        self.look_due = True
        # A job that was released before it began proves nothing.
        self._settled += sum(lease.began > 0 for lease in before if lease not in self._lease_set)
        while self._settled >= self._allowance:
            self._settled -= self._allowance
            self._allowance *= 2
