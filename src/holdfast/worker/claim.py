"""Waits for a wake-up, for the next due job or for the poll, and then claims as many jobs as
fit."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, DeadlineExceeded, PrivilegeMissing, SchemaMissing
from holdfast.worker.backoff import Backoff
from holdfast.worker.batch import ClaimedBatch, ClaimRequest
from holdfast.worker.claim_size import ClaimSize

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.models import ClaimRule, Job
    from holdfast.ports import Claims
    from holdfast.settings import WorkerSettings
    from holdfast.worker.breaker_gate import BreakerGate
    from holdfast.worker.dispatcher import Dispatcher
    from holdfast.worker.leases import Lease, LeaseSet
    from holdfast.worker.quarantine import Quarantine
    from holdfast.worker.suspect_turn import SuspectTurn
    from holdfast.worker.upkeep import UpkeepDuty
    from holdfast.worker.wakeup_policy import WakeupPolicy
    from holdfast.worker.work_signal import WorkSignal

T = TypeVar("T")

_DEAF_POLL_SECONDS = 1.0
"""A worker that no wake-up reaches polls this often."""

_SLEEPER_POLLS = 60
"""A worker for which another one looks for due jobs polls this many times less often."""

_FULL_SECONDS = 0.05
"""A worker without room for longer than this lets others be woken in its place."""

_ALIVE_SECONDS = 1.0
"""A worker that claims nothing on purpose shows this often that it is alive."""

_QUIET_SECONDS = 6.0
"""A quarantine process ends when no suspect was due for this time. It is longer than the sweep
interval, so the workers that ask for such a process know by then that no suspect waits."""

_OTHERS_SECONDS = 1.0
"""While a quarantine process runs a suspect, it asks this often whether others wait."""

_STOP_REPLY_SECONDS = 0.8
"""A worker that stops waits this long for the reply to a statement on its way."""


class QueueExecutionMode(StrEnum):
    """Work until stopped, or until nothing is claimable."""

    continuous = "continuous"
    drain = "drain"


class _Kind(NamedTuple):
    """Which jobs a claim is for."""

    recovered: bool = False
    suspects: bool = False
    sweep: bool = False


class Claimer:
    """Never claims more than there will be free slots, and only what the worker can run."""

    def __init__(
        self,
        claims: Claims,
        rules: Sequence[ClaimRule],
        gate: BreakerGate,
        settings: WorkerSettings,
        lease_set: LeaseSet,
        dispatcher: Dispatcher,
        quarantine: Quarantine,
        turn: SuspectTurn,
        duty: UpkeepDuty,
        *,
        wakeup_policy: WakeupPolicy,
        signal: WorkSignal,
        worker: str,
    ) -> None:
        self._claims = claims
        self._gate = gate
        self._settings = settings
        self._poll_seconds = settings.poll_interval.total_seconds()
        self._lease_set = lease_set
        self._dispatcher = dispatcher
        self._quarantine = quarantine
        self._turn = turn
        self._duty = duty
        self._wakeup_policy = wakeup_policy
        self._signal = signal
        self._worker = worker
        self._last = ClaimRequest(rules, 0)
        """The last request, with the rules that the breakers allowed."""
        self._size = ClaimSize()
        self._backoff = Backoff()
        self._question: asyncio.Timeout | None = None
        self.stopping = False
        self._shares = True
        """Whether it leaves a backlog to others. A drain ends when a claim finds nothing."""
        self._answered = False
        self._came_full = False
        """Whether the last claim returned as many jobs as it asked for, so that more may be
        waiting."""
        self.rounds = 0
        """How many rounds of claiming were completed."""
        self.ticked = monotonic()
        """When a claim last got an answer. Liveness is judged by it."""

    def stop(self) -> None:
        """Claim nothing more. A statement on its way has a moment for its reply."""
        self.stopping = True
        self._dispatcher.close()
        if self._question is not None and not self._question.expired():
            self._question.reschedule(asyncio.get_running_loop().time() + _STOP_REPLY_SECONDS)

    async def run(self, mode: QueueExecutionMode) -> None:
        """Claim until stopped, or in drain mode until two scans of everything find nothing."""
        drain = mode is QueueExecutionMode.drain
        self._shares = not drain
        sweep, found_nothing = False, 0
        try:
            # A stop that was requested before the run is noticed first.
            await asyncio.sleep(0)
            while not self.stopping:
                found, more = await self._round(sweep)
                self.rounds += 1
                if found:
                    found_nothing = 0
                if more:
                    continue
                sweep = drain
                found_nothing += not found
                if drain and found_nothing >= 2:
                    return
                if drain:
                    self._quarantine.insist()
                if not (drain and found_nothing):
                    await self._wait(drain)
        finally:
            self._signal.cancel()
            self._wakeup_policy.end()

    async def _round(self, sweep: bool) -> tuple[bool, bool]:
        """Claim jobs of each kind. Return whether this worker has work, and whether to go on."""
        quarantine, entrypoints = self._quarantine, self._dispatcher.entrypoints
        alone, idle = 0, quarantine.idle
        if not idle:
            alone = await self._serve_suspects()
        free = self._size.bound(await self._capacity())
        share = 0 if idle else quarantine.share(free)
        free -= share
        jobs = await self._claim(free, sweep)
        recovered = await self._serve_recovered(share) if share else 0
        if jobs is None or len(jobs) == free:
            return True, True
        found = bool(jobs or recovered or alone or len(self._lease_set))
        if entrypoints is not None and entrypoints.reopened:
            return found, True
        return found, not quarantine.idle and quarantine.room > 0

    async def run_suspects(self) -> None:
        """Claim suspects and nothing else, until stopped or until no suspect is due for a while."""
        due_at = monotonic()
        try:
            while not self.stopping and monotonic() - due_at < _QUIET_SECONDS:
                # The sweep sees those behind an open breaker, too.
                waited = self._quarantine.suspects_wait
                answered = await self._look_for_recovered()
                ran = await self._serve_suspects()
                if waited or ran or not answered:
                    due_at = monotonic()
                if not ran:
                    # None is due, or those that are due may not be claimed yet.
                    await self._stand_aside(lambda: False, seconds=_ALIVE_SECONDS)
                self.rounds += 1
        finally:
            self._signal.cancel()

    async def _capacity(self) -> int:
        """Return how many jobs to claim. Have another worker woken when this one stays full."""
        dispatcher = self._dispatcher
        if room := dispatcher.at_once:
            return room
        if dispatcher.room <= 0 and not await self._lease_set.until(
            lambda: self.stopping or dispatcher.room > 0, seconds=_FULL_SECONDS
        ):
            more = self._signal.pending or self._came_full
            self._wakeup_policy.full(self._entrypoints, more=more)
        return await dispatcher.capacity()

    async def _claim(self, free: int, sweep: bool) -> Sequence[Job] | None:
        """Claim ordinary jobs and add them to the dispatcher. None means: claim again at once."""
        if not free:
            return None
        self._signal.pending = self._lease_set.freed_limit = False
        batch = await self._request(free, _Kind(sweep=sweep))
        if batch is None:
            return None
        jobs = batch.jobs
        self._came_full = len(jobs) == free
        if self._quarantine.unjudged:
            self._quarantine.answered(len(jobs))
        if jobs:
            self._dispatcher.arrive(batch)
        steady, came_short = not self._gate.guards, len(jobs) < free
        self._dispatcher.expect(batch.seconds, steady=steady, came_short=came_short)
        if came_short or self.stopping or not steady:
            # Two iterations of the event loop: jobs begin before the next statement is sent. After
            # a full claim the next claim goes first.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        self._wakeup_policy.found(len(jobs), batch.seconds)
        return None if self._last.probe else jobs

    async def _serve_suspects(self) -> int:
        """Run a suspect, or a group of them, alone if one is due. Return how many ran."""
        if self._quarantine.look_due:
            await self._look_for_recovered()
        if not self._quarantine.suspect_due or self.stopping:
            return 0
        if not self._quarantine.takes_turns:
            return await self._run_suspects()
        # At a stop the database may be silent.
        with suppress(TimeoutError):
            if await self._ask(self._turn.take(self._quarantine.turns)):
                try:
                    return await self._run_suspects()
                finally:
                    await self._ask(self._turn.release())
        self._quarantine.crowd()
        return 0

    async def _run_suspects(self) -> int:
        """Claim a suspect, or a group of them, while this worker holds nothing else."""
        began = monotonic()
        leases: list[Lease] = []
        patience = self._settings.heartbeat_timeout.total_seconds()
        if await self._stand_aside(self._holds_nothing, seconds=patience):
            group = min(self._claims.suspect_group, self._dispatcher.room)
            group = min(group, self._settings.batch_size)
            leases = await self._claim_recovered(group, suspects=True)
        if leases:
            await self._attend_suspects(leases)
        self._quarantine.tried(monotonic() - began, ran=bool(leases))
        return len(leases)

    async def _attend_suspects(self, leases: Sequence[Lease]) -> None:
        """Claim nothing until the suspects are settled. A quarantine process looks for others
        meanwhile, which another process can run."""
        self._quarantine.began()
        alone = self._quarantine.only_suspects
        seconds = _OTHERS_SECONDS if alone else self._turn.seconds

        def settled() -> bool:
            # Not only ended: no other job's death may be charged to a suspect.
            return not any(lease in self._lease_set for lease in leases)

        while not (await self._stand_aside(settled, seconds=seconds) or self.stopping):
            with suppress(TimeoutError):
                await (self._look_for_recovered() if alone else self._ask(self._turn.keep()))

    @property
    def _entrypoints(self) -> list[str]:
        return [rule.entrypoint for rule in self._last.rules]

    def _holds_nothing(self) -> bool:
        return not (len(self._lease_set) or self._dispatcher.arrived)

    async def _stand_aside(self, over: Callable[[], bool], *, seconds: float) -> bool:
        """Claim nothing until it is over. Return False when time is up or the worker stops."""
        deadline = monotonic() + seconds
        while not (self.stopping or over()):
            # The worker claims nothing on purpose, so it must not be taken for dead.
            self.ticked = monotonic()
            self._wakeup_policy.aside(self._entrypoints, woken=self._signal.pending)
            self._signal.pending = False
            if self.ticked >= deadline:
                break
            await self._lease_set.until(
                lambda: self.stopping or self._signal.pending or over(),
                seconds=min(_ALIVE_SECONDS, deadline - self.ticked),
            )
        return over() and not self.stopping

    async def _serve_recovered(self, limit: int) -> int:
        """Claim up to `limit` recovered jobs. Return how many were claimed."""
        if self.stopping:
            return 0
        leases = await self._claim_recovered(limit, suspects=False)
        self._quarantine.claimed(leases, came_short=len(leases) < limit)
        return len(leases)

    async def _claim_recovered(self, limit: int, *, suspects: bool) -> list[Lease]:
        batch = await self._request(limit, _Kind(recovered=True, suspects=suspects))
        return [] if batch is None else self._dispatcher.add(batch)

    async def _look_for_recovered(self) -> bool:
        """Ask the store which recovered jobs wait. Return whether it answered."""
        try:
            waiting = await self._ask(self._claims.recovered_waiting(self._last.rules))
        except (DatabaseError, SchemaMissing, TimeoutError):
            # The claim that follows reports the error.
            self._quarantine.look_later()
            return False
        self._quarantine.expect(waiting)
        return True

    async def _request(self, limit: int, kind: _Kind) -> ClaimedBatch | None:
        """Claim as many jobs as the breakers allow. None means that no claim was answered."""
        if self._dispatcher.entrypoints is not None:
            self._dispatcher.offer()
        sent = monotonic()
        try:
            batch = await self._ask(self._send(limit, kind, sent))
        except TimeoutError:
            # The worker stops and the database is silent. A lease that it may have given expires.
            return None
        except (DatabaseError, SchemaMissing) as error:
            # A worker that lacked the privilege from the start does not get it by waiting.
            if isinstance(error, PrivilegeMissing) and not self._answered:
                raise
            if isinstance(error, DeadlineExceeded):
                self._size.timed_out(limit, monotonic() - sent)
            pause = self._backoff.pause("no job can be claimed", error)
            await self._lease_set.until(lambda: self.stopping, seconds=pause)
            return None
        if self._backoff.tries:
            self._backoff.reset()
        self._answered = True
        self.ticked = monotonic()
        self._size.answered(batch.jobs, batch.seconds)
        self._lease_set.contact.made()
        return batch

    async def _send(self, limit: int, kind: _Kind, sent: float) -> ClaimedBatch:
        """Ask the breakers, then claim."""
        self._last = request = await self._gate.request(limit)
        jobs: list[Job] = []
        try:
            rules, size = request.rules, request.limit
            if rules and kind.recovered:
                jobs = await self._claims.claim_recovered(
                    rules, limit=size, worker=self._worker, suspects=kind.suspects
                )
            elif rules:
                jobs = await self._claims.claim(
                    rules,
                    limit=size,
                    worker=self._worker,
                    sweep=kind.sweep,
                    fleet=self._duty.workers if self._shares else 1,
                    idle=self._holds_nothing(),
                )
        except DatabaseError:
            await self._gate.return_unused(request, None)
            raise
        if request.probe is not None:
            await self._gate.return_unused(request, jobs)
        return ClaimedBatch(jobs, sent, monotonic() - sent, request.permits)

    async def _wait(self, drain: bool) -> None:
        """Wait for a notification, a stop, the next due job or the poll. A full worker ignores
        notifications."""
        pause, sleeps = self._poll_seconds, False
        if not self._signal.listening:
            pause = min(pause, _DEAF_POLL_SECONDS)
        elif sleeps := self._duty.others and self._claims.shared:
            pause *= _SLEEPER_POLLS
        entrypoints = self._dispatcher.entrypoints
        full = entrypoints is not None and entrypoints.full
        if not full:
            pause = await self._sooner(pause, drain)

        def over() -> bool:
            # Nobody else looks for due jobs any more.
            return self._stirred(drain, full) or (sleeps and self._duty.held)

        await self._lease_set.until(over, seconds=pause)

    def _stirred(self, drain: bool, was_full: bool) -> bool:
        """Whether the wait for work is over before its time."""
        entrypoints = self._dispatcher.entrypoints
        if self.stopping or (drain and not len(self._lease_set)):
            return True
        if entrypoints is not None:
            if entrypoints.full:
                return False
            if was_full or entrypoints.reopened:
                return True
        if self._signal.pending or self._lease_set.freed_limit:
            return True
        return not self._quarantine.idle and self._quarantine.ready

    async def _sooner(self, pause: float, drain: bool) -> float:
        """Return the seconds after which a claim may find something, at most `pause`."""
        if self._last.rules:
            # If this fails, the next claim fails as well, and its error decides the pause.
            with suppress(DatabaseError, TimeoutError):
                due = await self._ask(self._claims.next_due(self._last.rules))
                if due is not None:
                    pause = min(pause, due.total_seconds())
        pause = min(pause, self._last.pause)
        if not self._quarantine.idle:
            pause = min(pause, self._quarantine.pause)
        if pause > 0 and not drain:
            pause = min(pause, await self._wakeup_policy.pause())
        return pause

    async def _ask(self, question: Awaitable[T]) -> T:
        """Await a reply of the database. A stop does not wait long for it."""
        async with asyncio.timeout(
            _STOP_REPLY_SECONDS if self.stopping else None
        ) as self._question:
            try:
                return await question
            finally:
                self._question = None
