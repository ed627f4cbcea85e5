"""PostgreSQL clusters for the tests and the benchmark: their own, on a loopback port."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import psutil

from holdfast import embedded

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST = "127.0.0.1"
_PATIENCE_SECONDS = 60


def debian() -> dict[int, Path]:
    """The folder of the binaries by version, oldest first, as Debian's packages install them."""
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    numbered = ((path.parts[-3], path.parent) for path in found)
    return dict(sorted((int(name), folder) for name, folder in numbered if name.isdigit()))


def find_binaries() -> Path:
    """Debian's newest, else those of the embedded package."""
    return next(reversed(debian().values()), None) or embedded.binaries()


class CannotRun(RuntimeError):
    """A command of PostgreSQL failed, or could not even be started."""


class Cluster:
    """A server that its owner may stop, kill and start again."""

    def __init__(
        self,
        directory: Path,
        *,
        binaries: Path,
        settings: Mapping[str, str] | None = None,
        fresh: Path | None = None,
    ) -> None:
        """`fresh` is the data of a cluster that was never started, to be copied."""
        self.data = directory / "data"
        self.log = self.data / "server.log"
        self.port = free_port()
        self._binaries = binaries
        self._fresh = fresh
        self._settings = {"max_connections": "200", **(settings or {})}
        self._account = account()

    @property
    def dsn(self) -> str:
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    @property
    def pid(self) -> int | None:
        """The postmaster's process id while it runs."""
        process = postmaster(self.data)
        return process.pid if process else None

    def start(self) -> None:
        """Start, and return when connections are accepted; the first start makes the cluster."""
        if not self.data.exists():
            self.initialise()
        options = {**self._settings, "listen_addresses": HOST, "port": str(self.port)}
        # Without a socket directory no path can be too long.
        options["unix_socket_directories"] = ""
        arguments = " ".join(f"-c {name}={value}" for name, value in options.items())
        self._pg_ctl("start", f"--log={self.log}", f"--options={arguments}")

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

    def initialise(self) -> None:
        """Make the cluster without starting it."""
        make_passable(self.data.parent)
        if self._fresh is not None:
            # With owners and modes, which PostgreSQL insists on.
            subprocess.run(["cp", "-a", self._fresh, self.data], check=True)  # noqa: S603, S607
            return
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
            try:
                done = subprocess.run(  # noqa: S603 (PostgreSQL's own commands, no shell)
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
            except OSError as error:
                raise CannotRun(self._unstartable(self._binaries / command, error)) from None
            output.seek(0)
            said = output.read().decode(errors="replace")
        if done.returncode != 0:
            logged = self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""
            raise CannotRun(f"{command} {arguments} failed:\n{said}\n{logged}")

    def _unstartable(self, command: Path, error: OSError) -> str:
        who = "this user" if self._account is None else f"the user with the id {self._account.uid}"
        return (
            f"{command} cannot be started ({error.strerror}): {who} must be allowed to run it, and "
            f"to pass all folders above it"
        )


def make_passable(directory: Path) -> None:
    """For the account that PostgreSQL runs as under root, whatever the umask is."""
    directory.mkdir(exist_ok=True)
    directory.chmod(0o711)


def postmaster(data: Path) -> psutil.Process | None:
    """The process that serves this data, if one does."""
    try:
        process = psutil.Process(int((data / "postmaster.pid").read_text().split("\n")[0]))
        # After a crash the id in the file may belong to another program.
        return process if f"{data}" in " ".join(process.cmdline()) else None
    except (OSError, ValueError, psutil.Error):
        return None


def account() -> embedded.Account | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        return embedded.server_account(Path())
    return embedded.Account(entry.pw_uid, entry.pw_gid)


def free_port() -> int:
    """A port outside the range from which outgoing connections take theirs."""
    # Not `random`: it is seeded alike in all processes of a run.
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
