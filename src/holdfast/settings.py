"""The settings: frozen, checked on construction with all faults reported together."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from holdfast import checks
from holdfast.errors import InvalidInput

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,30}")
_LONGEST_CHANNEL = 63
MAX_PAYLOAD = 1024 * 1024
_LONGEST_RETENTION = timedelta(days=365 * 1000)
"""More than the server can subtract from today."""
SHORTEST_POLL = timedelta(milliseconds=100)
"""How often an idle worker looks for work with `dequeue_timeout=timedelta(0)`."""


def _check(faults: list[str], subject: str) -> None:
    if faults:
        raise InvalidInput(f"{subject}: " + "; ".join(faults))


@dataclass(frozen=True, slots=True)
class Names:
    """Where Holdfast's tables are: a prefix, and a schema if not the connection's search_path."""

    prefix: str = "holdfast"
    schema: str | None = None

    def __post_init__(self) -> None:
        faults = [
            f"{what} {value!r} must be 1 to 31 characters of a-z, 0-9 and _, not starting with "
            f"a digit (for example {example!r})"
            for what, value, example in (
                ("prefix", self.prefix, "holdfast"),
                ("schema", self.schema, "jobs"),
            )
            if value is not None and not (isinstance(value, str) and _IDENTIFIER.fullmatch(value))
        ]
        _check(faults, "table names")

    def qualified(self, name: str) -> str:
        """A quoted identifier; the only place that makes one."""
        return f'"{self.schema}"."{name}"' if self.schema else f'"{name}"'

    def table(self, suffix: str = "") -> str:
        return self.qualified(self.prefix + suffix)

    @property
    def channel(self) -> str:
        """The NOTIFY channel: one a schema, because channels do not belong to schemas."""
        if self.schema is None:
            return f"ch_{self.prefix}"
        return self._channel(f"ch_{self.schema}_{self.prefix}")

    @property
    def results_channel(self) -> str:
        """The NOTIFY channel of listeners that wait for results."""
        parts = ("results", self.schema, self.prefix)
        return self._channel("_".join(part for part in parts if part))

    def _channel(self, name: str) -> str:
        if len(name) <= _LONGEST_CHANNEL:
            return name
        # Cut alone, two long prefixes of one schema could become one channel.
        mark = sha256(name.encode()).hexdigest()[:8]
        return f"{name[: _LONGEST_CHANNEL - len(mark)]}{mark}"


OWN_CHANNEL = "worker_"
OWN_CHANNEL_DIGITS = 32


def own_channel(channel: str, worker: str) -> str:
    """The NOTIFY channel on which one worker alone listens. Statements compute the same name."""
    digest = sha256(f"{channel} {worker}".encode()).hexdigest()
    return OWN_CHANNEL + digest[:OWN_CHANNEL_DIGITS]


@dataclass(frozen=True, slots=True)
class Retention:
    """How long log rows are kept, by how they ended; None keeps them for ever.

    Rows of a job that is still in the queue, such as a held one, are always kept.
    """

    succeeded: timedelta | None = timedelta(days=30)
    others: timedelta | None = timedelta(days=90)

    def __post_init__(self) -> None:
        faults = [
            f"{name} must be a positive timedelta of at most {_LONGEST_RETENTION}, or None to keep "
            f"all, got {value!r}"
            for name, value in (("succeeded", self.succeeded), ("others", self.others))
            if value is not None
            and not (isinstance(value, timedelta) and timedelta(0) < value <= _LONGEST_RETENTION)
        ]
        _check(faults, "retention")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How one worker process works. The defaults are meant to be right.

    `heartbeat_timeout` is the length of the leases that this worker takes: when it dies, others run
    its jobs after that time. The value of the worker that died counts, not that of the survivor, so
    give all workers the same. `holdfast workers release ID` does not wait for it.
    """

    batch_size: int = 500
    """How many jobs one claim takes at most."""
    concurrency: int = 20
    """How many handlers run at once. Jobs that wait for nothing are as fast with few slots, because
    they are claimed ahead of them; raise it for jobs that wait for something else."""
    dequeue_timeout: timedelta = timedelta(seconds=5)
    """How long an idle worker waits for a wake-up before it looks by itself. Zero means as often
    as is sensible: every SHORTEST_POLL."""
    heartbeat_timeout: timedelta = timedelta(seconds=30)
    """The length of a lease. It is renewed at a third of that."""
    drain_timeout: timedelta = timedelta(seconds=25)
    """How long running handlers may take after a stop; then they are cancelled."""
    statistics_interval: timedelta = timedelta(seconds=30)
    """How often the log is counted into the statistics."""
    max_loop_block: timedelta = timedelta(minutes=5)
    """A handler that blocks the event loop for longer loses its lease, and counts as having killed
    its worker."""

    def __post_init__(self) -> None:
        faults = checks.faults(
            checks.integer_fault("batch_size", self.batch_size, 1, None),
            checks.integer_fault("concurrency", self.concurrency, 1, None),
        )
        for name, value, least in (
            ("dequeue_timeout", self.dequeue_timeout, timedelta(0)),
            ("heartbeat_timeout", self.heartbeat_timeout, timedelta(milliseconds=100)),
            ("drain_timeout", self.drain_timeout, timedelta(0)),
            ("statistics_interval", self.statistics_interval, timedelta(0)),
            ("max_loop_block", self.max_loop_block, timedelta(seconds=1)),
        ):
            if not isinstance(value, timedelta) or value < least:
                faults.append(f"{name} must be a timedelta of at least {least}, got {value!r}")
        _check(faults, "worker settings")

    @property
    def poll_interval(self) -> timedelta:
        """`dequeue_timeout`, but that zero is not a loop without a pause."""
        return self.dequeue_timeout or SHORTEST_POLL

    @property
    def sweep_interval(self) -> timedelta:
        """How often stale leases are looked for: well inside the promise of lease + 5 s."""
        return min(timedelta(seconds=5), self.heartbeat_timeout / 3)
