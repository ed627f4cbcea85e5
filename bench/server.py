"""The PostgreSQL that everything is measured on: its own cluster, on loopback, with real fsync."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
import psycopg
from psycopg import sql

from holdfast import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator

# Not /tmp, which may be memory, where an fsync costs nothing.
DISK = Path("/var/tmp")  # noqa: S108 (a folder of our own is made in it)
# Eight producers and the pools of the peers need more than the default of 100.
SETTINGS = {"max_connections": "300", "listen_addresses": "127.0.0.1"}
_STATEMENT = re.compile(rb"LOG: +duration: [0-9.]+ ms +(statement|execute [^:]*):")
_PATIENCE = 120


def find_binaries(asked: str | None = None) -> Path:
    """The folder of initdb: the one asked for, Debian's newest, or the embedded package's."""
    if asked:
        return Path(asked)
    debian = [
        (int(path.parts[-3]), path.parent)
        for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")
        if path.parts[-3].isdigit()
    ]
    return max(debian)[1] if debian else embedded.binaries()


class Server:
    """A cluster that lives as long as the run."""

    def __init__(self, binaries: Path, disk: Path = DISK) -> None:
        self._binaries = binaries
        self._directory = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=disk))
        self._data = self._directory / "data"
        self._port = _free_port()
        self._account = _account()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        with contextlib.suppress(RuntimeError):
            self._run("pg_ctl", "stop", "--mode=immediate", f"--pgdata={self._data}")
        self._remove()

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    def ask(self, query: str, database: str = "postgres") -> Any:
        """The first column of the first row."""
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            row = connection.execute(query.encode()).fetchone()
        return row[0] if row else None

    def tidy(self, database: str) -> None:
        """Statistics and hint bits as a table has them that was filled a while ago."""
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            connection.execute("vacuum analyze")

    def create(self, name: str, *, template: str = "template1", large: bool = False) -> None:
        """A new database; a large template is copied by file, which keeps it out of the WAL."""
        strategy = "file_copy" if large else "wal_log"
        self._do(
            sql.SQL("create database {} template {} strategy {}").format(
                sql.Identifier(name), sql.Identifier(template), sql.Identifier(strategy)
            )
        )

    def drop(self, name: str) -> None:
        self._do(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def log_statements(self, database: str) -> None:
        """Have every statement of new sessions in that database written to the server's log."""
        self._do(
            sql.SQL("alter database {} set log_min_duration_statement = 0").format(
                sql.Identifier(database)
            )
        )

    def statements_logged(self) -> int:
        return len(_STATEMENT.findall((self._directory / "server.log").read_bytes()))

    def wal_position(self) -> int:
        return int(self.ask("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    def cpu_seconds(self) -> float:
        """Of the postmaster, of every process it has ended, and of those that run."""
        postmaster = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        spent = float(sum(postmaster.cpu_times()[:4]))
        for child in postmaster.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                spent += float(sum(child.cpu_times()[:2]))
        return spent

    def facts(self) -> dict[str, str]:
        """What a reader of the figures wants to know of the server."""
        names = (
            *("server_version", "fsync", "synchronous_commit", "full_page_writes"),
            *("shared_buffers", "max_wal_size", "wal_sync_method", "autovacuum_naptime"),
        )
        return {name: str(self.ask(f"show {name}")) for name in names}

    @contextlib.contextmanager
    def held_snapshot(self, database: str) -> Iterator[None]:
        """A transaction that stays open and keeps every dead row of the database from vacuum."""
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            connection.execute("begin isolation level repeatable read")
            connection.execute("select pg_current_xact_id()")
            yield
            connection.execute("rollback")

    def _do(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(statement)

    def _start(self) -> None:
        self._directory.chmod(0o711)
        self._data.mkdir(mode=0o700)
        log = self._directory / "server.log"
        log.touch()
        if self._account is not None:
            os.chown(self._data, *self._account)
            os.chown(log, *self._account)
        identity = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
        self._run("initdb", f"--pgdata={self._data}", *identity)
        options = SETTINGS | {"port": str(self._port), "unix_socket_directories": ""}
        said = " ".join(f"-c {name}={value}" for name, value in options.items())
        self._run(
            *("pg_ctl", "start", "--wait", f"--timeout={_PATIENCE}", f"--pgdata={self._data}"),
            *(f"--log={log}", f"--options={said}"),
        )

    def _run(self, command: str, *arguments: str) -> None:
        # A server keeps its starter's output open; reading a pipe to its end would hang.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(  # noqa: S603 (PostgreSQL's own commands, no shell)
                [self._binaries / command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._data,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
                check=False,
                user=self._account and self._account.uid,
                group=self._account and self._account.gid,
                extra_groups=[] if self._account else None,
            )
            output.seek(0)
            said = output.read().decode(errors="replace")
        if done.returncode != 0:
            raise RuntimeError(f"{command} {' '.join(arguments)} failed: {said.strip()}")

    def _remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def _account() -> embedded.Account | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        return embedded.server_account(Path())
    return embedded.Account(entry.pw_uid, entry.pw_gid)


def _free_port() -> int:
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
