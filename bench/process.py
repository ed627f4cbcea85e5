"""The harness's end of a subject's process: orders out, answers and counts in."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from typing import IO, TYPE_CHECKING, Any, Self

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.envs import Installed

_GRACE = 5.0


class SubjectFailed(Exception):
    """A subject that answered with an error, died, or did not answer."""


class Process:
    """A subject that was started, with the latest of its counts."""

    def __init__(self, name: str, installed: Installed, dsn: str, log: Path, *options: str) -> None:
        self.name = name
        self.done = 0
        self.first: float | None = None
        self.samples: list[tuple[float, int]] = []
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._died: str | None = None
        self._log = log.open("ab")
        self._popen = subprocess.Popen(  # noqa: S603 (a subject of this folder, no shell)
            [*installed.before, dsn, *installed.after, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # Its children end with it, and only they.
            start_new_session=True,
        )
        assert self._popen.stdin is not None  # noqa: S101 (a pipe, see above)
        assert self._popen.stdout is not None  # noqa: S101 (likewise)
        self._stdin = self._popen.stdin
        threading.Thread(target=self._read, args=(self._popen.stdout,), daemon=True).start()
        self.answer(30.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        with contextlib.suppress(OSError):
            self.resume()
            self._stdin.close()
        try:
            self._popen.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._log.close()

    def tell(self, do: str, **arguments: Any) -> None:
        try:
            self._stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._stdin.flush()
        except OSError as error:
            raise SubjectFailed(f"{self.name}: has ended ({error})") from error

    def answered(self) -> bool:
        return not self._answers.empty()

    def answer(self, patience: float) -> Any:
        try:
            message = self._answers.get(timeout=patience)
        except queue.Empty:
            raise SubjectFailed(f"{self.name}: no answer within {patience:g} s") from None
        if "answer" not in message:
            raise SubjectFailed(f"{self.name}: {message.get('error')}")
        return message["answer"]

    def ask(self, do: str, *, patience: float = 60.0, **arguments: Any) -> Any:
        self.tell(do, **arguments)
        return self.answer(patience)

    def check(self) -> None:
        """Raise if its worker has ended by itself."""
        if self._died is not None:
            raise SubjectFailed(f"{self.name}: the worker ended: {self._died}")

    def has_begun(self) -> bool:
        self.check()
        return self.first is not None

    def has_done(self, count: int) -> bool:
        self.check()
        return self.done >= count

    def suspend(self) -> None:
        os.killpg(self._popen.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._popen.pid, signal.SIGCONT)

    def cpu_seconds(self) -> float:
        return sum(float(sum(one.cpu_times()[:2])) for one in self._family())

    def megabytes(self) -> float:
        return sum(float(one.memory_info().rss) for one in self._family()) / 1e6

    def _family(self) -> list[psutil.Process]:
        parent = psutil.Process(self._popen.pid)
        return [parent, *parent.children(recursive=True)]

    def _read(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            try:
                message = json.loads(line)
            except ValueError:
                # A library that prints is not an answer.
                continue
            if "at" in message:
                self.done, self.first = message["done"], message["first"]
                self.samples.append((message["at"], message["done"]))
            elif "died" in message:
                self._died = message["died"]
            else:
                self._answers.put(message)
        self._died = self._died or "its process is gone"
        self._answers.put({"error": self._died})


def wait_until(
    condition: Callable[[], bool], *, patience: float, what: str, every: float = 0.005
) -> None:
    """Look until it holds; SubjectFailed when it does not in time."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise SubjectFailed(f"{what} did not come within {patience:g} s")
        time.sleep(every)
