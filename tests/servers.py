"""Real PostgreSQL servers for the tests: shared ones, and private ones to be broken."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg

from devtools.cluster import Cluster, debian, find_binaries, make_passable, postmaster
from holdfast import embedded
from holdfast.settings import Names
from holdfast.stores.postgres.migrate import install_sql

if TYPE_CHECKING:
    from collections.abc import Iterator

EMBEDDED = "embedded18"

ALL = bool(os.environ.get("HOLDFAST_TEST_ALL"))
"""`make test-all`: every driver on every server, instead of a choice of them."""

# Thrown away after the run, so nothing is gained by waiting for the disk.
VOLATILE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

_INSTALL = install_sql(Names())
_SEARCH_PATH = "?options=-csearch_path%3D"
_RUN_PREFIX = "holdfast-test-"
_MEMORY, _ROOM_BYTES = Path("/dev/shm"), 4 * 2**30  # noqa: S108 (each run makes a folder there)
"""The tables of a queue are sixty files, which a disk is slow to create. Small machines, and
containers by default, have too little room in memory.
"""
_PATIENCE_SECONDS = 60


def available() -> dict[str, Path]:
    """The folder of the binaries for each kind of server this machine can run."""
    newest = {f"debian{version}": folder for version, folder in list(debian().items())[-1:]}
    return {EMBEDDED: embedded.binaries(), **newest}


@dataclass(frozen=True, slots=True)
class Database:
    """A schema of its own on a shared server; `dsn` has it as the search path."""

    name: str
    server_dsn: str
    schema: str

    @property
    def dsn(self) -> str:
        return f"{self.server_dsn}{_SEARCH_PATH}{self.schema}"

    def script(self, statements: str) -> None:
        """Run a script with its own `begin` and `commit`, as the owner of everything."""
        _administrators[self.server_dsn].script(self.schema, statements)


class Administrator:
    """Creates, fills and drops the schemas of one database, all in one session.

    A new session reads the catalogues first, which costs more than the tables of a queue.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection = self._connect()

    def _connect(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(self._dsn, autocommit=True, prepare_threshold=None)
        connection.execute("set lock_timeout = '5s'")
        return connection

    def create(self, schema: str) -> None:
        self._run(f"create schema if not exists {schema}")

    def install(self, schema: str) -> None:
        """Create the tables of a queue in an empty schema, as `holdfast sql install` does."""
        found = self._run(f"select from pg_class where relnamespace = '{schema}'::regnamespace")
        if not found.rowcount:
            self.script(schema, _INSTALL)

    def script(self, schema: str, statements: str) -> None:
        """Run a script with its own `begin` and `commit` in a schema."""
        self._run(f"set search_path to {schema}; {statements}; set search_path to default")

    def drop(self, schema: str) -> None:
        statement = f"drop schema if exists {schema} cascade"
        try:
            self._run(statement)
        except psycopg.errors.LockNotAvailable:
            # A worker that a test froze inside a transaction must not fail the tests after it.
            self._run(
                "select pg_terminate_backend(l.pid) from pg_locks l"
                " join pg_class c on c.oid = l.relation"
                " join pg_namespace n on n.oid = c.relnamespace"
                f" where n.nspname = '{schema}' and l.pid <> pg_backend_pid()"
            )
            self._run(statement)

    def _run(self, statements: str) -> psycopg.Cursor[Any]:
        try:
            return self._connection.execute(statements.encode())
        except psycopg.OperationalError:
            # A test may end all other sessions of its database.
            if not self._connection.broken:
                raise
            self._connection = self._connect()
            return self._connection.execute(statements.encode())

    def close(self) -> None:
        self._connection.close()


_administrators: dict[str, Administrator] = {}


def prepare(dsn: str) -> None:
    """Create the tables of a queue in an empty schema of a shared server.

    Whoever installs them afterwards finds them, which costs a tenth. Anywhere else this does
    nothing.
    """
    server_dsn, _, schema = dsn.partition(_SEARCH_PATH)
    if server_dsn in _administrators and schema.isidentifier():
        _administrators[server_dsn].install(schema)


def root() -> Path:
    """Where the servers of all runs keep their data: in memory if there is room for it."""
    try:
        room = shutil.disk_usage(_MEMORY).total
    except OSError:
        room = 0
    return _MEMORY if room >= _ROOM_BYTES else Path(tempfile.gettempdir())


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
            dsn = server_dsn.removesuffix("postgres") + self._database
            _administrators[dsn] = Administrator(dsn)
            self._dsns[kind] = dsn
        return self._dsns[kind]

    def close(self) -> None:
        for dsn in self._dsns.values():
            _administrators.pop(dsn).close()

    @contextlib.contextmanager
    def schema(self, kind: str) -> Iterator[Database]:
        """A new schema, dropped afterwards with all that is in it."""
        database = Database(kind, self.dsn(kind), f"test_{secrets.token_hex(6)}")
        administrator = _administrators[database.server_dsn]
        administrator.create(database.schema)
        try:
            yield database
        finally:
            administrator.drop(database.schema)

    @contextlib.contextmanager
    def private(self, kind: str | None = None) -> Iterator[Cluster]:
        """A started server that belongs to the caller alone, with real fsync."""
        directory = self.directory / f"private-{secrets.token_hex(6)}"
        folder = available()[kind] if kind else find_binaries()
        with Cluster(directory, binaries=folder, fresh=self._fresh(folder)) as server:
            yield server

    def _fresh(self, binaries: Path) -> Path:
        """The data of a new cluster; to copy it takes a tenth of the time of `initdb`."""
        name = "fresh" + str(binaries).replace("/", "-")
        made = Cluster(self.directory / name, binaries=binaries)
        with _locked(self.directory / f"{name}.lock"):
            if not made.data.exists():
                made.initialise()
        return made.data

    def _ensure_started(self, kind: str) -> str:
        address = self.directory / f"{kind}.dsn"
        with _locked(self.directory / f"{kind}.lock"):
            if not address.exists():
                server = Cluster(
                    self.directory / kind, binaries=available()[kind], settings=VOLATILE
                )
                server.start()
                address.write_text(server.dsn)
            return address.read_text()


@contextlib.contextmanager
def shared_servers(run: str, process: str) -> Iterator[SharedServers]:
    """Take part in a run; the last process to leave stops its servers and removes its files."""
    directory = root() / f"{_RUN_PREFIX}{run}"
    lock = _join(directory)
    shared = SharedServers(directory, process)
    try:
        yield shared
    finally:
        shared.close()
        os.close(lock)
        sweep(directory)


def sweep_abandoned() -> None:
    """Stop what runs left behind that were killed before they could clean up."""
    for directory in root().glob(f"{_RUN_PREFIX}*"):
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
    """Hold the run's lock in common; the kernel frees it however this process ends."""
    while True:
        try:
            make_passable(directory)
            lock = os.open(directory / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_SH)
        # A sweep may have removed the file between its opening and its locking.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(lock).st_ino == (directory / "run.lock").stat().st_ino:
                return lock
        os.close(lock)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _end(data: Path) -> None:
    process = postmaster(data)
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
