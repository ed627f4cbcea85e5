"""Starts `holdfast run` as a real process on a module of jobs that keep a journal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, TypeVar

import psutil

from holdfast import Holdfast, NewJob
from tests import servers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path
    from typing import Any

T = TypeVar("T")

PATIENCE = 120.0
"""Seconds for what must happen: a busy machine is slow, but a fault takes for ever."""

JOBS = """
import asyncio, os, time
from contextlib import asynccontextmanager
from holdfast import Holdfast

def note(*words):
    descriptor = os.open("journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, (" ".join(map(str, words)) + "\\n").encode())
    os.close(descriptor)

def make(*given):
    hf = Holdfast.connect(os.environ["HOLDFAST_DSN"])

    @hf.entrypoint("quick")
    async def quick(job):
        note("quick", job.id, os.getpid(), *given)

    @hf.entrypoint("wait")
    async def wait(job):
        note("began", job.id, os.getpid())
        while not os.path.exists("go"):
            await asyncio.sleep(0.02)
        note("finished", job.id, os.getpid())

    @hf.entrypoint("block")
    async def block(job):
        note("began", job.id, os.getpid())
        time.sleep(3600)

    @hf.entrypoint("fail")
    async def fail(job):
        raise ValueError(f"cannot use {job.payload!r}")

    @hf.entrypoint("die", max_recoveries=2)
    async def die(job):
        note("dying", job.id, os.getpid())
        os._exit(9)

    note("made", os.getpid())
    return hf

async def main(*given):
    return make(*given)

@asynccontextmanager
async def managed(*given):
    async with make(*given) as hf:
        yield hf
        note("closing", len(await hf.queries.queue_size()))

async def hangs():
    note("made", os.getpid())
    await asyncio.sleep(3600)

async def blocks():
    note("made", os.getpid())
    time.sleep(3600)

async def returns_nothing():
    pass

async def generates():
    yield make()

async def raises():
    raise LookupError("no such tenant")

async def empty():
    return Holdfast.connect(os.environ["HOLDFAST_DSN"])

number = 5
"""


def until(look: Callable[[], T], what: str, *, seconds: float = PATIENCE) -> T:
    """The first true thing that `look` returns."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.02)
    return found


class Running:
    """A started command. Its stderr goes to a file, which no pipe can block."""

    def __init__(self, directory: Path, arguments: tuple[str, ...], dsn: str) -> None:
        self.log_file = directory / f"stderr-{time.monotonic_ns()}"
        environment = {name: value for name, value in os.environ.items() if name[:2] != "PG"}
        with self.log_file.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "run", *arguments],
                cwd=directory,
                env=environment | {"HOLDFAST_DSN": dsn},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def children(self) -> list[int]:
        """The worker processes of a supervisor."""
        return [child.pid for child in psutil.Process(self.process.pid).children()]

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self, *, seconds: float = PATIENCE) -> int:
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s:\n{self.log}") from None

    def health(self) -> str:
        """Where it says that its health is served."""
        [url, *_] = until(lambda: re.findall(r"served on (http://\S+)", self.log), "health")
        return url

    def kill(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            for each in [*process.children(recursive=True), process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        self.process.wait()


class Bench:
    """A folder with a module of jobs, a database, and the commands started there."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self.directory = directory
        self.dsn = dsn
        self._started: list[Running] = []
        (directory / "jobs.py").write_text(JOBS)

    def start(self, *arguments: str) -> Running:
        running = Running(self.directory, arguments, self.dsn)
        self._started.append(running)
        return running

    def run(self, *arguments: str) -> tuple[int, str]:
        """Exit code and stderr of a command that ends by itself."""
        running = self.start(*arguments)
        return running.ended(), running.log

    def go(self) -> None:
        """Let waiting jobs finish."""
        (self.directory / "go").touch()

    def journal(self, word: str) -> list[list[str]]:
        """The lines that begin with this word."""
        path = self.directory / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split() for line in lines if line.split()[0] == word]

    def noted(self, word: str, count: int = 1, *, seconds: float = PATIENCE) -> list[list[str]]:
        """Those lines, once there are so many."""
        try:
            return until(
                lambda: found if len(found := self.journal(word)) >= count else [],
                f"{count} times {word!r} in the journal",
                seconds=seconds,
            )
        except AssertionError as error:
            error.add_note("\n".join(running.log for running in self._started))
            raise

    def ask(self, work: Callable[[Holdfast], Coroutine[Any, Any, T]]) -> T:
        """Do something with the queue itself."""

        async def main() -> T:
            async with Holdfast.connect(self.dsn) as holdfast:
                return await work(holdfast)

        return asyncio.run(main())

    def enqueue(self, entrypoint: str, count: int = 1, payload: bytes | None = None) -> list[int]:
        jobs = [NewJob(entrypoint, payload)] * count
        ids = self.ask(lambda holdfast: holdfast.queries.enqueue_many(jobs))
        return [job_id for job_id in ids if job_id is not None]

    def close(self) -> None:
        for running in self._started:
            running.kill()


def installed(directory: Path, dsn: str) -> Iterator[Bench]:
    """A bench on a database with the tables."""
    bench = Bench(directory, dsn)
    servers.prepare(dsn)
    bench.ask(lambda holdfast: holdfast.install())
    try:
        yield bench
    finally:
        bench.close()


def get(url: str, *, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    """Status and body; 0 while there is no listener."""
    headers = {"Host": host} if host else {}
    request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310 (loopback)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 (loopback)
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""
