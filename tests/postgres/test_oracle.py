"""Memory and PostgreSQL agree, row for row, on every transition from every kind of row."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import DuplicateJobError, HoldfastError
from holdfast.lifecycle import LIFECYCLE, LIVE, TRANSITIONS, Effect, Guard, Status, Verb
from holdfast.models import Change, Held, Job, JobId, NewJob, TracebackRecord, Want
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import render
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from holdfast.stores.postgres.store import PostgresStore
from tests import servers
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from holdfast.lifecycle import Transition
    from holdfast.ports import Store
    from holdfast.stores.postgres.render import Statements
    from tests.servers import Database, SharedServers

    Act = Callable[[Store], Awaitable[Any]]

CLOCK = ManualClock()
NOW = CLOCK.now()
SECOND = timedelta(seconds=1)
LEASE = timedelta(seconds=30)
LEASE_AGES = {"live": LEASE - SECOND, "just past": LEASE, "past": LEASE + SECOND}
DUE = {"long due": -SECOND, "just due": timedelta(0), "deferred": SECOND}
OFFERED = ("right token", "wrong token", "both tokens")
COUNTS = (0, 1, 2)
ROW_CAPS = (None, 1, 3)
ENTRYPOINT_CAP = 2
ENTRYPOINTS = {"capped": ENTRYPOINT_CAP, "boundless": None}
WORKER = "worker-1"


class Case(NamedTuple):
    """A row before the transition, and the token that somebody offers for it."""

    status: Status
    offered: str
    lease_age: str
    due: str
    attempts: int
    recoveries: int
    row_cap: int | None
    entrypoint: str
    last_error: str | None


def cases() -> Iterator[Case]:
    for status in LIVE:
        ages = tuple(LEASE_AGES) if status is Status.PICKED else ("live",)
        for rest in product(
            OFFERED, ages, DUE, COUNTS, COUNTS, ROW_CAPS, ENTRYPOINTS, (None, "earlier")
        ):
            yield Case(status, *rest)


CASES = tuple(cases())
"""Job n of each store is the row of case n - 1."""


def right(job_id: int) -> UUID:
    return UUID(int=job_id)


def wrong(job_id: int) -> UUID:
    return UUID(int=(1 << 64) + job_id)


def row(job_id: int, case: Case) -> Job:
    values: dict[str, Any] = dict.fromkeys(Job._fields)
    values |= {
        "id": JobId(job_id),
        "entrypoint": case.entrypoint,
        "payload": b"payload",
        "priority": 7,
        "status": case.status,
        "execute_after": NOW + DUE[case.due],
        "attempts": case.attempts,
        "recoveries": case.recoveries,
        "max_attempts": case.row_cap,
        "max_recoveries": case.row_cap,
        "dedupe_key": f"key {job_id}" if job_id % 3 else None,
        "headers": {"n": job_id} if job_id % 2 else None,
        "created": NOW - 100 * SECOND,
        "updated": NOW - 50 * SECOND,
        "last_error": case.last_error,
        "last_error_at": NOW - 50 * SECOND if case.last_error else None,
    }
    if case.status is Status.PICKED:
        since = NOW - LEASE_AGES[case.lease_age]
        values |= {
            "heartbeat": since,
            "claim_token": right(job_id),
            "claimed_by": f"worker-{job_id % 2}",
            "claimed_at": since - SECOND,
            "lease": LEASE,
        }
    if case.status is Status.FAILED:
        values["held_at"] = NOW - 50 * SECOND
    return Job(**values)


ROWS = tuple(row(n, case) for n, case in enumerate(CASES, start=1))
IDS = [job.id for job in ROWS]


def offers() -> Iterator[tuple[Case, Held]]:
    for job_id, case in zip(IDS, CASES, strict=True):
        if case.offered != "right token":
            yield case, Held(job_id, wrong(job_id))
        if case.offered != "wrong token":
            yield case, Held(job_id, right(job_id))


WANTS = [
    Want(name, lease=LEASE, max_attempts=cap, max_recoveries=ENTRYPOINT_CAP)
    for name, cap in ENTRYPOINTS.items()
]


def changes() -> list[Change]:
    record = TracebackRecord("ValueError", "no", "Traceback …", {"n": 1}, 1, NOW)
    return [
        Change(
            held.id,
            held.token,
            delay=SECOND * (held.id % 3) if held.id % 4 else None,
            error="it broke" if held.id % 5 else None,
            reason="because" if held.id % 2 else None,
            traceback=record if held.id % 3 else None,
            max_attempts=ENTRYPOINTS[case.entrypoint],
        )
        for case, held in offers()
    ]


def change(transition: Transition) -> Act:
    return lambda store: store.leases.change(transition, changes())


def remove(verb: Verb) -> Act:
    return lambda store: store.jobs.remove(TRANSITIONS[verb], IDS, actor="ann", reason=None)


ACTS: dict[str, Act] = {
    **{
        transition.name: change(transition)
        for transition in LIFECYCLE
        if Guard.OWNED in transition.guards and transition.verb is not Verb.RENEW
    },
    "renew": lambda store: store.leases.renew([held for _, held in offers()]),
    "claim or retire": lambda store: store.leases.claim(WANTS, limit=len(ROWS), worker=WORKER),
    "claim, one entrypoint": lambda store: store.leases.claim(
        WANTS[1:], limit=len(ROWS), worker=WORKER
    ),
    "recover or retire": lambda store: store.leases.recover(WANTS, limit=len(ROWS)),
    "recover, unknown entrypoint": lambda store: store.leases.recover(WANTS[:1], limit=len(ROWS)),
    "recover, bounded": lambda store: store.leases.recover(WANTS, limit=100),
    "recover a dead worker": lambda store: store.leases.recover(
        WANTS, limit=len(ROWS), worker="worker-1"
    ),
    "cancel": remove(Verb.CANCEL),
    "delete": remove(Verb.DELETE),
    "requeue": lambda store: store.jobs.requeue(IDS, actor=None, reason="fixed"),
}


class After(NamedTuple):
    """All that can be seen of a transition."""

    said: Any
    rows: dict[JobId, Job]
    log: dict[JobId, list[Any]]


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
        return {job.id: _masked(job, known) for job in said}
    return said


async def in_memory(act: Act) -> After:
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
    transaction = connection.transaction()
    await transaction.start()
    try:
        said = await act(store)
        return seen(said, await tables.queue(connection), await tables.log(connection))
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


@pytest.fixture(scope="module", params=sorted(servers.available()))
def loaded(request: pytest.FixtureRequest, pg_servers: SharedServers) -> Iterator[Database]:
    """A schema whose queue table has a row for every case."""

    async def fill(dsn: str) -> None:
        async with tables.installed(dsn) as (connection, _):
            await tables.load(connection, ROWS)

    with pg_servers.schema(request.param) as database:
        asyncio.run(fill(database.dsn))
        yield database


def test_there_are_far_more_than_a_thousand_cases() -> None:
    assert len(CASES) * len(ACTS) > 10_000


@pytest.mark.parametrize("name", ACTS)
async def test_both_stores_do_the_same_to_every_kind_of_row(loaded: Database, name: str) -> None:
    expected = await in_memory(ACTS[name])
    async with tables.session(loaded.dsn) as connection:
        found = await in_postgres(connection, ACTS[name])
    assert differences(expected, found) == []
    assert expected.log or name == "renew" or expected.said, f"{name} changed nothing at all"
