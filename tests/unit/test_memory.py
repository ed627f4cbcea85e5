"""What only the memory store can be asked: its interpreters, its clock, its callbacks."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from itertools import product
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from holdfast.clock import ManualClock, SystemClock
from holdfast.lifecycle import RETIRE_UNCLAIMABLE, TRANSITIONS, Effect, Guard, Status, Verb
from holdfast.models import SOON, Change, ClaimRule, Job, JobId, LeaseKey, NewJob, TracebackRecord
from holdfast.stores.memory import InMemoryDriver, MemoryStore
from holdfast.stores.memory.state import EFFECTS, GUARDS, Asked, State

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.ports import Store

LEASE = timedelta(seconds=30)
RULE = ClaimRule("mail", LEASE)
SECOND = timedelta(seconds=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


async def enqueue(store: MemoryStore, *jobs: NewJob) -> list[JobId]:
    return [id_ for id_ in await store.jobs.insert(jobs, "raise") if id_ is not None]


async def claim(store: MemoryStore, *rules: ClaimRule, limit: int = 100) -> list[Job]:
    return await store.leases.claim(rules or (RULE,), limit=limit, worker="w1", sweep=True)


def holding(job: Job, **fields: object) -> Change:
    assert job.claim_token is not None
    return Change(LeaseKey(job.id, job.claim_token), **fields)  # type: ignore[arg-type]


@dataclass
class Heard:
    """What a listener was told, and a way to wait for its first call."""

    work: int = 0
    cancelled: list[JobId] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)

    def on_work(self) -> None:
        self.work += 1
        self.began.set()


@asynccontextmanager
async def listening(store: MemoryStore) -> AsyncIterator[Heard]:
    """A listener that has begun and whose first, unasked call is not counted."""
    heard = Heard()
    task = asyncio.create_task(store.wakeups.listen(heard.on_work, heard.cancelled.append))
    async with asyncio.timeout(60):
        await heard.began.wait()
    heard.work = 0
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class TestInterpreters:
    def test_every_guard_has_a_meaning(self) -> None:
        assert set(GUARDS) == set(Guard)

    def test_every_effect_has_a_meaning(self) -> None:
        assert set(EFFECTS) == set(Effect)

    @pytest.mark.parametrize("effect", Effect)
    async def test_an_effect_writes_only_fields_of_a_job(
        self, store: MemoryStore, clock: ManualClock, effect: Effect
    ) -> None:
        await enqueue(store, NewJob("mail"))
        (job,) = await claim(store)
        assert set(EFFECTS[effect](job, Asked(clock.now()))) <= set(Job._fields) - {"id", "status"}

    @pytest.mark.parametrize(
        ("left", "spent"),
        [
            (Guard.ATTEMPTS_LEFT, Guard.ATTEMPTS_SPENT),
            (Guard.RETRY_LEFT, Guard.RETRY_SPENT),
            (Guard.RECOVERY_LEFT, Guard.RECOVERY_SPENT),
        ],
    )
    @pytest.mark.parametrize(("own", "general"), list(product([None, 1, 2, 3], repeat=2)))
    async def test_opposite_guards_never_agree(
        self, store: MemoryStore, left: Guard, spent: Guard, own: int | None, general: int | None
    ) -> None:
        new = NewJob("mail", max_attempts=own, max_recoveries=own)
        (job,) = await store.jobs.get(await enqueue(store, new))
        asked = Asked(job.created, max_attempts=general, max_recoveries=general)
        for count in range(4):
            row = job._replace(attempts=count, recoveries=count)
            assert GUARDS[left](State(), row, asked) != GUARDS[spent](State(), row, asked)

    async def test_a_row_that_is_not_in_the_queue_can_only_be_enqueued(
        self, store: MemoryStore, clock: ManualClock
    ) -> None:
        (job,) = await store.jobs.get(await enqueue(store, NewJob("mail")))
        asked = Asked(clock.now(), token=job.claim_token)
        accepted = [
            name for name, row in TRANSITIONS.items() if State(clock).apply(row, job, asked)
        ]
        assert accepted == [Verb.ENQUEUE]


class TestHandle:
    def test_it_is_a_store_that_shares_one_connection(self) -> None:
        store: Store = MemoryStore()
        assert store.fork("heartbeat") is store
        assert store.dedicated is False

    async def test_there_is_nothing_to_install_or_verify(self, store: MemoryStore) -> None:
        assert await store.install() == []
        await store.verify()

    async def test_the_driver_hands_its_clock_to_its_store(self, clock: ManualClock) -> None:
        assert await InMemoryDriver(clock).store.jobs.now() == clock.now()

    async def test_two_drivers_share_nothing(self) -> None:
        one, other = InMemoryDriver().store, InMemoryDriver().store
        assert await enqueue(one, NewJob("mail")) == await enqueue(other, NewJob("mail")) == [1]


class TestClock:
    @pytest.mark.parametrize("clock", [None, SystemClock()])
    async def test_without_a_clock_that_answers_the_wall_clock_decides(
        self, clock: SystemClock | None
    ) -> None:
        before = datetime.now(UTC)
        now = await MemoryStore(clock).jobs.now()
        assert before <= now <= datetime.now(UTC)

    async def test_a_deferred_job_becomes_due_when_the_clock_is_moved(
        self, store: MemoryStore, clock: ManualClock
    ) -> None:
        await enqueue(store, NewJob("mail", execute_after=SECOND))
        assert await claim(store) == []
        assert await store.leases.next_due([RULE]) == SECOND
        clock.advance(SECOND)
        assert [job.execute_after for job in await claim(store)] == [clock.now()]

    async def test_instants_come_back_in_utc(self, store: MemoryStore) -> None:
        instant = datetime(2031, 1, 1, 12, tzinfo=timezone(timedelta(hours=5)))
        ids = await enqueue(store, NewJob("mail", execute_after=instant))
        (job,) = await store.jobs.get(ids)
        assert job.execute_after.isoformat() == "2031-01-01T07:00:00+00:00"

    async def test_a_lease_lapses_at_its_very_end_and_not_before(
        self, store: MemoryStore, clock: ManualClock
    ) -> None:
        (id_,) = await enqueue(store, NewJob("mail"))
        await claim(store)
        clock.advance(LEASE - timedelta(microseconds=1))
        assert (await store.leases.recover([RULE])).recovered == ()
        clock.advance(timedelta(microseconds=1))
        assert (await store.leases.recover([RULE])).recovered == (id_,)

    async def test_renewing_moves_the_heartbeat_and_nothing_else(
        self, store: MemoryStore, clock: ManualClock
    ) -> None:
        await enqueue(store, NewJob("mail"))
        (job,) = await claim(store)
        clock.advance(SECOND)
        lease = LeaseKey(job.id, holding(job).key.token)
        assert await store.leases.renew([lease, LeaseKey(job.id, uuid4())]) == {lease}
        assert await store.jobs.get([job.id]) == [job._replace(heartbeat=clock.now())]


class TestSnapshots:
    async def test_a_job_given_out_does_not_follow_its_row(self, store: MemoryStore) -> None:
        await enqueue(store, NewJob("mail"))
        (job,) = await claim(store)
        await store.leases.change(TRANSITIONS[Verb.RELEASE], [holding(job)])
        assert job.status is Status.PICKED
        assert [row.status for row in await store.jobs.get([job.id])] == [Status.QUEUED]

    async def test_changing_headers_in_a_handler_does_not_change_the_row(
        self, store: MemoryStore
    ) -> None:
        given = {"tags": ["a"]}
        ids = await enqueue(store, NewJob("mail", headers=given))
        given["tags"].append("producer")
        (job,) = await claim(store)
        assert job.headers is not None
        job.headers["tags"].append("handler")
        assert [row.headers for row in await store.jobs.get(ids)] == [{"tags": ["a"]}]

    async def test_headers_come_back_as_json_would_give_them(self, store: MemoryStore) -> None:
        ids = await enqueue(store, NewJob("mail", headers={"pair": (1, 2)}))
        assert [row.headers for row in await store.jobs.get(ids)] == [{"pair": [1, 2]}]

    async def test_changing_a_log_entry_does_not_change_the_log(self, store: MemoryStore) -> None:
        await enqueue(store, NewJob("mail"))
        (job,) = await claim(store)
        record = TracebackRecord("ValueError", "no", "Traceback", {"attempt": 0})
        await store.leases.change(TRANSITIONS[Verb.FAIL], [holding(job, traceback=record)])
        (entry,) = await store.jobs.history(job.id)
        assert entry.traceback is not None
        entry.traceback.clear()
        (again,) = await store.jobs.history(job.id)
        assert again.traceback == {
            "exception_type": "ValueError",
            "exception_message": "no",
            "traceback": "Traceback",
            "additional_context": {"attempt": 0},
        }


class TestFairShare:
    @pytest.mark.parametrize(
        ("waiting", "limit", "shares"),
        [
            ((9, 9, 9), 6, [2, 2, 2]),
            ((9, 9, 9), 8, [2, 3, 3]),
            ((9, 9, 9), 2, [0, 1, 1]),
            ((1, 9, 9), 9, [1, 4, 4]),
            ((0, 0, 9), 5, [0, 0, 5]),
            ((1, 1, 1), 9, [1, 1, 1]),
            ((9, 9, 9), 0, [0, 0, 0]),
        ],
    )
    async def test_slots_are_dealt_evenly_and_what_is_left_is_dealt_again(
        self, store: MemoryStore, waiting: tuple[int, ...], limit: int, shares: list[int]
    ) -> None:
        for name, number in zip("abc", waiting, strict=True):
            await enqueue(store, *[NewJob(name)] * number)
        jobs = await claim(store, *(ClaimRule(name, LEASE) for name in "abc"), limit=limit)
        # Who gets the remainder changes from claim to claim.
        assert sorted(sum(job.entrypoint == name for job in jobs) for name in "abc") == shares

    async def test_the_remainder_goes_to_each_entrypoint_in_turn(self, store: MemoryStore) -> None:
        rules = [ClaimRule(name, LEASE) for name in "abc"]
        await enqueue(store, *[NewJob(name) for name in "abc" for _ in range(3)])
        turns = [await claim(store, *rules, limit=1) for _ in range(3)]
        assert sorted(job.entrypoint for [job] in turns) == ["a", "b", "c"]

    async def test_a_higher_priority_is_served_before_anything_is_shared(
        self, store: MemoryStore
    ) -> None:
        await enqueue(
            store,
            *[NewJob("mail", priority=1)] * 3,
            *[NewJob("sms", priority=2)] * 3,
        )
        jobs = await claim(store, RULE, ClaimRule("sms", LEASE), limit=4)
        assert [job.entrypoint for job in jobs] == ["sms", "sms", "sms", "mail"]

    async def test_a_limit_on_one_entrypoint_leaves_its_slots_to_the_others(
        self, store: MemoryStore
    ) -> None:
        await enqueue(store, *[NewJob("mail")] * 5, *[NewJob("sms")] * 5)
        limited = ClaimRule("sms", LEASE, concurrency_limit=1)
        jobs = await claim(store, limited, RULE, limit=6)
        assert [job.entrypoint for job in jobs].count("sms") == 1
        assert len(jobs) == 6
        assert await claim(store, limited) == []

    async def test_a_job_without_attempts_left_uses_up_its_slot_and_is_logged_with_the_reason(
        self, store: MemoryStore
    ) -> None:
        await enqueue(store, NewJob("mail"))
        (job,) = await claim(store)
        await store.leases.change(TRANSITIONS[Verb.RETRY], [holding(job, error="no")])
        await enqueue(store, NewJob("mail"))
        (retired,) = await claim(store, ClaimRule("mail", LEASE, max_attempts=1), limit=1)
        assert (retired.id, retired.status) == (job.id, Status.FAILED)
        assert retired.claim_token is None
        history = await store.jobs.history(job.id)
        assert [(entry.status, entry.reason) for entry in history] == [
            (Status.QUEUED, None),
            (Status.FAILED, RETIRE_UNCLAIMABLE.reason),
        ]

    async def test_every_claim_has_tokens_of_its_own(self, store: MemoryStore) -> None:
        await enqueue(store, *[NewJob("mail")] * 2)
        tokens = {job.claim_token for _ in range(2) for job in await claim(store, limit=1)}
        assert len(tokens) == 2
        assert all(isinstance(token, UUID) for token in tokens)


class TestListening:
    async def test_a_listener_is_called_once_when_it_begins(self, store: MemoryStore) -> None:
        heard = Heard()
        task = asyncio.create_task(store.wakeups.listen(heard.on_work, heard.cancelled.append))
        async with asyncio.timeout(60):
            await heard.began.wait()
        assert heard.work == 1
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_a_listener_that_ended_is_told_nothing_more(self, store: MemoryStore) -> None:
        async with listening(store) as heard:
            await enqueue(store, NewJob("mail"))
        await enqueue(store, NewJob("mail"))
        assert heard.work == 1

    async def test_a_batch_wakes_once(self, store: MemoryStore) -> None:
        async with listening(store) as heard:
            await enqueue(store, *[NewJob("mail")] * 3)
        assert heard.work == 1

    async def test_a_deferred_job_wakes_no_worker(self, store: MemoryStore) -> None:
        async with listening(store) as heard:
            await enqueue(store, NewJob("mail", execute_after=SOON + SECOND))
        assert heard.work == 0

    @pytest.mark.parametrize(
        ("verb", "delay", "calls"),
        [
            (Verb.RELEASE, None, 1),
            (Verb.RETRY, timedelta(0), 1),
            (Verb.RETRY, SECOND, 0),
            (Verb.COMPLETE, None, 0),
            (Verb.HOLD, None, 0),
        ],
    )
    async def test_settling_wakes_exactly_when_the_job_can_be_claimed_again(
        self, store: MemoryStore, verb: Verb, delay: timedelta | None, calls: int
    ) -> None:
        await enqueue(store, NewJob("mail"))
        (job,) = await claim(store)
        async with listening(store) as heard:
            change = holding(job, delay=delay, error="no")
            moved = await store.leases.change(TRANSITIONS[verb], [change])
        assert moved == [change.key]
        assert heard.work == calls

    async def test_a_write_with_a_stale_token_wakes_no_worker(self, store: MemoryStore) -> None:
        await enqueue(store, NewJob("mail"))
        (job,) = await claim(store)
        async with listening(store) as heard:
            stale = Change(LeaseKey(job.id, uuid4()))
            assert await store.leases.change(TRANSITIONS[Verb.RELEASE], [stale]) == []
        assert heard.work == 0

    async def test_recovery_wakes_for_what_it_recovers_and_not_for_what_it_retires(
        self, store: MemoryStore
    ) -> None:
        await enqueue(store, NewJob("mail", max_recoveries=2))
        for calls in (1, 0):
            await claim(store)
            await store.leases.claim_recovered([RULE], limit=1, worker="w1", suspects=True)
            async with listening(store) as heard:
                await store.leases.recover([RULE], worker="w1")
            assert heard.work == calls

    async def test_a_requeued_job_wakes(self, store: MemoryStore) -> None:
        await enqueue(store, NewJob("mail"))
        (job,) = await claim(store)
        await store.leases.change(TRANSITIONS[Verb.HOLD], [holding(job, error="no")])
        async with listening(store) as heard:
            await store.jobs.requeue([job.id], actor="me", reason=None)
        assert heard.work == 1

    async def test_a_tick_of_a_schedule_wakes(self, store: MemoryStore, clock: ManualClock) -> None:
        schedule = await store.schedules.register(
            "report", "* * * * *", "UTC", "once", "allow", clock.now()
        )
        async with listening(store) as heard:
            await store.schedules.advance(schedule, [clock.now()], clock.now() + SECOND)
        assert heard.work == 1

    async def test_a_cancellation_notifies_only_the_holder_of_the_lease(
        self, store: MemoryStore
    ) -> None:
        running, waiting = await enqueue(store, NewJob("mail"), NewJob("mail"))
        await claim(store, limit=1)
        async with listening(store) as heard:
            gone = await store.jobs.remove(
                TRANSITIONS[Verb.CANCEL], [waiting, running], actor="me", reason=None
            )
        assert gone == {running, waiting}
        assert heard.cancelled == [running]
        assert heard.work == 0
