"""Random lives of jobs, lived in both stores at once, with live tokens and stale ones.

HOLDFAST_HYPOTHESIS=nightly runs many more and longer ones.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
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

from holdfast.lifecycle import RETIRE_LAST_RETRY, TRANSITIONS, Guard, Verb
from holdfast.models import (
    Change,
    ClaimRule,
    HeldFilter,
    Job,
    JobId,
    LeaseKey,
    Moved,
    NewJob,
    Requeued,
    TracebackRecord,
)
from holdfast.scheduler.cron import Cron
from holdfast.scheduler.tick import tick
from holdfast.stores.postgres import lanes
from holdfast.stores.postgres.render import GUARDS, Statements
from tests.postgres import invariants, tables
from tests.postgres.pair import JobPair, LeasePair, Pair, Raised, World, world_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.lifecycle import Transition
    from holdfast.ports import Store
    from tests.servers import Database

COMMON = settings(deadline=None, suppress_health_check=list(HealthCheck))
PROFILES = {
    "default": settings(COMMON, max_examples=80, stateful_step_count=40),
    "thorough": settings(COMMON, max_examples=2_000, stateful_step_count=50),
    "nightly": settings(COMMON, max_examples=5_000, stateful_step_count=80),
}
PROFILE = os.environ.get("HOLDFAST_HYPOTHESIS", "default")

EVERYTHING = 1_000
NO_TOKEN = UUID(int=0)
LIMIT = 2
LEASES = {"mail": timedelta(seconds=10), "report": timedelta(seconds=20)}
FREE = [
    ClaimRule(name, lease=lease, max_attempts=3, max_recoveries=2) for name, lease in LEASES.items()
]
LIMITED = ClaimRule("limited", lease=timedelta(seconds=10), concurrency_limit=LIMIT)
SCHEDULES = ("hourly", "often")
TICKS = [ClaimRule(name, lease=timedelta(seconds=10)) for name in SCHEDULES]
RULES = {claim_rule.entrypoint: claim_rule for claim_rule in (*FREE, LIMITED, *TICKS)}
UNLIMITED = [claim_rule for claim_rule in RULES.values() if not claim_rule.concurrency_limit]

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

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(self.world)
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
        name=st.sampled_from(list(RULES)),
        limit=st.integers(1, 5),
        worker=st.sampled_from(["ann", "bob"]),
    )
    def claim_in_order(self, name: str, limit: int, worker: str) -> Any:
        return self.claim([RULES[name]], limit, worker, sweep=True)

    @rule(target=leases, sweep=st.booleans(), rules=st.sampled_from([FREE, UNLIMITED]))
    def claim_everything(self, sweep: bool, rules: list[ClaimRule]) -> Any:
        """From the remembered floors too: nothing that is due may hide below one."""
        return self.claim(rules, EVERYTHING, "cid", sweep=sweep)

    @rule(
        target=leases,
        rules=st.sampled_from([[FREE[0]], [FREE[1]], [LIMITED], [TICKS[0]]]),
        limit=st.sampled_from([1, 3, EVERYTHING]),
        worker=st.sampled_from(["ann", "bob"]),
        suspects=st.booleans(),
    )
    def claim_recovered(
        self, rules: list[ClaimRule], limit: int, worker: str, suspects: bool
    ) -> Any:
        here, there = self.pair.both(lambda store: store.leases.recovered_waiting(rules))
        assert here == there
        here, there = self.pair.both(
            lambda store: store.leases.claim_recovered(
                rules, limit=limit, worker=worker, suspects=suspects
            )
        )
        assert len(there) <= limit
        assert all(job.recoveries for job in there)
        return multiple(*self.pair.leased(here, there))

    def claim(self, rules: list[ClaimRule], limit: int, worker: str, *, sweep: bool) -> Any:
        async def claim(store: Store) -> list[Job]:
            """As a worker does it: one that came short is followed by another."""
            jobs = await store.leases.claim(rules, limit=limit, worker=worker, sweep=sweep)
            while (room := limit - len(jobs)) and (
                more := await store.leases.claim(rules, limit=room, worker=worker)
            ):
                jobs += more
            return sorted(jobs, key=lambda job: (-job.priority, job.execute_after, job.id))

        here, there = self.pair.both(claim)
        used = {lease.postgres.token for lease in self.pair.leases}
        fresh = self.pair.leased(here, there)
        assert len(there) <= limit
        assert {job.entrypoint for job in there} <= {claim_rule.entrypoint for claim_rule in rules}
        assert all(job.execute_after <= self.pair.clock.now() for job in there)
        assert not any(job.recoveries for job in there)
        assert used.isdisjoint(lease.postgres.token for lease in fresh)
        return multiple(*fresh)

    @precondition(lambda self: self.pair.leases)
    @rule(held=some_leases, swap=st.booleans())
    def renew(self, held: list[LeasePair], swap: bool) -> None:
        offered = self.offers(held, swap=swap)
        here, there = self.pair.both(
            lambda store: store.leases.renew([mine for mine, _ in offered]),
            lambda store: store.leases.renew([other for _, other in offered]),
        )
        accepted(offered, here, there)

    @precondition(lambda self: self.pair.leases)
    @rule(held=some_leases, swap=st.booleans(), verb=st.sampled_from(["complete", "fail"]))
    def finish(self, held: list[LeasePair], swap: bool, verb: str) -> None:
        self.settle(TRANSITIONS[verb], self.offers(held, swap=swap))

    @precondition(lambda self: self.pair.leases)
    @rule(held=some_leases, swap=st.booleans(), delay=delays, error=errors)
    def retry(
        self, held: list[LeasePair], swap: bool, delay: timedelta | None, error: str | None
    ) -> None:
        """As a worker does it: what has no retry left is retired."""
        offered = self.offers(held, swap=swap)
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
        self.settle(HOLD, self.offers(held, swap=swap), error=error, traceback=record)

    @precondition(lambda self: self.pair.leases)
    @rule(held=some_leases, swap=st.booleans(), reason=words)
    def release(self, held: list[LeasePair], swap: bool, reason: str | None) -> None:
        self.settle(RELEASE, self.offers(held, swap=swap), reason=reason)

    def offers(self, held: list[LeasePair], *, swap: bool) -> list[tuple[LeaseKey, LeaseKey]]:
        """Leases as their holders name them, or each with a token that is another job's."""
        givers = [*held[1:], held[0]] if swap else held
        return [
            (LeaseKey(lease.memory.id, mine), LeaseKey(lease.postgres.id, other))
            for lease, giver in zip(held, givers, strict=True)
            for mine, other in [self.tokens(lease, giver) if swap else tokens_of(giver)]
        ]

    def tokens(self, lease: LeasePair, giver: LeasePair) -> tuple[UUID, UUID]:
        """Jobs claimed together share a token, and which those are is a store's affair."""
        mine, other = tokens_of(giver)
        leases = [tokens_of(known) for known in self.pair.leases if known.job == lease.job]
        shared = any(mine == here or other == there for here, there in leases)
        return (NO_TOKEN, NO_TOKEN) if shared else (mine, other)

    def settle(
        self, transition: Transition, offered: list[tuple[LeaseKey, LeaseKey]], **values: Any
    ) -> set[LeaseKey]:
        def change(lease: LeaseKey) -> Change:
            return Change(lease, max_attempts=3, **values)

        here, there = self.pair.both(
            lambda store: store.leases.change(transition, [change(mine) for mine, _ in offered]),
            lambda store: store.leases.change(transition, [change(other) for _, other in offered]),
        )
        return accepted(offered, set(here), set(there))

    @rule(
        seconds=st.sampled_from([0, 10, 20]),
        rules=st.sampled_from([[], FREE, UNLIMITED]),
        limit=st.sampled_from([1, EVERYTHING]),
        worker=st.sampled_from([None, None, "ann"]),
        contact=st.sampled_from([None, None, timedelta(0), timedelta(seconds=35)]),
    )
    def recover(
        self,
        seconds: int,
        rules: list[ClaimRule],
        limit: int,
        worker: str | None,
        contact: timedelta | None,
    ) -> None:
        self.pair.clock.advance(timedelta(seconds=seconds))
        here, there = self.pair.both(
            lambda store: store.leases.recover(rules, limit=limit, worker=worker, contact=contact)
        )
        assert list(here.recovered) == self.pair.here(there.recovered)
        assert list(here.retired) == self.pair.here(there.retired)
        assert list(here.excused) == self.pair.here(there.excused)
        self.recoveries.update({*here.recovered, *here.retired} - {*here.excused})

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
            held_ids = {job.id for job in self.pair.states()[0].queue if job.held_at is not None}
            ids = [job for job in self.pair.jobs if job.memory in held_ids]
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

    @precondition(lambda self: self.pair.jobs)
    @rule(
        ids=st.lists(jobs, min_size=1, max_size=4),
        name=st.sampled_from([*LEASES, "limited", None]),
        force=st.booleans(),
        worker=st.sampled_from([None, None, "ann"]),
    )
    def move(self, ids: list[JobPair], name: str | None, force: bool, worker: str | None) -> None:
        said: dict[str, Any] = {"actor": "ann", "reason": "odd", "force": force, "worker": worker}
        held = {job.id for job in self.pair.states()[0].queue if job.held_at is not None}
        here, there = self.pair.both(
            lambda store: store.jobs.move([job.memory for job in ids], name, **said),
            lambda store: store.jobs.move([job.postgres for job in ids], name, **said),
        )
        assert here == {self.pair.here([job_id])[0]: what for job_id, what in there.items()}
        for job_id in (job_id for job_id, outcome in here.items() if outcome is Moved.MOVED):
            self.born[job_id] = self.born[job_id]._replace(
                entrypoint=name or self.born[job_id].entrypoint
            )
            if job_id in held:
                self.attempts[job_id] = self.recoveries[job_id] = 0

    @rule()
    def forget_ended_claims(self) -> None:
        """What a worker does when all jobs of a claim are settled."""
        queue = self.pair.states()[1].queue
        live = {job.claim_token for job in queue}
        kept = {lease.postgres.token for lease in self.pair.leases if lease.number in live}
        ended = {lease.postgres.token for lease in self.pair.leases} - kept
        self.pair.world.runner.run(self.pair.postgres.leases.delete_claims(sorted(ended)))

    @rule(seconds=st.sampled_from([1, 7, 60]))
    def advance_the_clock(self, seconds: int) -> None:
        self.pair.clock.advance(timedelta(seconds=seconds))

    @rule(
        name=st.sampled_from(SCHEDULES),
        expression=st.sampled_from(["0 * * * *", "*/10 * * * *", "*/7 * * * *"]),
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

    @rule(target=jobs, seconds=st.sampled_from([1, 600, 1800]))
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
            self.same_ids(partial(_held, limit))
            self.same_ids(partial(_running, limit))

    def same_ids(self, call: Callable[[Store], Awaitable[list[Job]]]) -> None:
        here, there = self.pair.both(call)
        assert [job.id for job in here] == self.pair.here(job.id for job in there)

    @invariant()
    def both_have_the_same_rows_and_they_make_sense(self) -> None:
        memory, postgres = self.pair.states()
        assert memory.queue == postgres.queue
        assert memory.log == postgres.log
        assert memory.schedules == postgres.schedules
        ids = [job.memory for job in self.pair.jobs]
        invariants.each_job_is_in_one_place(postgres, ids)
        invariants.leases_do_not_overlap(postgres, ids, self.pair.clock.now())
        invariants.limits_hold(postgres, {"limited": LIMIT})
        invariants.tokens_exactly_while_picked(postgres)
        invariants.keys_have_one_owner(postgres)
        invariants.counters_are(postgres, self.attempts, self.recoveries)
        invariants.facts_are_kept(postgres, self.born)


def _held(limit: int, store: Store) -> Awaitable[list[Job]]:
    return store.jobs.list_held(limit, HeldFilter())


def _running(limit: int, store: Store) -> Awaitable[list[Job]]:
    return store.jobs.list_running(limit)


def tokens_of(lease: LeasePair) -> tuple[UUID, UUID]:
    return lease.memory.token, lease.postgres.token


def accepted(
    offered: list[tuple[LeaseKey, LeaseKey]], here: set[LeaseKey], there: set[LeaseKey]
) -> set[LeaseKey]:
    """The leases that both stores still knew, as the memory store has them."""
    assert {mine for mine, other in offered if other in there} == here
    return here


@pytest.fixture(autouse=True)
def _sweeps_are_never_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_CHEAP_SCAN_SECONDS", 3600.0)
    monkeypatch.setattr(lanes, "_SLICE_SECONDS", 3600.0)


@pytest.mark.timeout(120 if PROFILE == "default" else 0)
def test_both_stores_live_the_same_lives(pg18: Database) -> None:
    with world_on(pg18.dsn) as here:

        class Here(Lives):
            world = here

        run_state_machine_as_test(Here, settings=PROFILES[PROFILE])


def test_a_store_without_a_fence_is_caught(pg18: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("dict[Guard, str]", GUARDS), Guard.OWNED, "j.claim_token is not null")
    faulty = Statements(tables.NAMES)
    quick = settings(PROFILES["default"], phases=[Phase.generate], derandomize=True)
    with world_on(pg18.dsn) as here:

        class Unfenced(Lives):
            world = here

            def __init__(self) -> None:
                super().__init__()
                self.pair.postgres.leases._runner._statements = faulty

        with pytest.raises(AssertionError):
            run_state_machine_as_test(Unfenced, settings=quick)
