"""Memory and PostgreSQL agree, row for row, on every transition from every kind of row."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import cycle, product
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

import pytest

from holdfast.errors import DuplicateJobError, HoldfastError
from holdfast.lifecycle import (
    LIFECYCLE,
    LIVE,
    MOVE_HELD,
    MOVE_WAITING,
    RETIRE_STALE,
    RETIRE_UNCLAIMABLE,
    TRANSITIONS,
    Effect,
    Guard,
    Verb,
)
from holdfast.models import Job, JobId, NewJob
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import render
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from holdfast.stores.postgres.store import PostgresStore
from tests import servers
from tests.postgres import tables
from tests.postgres.cases import (
    CASES,
    CLOCK,
    IDS,
    LEASE,
    NOW,
    ROWS,
    RULES,
    SECOND,
    WORKER,
    changes,
    offers,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from holdfast.lifecycle import Transition
    from holdfast.ports import Store
    from holdfast.stores.postgres.render import Statements
    from tests.servers import Database, SharedServers

    Act = Callable[[Store], Awaitable[Any]]


def change(transition: Transition) -> Act:
    return lambda store: store.leases.change(transition, changes())


def remove(verb: Verb) -> Act:
    return lambda store: store.jobs.remove(TRANSITIONS[verb], IDS, actor="ann", reason=None)


async def edit(store: Store) -> list[bool]:
    """One by one, as it is done by hand, and so on a part of the rows."""
    return [
        await store.jobs.edit(job_id, payload, actor="ann", reason=reason)
        for job_id, payload, reason in zip(
            IDS[::17], cycle([None, b"mended"]), cycle([None, None, "why"]), strict=False
        )
    ]


ACTS: dict[str, Act] = {
    **{
        transition.name: change(transition)
        for transition in LIFECYCLE
        if Guard.OWNED in transition.guards and transition.verb is not Verb.RENEW
    },
    "renew": lambda store: store.leases.renew([held for _, held in offers()]),
    "claim or retire": lambda store: store.leases.claim(RULES, limit=len(ROWS), worker=WORKER),
    "claim, one entrypoint": lambda store: store.leases.claim(
        RULES[1:], limit=len(ROWS), worker=WORKER
    ),
    "claim recovered": lambda store: store.leases.claim_recovered(
        RULES, limit=len(ROWS), worker=WORKER, suspects=False
    ),
    "claim suspects": lambda store: store.leases.claim_recovered(
        RULES, limit=len(ROWS), worker=WORKER, suspects=True
    ),
    "recover or retire": lambda store: store.leases.recover(RULES, limit=len(ROWS)),
    "recover, unknown entrypoint": lambda store: store.leases.recover(RULES[:1], limit=len(ROWS)),
    "recover after an outage": lambda store: store.leases.recover(
        RULES, limit=len(ROWS), contact=LEASE
    ),
    "recover soon after an outage": lambda store: store.leases.recover(
        RULES, limit=len(ROWS), contact=LEASE + SECOND / 2
    ),
    "recover what is not held": lambda store: store.leases.recover(
        RULES, limit=len(ROWS), held=[held for _, held in offers()]
    ),
    "recover, bounded": lambda store: store.leases.recover(RULES, limit=100),
    "recover a dead worker": lambda store: store.leases.recover(
        RULES, limit=len(ROWS), worker="worker-1"
    ),
    "cancel": remove(Verb.CANCEL),
    "delete": remove(Verb.DELETE),
    "requeue": lambda store: store.jobs.requeue(IDS, actor=None, reason="fixed"),
    "requeue with a cap": lambda store: store.jobs.requeue(
        IDS, actor="ann", reason=None, max_attempts=9
    ),
    "edit": edit,
    "move": lambda store: store.jobs.move(IDS, "other", actor="ann", reason="odd"),
    "move by force": lambda store: store.jobs.move(
        IDS, "other", actor=None, reason="odd", force=True
    ),
    "release a worker": lambda store: store.jobs.move(
        IDS, None, actor="ann", reason="gone", worker="worker-1"
    ),
}

BY_HAND = {ACTS[name] for name in ("move", "move by force", "release a worker")}
"""They leave the columns of a lease that has ended in the row, where they count no more."""


EFFECTS_OF: dict[str, set[Effect]] = {
    **{name: set(TRANSITIONS[name].effects) for name in ACTS if name in TRANSITIONS},
    "claim or retire": {*TRANSITIONS[Verb.CLAIM].effects, *RETIRE_UNCLAIMABLE.effects},
    "recover or retire": {*TRANSITIONS[Verb.RECOVER].effects, *RETIRE_STALE.effects},
    "move": {*MOVE_WAITING.effects, *MOVE_HELD.effects},
}

GUARDS = cast("dict[Guard, str]", render.GUARDS)
EFFECTS = cast("dict[Effect, str]", render.EFFECTS)


class After(NamedTuple):
    """All that can be seen of a transition."""

    said: Any
    rows: dict[JobId, Job]
    log: dict[JobId, list[Any]]


EXPECTED: dict[str, After] = {}
"""What the memory store did: computed once for all servers and planted faults."""


def seen(said: Any, queue: Sequence[Job], log: Sequence[Any]) -> After:
    """Without the ids of log rows and the tokens of new claims, which no two stores share."""
    known = {job.claim_token for job in ROWS}
    entries: dict[JobId, list[Any]] = {}
    for entry in log:
        entries.setdefault(entry.job_id, []).append(entry._replace(id=0))
    return After(_plain(said, known), {job.id: _masked(job, known) for job in queue}, entries)


def _masked(job: Job, known: set[UUID | None]) -> Job:
    return job if job.claim_token in known else job._replace(claim_token=UUID(int=0))


def _plain(said: Any, known: set[UUID | None]) -> Any:
    if isinstance(said, list):
        return [_masked(job, known) if isinstance(job, Job) else job for job in said]
    return said


async def in_memory(name: str) -> After:
    if name not in EXPECTED:
        EXPECTED[name] = await _in_memory(ACTS[name])
    return EXPECTED[name]


async def _in_memory(act: Act) -> After:
    store = MemoryStore(CLOCK)
    state = store.jobs._state
    for job in ROWS:
        state.rows[job.id] = job
        if job.dedupe_key is not None and job.held_at is None:
            state.keys[job.dedupe_key] = job.id
    said = await act(store)
    return seen(said, list(state.rows.values()), state.log)


async def in_postgres(connection: Any, act: Act, statements: Statements | None = None) -> After:
    """Rolled back, so that the rows need to be loaded only once."""
    store = PostgresStore(AsyncpgDriver(connection), tables.NAMES, clock=CLOCK)
    if statements is not None:
        store.leases._runner._statements = statements
        store.jobs._runner._statements = statements
    transaction = connection.transaction()
    await transaction.start()
    try:
        said = await act(store)
        queue = await tables.queue(connection, seen=act in BY_HAND)
        return seen(said, queue, await tables.log(connection))
    finally:
        await transaction.rollback()


def differences(expected: After, found: After) -> list[str]:
    """One line for each case in which the stores do not agree."""
    lines = [
        f"{case}: memory has {expected.rows.get(job_id)} and {expected.log.get(job_id)}, "
        f"PostgreSQL {found.rows.get(job_id)} and {found.log.get(job_id)}"
        for job_id, case in zip(IDS, CASES, strict=True)
        if (expected.rows.get(job_id), expected.log.get(job_id))
        != (found.rows.get(job_id), found.log.get(job_id))
    ]
    return lines if lines or expected.said == found.said else [f"{expected.said} {found.said}"]


async def _fill(dsn: str) -> None:
    async with tables.installed(dsn) as (connection, _):
        await tables.load(connection, ROWS)


@pytest.fixture(scope="module", params=sorted(servers.available()))
def loaded(request: pytest.FixtureRequest, pg_servers: SharedServers) -> Iterator[Database]:
    """A schema whose queue table has a row for every case."""
    with pg_servers.schema(request.param) as database:
        asyncio.run(_fill(database.dsn))
        yield database


@pytest.fixture(scope="module")
def loaded18(pg_servers: SharedServers) -> Iterator[Database]:
    with pg_servers.schema(servers.EMBEDDED) as database:
        asyncio.run(_fill(database.dsn))
        yield database


def test_there_are_far_more_than_a_thousand_cases() -> None:
    assert len(CASES) * len(ACTS) > 10_000


@pytest.mark.parametrize("name", ACTS)
async def test_both_stores_do_the_same_to_every_kind_of_row(loaded: Database, name: str) -> None:
    expected = await in_memory(name)
    async with tables.session(loaded.dsn) as connection:
        found = await in_postgres(connection, ACTS[name])
    assert differences(expected, found) == []
    assert expected.said, f"{name} did nothing at all"


async def noticed(dsn: str, acts: Iterable[str], faulty: Statements) -> int:
    """How many cases tell the faulty statements from the right ones; a refusal is one."""
    count = 0
    async with tables.session(dsn) as connection:
        for name in acts:
            try:
                found = await in_postgres(connection, ACTS[name], faulty)
            except HoldfastError:
                count += 1
            else:
                count += len(differences(await in_memory(name), found))
    return count


OWNED_ACTS = [transition.name for transition in LIFECYCLE if Guard.OWNED in transition.guards]


@pytest.mark.parametrize("name", OWNED_ACTS)
async def test_a_missing_fence_is_noticed(
    loaded18: Database, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What most queues check: that some worker has the job, not that the caller has it.
    monkeypatch.setitem(GUARDS, Guard.OWNED, "j.claim_token is not null")
    assert await noticed(loaded18.dsn, [name], render.Statements(tables.NAMES)) > 100


@pytest.mark.parametrize(
    ("guard", "name"),
    [
        (Guard.ATTEMPTS_SPENT, "claim or retire"),
        (Guard.NEVER_RECOVERED, "claim or retire"),
        (Guard.RECOVERED, "claim recovered"),
        (Guard.RECOVERY_LEFT, "claim recovered"),
        (Guard.RECOVERY_SPENT, "claim suspects"),
        (Guard.RETRY_LEFT, "retry"),
        (Guard.RETRY_SPENT, "retire:last_retry"),
        (Guard.STALE, "recover or retire"),
        (Guard.EXCUSED, "recover after an outage"),
    ],
)
async def test_a_guard_that_always_says_yes_is_noticed(
    loaded18: Database, guard: Guard, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GUARDS, guard, "true")
    assert await noticed(loaded18.dsn, [name], render.Statements(tables.NAMES))


@pytest.mark.parametrize("effect", Effect)
async def test_an_effect_that_is_not_written_is_noticed(
    loaded18: Database, effect: Effect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EFFECTS, effect, "priority = j.priority")
    acts = [name for name, effects in EFFECTS_OF.items() if effect in effects]
    assert await noticed(loaded18.dsn, acts, render.Statements(tables.NAMES))


@pytest.mark.parametrize(
    ("name", "statement", "right", "faulty"),
    [
        (
            "claim or retire",
            "claim",
            "and j.execute_after <= least(l.ceiling, (select now from clock))",
            "",
        ),
        ("claim or retire", "claim", "j.execute_after <= least(", "j.execute_after < least("),
        ("claim or retire", "claim", "and j.status = 'queued'::\"holdfast_status\"", ""),
        ("recover or retire", "recover", "j.recoveries + 1 >=", "j.recoveries >="),
        ("recover or retire", "recover", "+ j.lease <=", "+ j.lease <"),
        ("recover or retire", "recover", "j.max_recoveries,", "null,"),
        ("recover or retire", "recover", "greatest(2,", "greatest(1,"),
        ("claim recovered", "claim:recovered", "coalesce(j.max_recoveries,", "coalesce(null,"),
        ("recover a dead worker", "recover", "or l.worker =", "or l.worker <>"),
        ("delete", "delete", "j.status in (", "j.status not in ("),
        ("requeue", "requeue", "o.id < h.id", "false"),
        ("requeue", "requeue", "k.held_at is null", "false"),
        ("move", "move", "o.id < h.id", "false"),
        ("move", "move", "+ j.lease <=", "+ j.lease <"),
        ("release a worker", "move", "else j.claimed_by =", "else j.claimed_by <>"),
    ],
)
async def test_a_fault_in_a_statement_is_noticed(
    loaded18: Database, name: str, statement: str, right: str, faulty: str
) -> None:
    statements = render.Statements(tables.NAMES)
    rendered = statements[statement]
    assert right in rendered.text
    text = rendered.text.replace(right, faulty)
    statements[statement] = render.Statement(statement, text, rendered.parameters)
    assert await noticed(loaded18.dsn, [name], statements)


KEYS = {status: f"held by {status}" for status in LIVE}
"""A key for each state that the job owning it may be in."""


def new_jobs() -> list[NewJob]:
    times = (None, timedelta(0), SECOND, NOW - SECOND, NOW + SECOND)
    keys = (None, *KEYS.values(), "free", "free")
    return [
        NewJob(
            entrypoint="fresh",
            payload=payload,
            priority=priority,
            execute_after=time,
            dedupe_key=key,
            headers=headers,
            max_attempts=cap,
            max_recoveries=cap,
        )
        for key, time, payload, priority, headers, cap in product(
            keys, times, (None, b"\x00\xff"), (-1, 1), (None, {"a": [1, {"b": "ü"}]}), (None, 4)
        )
    ]


def owners() -> list[Job]:
    by_status = {job.status: job for job in ROWS}
    jobs = [by_status[status]._replace(dedupe_key=key) for status, key in KEYS.items()]
    return sorted(jobs, key=lambda job: job.id)


async def enqueued(store: Store, jobs: Sequence[NewJob]) -> list[Any]:
    """Which places of the batch became jobs, and what was raised for each alone."""
    said: list[Any] = [place is not None for place in await store.jobs.insert(jobs, "skip")]
    for job in jobs[:: len(jobs) // 40]:
        try:
            said.append(len(await store.jobs.insert([job], "raise")))
        except DuplicateJobError as error:
            said.append(error.dedupe_key)
    return said


async def test_both_stores_enqueue_the_same_whatever_becomes_of_the_key(pg: Database) -> None:
    memory = MemoryStore(CLOCK)
    async with tables.installed(pg.dsn, CLOCK) as (connection, store):
        await tables.load(connection, owners())
        for job in owners():
            memory.jobs._state.rows[job.id] = job
            if job.held_at is None:
                memory.jobs._state.keys[f"{job.dedupe_key}"] = job.id
        memory.jobs._state._last.job = max(IDS)
        jobs = new_jobs()
        assert await enqueued(memory, jobs) == await enqueued(store, jobs)
        expected = [job._replace(id=JobId(0)) for job in memory.jobs._state.rows.values()]
        assert [job._replace(id=JobId(0)) for job in await tables.queue(connection)] == expected
        assert len(expected) > 80
