"""A real PgBouncer before a test's schema, where the program is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import psycopg
import pytest

from devtools.cluster import account, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import Database

Mode = Literal["transaction", "session"]

_PATIENCE = 20.0
_USERS = '"postgres" ""\n'


def program() -> str:
    """Its path; without it the test is skipped."""
    asked = os.environ.get("HOLDFAST_PGBOUNCER")
    found = asked or shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if not found:
        pytest.skip("pgbouncer is not installed (Debian: apt-get install pgbouncer)")
    return found


def keeps_prepared_statements() -> bool:
    """Since 1.21 it prepares on each server session what a client has prepared."""
    said = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True)
    major, minor = said.stdout.split()[1].split(".")[:2]
    return (int(major), int(minor)) >= (1, 21)


@dataclass(frozen=True, slots=True)
class Pooler:
    """A running pooler; `dsn` leads through it to the schema."""

    port: int
    database: str

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{self.database}"


@contextmanager
def pooler(
    database: Database, directory: Path, mode: Mode = "transaction", *, size: int = 4
) -> Iterator[Pooler]:
    """Its server sessions are given out in turn, so that whoever relies on one is found out."""
    made = Pooler(free_port(), database.schema)
    (directory / "users").write_text(_USERS)
    try:
        with started(directory, _settings(database, directory, made.port, mode, size), made.port):
            if mode == "transaction":
                _open_sessions(made, size)
            yield made
    finally:
        _end_sessions(database, made.database)


@contextmanager
def started(directory: Path, settings: str, port: int) -> Iterator[None]:
    """PgBouncer with these settings, killed at the end."""
    file = directory / "pgbouncer.ini"
    file.write_text(settings)
    # Like PostgreSQL, it refuses to run as root.
    who = account()
    with (directory / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen(
            [program(), str(file)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            user=who and who[0],
            group=who and who[1],
            extra_groups=[] if who else None,
        )
    try:
        _await_port(port, process, directory)
        yield
    finally:
        process.kill()
        process.wait()


def _settings(database: Database, directory: Path, port: int, mode: Mode, size: int) -> str:
    server = urlsplit(database.server_dsn)
    name = server.path.removeprefix("/")
    # PgBouncer refuses `options` in a DSN, by which the tests choose their schema otherwise.
    path = f"set search_path to {database.schema}; set application_name to {database.schema}"
    return f"""
[databases]
{database.schema} = host={server.hostname} port={server.port} dbname={name} connect_query='{path}'
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {directory / "users"}
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 200
server_round_robin = 1
"""


def _await_port(port: int, process: subprocess.Popen[bytes], directory: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            said = (directory / "pgbouncer.log").read_text(errors="replace")
            raise AssertionError(f"pgbouncer did not start:\n{said}")
        time.sleep(0.02)


def _open_sessions(made: Pooler, size: int) -> None:
    """All of the pool's, which it would open one by one, as they are needed at once."""
    with ExitStack() as stack:
        for _ in range(size):
            connection = stack.enter_context(psycopg.connect(made.dsn, prepare_threshold=None))
            connection.execute("select 1")


def _end_sessions(database: Database, name: str) -> None:
    """A killed pooler's statements may still hold locks on the schema that is dropped next."""
    with psycopg.connect(database.server_dsn, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s",
            [name],
        )
