"""Held jobs as case files: found by filter, requeued, edited, resolved."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from holdfast import Holdfast, Job
from tests.cli.command_line import Done, holdfast, inside

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


def test_a_tried_requeue_tells_which_ids_would_not_go(dsn: str) -> None:
    inside("requeue", "1", "--dsn", dsn)
    tried = inside("requeue", "1", "2", "77", "--dry-run", "--json", "--dsn", dsn)
    assert (tried.code, tried.err) == (1, "")
    assert {row["id"]: row["outcome"] for row in tried.json} == {
        1: "not_held",
        2: "would be requeued",
        77: "not_found",
    }
    assert inside("requeue", "2", "3", "--dry-run", "--dsn", dsn).code == 0
    assert ids(inside("failed", "--json", "--dsn", dsn)) == [2, 3]


async def _hold_again_and_again(dsn: str, key: str) -> None:
    async with Holdfast.connect(dsn) as hf:

        @hf.entrypoint("again", on_failure="hold")
        async def again(job: Job) -> None:
            raise ValueError

        for _ in range(2):
            await hf.queries.enqueue("again", dedupe_key=key)
            await hf.run(mode="drain")


def test_a_tried_requeue_foretells_that_one_key_is_for_one_job(dsn: str) -> None:
    asyncio.run(_hold_again_and_again(dsn, "daily"))
    options = ("requeue", "--entrypoint", "again", "--json", "--dsn", dsn)
    tried, done = inside(*options, "--dry-run"), inside(*options)
    assert (tried.code, done.code) == (1, 1)
    assert {row["id"]: row["outcome"] for row in tried.json} == {
        4: "would be requeued",
        5: "key_taken",
    }
    assert {row["id"]: row["outcome"] for row in done.json} == {4: "requeued", 5: "key_taken"}


def test_a_tried_requeue_names_a_key_that_another_job_has(dsn: str) -> None:
    async def enqueue_again() -> None:
        async with Holdfast.connect(dsn) as hf:
            await hf.queries.enqueue("again", dedupe_key="daily")

    asyncio.run(_hold_again_and_again(dsn, "daily"))
    asyncio.run(enqueue_again())
    tried = inside("requeue", "4", "--dry-run", "--json", "--dsn", dsn)
    assert (tried.code, tried.json) == (1, [{"id": 4, "outcome": "key_taken"}])


def test_a_requeue_that_reached_its_limit_says_what_to_do(dsn: str) -> None:
    options = ("requeue", "--entrypoint", "mail", "--json", "--dsn", dsn)
    tried = inside(*options, "--limit", "2", "--dry-run")
    assert len(tried.json) == 2
    tried.complains(0, "--limit 2", "raise --limit")
    assert "again" not in tried.err
    done = inside(*options, "--limit", "2")
    assert len(done.json) == 2
    done.complains(0, "--limit 2", "run it again, or raise --limit")
    rest = inside(*options, "--limit", "2")
    assert (rest.code, len(rest.json), rest.err) == (0, 1, "")


def test_requeue_wants_ids_or_a_filter_but_not_both(dsn: str) -> None:
    inside("requeue", "1", "--error", "x", "--dsn", dsn).complains(2, "IDS", "filter")
    inside("requeue", "--error", "x", "--rate", "fast", "--dsn", dsn).complains(2, "'fast'", "10/s")


def test_an_edited_job_runs_with_its_new_payload(dsn: str) -> None:
    assert inside("edit", "1", "good", "--reason", "typo", "--yes", "--dsn", dsn).code == 0
    shown = inside("show", "1", "--json", "--dsn", dsn).json
    assert (shown["job"]["payload"], shown["job"]["status"]) == ("good", "failed")
    last = shown["history"][-1]
    assert (last["status"], last["reason"]) == ("failed", "typo")
    assert last["actor"].startswith("cli:")


def payload(dsn: str) -> str:
    return inside("show", "1", "--json", "--dsn", dsn).json["job"]["payload"]


def test_an_edit_asks_first_because_the_old_payload_is_kept_nowhere(dsn: str) -> None:
    edit = ("edit", "1", "good")
    refused = holdfast(*edit, dsn=dsn, stdin=b"n\n")
    assert (refused.code, payload(dsn)) == (1, "bad")
    assert "Replace the payload of job 1 in " in refused.err
    unanswered = holdfast(*edit, dsn=dsn)
    assert (unanswered.code, payload(dsn)) == (2, "bad")
    assert "pass --yes" in unanswered.err
    assert holdfast(*edit, dsn=dsn, stdin=b"y\n").code == 0
    assert payload(dsn) == "good"


def test_an_empty_standard_input_is_not_taken_for_a_payload(dsn: str) -> None:
    for source in ("-", "--payload-file=-"):
        edit = ("edit", "1", source, "--yes")
        holdfast(*edit, dsn=dsn).complains(2, "standard input is empty", "holdfast edit 1 ''")
    assert payload(dsn) == "bad"
    assert holdfast("edit", "1", "-", "--yes", dsn=dsn, stdin=b"piped").code == 0
    assert payload(dsn) == "piped"
    assert holdfast("edit", "1", "", "--yes", dsn=dsn).code == 0
    assert payload(dsn) == ""


def test_only_held_jobs_can_be_edited_or_resolved(dsn: str) -> None:
    inside("requeue", "1", "--dsn", dsn)
    for command in (("edit", "1", "x", "--yes"), ("resolve", "1", "--invalid", "never", "--yes")):
        done = inside(*command, "--dsn", dsn)
        assert done.code == 1
        assert "not held" in done.out
    assert inside("show", "1", "--json", "--dsn", dsn).json["job"]["payload"] == "bad"


def test_a_resolved_job_is_gone_with_its_reason(dsn: str) -> None:
    assert inside("resolve", "1", "--invalid", "customer is gone", "--yes", "--dsn", dsn).code == 0
    last = inside("show", "1", "--json", "--dsn", dsn).json["history"][-1]
    assert (last["status"], last["reason"]) == ("deleted", "customer is gone")
    assert ids(inside("failed", "--json", "--dsn", dsn)) == [2, 3]
