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
    from tests.conformance.stores import Rig


def keyed(*keys: str | None) -> list[NewJob]:
    return [NewJob("mail", dedupe_key=key) for key in keys]


async def is_taken(rig: Rig, key: str) -> bool:
    [job_id] = await rig.queries.enqueue("mail", dedupe_key=key, on_conflict="skip")
    return job_id is None


@pytest.mark.parametrize("key", ["order-1", 'it\'s (a)=(b) "key"', "ключ", "k" * 2000])
async def test_a_taken_key_raises_and_says_which(rig: Rig, key: str) -> None:
    await rig.add(dedupe_key=key)
    before = await rig.rows()
    with pytest.raises(DuplicateJobError) as caught:
        await rig.queries.enqueue("sms", dedupe_key=key)
    assert caught.value.dedupe_key == key
    assert str(caught.value) == str(DuplicateJobError(key))
    assert await rig.rows() == before


@pytest.mark.parametrize(
    ("batch", "culprit"),
    [
        (["new", "taken", "newer"], "taken"),
        (["twice", None, "twice"], "twice"),
        (["one", "taken", "one"], "taken"),
    ],
)
async def test_one_taken_key_keeps_the_whole_batch_out(
    rig: Rig, batch: list[str | None], culprit: str
) -> None:
    await rig.add(dedupe_key="taken")
    before = await rig.rows()
    with pytest.raises(DuplicateJobError) as caught:
        await rig.queries.enqueue_many(keyed(*batch))
    assert caught.value.dedupe_key == culprit
    assert await rig.rows() == before


async def test_skipping_leaves_a_gap_in_the_ids_and_enqueues_the_rest(rig: Rig) -> None:
    owner = await rig.add(dedupe_key="taken")
    jobs = keyed("taken", None, "new", "new", None, "taken", "newer")
    found = await rig.queries.enqueue_many(jobs, on_conflict="skip")
    assert [job_id is None for job_id in found] == [True, False, False, True, False, True, False]
    made = [job_id for job_id in found if job_id is not None]
    assert made == sorted(made)
    keys = [job.dedupe_key for job in await rig.queries.get_jobs([owner, *made])]
    assert keys == ["taken", None, "new", None, "newer"]


async def test_skipping_may_skip_everything(rig: Rig) -> None:
    await rig.add(dedupe_key="k")
    before = await rig.rows()
    found = await rig.queries.enqueue(
        "mail", [b"1", b"2"], dedupe_key=["k", "k"], on_conflict="skip"
    )
    assert found == [None, None]
    assert await rig.rows() == before


async def test_jobs_without_a_key_are_never_duplicates(rig: Rig) -> None:
    assert len(set(await rig.queries.enqueue_many(keyed(None, None, None)))) == 3


async def test_keys_are_compared_letter_by_letter(rig: Rig) -> None:
    keys = ["Key", "key", "key ", " key", "kéy", "ke\u0301y"]
    assert None not in await rig.queries.enqueue_many(keyed(*keys), on_conflict="skip")


@pytest.mark.parametrize("verb", [Verb.CLAIM, Verb.RENEW, Verb.RETRY, Verb.RELEASE, Verb.RECOVER])
async def test_a_job_keeps_its_key_while_it_is_active(rig: Rig, verb: Verb) -> None:
    job = await rig.lease(dedupe_key="k")
    if verb is Verb.RECOVER:
        await rig.recover(worker="w1")
    elif verb in (Verb.RETRY, Verb.RELEASE):
        await rig.settle(verb, job, error="no")
    assert await rig.status(job.id) in (Status.QUEUED, Status.PICKED)
    assert await is_taken(rig, "k")


async def end(rig: Rig, way: str) -> JobId:
    """A job whose key must be free afterwards."""
    if way in ("cancel queued", "delete queued"):
        job_id = await rig.add(dedupe_key="k")
        cancels = way.startswith("cancel")
        remove = rig.queries.mark_job_as_cancelled if cancels else rig.queries.delete_jobs
        await remove([job_id])
        return job_id
    job = await rig.lease(dedupe_key="k")
    match way:
        case "cancel picked":
            await rig.cancel(job.id)
        case "retire:stale":
            await rig.recover(worker="w1")
            await rig.claim_any()
            await rig.recover(ClaimRule("mail", LEASE, max_recoveries=2), worker="w1")
        case "retire:last_retry":
            await rig.settle(RETIRE_LAST_RETRY.name, job, error="no", max_attempts=1)
        case "retire:unclaimable":
            await rig.settle(Verb.RETRY, job, error="no")
            await rig.claim(ClaimRule("mail", LEASE, max_attempts=1))
        case _:
            await rig.settle(way, job, error="no")
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
async def test_a_job_that_ended_or_is_held_has_given_its_key_back(rig: Rig, way: str) -> None:
    job_id = await end(rig, way)
    assert await rig.status(job_id) not in (Status.QUEUED, Status.PICKED)
    assert not await is_taken(rig, "k")
    assert await is_taken(rig, "k")


async def test_a_requeued_job_has_its_key_again(rig: Rig) -> None:
    job_id = await rig.hold(dedupe_key="k")
    await rig.queries.requeue_jobs([job_id])
    assert await is_taken(rig, "k")


async def test_ending_a_held_job_does_not_free_the_key_of_its_successor(rig: Rig) -> None:
    held = await rig.hold(dedupe_key="k")
    await rig.add(dedupe_key="k")
    await rig.cancel(held)
    assert await is_taken(rig, "k")
