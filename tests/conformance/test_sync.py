"""The same queries for code without an event loop."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import psycopg
import pytest

from holdfast.errors import DuplicateJobError, InvalidInput, JobNotFound
from holdfast.lifecycle import Status, Verb
from holdfast.models import JobId, NewJob, QueueSize, Requeued
from holdfast.queries import Queries, SyncQueries
from tests.conformance.backends import SYNCHRONOUS
from tests.conformance.stores import LEASE, SECOND, ids

if TYPE_CHECKING:
    from tests.conformance.backends import Backends
    from tests.conformance.stores import QueueUnderTest

everywhere = pytest.mark.parametrize("queue", SYNCHRONOUS, indirect=True)


def synchronous(queue: QueueUnderTest) -> SyncQueries:
    return SyncQueries(Queries(queue.store))


def test_every_query_has_its_synchronous_twin() -> None:
    named = inspect.getmembers(Queries, inspect.iscoroutinefunction)
    public = {name for name, _ in named if not name.startswith("_")}
    assert public <= set(dir(SyncQueries))


@everywhere
async def test_a_job_is_enqueued_and_read_back(queue: QueueUnderTest) -> None:
    queries = synchronous(queue)
    [job_id] = queries.enqueue("mail", b"\0\xff", 3, SECOND, "k", {"a": [1]}, max_attempts=2)
    [job] = queries.get_jobs([job_id])
    assert (job.payload, job.priority, job.headers) == (b"\0\xff", 3, {"a": [1]})
    assert job.execute_after == queries.now() + SECOND
    assert queries.job_status([job_id]) == [(job_id, Status.QUEUED)]
    assert queries.browse_queue(entrypoint="mail") == [job]


@everywhere
async def test_many_jobs_are_enqueued_in_order(queue: QueueUnderTest) -> None:
    found = synchronous(queue).enqueue_many([NewJob("mail", b"%d" % n) for n in range(50)])
    assert [job.payload for job in await queue.claim()] == [b"%d" % n for n in range(50)]
    assert found == sorted(ids(await queue.queries.browse_queue(limit=100)))


@everywhere
async def test_duplicates_are_raised_or_skipped(queue: QueueUnderTest) -> None:
    queries = synchronous(queue)
    queries.enqueue("mail", dedupe_key="k")
    with pytest.raises(DuplicateJobError) as caught:
        queries.enqueue(["mail", "mail"], dedupe_key=["new", "k"])
    assert caught.value.dedupe_key == "k"
    assert queries.enqueue("mail", dedupe_key="k", on_conflict="skip") == [None]
    assert queries.queue_size() == [QueueSize("mail", 0, Status.QUEUED, 1)]


@everywhere
async def test_an_operator_requeues_cancels_and_deletes(queue: QueueUnderTest) -> None:
    queries = synchronous(queue)
    held, other = await queue.hold(), await queue.hold()
    running = await queue.lease()
    assert queries.requeue_jobs([held], actor="ann") == {held: Requeued.REQUEUED}
    assert queries.delete_jobs([other, running.id]) == {other}
    assert queries.mark_job_as_cancelled([running.id, held]) == {running.id, held}
    assert [status for _, status in queries.job_status([held, other, running.id])] == [
        Status.CANCELED,
        Status.DELETED,
        Status.CANCELED,
    ]
    assert [entry.actor for entry in queries.job_history(held)] == [None, "ann", None]


@everywhere
async def test_lists_show_what_is_held_and_what_runs(queue: QueueUnderTest) -> None:
    queries = synchronous(queue)
    held, running, waiting = await queue.hold(), await queue.lease(), await queue.add()
    assert ids(queries.list_failed_jobs()) == [held]
    assert queries.list_running_jobs() == [running]
    assert queries.oldest_waiting() == {"mail": queue.clock.now()}
    assert ids(queries.browse_queue(status="queued")) == [waiting]


@everywhere
async def test_the_log_is_read_and_pruned(queue: QueueUnderTest) -> None:
    queries = synchronous(queue)
    job = await queue.lease()
    await queue.settle(Verb.COMPLETE, job)
    queue.clock.advance(SECOND)
    assert [entry.job_id for entry in queries.queue_log(status="successful")] == [job.id]
    # Whether the row is counted yet depends on who else works on the server.
    assert sum(found.count for found in queries.log_statistics()) in (0, 1)
    assert queries.prune_log(LEASE) == 0
    assert queries.list_workers() == []


@everywhere
async def test_bad_input_and_unknown_ids_are_the_same_errors(queue: QueueUnderTest) -> None:
    queries = synchronous(queue)
    with pytest.raises(InvalidInput, match="payload must be bytes"):
        queries.enqueue("mail", "text")  # type: ignore[arg-type]
    with pytest.raises(JobNotFound):
        queries.job_history(JobId(99_999_999))
    assert (await queue.rows()).jobs == []


@pytest.mark.parametrize("queue", SYNCHRONOUS[1:], indirect=True)
@pytest.mark.parametrize("kept", [True, False])
async def test_a_transaction_of_the_caller_is_joined(
    queue: QueueUnderTest, backends: Backends, kept: bool
) -> None:
    with psycopg.connect(backends.dsn(queue.name)) as caller:
        queries = SyncQueries(queue.queries.on(caller))
        with caller.transaction(force_rollback=not kept):
            [job_id] = queries.enqueue("mail")
            assert queries.job_status([job_id]) == [(job_id, Status.QUEUED)]
            assert await queue.queries.get_jobs([job_id]) == []
    assert ids(await queue.queries.get_jobs([job_id])) == ([job_id] if kept else [])
