"""requeue, cancel, delete, prune and schedules: what they change, and that they ask."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from holdfast import Holdfast, Job, JobId, Schedule
from tests.cli.command_line import COMMAND, environment, holdfast, inside

if TYPE_CHECKING:
    from tests.servers import Database


async def _hold(dsn: str, *keys: str | None) -> list[JobId]:
    """Install, and hold a job for each dedupe key."""
    async with Holdfast.connect(dsn) as hf:
        await hf.install()

        @hf.entrypoint("held", on_failure="hold")
        async def held(job: Job) -> None:
            raise ValueError("bad")

        ids = await hf.queries.enqueue(["held"] * len(keys), dedupe_key=list(keys))
        await hf.run(mode="drain")
        return ids


def _last_log(dsn: str, job_id: int) -> dict[str, Any]:
    found: dict[str, Any] = inside("show", str(job_id), "--json", "--dsn", dsn).json["history"][-1]
    return found


def test_requeue_tells_the_outcome_of_each_id(pg: Database) -> None:
    first, second = asyncio.run(_hold(pg.dsn, None, "taken"))
    inside("enqueue", "held", "--dedupe-key", "taken", "--dsn", pg.dsn)
    waiting = second + 1

    done = holdfast(
        *("requeue", str(first), str(second), str(waiting), "999999", str(first)),
        *("--reason", "smtp is back"),
        dsn=pg.dsn,
    )
    assert done.code == 1
    assert [line.split(":")[0] for line in done.out.splitlines()] == [
        f"{first} requeued",
        f"{second} key_taken",
        f"{waiting} not_held",
        "999999 not_found",
    ]
    entry = _last_log(pg.dsn, first)
    assert (entry["status"], entry["reason"]) == ("queued", "smtp is back")
    assert re.fullmatch(r"cli:.+@.+", entry["actor"])


def test_requeue_of_held_jobs_is_exit_code_0(pg18: Database) -> None:
    ids = [str(job_id) for job_id in asyncio.run(_hold(pg18.dsn, None, None))]
    done = inside("requeue", *ids, "--json", "--dsn", pg18.dsn)
    assert done.code == 0
    assert done.json == [{"id": int(job_id), "outcome": "requeued"} for job_id in ids]


def test_cancel_and_delete_take_jobs_out_and_are_logged(installed: str) -> None:
    inside("enqueue", "x", "--count", "3", "--dsn", installed)
    done = holdfast("cancel", "1", "999999", "--yes", "--reason", "mistake", dsn=installed)
    assert done.code == 1
    assert done.out.splitlines()[0] == "1 canceled"
    assert done.out.splitlines()[1].startswith("999999 not_found")
    entry = _last_log(installed, 1)
    assert (entry["status"], entry["reason"]) == ("canceled", "mistake")

    done = inside("delete", "2", "1", "--yes", "--json", "--dsn", installed)
    assert done.code == 1
    assert done.json == [
        {"id": 2, "outcome": "deleted", "status": "deleted"},
        {"id": 1, "outcome": "unchanged", "status": "canceled"},
    ]
    assert inside("delete", "3", "--yes", "--dsn", installed).code == 0


def test_a_running_job_is_not_deleted(installed: str) -> None:
    inside("enqueue", "x", "--dsn", installed)
    with psycopg.connect(installed, autocommit=True) as connection:
        connection.execute(
            "update holdfast set status = 'picked', claim_token = gen_random_uuid(),"
            " claimed_by = 'w', claimed_at = now(), heartbeat = now(), lease = '30s'"
        )
    done = inside("delete", "1", "--yes", "--dsn", installed)
    assert done.code == 1
    assert done.out.startswith("1 unchanged: it is picked")
    assert inside("cancel", "1", "--yes", "--dsn", installed).code == 0


_PICK = (
    "update holdfast set status = 'picked', claim_token = gen_random_uuid(), claimed_by = 'w',"
    " claimed_at = now() - %(age)s::interval, heartbeat = now() - %(age)s::interval,"
    " lease = '30s' where id = any(%(ids)s)"
)


def test_move_tells_the_outcome_of_each_id(installed: str) -> None:
    inside("enqueue", "x", "--count", "3", "--dsn", installed)
    with psycopg.connect(installed, autocommit=True) as connection:
        connection.execute(_PICK, {"age": "10 minutes", "ids": [2]})
        connection.execute(_PICK, {"age": "0", "ids": [3]})
    done = holdfast(
        *("move", "1", "2", "3", "999999", "--to", "quarantine", "--reason", "kills"),
        dsn=installed,
    )
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[:2] == ["1 moved", "2 moved"]
    assert lines[2].startswith("3 leased: a worker has a live lease on it; --force")
    assert lines[3].startswith("999999 not_found")
    entry = _last_log(installed, 2)
    assert (entry["status"], entry["claimed_by"]) == ("queued", "w")
    assert entry["reason"] == "moved to quarantine: kills"
    assert entry["actor"].startswith("cli:")
    shown = inside("show", "2", "--json", "--dsn", installed).json["job"]
    assert (shown["entrypoint"], shown["claimed_by"]) == ("quarantine", None)

    done = inside("move", "3", "--to", "quarantine", "--force", "--json", "--dsn", installed)
    assert (done.code, done.json) == (0, [{"id": 3, "outcome": "moved"}])


def test_a_dead_workers_jobs_are_released_and_a_live_ones_are_not(installed: str) -> None:
    inside("enqueue", "x", "--count", "2", "--dsn", installed)
    with psycopg.connect(installed, autocommit=True) as connection:
        connection.execute(_PICK, {"age": "0", "ids": [1, 2]})
        connection.execute(
            "insert into holdfast_leases (token, worker, claimed_at, lease, ids)"
            " select claim_token, claimed_by, claimed_at, lease, array[id] from holdfast"
        )
        connection.execute(
            "insert into holdfast_workers values"
            " ('w', 'host', 1, '1', '{x}', 1, 1, 'running', now(), now(), '1 hour')"
        )
    release = ("workers", "release", "w")
    done = holdfast(*release, dsn=installed, stdin=b"n\n")
    assert done.code == 1
    assert "Release the jobs of worker w" in done.err
    done = inside(*release, "--yes", "--dsn", installed)
    done.complains(1, "worker 'w' reported", "dead after 3600 s", "--force")
    with psycopg.connect(installed, autocommit=True) as connection:
        connection.execute("update holdfast_workers set heartbeat = now() - interval '2 hours'")
    done = inside(*release, "--yes", "--reason", "gone", "--dsn", installed)
    assert (done.code, done.out.splitlines()) == (0, ["1 released", "2 released"])
    entry = _last_log(installed, 1)
    assert (entry["status"], entry["reason"]) == ("queued", "worker released: gone")
    assert entry["actor"].startswith("cli:")
    done = inside(*release, "--yes", "--json", "--dsn", installed)
    assert done.json == {"worker": "w", "released": []}
    inside("workers", "release", "v", "--yes", "--dsn", installed).complains(1, "no worker 'v'")


@pytest.mark.parametrize(
    "arguments",
    [
        ("cancel", "1"),
        ("delete", "1"),
        ("prune", "--older-than", "0s"),
        ("schedules", "remove", "nightly"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_destroys_asks_first_and_names_the_database(
    past: str, arguments: tuple[str, ...]
) -> None:
    unanswered = holdfast(*arguments, "--dsn", past)
    assert unanswered.code == 2
    assert "database tests_" in unanswered.err
    assert "--yes" in unanswered.err
    declined = holdfast(*arguments, "--dsn", past, stdin=b"no\n")
    assert (declined.code, declined.out) == (1, "")
    assert "nothing was changed" in declined.err
    assert inside("show", "1", "--dsn", past).code == 0
    assert inside("schedules", "--json", "--dsn", past).json


def test_an_answer_of_yes_is_heard(installed: str) -> None:
    inside("enqueue", "x", "--dsn", installed)
    done = holdfast("cancel", "1", "--json", dsn=installed, stdin=b"y\n")
    assert done.code == 0
    assert done.json == [{"id": 1, "outcome": "canceled", "status": "canceled"}]


def test_an_interrupt_is_exit_code_130_without_a_traceback(past: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "cancel", "6"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(HOLDFAST_DSN=past),
    ) as process:
        assert process.stderr is not None
        asked = b""
        while b"[y/N]" not in asked:
            asked += process.stderr.read(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert b"Traceback" not in process.stderr.read()


def test_prune_forgets_the_old_log(installed: str, pg18: Database) -> None:
    inside("enqueue", "x", "--count", "3", "--dsn", installed)
    inside("cancel", "1", "2", "3", "--yes", "--dsn", installed)
    assert inside("prune", "--older-than", "1d", "--yes", "--json", "--dsn", installed).json == {
        "deleted": 0,
        "left": 0,
    }
    prune = ("prune", "--older-than", "0s", "--yes")
    before = inside("log", "--json", "--dsn", installed).json
    assert len(before) == 3
    with psycopg.connect(pg18.server_dsn, dbname="postgres") as elsewhere:
        elsewhere.execute("select pg_current_xact_id()")
        inside("enqueue", "x", "--dsn", installed)
        inside("cancel", "4", "--yes", "--dsn", installed)
        said = holdfast(*prune, dsn=installed).out
        assert "log rows left: an open transaction on the server, of any database" in said
        assert inside("log", "--json", "--dsn", installed).json[0]["job_id"] == 4
    # Transactions of other tests may be open as well.
    deadline = time.monotonic() + 200
    while "left" in (said := holdfast(*prune, dsn=installed).out) and time.monotonic() < deadline:
        pass
    assert said.endswith("log rows deleted\n")
    assert inside("log", "--json", "--dsn", installed).json == []


async def _schedule(dsn: str) -> None:
    async with Holdfast.connect(dsn) as hf:
        await hf.install()

        @hf.schedule("nightly", "0 3 * * *", timezone="Europe/Berlin")
        async def nightly(schedule: Schedule) -> None:
            pass

        await hf.scheduler_manager.register()


def test_schedules_are_listed_paused_resumed_run_and_removed(pg18: Database) -> None:
    dsn = pg18.dsn
    asyncio.run(_schedule(dsn))
    assert "Europe/Berlin" in holdfast("schedules", dsn=dsn).out
    [schedule] = inside("schedules", "list", "--json", "--dsn", dsn).json
    assert (schedule["name"], schedule["paused"]) == ("nightly", False)

    assert holdfast("schedules", "pause", "nightly", dsn=dsn).code == 0
    assert inside("schedules", "--json", "--dsn", dsn).json[0]["paused"] is True
    assert "paused" in inside("schedules", "--dsn", dsn).out
    assert inside("schedules", "resume", "nightly", "--dsn", dsn).code == 0
    assert inside("schedules", "--json", "--dsn", dsn).json[0]["paused"] is False

    [job_id] = inside("schedules", "run", "nightly", "--json", "--dsn", dsn).json["ids"]
    assert inside("show", str(job_id), "--json", "--dsn", dsn).json["job"]["headers"]["slot"]
    assert inside("schedules", "remove", "nightly", "--yes", "--dsn", dsn).code == 0
    assert inside("schedules", "--json", "--dsn", dsn).json == []


@pytest.mark.parametrize("action", ["pause", "resume", "run", "remove"])
def test_an_unknown_schedule_is_refused(past: str, action: str) -> None:
    extra = ("--yes",) if action == "remove" else ()
    inside("schedules", action, "nobody", *extra, "--dsn", past).complains(1, "'nobody'")


def test_retention_is_shown_set_and_applied(installed: str) -> None:
    def command(*words: str) -> Any:
        return inside("retention", *words, "--dsn", installed)

    assert command("show", "--json").json == {"successful": 2592000.0, "others": 7776000.0}
    assert command("set", "--successful", "none", "--json").json["successful"] is None
    assert "kept for ever" in command("show").out
    assert command("set", "--successful", "1d", "--others", "2d", "--json").json == {
        "successful": 86400.0,
        "others": 172800.0,
    }
    command("set").complains(2, "nothing to set")
    assert command("show").out.startswith("successful 1d after the end\nothers     2d after")
    command("set", "--others", "0s").complains(2, "--others", "got '0s'", "30d, or none")
    assert command("apply", "--json").json == {"deleted": 0}
