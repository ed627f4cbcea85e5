"""Held jobs as case files: found by filter, requeued, edited, resolved."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from holdfast import Holdfast, Job
from tests.cli.command_line import Done, inside

if TYPE_CHECKING:
    from tests.servers import Database


async def _hold(dsn: str) -> None:
    """Job 1 is held for a KeyError, jobs 2 and 3 for a ConnectionError."""
    async with Holdfast.connect(dsn) as hf:
        await hf.install()

        @hf.entrypoint("mail", on_failure="hold")
        async def mail(job: Job) -> None:
            raise KeyError("address") if job.payload == b"bad" else ConnectionError("smtp is down")

        await hf.queries.enqueue(["mail"] * 3, [b"bad", b"two", b"three"])
        await hf.run(mode="drain")


@pytest.fixture
def dsn(pg18: Database) -> str:
    asyncio.run(_hold(pg18.dsn))
    return pg18.dsn


def ids(done: Done) -> list[int]:
    assert done.code == 0, done.err
    return sorted(row["id"] for row in done.json)


def test_failed_lists_those_that_a_filter_finds(dsn: str) -> None:
    def failed(*options: str) -> list[int]:
        return ids(inside("failed", "--json", "--dsn", dsn, *options))

    assert failed() == [1, 2, 3]
    assert failed("--error", "connectionerror") == [2, 3]
    assert failed("--error", "KeyError", "--entrypoint", "mail") == [1]
    assert failed("--entrypoint", "other") == []
    assert failed("--since", "1h") == [1, 2, 3]
    assert failed("--older-than", "1h") == []
    assert len(failed("-n", "2")) == 2


def test_requeue_by_filter_can_be_tried_first(dsn: str) -> None:
    options = ("requeue", "--error", "smtp", "--dsn", dsn)
    tried = inside(*options, "--dry-run")
    assert (tried.code, sorted(tried.out.splitlines())) == (
        0,
        ["2 would be requeued", "3 would be requeued"],
    )
    assert ids(inside("failed", "--json", "--dsn", dsn)) == [1, 2, 3]

    done = inside(*options, "--max-attempts", "9", "--rate", "1000/s", "--reason", "it is back")
    assert (done.code, sorted(done.out.splitlines())) == (0, ["2 requeued", "3 requeued"])
    shown = inside("show", "2", "--json", "--dsn", dsn).json
    assert shown["job"]["max_attempts"] == 9
    assert shown["history"][-1]["reason"] == "it is back"


def test_requeue_wants_ids_or_a_filter_but_not_both(dsn: str) -> None:
    inside("requeue", "1", "--error", "x", "--dsn", dsn).complains(2, "IDS", "filter")
    inside("requeue", "--error", "x", "--rate", "fast", "--dsn", dsn).complains(2, "'fast'", "10/s")


def test_an_edited_job_runs_with_its_new_payload(dsn: str) -> None:
    assert inside("edit", "1", "good", "--reason", "typo", "--dsn", dsn).code == 0
    shown = inside("show", "1", "--json", "--dsn", dsn).json
    assert (shown["job"]["payload"], shown["job"]["status"]) == ("good", "failed")
    last = shown["history"][-1]
    assert (last["status"], last["reason"]) == ("failed", "typo")
    assert last["actor"].startswith("cli:")


def test_only_held_jobs_can_be_edited_or_resolved(dsn: str) -> None:
    inside("requeue", "1", "--dsn", dsn)
    for command in (("edit", "1", "x"), ("resolve", "1", "--invalid", "never", "--yes")):
        done = inside(*command, "--dsn", dsn)
        assert done.code == 1
        assert "not held" in done.out
    assert inside("show", "1", "--json", "--dsn", dsn).json["job"]["payload"] == "bad"


def test_a_resolved_job_is_gone_with_its_reason(dsn: str) -> None:
    assert inside("resolve", "1", "--invalid", "customer is gone", "--yes", "--dsn", dsn).code == 0
    last = inside("show", "1", "--json", "--dsn", dsn).json["history"][-1]
    assert (last["status"], last["reason"]) == ("deleted", "customer is gone")
    assert ids(inside("failed", "--json", "--dsn", dsn)) == [2, 3]
