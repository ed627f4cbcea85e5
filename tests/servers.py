"""Real PostgreSQL servers for the tests: shared ones, and private ones to be broken."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import psutil
import psycopg

from holdfast import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EMBEDDED = "embedded18"

# Thrown away after the run, so nothing is gained by waiting for the disk.
VOLATILE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

_RUN_PREFIX = "holdfast-test-"
_PATIENCE_SECONDS = 60


def available() -> dict[str, Path]:
    """The folder of the binaries for each kind of server this machine can run."""
    return {EMBEDDED: embedded.binaries(), **_debian()}


def _debian() -> dict[str, Path]:
    versions = sorted(
        (int(path.parts[-3]), path.parent)
        for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")
        if path.parts[-3].isdigit()
    )
    return {f"debian{version}": binaries for version, binaries in versions[-1:]}


class ControlledServer:
    """A private cluster on a loopback port that a test may stop, kill and start again."""

    def __init__(
        self,
        directory: Path,
        *,
        binaries: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.data = directory / "data"
        self.port = _free_port()
        self._binaries = binaries or next(iter(_debian().values()), embedded.binaries())
        self._settings = {"max_connections": "200", **(settings or {})}
        self._account = _account()

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int | None:
        """The postmaster's process id while it runs."""
        process = _postmaster(self.data)
        return process.pid if process else None

    def start(self) -> None:
        """Start, and return when connections are accepted; the first start makes the cluster."""
        if not self.data.exists():
            self._initialise()
        options = {**self._settings, "listen_addresses": "127.0.0.1", "port": str(self.port)}
        # Without a socket directory no path can be too long.
        options["unix_socket_directories"] = ""
        arguments = " ".join(f"-c {name}={value}" for name, value in options.items())
        self._pg_ctl("start", f"--log={self.data / 'server.log'}", f"--options={arguments}")

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop; `immediate` is a crash, from which the next start recovers."""
        if self.pid is not None:
            self._pg_ctl("stop", f"--mode={mode}")

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop("immediate")

    def _initialise(self) -> None:
        _make_passable(self.data.parent)
        self.data.mkdir(mode=0o700)
        if self._account is not None:
            os.chown(self.data, *self._account)
        identity = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
        self._run("initdb", f"--pgdata={self.data}", *identity, "--no-sync")

    def _pg_ctl(self, verb: str, *options: str) -> None:
        patience = f"--timeout={_PATIENCE_SECONDS}"
        self._run("pg_ctl", verb, "--wait", patience, f"--pgdata={self.data}", *options)

    def _run(self, command: str, *arguments: str) -> None:
        # A server keeps its starter's output open; reading a pipe to its end would hang.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [self._binaries / command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.data,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
                check=False,
                user=self._account and self._account.uid,
                group=self._account and self._account.gid,
                extra_groups=[] if self._account else None,
            )
            output.seek(0)
            said = output.read().decode(errors="replace")
        if done.returncode != 0:
            log = self.data / "server.log"
            logged = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            raise RuntimeError(f"{command} {arguments} failed:\n{said}\n{logged}")


@dataclass(frozen=True, slots=True)
class Database:
    """A schema of its own on a shared server; `dsn` has it as the search path."""

    name: str
    server_dsn: str
    schema: str

    @property
    def dsn(self) -> str:
        return f"{self.server_dsn}?options=-csearch_path%3D{self.schema}"


class SharedServers:
    """One server of each kind for all test processes of a run, one database for each process."""

    def __init__(self, directory: Path, process: str) -> None:
        self.directory = directory
        self._database = f"tests_{process}"
        self._dsns: dict[str, str] = {}

    def dsn(self, kind: str) -> str:
        """This process's database on the server of that kind."""
        if kind not in self._dsns:
            server_dsn = self._ensure_started(kind)
            with psycopg.connect(server_dsn, autocommit=True) as connection:
                names = connection.execute("select datname from pg_database").fetchall()
                if (self._database,) not in names:
                    connection.execute(f'create database "{self._database}"'.encode())
            self._dsns[kind] = server_dsn.removesuffix("postgres") + self._database
        return self._dsns[kind]

    @contextlib.contextmanager
    def schema(self, kind: str) -> Iterator[Database]:
        """A new schema, dropped afterwards with all that is in it."""
        database = Database(kind, self.dsn(kind), f"test_{secrets.token_hex(6)}")
        with psycopg.connect(database.server_dsn, autocommit=True) as connection:
            connection.execute(f"create schema {database.schema}".encode())
        try:
            yield database
        finally:
            _drop(database)

    @contextlib.contextmanager
    def private(self, kind: str | None = None) -> Iterator[ControlledServer]:
        """A started server that belongs to the caller alone, with real fsync."""
        directory = self.directory / f"private-{secrets.token_hex(6)}"
        binaries = available()[kind] if kind else None
        with ControlledServer(directory, binaries=binaries) as server:
            yield server

    def _ensure_started(self, kind: str) -> str:
        address = self.directory / f"{kind}.dsn"
        with _locked(self.directory / f"{kind}.lock"):
            if not address.exists():
                server = ControlledServer(
                    self.directory / kind, binaries=available()[kind], settings=VOLATILE
                )
                server.start()
                address.write_text(server.dsn)
            return address.read_text()


@contextlib.contextmanager
def shared_servers(run: str, process: str) -> Iterator[SharedServers]:
    """Take part in a run; the last process to leave stops its servers and removes its files."""
    directory = Path(tempfile.gettempdir()) / f"{_RUN_PREFIX}{run}"
    lock = _join(directory)
    try:
        yield SharedServers(directory, process)
    finally:
        os.close(lock)
        sweep(directory)


def sweep_abandoned() -> None:
    """Stop what runs left behind that were killed before they could clean up."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_RUN_PREFIX}*"):
        sweep(directory)


def sweep(directory: Path) -> None:
    """Stop every server under the directory and remove it, unless a process still takes part."""
    try:
        lock = os.open(directory / "run.lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        for pid_file in directory.rglob("postmaster.pid"):
            _end(pid_file.parent)
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)


def _join(directory: Path) -> int:
    """Hold the run's lock in common; the kernel lets go of it however this process ends."""
    while True:
        try:
            _make_passable(directory)
            lock = os.open(directory / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_SH)
        # A sweep may have removed the file between its opening and its locking.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(lock).st_ino == (directory / "run.lock").stat().st_ino:
                return lock
        os.close(lock)


def _make_passable(directory: Path) -> None:
    """For the account that PostgreSQL runs as under root, whatever the umask is."""
    directory.mkdir(exist_ok=True)
    directory.chmod(0o711)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _postmaster(data: Path) -> psutil.Process | None:
    try:
        process = psutil.Process(int((data / "postmaster.pid").read_text().split("\n")[0]))
        # After a crash the id in the file may belong to another program.
        return process if f"{data}" in " ".join(process.cmdline()) else None
    except (OSError, ValueError, psutil.Error):
        return None


def _end(data: Path) -> None:
    process = _postmaster(data)
    if process is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        # A test may have frozen it.
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGQUIT)
        try:
            process.wait(_PATIENCE_SECONDS)
        except psutil.TimeoutExpired:
            process.kill()


def _drop(database: Database) -> None:
    statement = f"drop schema if exists {database.schema} cascade".encode()
    with psycopg.connect(database.server_dsn, autocommit=True) as connection:
        connection.execute("set lock_timeout = '5s'")
        try:
            connection.execute(statement)
        except psycopg.errors.LockNotAvailable:
            # A worker that a test froze inside a transaction must not fail the tests after it.
            connection.execute(
                "select pg_terminate_backend(l.pid) from pg_locks l"
                " join pg_class c on c.oid = l.relation"
                " join pg_namespace n on n.oid = c.relnamespace"
                " where n.nspname = %s and l.pid <> pg_backend_pid()",
                [database.schema],
            )
            connection.execute(statement)


def _account() -> embedded.Account | None:
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        return embedded.server_account(Path())
    return embedded.Account(entry.pw_uid, entry.pw_gid)


def _free_port() -> int:
    """A port outside the range from which outgoing connections take theirs."""
    # Not `random`: it is seeded alike in all processes of a run.
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
