"""`holdfast enqueue`: what is typed is what the queue holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.cli.command_line import holdfast, inside

if TYPE_CHECKING:
    from pathlib import Path


def _jobs(dsn: str) -> list[dict[str, Any]]:
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        return connection.execute("select * from holdfast order by id").fetchall()


def test_a_job_has_all_that_was_typed(installed: str) -> None:
    done = holdfast(
        *("enqueue", "mail", "hällo", "--priority", "-3", "--delay", "1h30m", "--dedupe-key", "k"),
        *("--header", "tenant=7", "--header", "note=a=b", "--max-attempts", "9"),
        dsn=installed,
    )
    assert done.code == 0
    assert done.err == "holdfast: no live worker serves 'mail', so the job waits\n"
    [job] = _jobs(installed)
    assert f"job {job['id']} enqueued" in done.out
    assert job["payload"] == "hällo".encode()
    assert (job["entrypoint"], job["priority"], job["max_attempts"]) == ("mail", -3, 9)
    assert job["headers"] == {"tenant": "7", "note": "a=b"}
    assert job["execute_after"] - job["created"] == timedelta(hours=1, minutes=30)


def test_payloads_come_from_files_and_pipes_byte_by_byte(installed: str, tmp_path: Path) -> None:
    octets = bytes(range(256))
    (tmp_path / "payload").write_bytes(octets)
    holdfast("enqueue", "x", "--payload-file", f"{tmp_path}/payload", dsn=installed)
    holdfast("enqueue", "x", "-", dsn=installed, stdin=octets)
    holdfast("enqueue", "x", octets[1:], dsn=installed)
    inside("enqueue", "x", "--dsn", installed)
    inside("enqueue", "x", "", "--dsn", installed)
    payloads = [job["payload"] for job in _jobs(installed)]
    assert payloads == [octets, octets, octets[1:], None, b""]


def test_an_instant_may_be_given(installed: str) -> None:
    done = inside("enqueue", "x", "--at", "2099-01-31T09:00:00+01:00", "--json", "--dsn", installed)
    [job] = _jobs(installed)
    assert done.json == {"ids": [job["id"]], "skipped": 0}
    assert job["execute_after"] == datetime(2099, 1, 31, 8, tzinfo=UTC)


def test_a_taken_key_is_refused_or_skipped(installed: str) -> None:
    arguments = ("enqueue", "x", "--dedupe-key", "k\x1b[31m", "--dsn", installed)
    assert inside(*arguments).code == 0
    holdfast(*arguments).complains(1, r"k\x1b[31m", "--on-conflict skip")
    done = inside(*arguments, "--on-conflict", "skip")
    assert done.code == 0
    assert r"'k\x1b[31m'" in done.out
    skipped = inside(*arguments, "--on-conflict", "skip", "--json").json
    assert skipped == {"ids": [], "skipped": 1}
    assert len(_jobs(installed)) == 1


def test_many_alike_make_a_load(installed: str) -> None:
    done = inside("enqueue", "x", "load", "--count", "2500", "--dsn", installed)
    assert "2500 jobs enqueued" in done.out
    assert len(_jobs(installed)) == 2500


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("   ",), "entrypoint"),
        (("x", "--max-attempts", "0"), "max_attempts"),
        (("x", "--priority", "99999999999"), "priority"),
        (("x", "--dedupe-key", ""), "dedupe_key"),
        (("x", "--delay", "900000d"), "execute_after"),
    ],
)
def test_what_can_never_be_stored_is_refused(
    past: str, arguments: tuple[str, ...], word: str
) -> None:
    inside("enqueue", *arguments, "--dsn", past).complains(2, word)
