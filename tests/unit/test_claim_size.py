"""A claim asks for as many jobs as its reply can carry in time."""

from __future__ import annotations

from typing import Any

from holdfast.models import Job
from holdfast.settings import MAX_PAYLOAD
from holdfast.worker.claim_size import MOST_BYTES, ClaimSize


def jobs(count: int, payload: bytes | None) -> list[Job]:
    fields: dict[str, Any] = dict.fromkeys(Job._fields)
    return [Job(**(fields | {"payload": payload}))] * count


def test_small_payloads_do_not_bound_a_claim() -> None:
    size = ClaimSize()
    for payload in (None, b"", bytes(32 * 1024)):
        size.answered(jobs(500, payload), 0.1)
        assert size.bound(500) == 500


def test_large_payloads_bound_the_next_claim_in_bytes() -> None:
    size = ClaimSize()
    size.answered(jobs(500, bytes(MAX_PAYLOAD)), 0.1)
    assert size.bound(500) * MAX_PAYLOAD == MOST_BYTES


def test_a_payload_above_the_bound_is_claimed_alone() -> None:
    size = ClaimSize()
    size.answered(jobs(1, bytes(MOST_BYTES + 1)), 0.1)
    assert size.bound(500) == 1


def test_the_bound_is_lifted_step_by_step_when_payloads_are_small_again() -> None:
    size = ClaimSize()
    size.answered(jobs(16, bytes(MAX_PAYLOAD)), 0.1)
    bounds = []
    while size.bound(500) < 500:
        bounds.append(size.bound(500))
        size.answered(jobs(bounds[-1], b""), 0.1)
    assert bounds == [16, 32, 64, 128, 256]


def test_a_claim_shrinks_after_each_time_out_down_to_one_job() -> None:
    size = ClaimSize()
    bounds = []
    for _ in range(7):
        size.timed_out(size.bound(500), 8.5)
        bounds.append(size.bound(500))
    assert bounds == [16, 8, 4, 2, 1, 1, 1]


def test_a_claim_grows_again_only_while_replies_are_quick() -> None:
    size = ClaimSize()
    size.timed_out(500, 8.0)
    size.answered(jobs(16, None), 2.0)
    assert size.bound(500) == 16
    size.answered(jobs(16, None), 1.9)
    assert size.bound(500) == 32
    # There was no more, so that it says nothing about the link.
    size.answered(jobs(3, None), 0.1)
    assert size.bound(500) == 32
