"""The PostgreSQL that everything is measured on: its own cluster, on loopback, with real fsync."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
import psycopg
from psycopg import sql

from devtools.cluster import CannotRun, Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

# Not /tmp, which may be memory, where an fsync costs nothing.
DISK = Path("/var/tmp")  # noqa: S108 (a folder of our own is made in it)
# Fleets of 200 workers and the pools of the peers need more than the default of 100.
SETTINGS = {"max_connections": "1500"}
_STATEMENT = re.compile(rb"LOG: +duration: [0-9.]+ ms +(statement|execute [^:]*):")


class Server:
    """A cluster that lives as long as the run."""

    def __init__(self, binaries: Path, disk: Path = DISK) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=disk))
        self._cluster = Cluster(self._directory, binaries=binaries, settings=SETTINGS)

    def __enter__(self) -> Self:
        try:
            self._cluster.start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        with contextlib.suppress(CannotRun):
            self._cluster.stop("immediate")
        self._remove()

    def dsn(self, database: str = "postgres") -> str:
        return self._cluster.dsn_of(database)

    def ask(self, query: str, database: str = "postgres") -> Any:
        """The first column of the first row."""
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            row = connection.execute(query.encode()).fetchone()
        return row[0] if row else None

    def tidy(self, database: str) -> None:
        """Statistics, hint bits and files as of a table that was filled a while ago."""
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            connection.execute("vacuum analyze")
        self.write_back()

    def write_back(self) -> None:
        """Flush what was written so far, so that it slows down no later step."""
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute("checkpoint")

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
        return len(_STATEMENT.findall(self._cluster.log.read_bytes()))

    def wal_position(self) -> int:
        return int(self.ask("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    def cpu_seconds(self) -> float:
        """Of the postmaster, of every process it has ended, and of those that run."""
        postmaster = psutil.Process(self._cluster.pid)
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

    def _remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
