"""The policy of the quarantine, on a clock that the test moves."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.executors.coroutine import EntrypointExecutor
from holdfast.lifecycle import TRANSITIONS, Verb
from holdfast.models import Job, JobId, LeaseKey, RecoveredWaiting
from holdfast.task import Entrypoint, EntrypointExecutorParameters
from holdfast.worker.leases import Lease, LeaseSet
from holdfast.worker.quarantine import FIRST_ALLOWANCE, MOST_PROCESSES, Quarantine, Suspects

NOW = timedelta(0)
MANY = 10_000


async def nothing(job: Job) -> None:
    """Nothing to do."""


EXECUTOR = EntrypointExecutor(EntrypointExecutorParameters(nothing, accepts_context=False))
ENTRYPOINT = Entrypoint("mail", nothing, EXECUTOR, accepts_context=False)


def lease(number: int) -> Lease:
    values: dict[str, Any] = dict.fromkeys(Job._fields)
    now = datetime(2030, 1, 1, tzinfo=UTC)
    values |= {"id": JobId(number), "entrypoint": "mail", "created": now, "updated": now}
    values |= {"status": TRANSITIONS[Verb.CLAIM].target, "recoveries": 1}
    job = Job(**values)
    return Lease(job, LeaseKey(job.id, uuid4()), ENTRYPOINT, 30.0, math.inf)


class Bench:
    """A worker's leases and its quarantine, with a clock."""

    def __init__(self) -> None:
        self.time = 100.0
        self.lease_set = LeaseSet()
        self.quarantine = Quarantine(self.lease_set, lambda: self.time)
        self._number = 0

    def claim(self, limit: int, left: int) -> list[Lease]:
        """Claim recovered jobs, of which so many are left in the queue."""
        leases = []
        for _ in range(min(limit, left)):
            self._number += 1
            leases.append(lease(self._number))
        self.lease_set.add(leases)
        self.quarantine.claimed(leases, came_short=len(leases) < limit)
        return leases

    def settle(self, leases: list[Lease], *, ran: bool = True) -> None:
        for each in leases:
            each.began = self.time if ran else 0.0
        self.lease_set.drop(leases)


@pytest.mark.parametrize("count", [1, 8, 9, 300, 5_000])
def test_innocent_jobs_are_cleared_in_logarithmically_many_rounds(count: int) -> None:
    bench = Bench()
    left, rounds = count, 0
    while left:
        bench.quarantine.expect(RecoveredWaiting(recovered=NOW))
        leases = bench.claim(bench.quarantine.share(2 * MANY), left)
        assert leases
        left -= len(leases)
        bench.settle(leases)
        rounds += 1
    assert rounds <= math.ceil(math.log2(count / FIRST_ALLOWANCE + 1)) + 1


def test_no_more_run_at_a_time_than_are_allowed() -> None:
    bench = Bench()
    bench.quarantine.expect(RecoveredWaiting(recovered=NOW))
    first = bench.claim(bench.quarantine.share(MANY), MANY)
    assert len(first) == FIRST_ALLOWANCE
    assert bench.quarantine.share(MANY) == 0
    bench.settle(first[:1])
    assert bench.quarantine.share(MANY) == 1


def test_a_job_that_did_not_begin_proves_nothing() -> None:
    bench = Bench()
    bench.quarantine.expect(RecoveredWaiting(recovered=NOW))
    for _ in range(5):
        bench.settle(bench.claim(bench.quarantine.room, MANY), ran=False)
    assert bench.quarantine.room == FIRST_ALLOWANCE


def test_of_few_slots_recovered_jobs_take_half() -> None:
    bench = Bench()
    bench.quarantine.expect(RecoveredWaiting(recovered=NOW))
    assert sorted(bench.quarantine.share(1) for _ in range(4)) == [0, 0, 1, 1]
    assert bench.quarantine.share(6) == 3


def test_what_is_due_later_is_waited_for() -> None:
    bench = Bench()
    assert bench.quarantine.look_due
    bench.quarantine.expect(RecoveredWaiting(timedelta(seconds=7), timedelta(seconds=9)))
    assert (bench.quarantine.pause, bench.quarantine.ready) == (7.0, False)
    bench.time += 7
    assert (bench.quarantine.room, bench.quarantine.suspect_due) == (FIRST_ALLOWANCE, False)
    bench.time += 2
    assert bench.quarantine.suspect_due
    bench.quarantine.expect(RecoveredWaiting())
    assert (bench.quarantine.pause, bench.quarantine.ready) == (math.inf, False)


@given(
    suspects=st.lists(st.floats(0.001, 1000), min_size=1, max_size=50),
    drains=st.floats(0, 30),
    step=st.floats(0.001, 10),
)
def test_other_jobs_keep_four_fifths_of_the_time(
    suspects: list[float], drains: float, step: float
) -> None:
    """A worker that always finds other work, and tries a suspect whenever it may."""
    bench = Bench()
    alone = others = 0.0
    for seconds in suspects:
        bench.quarantine.expect(RecoveredWaiting(suspects=NOW))
        while not bench.quarantine.suspect_due:
            assert bench.quarantine.pause > 0
            bench.quarantine.answered(1)
            work = max(step, bench.quarantine.pause)
            others += work
            bench.time += work
        bench.time += drains + seconds
        alone += drains + seconds
        bench.quarantine.tried(drains + seconds, ran=True)
        # The pause after the last one is part of its price.
    bench.quarantine.answered(1)
    bench.quarantine.expect(RecoveredWaiting(suspects=NOW))
    others += bench.quarantine.pause
    assert others >= 0.8 * (alone + others) * (1 - 1e-9)


def test_a_worker_without_other_work_runs_one_suspect_after_the_other() -> None:
    bench = Bench()
    for _ in range(100):
        bench.quarantine.expect(RecoveredWaiting(suspects=NOW))
        assert bench.quarantine.suspect_due
        bench.time += 10
        bench.quarantine.tried(10, ran=True)
        bench.quarantine.answered(0)


def test_after_a_suspect_that_others_waited_for_a_pause_follows_even_when_idle() -> None:
    bench = Bench()
    bench.quarantine.expect(RecoveredWaiting(suspects=NOW))
    bench.quarantine.tried(10, ran=True)
    bench.quarantine.answered(1)
    bench.quarantine.answered(0)
    bench.quarantine.expect(RecoveredWaiting(suspects=NOW))
    assert (bench.quarantine.suspect_due, bench.quarantine.pause) == (False, 40.0)
    bench.time += 40
    assert bench.quarantine.suspect_due


def test_after_draining_in_vain_a_pause_follows_whatever_waited() -> None:
    bench = Bench()
    bench.quarantine.tried(10, ran=False)
    bench.quarantine.answered(0)
    bench.quarantine.expect(RecoveredWaiting(suspects=NOW))
    assert (bench.quarantine.suspect_due, bench.quarantine.pause) == (False, 40.0)


@pytest.mark.parametrize(
    ("leased", "workers", "due"),
    [(0, 0, True), (1, 0, False), (1, 2, False), (1, 9, False), (1, 10, True), (2, 10, False)],
)
def test_of_five_workers_one_runs_a_suspect(leased: int, workers: int, due: bool) -> None:
    quarantine = Bench().quarantine
    quarantine.expect(RecoveredWaiting(None, NOW, suspects_leased=leased, workers=workers))
    assert quarantine.suspect_due is due
    quarantine.insist()
    assert quarantine.suspect_due


def test_a_worker_that_leaves_suspects_never_has_their_turn_but_knows_of_them() -> None:
    bench = Bench()
    bench.quarantine.treat(Suspects.leave)
    bench.quarantine.expect(RecoveredWaiting(suspects=NOW))

    assert bench.quarantine.wants_process
    assert not bench.quarantine.suspect_due
    assert not bench.quarantine.ready
    assert bench.quarantine.pause == math.inf

    bench.quarantine.treat(Suspects.run)
    assert bench.quarantine.suspect_due


def test_a_quarantine_process_runs_suspects_without_a_pause() -> None:
    bench = Bench()
    bench.quarantine.treat(Suspects.only)
    bench.quarantine.tried(10.0, ran=True)
    bench.quarantine.expect(RecoveredWaiting(suspects=NOW, suspects_leased=1, workers=1))

    assert bench.quarantine.suspect_due


@pytest.mark.parametrize(
    ("leased", "due", "wanted"),
    [
        (1, NOW, True),
        (MOST_PROCESSES - 1, NOW, True),
        (MOST_PROCESSES, NOW, False),
        (1, None, False),
    ],
)
def test_a_quarantine_process_asks_for_another_while_suspects_wait_beside_its_own(
    leased: int, due: timedelta | None, wanted: bool
) -> None:
    bench = Bench()
    bench.quarantine.treat(Suspects.only)
    bench.quarantine.expect(RecoveredWaiting(suspects=NOW))
    assert not bench.quarantine.wants_process, "it can run that one itself"
    bench.quarantine.began()
    assert not bench.quarantine.wants_process, "it has not looked since"

    bench.quarantine.expect(RecoveredWaiting(suspects=due, suspects_leased=leased))
    assert bench.quarantine.wants_process is wanted

    bench.quarantine.tried(10.0, ran=True)
    assert not bench.quarantine.wants_process
