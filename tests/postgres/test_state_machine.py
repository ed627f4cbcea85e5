"""Random lives of jobs, lived in both stores at once, with live tokens and stale ones.

HOLDFAST_HYPOTHESIS=nightly runs many more and longer ones.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.lifecycle import ACTIVE, FINAL, RETIRE_LAST_RETRY, TRANSITIONS, Status, Verb
from holdfast.models import (
    Change,
    Held,
    HeldFilter,
    Job,
    JobId,
    NewJob,
    Requeued,
    TracebackRecord,
    Want,
)
from holdfast.scheduler.cron import Cron
from holdfast.scheduler.tick import tick
from holdfast.stores.postgres import lanes
from tests.postgres import tables
from tests.postgres.pair import JobPair, LeasePair, Pair, Raised, Seen, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.lifecycle import Transition
    from holdfast.models import LogEntry
    from tests.servers import Database

COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck)}
PROFILES = {
    "default": settings(max_examples=120, stateful_step_count=40, **COMMON),
    "nightly": settings(max_examples=5_000, stateful_step_count=80, **COMMON),
}
PROFILE = os.environ.get("HOLDFAST_HYPOTHESIS", "default")

EVERYTHING = 1_000
NOBODYS = UUID(int=0)
LIMIT = 2
LEASES = {"mail": timedelta(seconds=10), "report": timedelta(seconds=20)}
FREE = [Want(name, lease=lease, max_attempts=3, max_recoveries=2) for name, lease in LEASES.items()]
LIMITED = Want("limited", lease=timedelta(seconds=10), concurrency_limit=LIMIT)
SCHEDULES = ("hourly", "often")
TICKS = [Want(name, lease=timedelta(seconds=10)) for name in SCHEDULES]
WANTS = {want.entrypoint: want for want in (*FREE, LIMITED, *TICKS)}
UNLIMITED = [want for want in WANTS.values() if not want.concurrency_limit]

HOLD, RELEASE = TRANSITIONS[Verb.HOLD], TRANSITIONS[Verb.RELEASE]

delays = st.sampled_from([None, None, timedelta(0), timedelta(seconds=7), timedelta(minutes=1)])
new_jobs = st.builds(
    NewJob,
    entrypoint=st.sampled_from([*LEASES, "limited"]),
    payload=st.sampled_from([None, b"", b"\x00 bytes"]),
    priority=st.sampled_from([-1, 0, 5]),
    execute_after=delays,
    dedupe_key=st.sampled_from([None, None, "one", "two"]),
    headers=st.sampled_from([None, {"trace": ["x", 1]}]),
    max_attempts=st.sampled_from([None, None, 1, 2]),
    max_recoveries=st.sampled_from([None, None, 1]),
)
errors = st.sampled_from([None, "it broke"])
records = st.sampled_from([None, TracebackRecord("ValueError", "no", "Traceback …")])
words = st.sampled_from([None, "because"])


class Lives(RuleBasedStateMachine):
    """Each rule asks both stores the same; after each step their rows are the same."""

    jobs = Bundle("jobs")
    leases = Bundle("leases")
    some_leases = st.lists(leases, min_size=1, max_size=4, unique=True)

    def __init__(self, world: World) -> None:
        super().__init__()
        self.pair = Pair(world)
        self.born: dict[JobId, Job] = {}
        self.attempts: Counter[JobId] = Counter()
        self.recoveries: Counter[JobId] = Counter()

    @initialize(target=jobs, batch=st.lists(new_jobs, min_size=4, max_size=8))
    def begin_with_some_jobs(self, batch: list[NewJob]) -> Any:
        """An example may go without any of the rules, so none should depend on one other."""
        return self.enqueue(batch, "skip")

    @initialize(target=leases)
    def begin_with_some_leases(self) -> Any:
        return self.claim(FREE, EVERYTHING, "ann", sweep=True)

    @rule(
        target=jobs,
        batch=st.lists(new_jobs, min_size=1, max_size=4),
        conflict=st.sampled_from(["raise", "skip"]),
    )
    def enqueue(self, batch: list[NewJob], conflict: Any) -> Any:
        here, there = self.pair.both(lambda store: store.jobs.insert(batch, conflict))
        if isinstance(here, Raised):
            assert here == there
            return multiple()
        return multiple(*self.pair.met(here, there))

    @rule(
        target=leases,
        name=st.sampled_from(list(WANTS)),
        limit=st.integers(1, 5),
        worker=st.sampled_from(["ann", "bob"]),
    )
    def claim_in_order(self, name: str, limit: int, worker: str) -> Any:
        return self.claim([WANTS[name]], limit, worker, sweep=True)

    @rule(target=leases, sweep=st.booleans(), wants=st.sampled_from([FREE, UNLIMITED]))
    def claim_everything(self, sweep: bool, wants: list[Want]) -> Any:
        """From the remembered floors too: nothing that is due may hide below one."""
        return self.claim(wants, EVERYTHING, "cid", sweep=sweep)

    def claim(self, wants: list[Want], limit: int, worker: str, *, sweep: bool) -> Any:
        here, there = self.pair.both(
            lambda store: store.leases.claim(wants, limit=limit, worker=worker, sweep=sweep)
        )
        used = {lease.postgres.token for lease in self.pair.leases}
        fresh = self.pair.leased(here, there)
        assert len(there) <= limit
        assert {job.entrypoint for job in there} <= {want.entrypoint for want in wants}
        assert all(job.execute_after <= self.pair.clock.now() for job in there)
        assert used.isdisjoint(lease.postgres.token for lease in fresh)
        return multiple(*fresh)

    @precondition(lambda self: self.pair.leases)
    @rule(held=some_leases, swap=st.booleans())
    def renew(self, held: list[LeasePair], swap: bool) -> None:
        offered = offers(held, swap=swap)
        here, there = self.pair.both(
            lambda store: store.leases.renew([mine for mine, _ in offered]),
            lambda store: store.leases.renew([other for _, other in offered]),
        )
        accepted(offered, here, there)

    @precondition(lambda self: self.pair.leases)
    @rule(held=some_leases, swap=st.booleans(), verb=st.sampled_from(["complete", "fail"]))
    def finish(self, held: list[LeasePair], swap: bool, verb: str) -> None:
        self.settle(TRANSITIONS[verb], offers(held, swap=swap))

    @precondition(lambda self: self.pair.leases)
    @rule(held=some_leases, swap=st.booleans(), delay=delays, error=errors)
    def retry(
        self, held: list[LeasePair], swap: bool, delay: timedelta | None, error: str | None
    ) -> None:
        """As a worker does it: what has no retry left is retired."""
        offered = offers(held, swap=swap)
        for transition in (TRANSITIONS[Verb.RETRY], RETIRE_LAST_RETRY):
            moved = self.settle(transition, offered, delay=delay, error=error)
            self.attempts.update(lease.id for lease in moved)

    @precondition(lambda self: self.pair.leases)
    @rule(held=some_leases, swap=st.booleans(), error=errors, record=records)
    def hold(
        self,
        held: list[LeasePair],
        swap: bool,
        error: str | None,
        record: TracebackRecord | None,
    ) -> None:
        self.settle(HOLD, offers(held, swap=swap), error=error, traceback=record)

    @precondition(lambda self: self.pair.leases)
    @rule(held=some_leases, swap=st.booleans(), reason=words)
    def release(self, held: list[LeasePair], swap: bool, reason: str | None) -> None:
        self.settle(RELEASE, offers(held, swap=swap), reason=reason)

    def settle(
        self, transition: Transition, offered: list[tuple[Held, Held]], **values: Any
    ) -> set[Held]:
        def change(lease: Held) -> Change:
            return Change(lease.id, lease.token, max_attempts=3, **values)

        here, there = self.pair.both(
            lambda store: store.leases.change(transition, [change(mine) for mine, _ in offered]),
            lambda store: store.leases.change(transition, [change(other) for _, other in offered]),
        )
        return accepted(offered, here, there)

    @rule(
        seconds=st.sampled_from([0, 10, 20]),
        wants=st.sampled_from([[], FREE, UNLIMITED]),
        limit=st.sampled_from([1, EVERYTHING]),
        worker=st.sampled_from([None, None, "ann"]),
    )
    def recover(self, seconds: int, wants: list[Want], limit: int, worker: str | None) -> None:
        self.pair.clock.advance(timedelta(seconds=seconds))
        here, there = self.pair.both(
            lambda store: store.leases.recover(wants, limit=limit, worker=worker)
        )
        assert list(here.recovered) == self.pair.here(there.recovered)
        assert list(here.retired) == self.pair.here(there.retired)
        self.recoveries.update([*here.recovered, *here.retired])

    @precondition(lambda self: self.pair.jobs)
    @rule(ids=st.lists(jobs, min_size=1, max_size=4), verb=st.sampled_from(["cancel", "delete"]))
    def remove(self, ids: list[JobPair], verb: str) -> None:
        here, there = self.pair.both(
            lambda store: store.jobs.remove(
                TRANSITIONS[verb], [job.memory for job in ids], actor="ann", reason=None
            ),
            lambda store: store.jobs.remove(
                TRANSITIONS[verb], [job.postgres for job in ids], actor="ann", reason=None
            ),
        )
        assert here == set(self.pair.here(there))

    @precondition(lambda self: self.pair.jobs)
    @rule(ids=st.lists(jobs, min_size=1, max_size=4), reason=words, held=st.booleans())
    def requeue(self, ids: list[JobPair], reason: str | None, held: bool) -> None:
        if held:
            parked = {job.id for job in self.pair.states()[0].queue if job.held_at is not None}
            ids = [job for job in self.pair.jobs if job.memory in parked]
        here, there = self.pair.both(
            lambda store: store.jobs.requeue(
                [job.memory for job in ids], actor=None, reason=reason
            ),
            lambda store: store.jobs.requeue(
                [job.postgres for job in ids], actor=None, reason=reason
            ),
        )
        assert here == {self.pair.here([job_id])[0]: what for job_id, what in there.items()}
        for job_id, outcome in here.items():
            if outcome is Requeued.REQUEUED:
                self.attempts[job_id] = self.recoveries[job_id] = 0

    @rule()
    def forget_ended_claims(self) -> None:
        """What a worker does when all jobs of a claim are settled."""
        queue = self.pair.states()[1].queue
        live = {job.claim_token for job in queue}
        kept = {lease.postgres.token for lease in self.pair.leases if lease.number in live}
        ended = {lease.postgres.token for lease in self.pair.leases} - kept
        self.pair.world.runner.run(self.pair.postgres.leases.forget(sorted(ended)))

    @rule(seconds=st.sampled_from([1, 5, 10, 60, 3600]))
    def advance_the_clock(self, seconds: int) -> None:
        self.pair.clock.advance(timedelta(seconds=seconds))

    @rule(
        name=st.sampled_from(SCHEDULES),
        expression=st.sampled_from(["0 * * * *", "*/5 * * * *", "*/20 * * * * *"]),
        misfire=st.sampled_from(["skip", "once", "all"]),
        overlap=st.sampled_from(["skip", "allow"]),
    )
    def register_a_schedule(self, name: str, expression: str, misfire: str, overlap: str) -> None:
        first = Cron.parse(expression, "UTC").after(self.pair.clock.now())
        self.pair.both(
            lambda store: store.schedules.register(name, expression, "UTC", misfire, overlap, first)
        )

    @rule(name=st.sampled_from(SCHEDULES), paused=st.sampled_from([True, False, None]))
    def pause_resume_or_remove_a_schedule(self, name: str, paused: bool | None) -> None:
        if paused is None:
            self.pair.same(lambda store: store.schedules.remove(name))
        else:
            self.pair.same(lambda store: store.schedules.set_paused(name, paused, None))

    @rule(target=jobs, seconds=st.sampled_from([1, 60, 3600]))
    def tick(self, seconds: int) -> Any:
        self.pair.clock.advance(timedelta(seconds=seconds))
        here, there = self.pair.both(lambda store: tick(store, SCHEDULES))
        return multiple(*self.pair.met(here, there))

    def teardown(self) -> None:
        self.read()

    def read(self) -> None:
        """The questions that an operator asks have one answer."""
        self.pair.same(lambda store: store.jobs.size(None))
        here, there = self.pair.both(
            lambda store: store.jobs.statuses([job.memory for job in self.pair.jobs]),
            lambda store: store.jobs.statuses([job.postgres for job in self.pair.jobs]),
        )
        assert here == {self.pair.here([job_id])[0]: status for job_id, status in there.items()}
        for limit in (2, EVERYTHING):
            here, there = self.pair.both(
                lambda store, limit=limit: store.jobs.list_held(limit, HeldFilter())
            )
            assert [job.id for job in here] == self.pair.here(job.id for job in there)
            here, there = self.pair.both(lambda store, limit=limit: store.jobs.list_running(limit))
            assert [job.id for job in here] == self.pair.here(job.id for job in there)

    @invariant()
    def both_have_the_same_rows_and_they_make_sense(self) -> None:
        memory, postgres = self.pair.states()
        assert memory.queue == postgres.queue
        assert memory.log == postgres.log
        assert memory.schedules == postgres.schedules
        self.check_conservation(postgres)
        self.check_leases(postgres)
        self.check_rows(postgres)

    def check_conservation(self, seen: Seen) -> None:
        """Every job is in the queue, or its last log row and no other says how it ended."""
        queued = {job.id for job in seen.queue}
        for job_id, _ in self.pair.jobs:
            log = seen.log.get(job_id, [])
            ends = [entry for entry in log if entry.status in FINAL]
            assert len(ends) == (job_id not in queued)
            assert not ends or log[-1] is ends[0]

    def check_leases(self, seen: Seen) -> None:
        """No two leases of a job overlap, and a limit is a limit."""
        now = self.pair.clock.now()
        current = {job.id: (job.claimed_at, now) for job in seen.queue if job.claimed_at}
        for job_id, _ in self.pair.jobs:
            spans = [*leases_of(seen.log.get(job_id, [])), *filter(None, [current.get(job_id)])]
            assert all(start <= end for start, end in spans)
            assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        limited = [job for job in seen.queue if job.entrypoint == "limited" and job.claimed_at]
        assert len(limited) <= LIMIT

    def check_rows(self, seen: Seen) -> None:
        """Tokens exactly while picked, counters as counted here, keys owned once, facts kept."""
        for job in seen.queue:
            assert (job.claim_token is not None) == (job.status is Status.PICKED)
            assert (job.attempts, job.recoveries) == (
                self.attempts[job.id],
                self.recoveries[job.id],
            )
            assert facts(job) == facts(self.born.setdefault(job.id, job))
        keys = Counter(job.dedupe_key for job in seen.queue if job.status in ACTIVE)
        assert all(count == 1 for key, count in keys.items() if key is not None)


def facts(job: Job) -> tuple[object, ...]:
    return job.entrypoint, job.payload, job.headers, job.dedupe_key, job.created


def leases_of(log: list[LogEntry]) -> Iterator[tuple[Any, Any]]:
    for entry in log:
        if entry.claimed_at is not None:
            yield entry.claimed_at, entry.created


def offers(held: list[LeasePair], *, swap: bool) -> list[tuple[Held, Held]]:
    """Leases as their holders name them, or each with a token that is another lease's."""
    if not swap:
        return [(lease.memory, lease.postgres) for lease in held]
    return [
        (Held(lease.memory.id, mine), Held(lease.postgres.id, other))
        for lease, giver in zip(held, [*held[1:], held[0]], strict=True)
        for mine, other in [foreign_tokens(lease, giver)]
    ]


def foreign_tokens(lease: LeasePair, giver: LeasePair) -> tuple[UUID, UUID]:
    """Jobs claimed together share a token, and which are claimed together is a store's affair."""
    mine, other = giver.memory.token, giver.postgres.token
    shared = mine == lease.memory.token or other == lease.postgres.token
    return (NOBODYS, NOBODYS) if shared else (mine, other)


def accepted(offered: list[tuple[Held, Held]], here: set[Held], there: set[Held]) -> set[Held]:
    """The leases that both stores still knew, as the memory store has them."""
    assert {mine for mine, other in offered if other in there} == here
    return here


@pytest.mark.timeout(120 if PROFILE == "default" else 0)
def test_both_stores_live_the_same_lives(pg18: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # A slow sweep is put off for a while; here every claim may look everywhere at once.
    monkeypatch.setattr(lanes, "_CHEAP", float("inf"))
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(pg18.dsn))
        world = World(runner, connection)
        try:
            runner.run(install(pg18.dsn))
            run_state_machine_as_test(lambda: Lives(world), settings=PROFILES[PROFILE])
        finally:
            runner.run(connection.close())


async def install(dsn: str) -> None:
    async with tables.installed(dsn):
        pass
