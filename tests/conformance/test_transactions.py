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
    from tests.conformance.stores import QueueUnderTest

# The caller's client library need not be the one that Holdfast uses itself.
BEHIND = [f"{kind}-{server}" for server in SERVERS for kind in ("asyncpg", "psycopg_dsn")]
on_databases = pytest.mark.parametrize("queue", BEHIND, indirect=True)


class Undone(Exception):
    """Ends a transaction without a commit."""


@pytest_asyncio.fixture(loop_scope="session", params=["asyncpg", "pool", "psycopg"])
async def caller(
    request: pytest.FixtureRequest, queue: QueueUnderTest, backends: Backends
) -> AsyncIterator[Any]:
    """A connection of the caller's own to the database of the queue."""
    dsn = backends.dsn(queue.name)
    if request.param == "psycopg":
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            yield connection
    else:
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as lent:
            yield lent if request.param == "pool" else lent._con


@on_databases
async def test_a_job_becomes_visible_with_the_commit(queue: QueueUnderTest, caller: Any) -> None:
    async with caller.transaction():
        [job_id] = await queue.queries.on(caller).enqueue("mail", b"1", dedupe_key="k")
        assert await queue.queries.get_jobs([job_id]) == []
        assert await queue.claim() == []
        assert await queue.queries.on(caller).job_status([job_id]) == [(job_id, Status.QUEUED)]
    assert ids(await queue.claim()) == [job_id]


@on_databases
async def test_a_rollback_leaves_nothing(queue: QueueUnderTest, caller: Any) -> None:
    before = await queue.rows()
    with suppress(Undone):
        async with caller.transaction():
            await queue.queries.on(caller).enqueue(["mail"] * 3, dedupe_key=["a", "b", None])
            raise Undone
    assert await queue.rows() == before
    await queue.add(dedupe_key="a")


@on_databases
async def test_a_rollback_takes_back_what_an_operator_did(
    queue: QueueUnderTest, caller: Any
) -> None:
    held, waiting = await queue.hold(), await queue.add()
    before = await queue.rows()
    with suppress(Undone):
        async with caller.transaction():
            queries = queue.queries.on(caller)
            assert await queries.requeue_jobs([held]) == {held: Requeued.REQUEUED}
            assert await queries.mark_job_as_cancelled([waiting]) == {waiting}
            raise Undone
    assert await queue.rows() == before


@on_databases
async def test_a_duplicate_can_be_survived_behind_a_savepoint(
    queue: QueueUnderTest, caller: Any
) -> None:
    await queue.add(dedupe_key="k")
    async with caller.transaction():
        queries = queue.queries.on(caller)
        with pytest.raises(DuplicateJobError):
            async with caller.transaction():
                await queries.enqueue(["mail", "mail"], dedupe_key=["new", "k"])
        assert await queries.enqueue("mail", dedupe_key="k", on_conflict="skip") == [None]
        [job_id] = await queries.enqueue("mail")
    assert [job.dedupe_key for job in await queue.queries.get_jobs([job_id])] == [None]
    assert len((await queue.rows()).jobs) == 2


@on_databases
async def test_without_a_transaction_a_connection_is_refused(
    queue: QueueUnderTest, caller: Any
) -> None:
    before = await queue.rows()
    with pytest.raises(NoTransaction, match="autocommit=True"):
        await queue.queries.on(caller).enqueue("mail")
    assert await queue.rows() == before


@on_databases
async def test_with_autocommit_every_call_commits_by_itself(
    queue: QueueUnderTest, caller: Any
) -> None:
    [job_id] = await queue.queries.on(caller, autocommit=True).enqueue("mail")
    assert ids(await queue.claim()) == [job_id]


@on_databases
async def test_the_clock_and_the_limit_of_payloads_are_the_same(
    queue: QueueUnderTest, caller: Any
) -> None:
    queries = Queries(queue.store, max_payload=3).on(caller, autocommit=True)
    queue.clock.advance(SECOND)
    assert await queries.now() == queue.clock.now()
    with pytest.raises(InvalidInput, match="payload has 4 bytes"):
        await queries.enqueue("mail", b"1234")


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("queue", [f"psycopg-{server}" for server in SERVERS], indirect=True)
async def test_a_connection_without_autocommit_decides_by_its_own_commit(
    queue: QueueUnderTest, backends: Backends, kept: bool
) -> None:
    async with await psycopg.AsyncConnection.connect(backends.dsn(queue.name)) as caller:
        [job_id] = await queue.queries.on(caller).enqueue("mail")
        assert await queue.queries.get_jobs([job_id]) == []
        await (caller.commit() if kept else caller.rollback())
    assert ids(await queue.queries.get_jobs([job_id])) == ([job_id] if kept else [])


in_memory = pytest.mark.parametrize("queue", [MEMORY], indirect=True)


def begin(queue: QueueUnderTest) -> InMemoryTransaction:
    assert isinstance(queue.store, MemoryStore)
    return queue.store.transaction()


@in_memory
async def test_in_memory_a_job_becomes_visible_with_the_commit(queue: QueueUnderTest) -> None:
    async with begin(queue) as caller:
        queries = queue.queries.on(caller)
        [job_id] = await queries.enqueue("mail", b"1", dedupe_key="k")
        assert await queries.job_status([job_id]) == [(job_id, Status.QUEUED)]
        assert await queue.queries.browse_queue() == []
        assert await queue.claim() == []
    assert ids(await queue.claim()) == [job_id]
    with pytest.raises(CarrierError, match="over"):
        await queries.enqueue("mail")


@in_memory
async def test_in_memory_a_rollback_leaves_nothing(queue: QueueUnderTest) -> None:
    held, waiting = await queue.hold(), await queue.add(dedupe_key="k")
    before = await queue.rows()
    with suppress(Undone):
        async with begin(queue) as caller:
            queries = queue.queries.on(caller)
            assert await queries.requeue_jobs([held]) == {held: Requeued.REQUEUED}
            assert await queries.mark_job_as_cancelled([waiting]) == {waiting}
            await queries.enqueue(["mail"] * 2, dedupe_key=["k", None])
            raise Undone
    assert await queue.rows() == before
    with pytest.raises(DuplicateJobError):
        await queue.add(dedupe_key="k")


@in_memory
async def test_in_memory_an_operator_commits_as_well(queue: QueueUnderTest) -> None:
    waiting = await queue.add(dedupe_key="k")
    with begin(queue) as caller:
        queries = queue.queries.on(caller)
        await queries.mark_job_as_cancelled([waiting], reason="sold out")
        [new] = await queries.enqueue("mail", dedupe_key="k")
        outside = await queue.add()
    assert await queue.status(waiting) == Status.CANCELED
    assert (await queue.last_entry(waiting)).reason == "sold out"
    assert ids(await queue.claim()) == [new, outside]


@in_memory
async def test_in_memory_a_savepoint_is_rolled_back_alone(queue: QueueUnderTest) -> None:
    async with begin(queue) as caller:
        await queue.queries.on(caller).enqueue("mail", b"1")
        with suppress(Undone):
            async with caller.transaction() as savepoint:
                await queue.queries.on(savepoint).enqueue("mail", b"2")
                raise Undone
        async with caller.transaction() as savepoint:
            await queue.queries.on(savepoint).enqueue("mail", b"3")
    assert [job.payload for job in await queue.claim()] == [b"1", b"3"]


@in_memory
async def test_in_memory_what_others_changed_meanwhile_is_not_overwritten(
    queue: QueueUnderTest,
) -> None:
    waiting = await queue.add()
    caller, other = begin(queue), begin(queue)
    await queue.queries.on(caller).mark_job_as_cancelled([waiting])
    await queue.queries.on(other).enqueue("mail", dedupe_key="k")
    [job] = await queue.claim()
    await queue.add(dedupe_key="k")
    with pytest.raises(DatabaseError, match="changed outside"):
        await caller.commit()
    with pytest.raises(DuplicateJobError):
        await other.commit()
    assert (await queue.row(waiting)).claim_token == job.claim_token


@in_memory
async def test_in_memory_other_transactions_are_refused(queue: QueueUnderTest) -> None:
    for stranger in (object(), MemoryStore().transaction()):
        with pytest.raises(CarrierError):
            queue.queries.on(stranger)


async def test_what_is_no_connection_is_refused_everywhere(queue: QueueUnderTest) -> None:
    secret = "postgresql://ann:secret@localhost/x"  # noqa: S105 - must not be shown
    with pytest.raises(InvalidInput) as caught:
        queue.queries.on(secret)
    assert "secret" not in str(caught.value)
