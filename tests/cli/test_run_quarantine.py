"""Suspects of `holdfast run` have processes of their own; the workers go on meanwhile."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import asyncpg
import psutil
import pytest

from devtools.cluster import Cluster
from holdfast import JobId, Status
from holdfast.worker.quarantine import MOST_PROCESSES
from tests import servers
from tests.cli.running import Bench, Running, get, installed, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import Database

ONE = ("--drain-timeout", "1h")
TWO = ("--processes", "2", "--drain-timeout", "1h")
# Longer than any test: whatever starts again does not do so because a lease ran out.
LONG_LEASE = ("--heartbeat-timeout", "1h")

CRASHING = """
import os, signal
import jobs

async def main():
    hf = jobs.make()

    @hf.entrypoint("poison")
    async def poison(job):
        jobs.note("dying", job.id, os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)

    @hf.entrypoint("massacre")
    async def massacre(job):
        jobs.note("dying", job.id, os.getpid())
        os.killpg(0, signal.SIGKILL)

    return hf

async def only_once():
    try:
        os.close(os.open("loaded", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        jobs.note("refused", os.getpid())
        raise RuntimeError("this target can be loaded once") from None
    return jobs.make()

async def only_twice():
    try:
        os.close(os.open("loaded-before", os.O_CREAT | os.O_EXCL))
        return jobs.make()
    except FileExistsError:
        return await only_once()
"""

both = pytest.mark.parametrize("arguments", [ONE, TWO], ids=["single", "two processes"])


@pytest.fixture
def bench(tmp_path: Path, pg18: Database) -> Iterator[Bench]:
    (tmp_path / "crashing.py").write_text(CRASHING)
    yield from installed(tmp_path, pg18.dsn)


def suspects(bench: Bench, *entrypoints: str) -> list[int]:
    """Insert jobs of which two workers have died."""

    async def insert() -> list[int]:
        connection = await asyncpg.connect(bench.dsn)
        try:
            rows = await connection.fetch(
                "insert into holdfast (entrypoint, recoveries) "
                "select name, 2 from unnest($1::text[]) as name returning id",
                entrypoints,
            )
        finally:
            await connection.close()
        return [row["id"] for row in rows]

    return bench.ask(lambda _: insert())


def started(bench: Bench, *arguments: str, target: str = "jobs:main") -> tuple[Running, set[int]]:
    """A running command, and the processes of its workers."""
    running = bench.start(target, *arguments)
    count = 2 if "--processes" in arguments else 1
    until(lambda: len(workers_of(running)) == count, "the workers")
    return running, workers_of(running)


def workers_of(running: Running) -> set[int]:
    """The processes of all ordinary workers that there ever were."""
    return {int(pid) for pid in re.findall(r"worker \S+:(\d+):\w+ runs \w+:\w+ on", running.log)}


def waiting(bench: Bench) -> list[int]:
    found = bench.ask(lambda holdfast: holdfast.queries.browse_queue())
    return [job.id for job in found if job.status is not Status.FAILED]


def held(bench: Bench) -> list[int]:
    return [job.id for job in bench.ask(lambda holdfast: holdfast.queries.list_failed_jobs())]


def quarantined(running: Running) -> int:
    """How many quarantine processes there ever were."""
    return running.log.count("suspects wait, so process")


def work_for_a_while(bench: Bench) -> None:
    """Long enough for a quarantine process to look for other suspects several times."""
    for count in range(1, 20):
        bench.enqueue("quick")
        bench.noted("quick", count)


def listed(bench: Bench) -> list[str]:
    """The states of the workers that have reported themselves."""
    found = bench.ask(lambda holdfast: holdfast.queries.list_workers())
    return sorted(worker.state for worker in found)


@both
def test_fresh_jobs_are_done_while_a_suspect_runs_in_a_process_of_its_own(
    bench: Bench, arguments: tuple[str, ...]
) -> None:
    [suspect] = suspects(bench, "wait")
    running, workers = started(bench, *arguments, *LONG_LEASE)
    [[_, job, pid]] = bench.noted("began")

    assert int(job) == suspect
    assert int(pid) not in workers
    assert psutil.Process(int(pid)).nice() == 10
    bench.enqueue("quick", 50)
    done = bench.noted("quick", 50)
    assert {int(line[2]) for line in done} <= workers
    until(lambda: "quarantine" in listed(bench), "the process to be listed")

    bench.go()
    bench.noted("finished")
    until(lambda: not psutil.pid_exists(int(pid)), "the end of the process")
    assert workers_of(running) == workers
    assert listed(bench) == ["running"] * len(workers)
    running.send(signal.SIGTERM)
    assert running.ended() == 0, running.log
    assert waiting(bench) == []


@both
def test_a_killer_is_held_after_its_death_alone_and_its_neighbours_are_not(
    bench: Bench, arguments: tuple[str, ...]
) -> None:
    running, workers = started(bench, *arguments, *LONG_LEASE, target="crashing:main")
    [poison, *innocent] = suspects(bench, "poison", *["quick"] * 10)

    until(lambda: held(bench), "the job to be held")
    until(lambda: not waiting(bench), "the end of the others")
    assert held(bench) == [poison]
    assert workers_of(running) == workers
    assert all(map(psutil.pid_exists, workers)), "a worker has died"
    [[_, _, died]] = bench.journal("dying")
    assert int(died) not in workers
    done = bench.journal("quick")
    assert sorted(int(line[1]) for line in done) == innocent
    assert not {int(line[2]) for line in done} & workers
    assert running.process.poll() is None


@both
def test_several_suspects_run_at_a_time_each_alone_in_its_process(
    bench: Bench, arguments: tuple[str, ...]
) -> None:
    waiting_suspects = suspects(bench, *["wait"] * (MOST_PROCESSES + 2))
    running, workers = started(bench, *arguments, *LONG_LEASE)

    began = bench.noted("began", MOST_PROCESSES)
    assert len({line[2] for line in began}) == MOST_PROCESSES
    bench.enqueue("quick", 20)
    assert {int(line[2]) for line in bench.noted("quick", 20)} <= workers
    assert len(bench.journal("began")) == MOST_PROCESSES

    bench.go()
    finished = bench.noted("finished", len(waiting_suspects))
    assert sorted(int(line[1]) for line in finished) == waiting_suspects
    until(lambda: listed(bench) == ["running"] * len(workers), "the end of the processes")
    assert quarantined(running) == MOST_PROCESSES
    assert held(bench) == []


def test_no_more_processes_start_than_suspects_wait(bench: Bench) -> None:
    running, _ = started(bench, *ONE, *LONG_LEASE)
    suspects(bench, "wait", "wait")

    bench.noted("began", 2)
    work_for_a_while(bench)
    assert listed(bench) == ["quarantine", "quarantine", "running"]
    bench.go()
    bench.noted("finished", 2)
    until(lambda: listed(bench) == ["running"], "the end of the processes")

    assert quarantined(running) == 2


def test_a_killer_dies_alone_while_other_suspects_run(bench: Bench) -> None:
    *innocent, poison = suspects(bench, "wait", "wait", "poison")
    running, _ = started(bench, *ONE, *LONG_LEASE, target="crashing:main")

    until(lambda: held(bench), "the job to be held")
    assert held(bench) == [poison]
    bench.go()
    bench.noted("finished", 2)
    until(lambda: not waiting(bench), "the end of the others")

    assert held(bench) == [poison]
    assert sorted(int(line[1]) for line in bench.journal("began")) == innocent
    assert len(bench.journal("dying")) == 1
    assert running.process.poll() is None


@both
def test_a_suspect_that_kills_its_process_group_kills_only_itself(
    bench: Bench, arguments: tuple[str, ...]
) -> None:
    innocent, deadly = suspects(bench, "wait", "massacre")
    running, workers = started(bench, *arguments, *LONG_LEASE, target="crashing:main")

    until(lambda: held(bench), "the job to be held")
    bench.go()
    [[_, job, _]] = bench.noted("finished")

    assert (held(bench), int(job)) == ([deadly], innocent)
    assert workers_of(running) == workers
    assert all(map(psutil.pid_exists, workers)), "a worker has died"


def test_a_server_without_spare_connections_has_one_process_for_suspects(
    server_directory: Path, tmp_path: Path
) -> None:
    binaries = servers.available()[servers.EMBEDDED]
    settings = {"max_connections": "20", "superuser_reserved_connections": "13"}
    (tmp_path / "crashing.py").write_text(CRASHING)
    with Cluster(server_directory, binaries=binaries, settings=settings) as server:
        for bench in installed(tmp_path, server.dsn):
            suspects(bench, *["wait"] * 3)
            running, _ = started(bench, *ONE, *LONG_LEASE)
            bench.noted("began")
            work_for_a_while(bench)
            assert len(bench.journal("began")) == 1
            bench.go()
            bench.noted("finished", 3)
            assert quarantined(running) == 1


def test_a_killer_among_innocents_is_held_after_three_deaths(bench: Bench) -> None:
    innocent = bench.enqueue("quick", 30)
    [poison] = bench.enqueue("poison")
    innocent += bench.enqueue("quick", 30)

    running = bench.start("crashing:main", *TWO, *LONG_LEASE)
    until(lambda: held(bench), "the job to be held")
    until(lambda: not waiting(bench), "the end of the others")

    assert held(bench) == [poison]
    in_company, again, alone = (int(line[2]) for line in bench.journal("dying"))
    assert {in_company, again} <= workers_of(running)
    assert alone not in workers_of(running)
    assert {int(line[1]) for line in bench.journal("quick")} == set(innocent)


@pytest.mark.parametrize("signals", [1, 2], ids=["graceful", "fast"])
@both
def test_a_stop_leaves_no_process_and_no_lease(
    bench: Bench, arguments: tuple[str, ...], signals: int
) -> None:
    [suspect] = suspects(bench, "wait")
    running, workers = started(bench, *arguments, *LONG_LEASE)
    [[_, _, pid]] = bench.noted("began")

    running.send(signal.SIGTERM)
    # The workers have nothing to do, but the suspect may finish.
    until(lambda: running.log.count("running jobs have") == len(workers) + 1, "the stop of all")
    assert running.process.poll() is None
    if signals == 2:
        running.send(signal.SIGTERM)
    else:
        bench.go()

    assert running.ended() == 0, running.log
    assert not any(map(psutil.pid_exists, [int(pid), *workers]))
    assert waiting(bench) == ([suspect] if signals == 2 else [])
    assert bench.ask(lambda holdfast: holdfast.queries.list_workers()) == []
    if signals == 2:
        [job] = bench.ask(lambda holdfast: holdfast.queries.get_jobs([JobId(suspect)]))
        assert (job.claimed_by, job.recoveries) == (None, 2)


@both
def test_the_process_stops_when_its_parent_was_killed(
    bench: Bench, arguments: tuple[str, ...]
) -> None:
    suspects(bench, "wait")
    running, _ = started(bench, *arguments)
    [[_, _, pid]] = bench.noted("began")

    running.send(signal.SIGKILL)
    bench.go()

    bench.noted("finished")
    until(lambda: not psutil.pid_exists(int(pid)), "the end of the process")


@pytest.mark.parametrize(
    ("arguments", "target"),
    [(ONE, "crashing:only_once"), (TWO, "crashing:only_twice")],
    ids=["single", "two processes"],
)
def test_workers_run_suspects_when_the_target_cannot_be_loaded_again(
    bench: Bench, arguments: tuple[str, ...], target: str
) -> None:
    running, workers = started(bench, *arguments, *LONG_LEASE, target=target)
    [suspect] = suspects(bench, "quick")

    [[_, job, pid]] = bench.noted("quick")

    assert int(job) == suspect
    assert int(pid) in workers
    assert len(bench.journal("refused")) >= 3
    assert "workers run suspects themselves" in running.log
    assert workers_of(running) == workers


@both
def test_health_does_not_count_the_process_and_metrics_sum_it(
    bench: Bench, arguments: tuple[str, ...]
) -> None:
    running, workers = started(bench, *arguments, "--health-port", "0")
    url = running.health()
    suspects(bench, "wait")
    [[_, _, pid]] = bench.noted("began")
    until(lambda: "\nholdfast_running 1\n" in get(f"{url}/metrics")[1], "the suspect")
    assert f"\nholdfast_workers {len(workers)}\n" in get(f"{url}/metrics")[1]

    os.kill(int(pid), signal.SIGSTOP)
    try:
        assert get(f"{url}/livez") == (200, "ok\n")
        assert get(f"{url}/readyz") == (200, "ok\n")
    finally:
        os.kill(int(pid), signal.SIGCONT)

    bench.go()
    succeeded = '\nholdfast_jobs_succeeded_total{entrypoint="wait"} 1\n'
    until(lambda: succeeded in get(f"{url}/metrics")[1], "the success")
    until(lambda: not psutil.pid_exists(int(pid)), "the end of the process")
    assert succeeded in get(f"{url}/metrics")[1]


def test_a_drain_ends_with_its_suspects_and_needs_no_other_process(bench: Bench) -> None:
    suspects(bench, "quick", "quick")

    running = bench.start("jobs:main", "--mode", "drain")

    assert running.ended() == 0, running.log
    assert {int(line[2]) for line in bench.journal("quick")} == {running.process.pid}
    assert waiting(bench) == []
