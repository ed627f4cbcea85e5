"""A dedupe key belongs to one job that is queued or picked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.errors import DuplicateJobError
from holdfast.lifecycle import RETIRE_LAST_RETRY, Status, Verb
from holdfast.models import ClaimRule, NewJob
from tests.conformance.stores import LEASE

if TYPE_CHECKING:
    from holdfast.models import JobId
    from tests.conformance.stores import QueueUnderTest


def keyed(*keys: str | None) -> list[NewJob]:
    return [NewJob("mail", dedupe_key=key) for key in keys]


async def is_taken(queue: QueueUnderTest, key: str) -> bool:
    [job_id] = await queue.queries.enqueue("mail", dedupe_key=key, on_conflict="skip")
    return job_id is None


@pytest.mark.parametrize("key", ["order-1", 'it\'s (a)=(b) "key"', "ключ", "k" * 2000])
async def test_a_taken_key_raises_and_says_which(queue: QueueUnderTest, key: str) -> None:
    await queue.add(dedupe_key=key)
    before = await queue.rows()
    with pytest.raises(DuplicateJobError) as caught:
        await queue.queries.enqueue("sms", dedupe_key=key)
    assert caught.value.dedupe_key == key
    assert str(caught.value) == str(DuplicateJobError(key))
    assert await queue.rows() == before


@pytest.mark.parametrize(
    ("batch", "culprit"),
    [
        (["new", "taken", "newer"], "taken"),
        (["twice", None, "twice"], "twice"),
        (["one", "taken", "one"], "taken"),
    ],
)
async def test_one_taken_key_keeps_the_whole_batch_out(
    queue: QueueUnderTest, batch: list[str | None], culprit: str
) -> None:
    await queue.add(dedupe_key="taken")
    before = await queue.rows()
    with pytest.raises(DuplicateJobError) as caught:
        await queue.queries.enqueue_many(keyed(*batch))
    assert caught.value.dedupe_key == culprit
    assert await queue.rows() == before


async def test_skipping_leaves_a_gap_in_the_ids_and_enqueues_the_rest(
    queue: QueueUnderTest,
) -> None:
    owner = await queue.add(dedupe_key="taken")
    jobs = keyed("taken", None, "new", "new", None, "taken", "newer")
    found = await queue.queries.enqueue_many(jobs, on_conflict="skip")
    assert [job_id is None for job_id in found] == [True, False, False, True, False, True, False]
    made = [job_id for job_id in found if job_id is not None]
    assert made == sorted(made)
    keys = [job.dedupe_key for job in await queue.queries.get_jobs([owner, *made])]
    assert keys == ["taken", None, "new", None, "newer"]


async def test_skipping_may_skip_everything(queue: QueueUnderTest) -> None:
    await queue.add(dedupe_key="k")
    before = await queue.rows()
    found = await queue.queries.enqueue(
        "mail", [b"1", b"2"], dedupe_key=["k", "k"], on_conflict="skip"
    )
    assert found == [None, None]
    assert await queue.rows() == before


async def test_jobs_without_a_key_are_never_duplicates(queue: QueueUnderTest) -> None:
    assert len(set(await queue.queries.enqueue_many(keyed(None, None, None)))) == 3


async def test_keys_are_compared_letter_by_letter(queue: QueueUnderTest) -> None:
    keys = ["Key", "key", "key ", " key", "kéy", "ke\u0301y"]
    assert None not in await queue.queries.enqueue_many(keyed(*keys), on_conflict="skip")


@pytest.mark.parametrize("verb", [Verb.CLAIM, Verb.RENEW, Verb.RETRY, Verb.RELEASE, Verb.RECOVER])
async def test_a_job_keeps_its_key_while_it_is_active(queue: QueueUnderTest, verb: Verb) -> None:
    job = await queue.lease(dedupe_key="k")
    if verb is Verb.RECOVER:
        await queue.recover(worker="w1")
    elif verb in (Verb.RETRY, Verb.RELEASE):
        await queue.settle(verb, job, error="no")
    assert await queue.status(job.id) in (Status.QUEUED, Status.PICKED)
    assert await is_taken(queue, "k")


async def end(queue: QueueUnderTest, way: str) -> JobId:
    """A job whose key must be free afterwards."""
    if way in ("cancel queued", "delete queued"):
        job_id = await queue.add(dedupe_key="k")
        cancels = way.startswith("cancel")
        remove = queue.queries.mark_job_as_cancelled if cancels else queue.queries.delete_jobs
        await remove([job_id])
        return job_id
    job = await queue.lease(dedupe_key="k")
    match way:
        case "cancel picked":
            await queue.cancel(job.id)
        case "retire:stale":
            await queue.recover(worker="w1")
            await queue.claim_any()
            await queue.recover(ClaimRule("mail", LEASE, max_recoveries=2), worker="w1")
        case "retire:last_retry":
            await queue.settle(RETIRE_LAST_RETRY.name, job, error="no", max_attempts=1)
        case "retire:unclaimable":
            await queue.settle(Verb.RETRY, job, error="no")
            await queue.claim(ClaimRule("mail", LEASE, max_attempts=1))
        case _:
            await queue.settle(way, job, error="no")
    return job.id


@pytest.mark.parametrize(
    "way",
    [
        "complete",
        "fail",
        "hold",
        "cancel queued",
        "cancel picked",
        "delete queued",
        "retire:stale",
        "retire:last_retry",
        "retire:unclaimable",
    ],
)
async def test_a_job_that_ended_or_is_held_has_given_its_key_back(
    queue: QueueUnderTest, way: str
) -> None:
    job_id = await end(queue, way)
    assert await queue.status(job_id) not in (Status.QUEUED, Status.PICKED)
    assert not await is_taken(queue, "k")
    assert await is_taken(queue, "k")


async def test_a_requeued_job_has_its_key_again(queue: QueueUnderTest) -> None:
    job_id = await queue.hold(dedupe_key="k")
    await queue.queries.requeue_jobs([job_id])
    assert await is_taken(queue, "k")


async def test_ending_a_held_job_does_not_free_the_key_of_its_successor(
    queue: QueueUnderTest,
) -> None:
    held = await queue.hold(dedupe_key="k")
    await queue.add(dedupe_key="k")
    await queue.cancel(held)
    assert await is_taken(queue, "k")
