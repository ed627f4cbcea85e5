"""Where a measure runs: a database of its own, and processes of the subject that end with it."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING

import psycopg

from bench.process import Process, SubjectFailed, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from bench.contestants import Contestant
    from bench.envs import Installed
    from bench.server import Server
    from bench.sizes import Sizes

    Fill = Callable[[Process, str], None]
    """Puts jobs into a database, with a process of the subject and the database's name."""

_serial = itertools.count(1)
_PATIENCE = 120.0


class Stage:
    """What the measures share in one run."""

    def __init__(
        self, server: Server, sizes: Sizes, installed: Mapping[str, Installed], logs: Path
    ) -> None:
        self.server = server
        self._sizes = sizes
        self._installed = installed
        self._logs = logs
        self._templates: set[str] = set()
        self._unfillable: dict[str, SubjectFailed] = {}
        self.notes: dict[str, object] = {}
        """What results.json has no place for; emptied before each step."""

    def sizes_of(self, subject: Contestant) -> Sizes:
        return self._sizes.of(subject.pace)

    @contextlib.contextmanager
    def start(self, subject: Contestant, database: str, *options: str) -> Iterator[Process]:
        log = self._logs / f"{subject.name}.log"
        dsn = self.server.dsn(database)
        with Process(subject.name, self._installed[subject.name], dsn, log, *options) as process:
            yield process

    @contextlib.contextmanager
    def database(
        self,
        subject: Contestant,
        key: str = "empty",
        fill: Fill | None = None,
        *,
        large: bool = False,
    ) -> Iterator[str]:
        """A database with the subject's tables and, with `key`, with what `fill` put there once."""
        template = self._template(subject, key, fill)
        name = f"run_{next(_serial)}"
        self.server.create(name, template=template, large=large)
        try:
            yield name
        finally:
            self.server.drop(name)

    def _template(self, subject: Contestant, key: str, fill: Fill | None) -> str:
        name = f"{subject.tables}_{key}"
        if name in self._templates:
            return name
        if name in self._unfillable:
            # What took too long once is not waited for in every round.
            raise self._unfillable[name]
        if fill is None:
            self.server.create(name)
        else:
            self.server.create(name, template=self._template(subject, "empty", None))
        self._templates.add(name)
        try:
            with self.start(subject.owner, name) as process:
                process.ask("install") if fill is None else fill(process, name)
        except BaseException as error:
            self._drop(name)
            if isinstance(error, SubjectFailed):
                self._unfillable[name] = error
            raise
        self.server.tidy(name)
        return name

    def forget(self, key: str) -> None:
        """Drop what was filled under that key, for every subject."""
        for name in [name for name in self._templates if name.endswith(f"_{key}")]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._templates.discard(name)
        self.server.drop(name)

    def unfinished(self, subject: Contestant, database: str) -> int:
        return int(self.server.ask(f"select count(*) from {subject.unfinished}", database))  # noqa: S608 (a constant of contestants.py)

    @contextlib.contextmanager
    def watched(self, subject: Contestant, database: str) -> Iterator[Callable[[], float]]:
        """A function that waits until the tables say that every due job is finished.

        It returns when that was seen. Its connection is opened beforehand and the last look at
        the tables is not counted, so that no subject is charged for their time. A look that finds
        some takes the shortest way, past what else lies there.
        """
        query = f"select exists (select from {subject.unfinished})".encode()  # noqa: S608 (as above)
        with psycopg.connect(self.server.dsn(database), autocommit=True) as connection:
            connection.execute("set enable_seqscan = off")
            looked = 0.0

            def empty() -> bool:
                nonlocal looked
                looked = time.monotonic()
                return connection.execute(query).fetchone() == (False,)

            def await_empty() -> float:
                what = f"{subject.name}: the end of the last jobs in the database"
                wait_until(empty, patience=_PATIENCE, what=what, every=0.002)
                return looked

            yield await_empty

    def expect(self, subject: Contestant, database: str, count: float) -> None:
        """The tables must hold what the subject says it has stored."""
        found = self.unfinished(subject, database)
        if found != count:
            raise SubjectFailed(f"{subject.name}: {count:g} jobs enqueued, {found} in the table")


def filled(process: Process, count: int, seconds: float, **options: object) -> None:
    """Enqueue that many in bulk; SubjectFailed when they do not come in time."""
    done = process.ask("bulk", count=count, seconds=seconds, patience=seconds + 60, **options)
    if done["count"] < count:
        raise SubjectFailed(
            f"{process.name}: only {done['count']:,} of {count:,} jobs were enqueued in "
            f"{seconds:g} s, so this is not measured"
        )
