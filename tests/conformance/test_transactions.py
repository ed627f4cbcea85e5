"""Enqueuing, and all the rest, inside a transaction of the caller's."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
import pytest_asyncio

from holdfast.errors import (
    CarrierError,
    DatabaseError,
    DuplicateJobError,
    InvalidInput,
    NoTransaction,
)
from holdfast.lifecycle import Status
from holdfast.models import Requeued
from holdfast.queries import Queries
from holdfast.stores.memory import MemoryStore
from tests.conformance.backends import MEMORY, SERVERS
from tests.conformance.stores import SECOND, ids

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.stores.memory.transaction import InMemoryTransaction
    from tests.conformance.backends import Backends
    from tests.conformance.stores import Rig

# The caller's client library need not be the one that Holdfast uses itself.
BEHIND = [f"{kind}-{server}" for server in SERVERS for kind in ("asyncpg", "psycopg_dsn")]
on_databases = pytest.mark.parametrize("rig", BEHIND, indirect=True)


class Undone(Exception):
    """Ends a transaction without a commit."""


@pytest_asyncio.fixture(loop_scope="session", params=["asyncpg", "pool", "psycopg"])
async def caller(
    request: pytest.FixtureRequest, rig: Rig, backends: Backends
) -> AsyncIterator[Any]:
    """A connection of the caller's own to the database of the rig."""
    dsn = backends.dsn(rig.name)
    if request.param == "psycopg":
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            yield connection
    else:
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as lent:
            yield lent if request.param == "pool" else lent._con


@on_databases
async def test_a_job_becomes_visible_with_the_commit(rig: Rig, caller: Any) -> None:
    async with caller.transaction():
        [job_id] = await rig.queries.on(caller).enqueue("mail", b"1", dedupe_key="k")
        assert await rig.queries.get_jobs([job_id]) == []
        assert await rig.claim() == []
        assert await rig.queries.on(caller).job_status([job_id]) == [(job_id, Status.QUEUED)]
    assert ids(await rig.claim()) == [job_id]


@on_databases
async def test_a_rollback_leaves_nothing(rig: Rig, caller: Any) -> None:
    before = await rig.rows()
    with suppress(Undone):
        async with caller.transaction():
            await rig.queries.on(caller).enqueue(["mail"] * 3, dedupe_key=["a", "b", None])
            raise Undone
    assert await rig.rows() == before
    await rig.add(dedupe_key="a")


@on_databases
async def test_a_rollback_takes_back_what_an_operator_did(rig: Rig, caller: Any) -> None:
    held, waiting = await rig.hold(), await rig.add()
    before = await rig.rows()
    with suppress(Undone):
        async with caller.transaction():
            queries = rig.queries.on(caller)
            assert await queries.requeue_jobs([held]) == {held: Requeued.REQUEUED}
            assert await queries.mark_job_as_cancelled([waiting]) == {waiting}
            raise Undone
    assert await rig.rows() == before


@on_databases
async def test_a_duplicate_can_be_survived_behind_a_savepoint(rig: Rig, caller: Any) -> None:
    await rig.add(dedupe_key="k")
    async with caller.transaction():
        queries = rig.queries.on(caller)
        with pytest.raises(DuplicateJobError):
            async with caller.transaction():
                await queries.enqueue(["mail", "mail"], dedupe_key=["new", "k"])
        assert await queries.enqueue("mail", dedupe_key="k", on_conflict="skip") == [None]
        [job_id] = await queries.enqueue("mail")
    assert [job.dedupe_key for job in await rig.queries.get_jobs([job_id])] == [None]
    assert len((await rig.rows()).jobs) == 2


@on_databases
async def test_without_a_transaction_a_connection_is_refused(rig: Rig, caller: Any) -> None:
    before = await rig.rows()
    with pytest.raises(NoTransaction, match="autocommit=True"):
        await rig.queries.on(caller).enqueue("mail")
    assert await rig.rows() == before


@on_databases
async def test_with_autocommit_every_call_commits_by_itself(rig: Rig, caller: Any) -> None:
    [job_id] = await rig.queries.on(caller, autocommit=True).enqueue("mail")
    assert ids(await rig.claim()) == [job_id]


@on_databases
async def test_the_clock_and_the_limit_of_payloads_are_the_same(rig: Rig, caller: Any) -> None:
    queries = Queries(rig.store, max_payload=3).on(caller, autocommit=True)
    rig.clock.advance(SECOND)
    assert await queries.now() == rig.clock.now()
    with pytest.raises(InvalidInput, match="payload has 4 bytes"):
        await queries.enqueue("mail", b"1234")


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("rig", [f"psycopg-{server}" for server in SERVERS], indirect=True)
async def test_a_connection_without_autocommit_decides_by_its_own_commit(
    rig: Rig, backends: Backends, kept: bool
) -> None:
    async with await psycopg.AsyncConnection.connect(backends.dsn(rig.name)) as caller:
        [job_id] = await rig.queries.on(caller).enqueue("mail")
        assert await rig.queries.get_jobs([job_id]) == []
        await (caller.commit() if kept else caller.rollback())
    assert ids(await rig.queries.get_jobs([job_id])) == ([job_id] if kept else [])


in_memory = pytest.mark.parametrize("rig", [MEMORY], indirect=True)


def begin(rig: Rig) -> InMemoryTransaction:
    assert isinstance(rig.store, MemoryStore)
    return rig.store.transaction()


@in_memory
async def test_in_memory_a_job_becomes_visible_with_the_commit(rig: Rig) -> None:
    async with begin(rig) as caller:
        queries = rig.queries.on(caller)
        [job_id] = await queries.enqueue("mail", b"1", dedupe_key="k")
        assert await queries.job_status([job_id]) == [(job_id, Status.QUEUED)]
        assert await rig.queries.browse_queue() == []
        assert await rig.claim() == []
    assert ids(await rig.claim()) == [job_id]
    with pytest.raises(CarrierError, match="over"):
        await queries.enqueue("mail")


@in_memory
async def test_in_memory_a_rollback_leaves_nothing(rig: Rig) -> None:
    held, waiting = await rig.hold(), await rig.add(dedupe_key="k")
    before = await rig.rows()
    with suppress(Undone):
        async with begin(rig) as caller:
            queries = rig.queries.on(caller)
            assert await queries.requeue_jobs([held]) == {held: Requeued.REQUEUED}
            assert await queries.mark_job_as_cancelled([waiting]) == {waiting}
            await queries.enqueue(["mail"] * 2, dedupe_key=["k", None])
            raise Undone
    assert await rig.rows() == before
    with pytest.raises(DuplicateJobError):
        await rig.add(dedupe_key="k")


@in_memory
async def test_in_memory_an_operator_commits_as_well(rig: Rig) -> None:
    waiting = await rig.add(dedupe_key="k")
    with begin(rig) as caller:
        queries = rig.queries.on(caller)
        await queries.mark_job_as_cancelled([waiting], reason="sold out")
        [new] = await queries.enqueue("mail", dedupe_key="k")
        outside = await rig.add()
    assert await rig.status(waiting) == Status.CANCELED
    assert (await rig.last_entry(waiting)).reason == "sold out"
    assert ids(await rig.claim()) == [new, outside]


@in_memory
async def test_in_memory_a_savepoint_is_rolled_back_alone(rig: Rig) -> None:
    async with begin(rig) as caller:
        await rig.queries.on(caller).enqueue("mail", b"1")
        with suppress(Undone):
            async with caller.transaction() as savepoint:
                await rig.queries.on(savepoint).enqueue("mail", b"2")
                raise Undone
        async with caller.transaction() as savepoint:
            await rig.queries.on(savepoint).enqueue("mail", b"3")
    assert [job.payload for job in await rig.claim()] == [b"1", b"3"]


@in_memory
async def test_in_memory_what_others_changed_meanwhile_is_not_overwritten(rig: Rig) -> None:
    waiting = await rig.add()
    caller, other = begin(rig), begin(rig)
    await rig.queries.on(caller).mark_job_as_cancelled([waiting])
    await rig.queries.on(other).enqueue("mail", dedupe_key="k")
    [job] = await rig.claim()
    await rig.add(dedupe_key="k")
    with pytest.raises(DatabaseError, match="changed outside"):
        await caller.commit()
    with pytest.raises(DuplicateJobError):
        await other.commit()
    assert (await rig.row(waiting)).claim_token == job.claim_token


@in_memory
async def test_in_memory_other_transactions_are_refused(rig: Rig) -> None:
    for stranger in (object(), MemoryStore().transaction()):
        with pytest.raises(CarrierError):
            rig.queries.on(stranger)


async def test_what_is_no_connection_is_refused_everywhere(rig: Rig) -> None:
    secret = "postgresql://ann:secret@localhost/x"  # noqa: S105 - must not be shown
    with pytest.raises(InvalidInput) as caught:
        rig.queries.on(secret)
    assert "secret" not in str(caught.value)
