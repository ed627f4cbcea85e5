"""PostgreSQL clusters of the harness's own, on loopback, to be crashed and thrown away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

import asyncpg

from chaos import leash
from devtools.cluster import HOST, account, find_binaries, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from holdfast import embedded

_PATIENCE_SECONDS = 60.0
_SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "64MB",
    "wal_level": "replica",
    "max_wal_size": "256MB",
    # A crash is recovered from the last checkpoint on, and a run has many crashes.
    "checkpoint_timeout": "30s",
    "log_checkpoints": "off",
    "timezone": "UTC",
}
_NOT_YET = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError)


class Cluster:
    """One server. It dies with the harness, whatever ends that."""

    def __init__(
        self,
        directory: Path,
        *,
        binaries: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.port = free_port()
        self.binaries = binaries or find_binaries()
        self.account = account()
        self._settings = {**_SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    async def connect(self, database: str = "postgres") -> Any:
        """A connection of the harness, past every proxy."""
        settings = {"application_name": "chaos"}
        return await asyncpg.connect(self.dsn(database), timeout=5, server_settings=settings)

    async def start(self) -> None:
        """Start, and return when connections are accepted; the first start makes the cluster."""
        if not self.data.exists():
            self._initialise()
        options = {**self._settings, "listen_addresses": HOST, "port": str(self.port)}
        options["unix_socket_directories"] = ""
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        # Here and not in a thread: the leash is that of the thread which forks.
        self._process = self._spawn("postgres", "-D", str(self.data), *arguments)
        await self.accepting()

    async def accepting(self) -> None:
        """Wait until the server takes connections."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                if self._process is not None and self._process.poll() is not None:
                    raise RuntimeError(f"PostgreSQL did not start:\n{self.said()}")
                with contextlib.suppress(*_NOT_YET):
                    connection = await asyncpg.connect(self.dsn(), timeout=2)
                    await connection.close()
                    return
                await asyncio.sleep(0.02)

    async def crash(self) -> None:
        """What pg_ctl calls an immediate stop: nothing is flushed, the next start recovers."""
        await self._end(signal.SIGQUIT)

    async def stop(self) -> None:
        await self._end(signal.SIGINT)

    async def make_standby(self, directory: Path) -> Cluster:
        """A streaming standby of this server, not started yet."""
        standby = Cluster(directory, binaries=self.binaries, settings=self._settings)
        standby.prepare()
        await asyncio.to_thread(
            standby.run, "pg_basebackup", "-R", "-X", "stream", "-c", "fast", "-d", self.dsn(),
            "-D", str(standby.data),
        )  # fmt: skip
        standby.data.chmod(0o700)
        return standby

    async def promote(self) -> None:
        connection = await self.connect()
        try:
            await connection.execute("select pg_promote(true, 30)")
        finally:
            await connection.close()

    def prepare(self) -> None:
        """A folder that the server's account can reach and own."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o711)
        self.data.mkdir(mode=0o700)
        if self.account is not None:
            os.chown(self.data, *self.account)

    def run(self, command: str, *arguments: str) -> None:
        done = self._spawn(command, *arguments)
        if done.wait(_PATIENCE_SECONDS) != 0:
            raise RuntimeError(f"{command} {arguments} failed:\n{self.said()}")

    def said(self) -> str:
        path = self.directory / "server.log"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.crash()
            raise
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.crash()
        shutil.rmtree(self.data, ignore_errors=True)

    def _initialise(self) -> None:
        self.prepare()
        identity = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
        self.run("initdb", f"--pgdata={self.data}", *identity, "--no-sync")

    def _spawn(self, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        program = str(self.binaries / command)
        with (self.directory / "server.log").open("ab") as log:
            return subprocess.Popen(
                tied(self.account, program, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            )

    async def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            async with asyncio.timeout(20):
                while process.poll() is None:  # noqa: ASYNC110 - it raises no event here
                    await asyncio.sleep(0.01)
        except TimeoutError:
            process.kill()
            process.wait()


def tied(account: embedded.Account | None, *command: str) -> list[str]:
    """The command as one that dies with the harness, run by that account."""
    numbers = [str(number) for number in account or (0, 0)]
    return [sys.executable, "-I", leash.__file__, *numbers, *command]
