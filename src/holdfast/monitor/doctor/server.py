"""The server: durability, standby, connections, NOTIFY, clocks and old transactions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from holdfast.monitor.doctor.finding import Finding, error, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.stores.postgres.store import PostgresStore

_FEWEST_CONNECTIONS = 10
"""A worker opens up to five, and `holdfast run` replaces one while the old one still stops."""

_NOTIFY_QUEUE_SHARE = 0.5
_CLOCK_GAP = timedelta(seconds=5)
OLD_TRANSACTION = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Server:
    """What the server says of itself."""

    standby: bool
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    autovacuum: bool
    notify_usage: float
    connections_left: int
    now: datetime
    pid: int | None
    age: timedelta | None
    query: str | None


async def check_server(store: PostgresStore) -> list[Finding]:
    [row] = await store.examine("doctor_server")
    return list(judge(Server(*row), datetime.now(UTC)))


def judge(server: Server, local: datetime) -> Iterator[Finding]:
    """Judge what was read; `local` is the clock of this machine."""
    yield from _durability(server)
    if server.standby:
        yield error(
            "standby",
            "the server is a standby: nothing can be enqueued, claimed or settled",
            "point HOLDFAST_DSN at the primary, or add target_session_attrs=read-write",
        )
    if server.connections_left < _FEWEST_CONNECTIONS:
        yield warning(
            "connections",
            f"{server.connections_left} connections are left for the fleet",
            'psql -c "alter system set max_connections = 200" and restart the server',
        )
    if server.notify_usage > _NOTIFY_QUEUE_SHARE:
        yield error(
            "notify_queue",
            f"the NOTIFY queue is {server.notify_usage:.0%} full: when it is full, commits fail",
            "end the session that listens inside an old transaction (pg_stat_activity)",
        )
    if abs(local - server.now) > _CLOCK_GAP:
        gap = abs((local - server.now).total_seconds())
        yield warning(
            "clock",
            f"the clocks of this machine and of the server differ by {gap:.0f} s",
            "timedatectl set-ntp true",
        )
    if server.age is not None and server.age > OLD_TRANSACTION:
        yield warning(
            "old_transaction",
            f"the transaction of pid {server.pid} is {server.age.total_seconds() / 60:.0f} minutes "
            f"old and keeps dead rows: {server.query}",
            f'psql -c "select pg_terminate_backend({server.pid})"',
        )


def _durability(server: Server) -> Iterator[Finding]:
    for name, on in (("fsync", server.fsync), ("full_page_writes", server.full_page_writes)):
        if not on:
            yield error(
                "durability",
                f"{name} is off: a crash of the machine can lose or damage jobs",
                f'psql -c "alter system set {name} = on" -c "select pg_reload_conf()"',
            )
    if server.synchronous_commit == "off":
        yield error(
            "durability",
            "synchronous_commit is off: a crash can lose enqueues that were confirmed",
            'psql -c "alter system set synchronous_commit = on" -c "select pg_reload_conf()"',
        )
    if not server.autovacuum:
        yield warning(
            "autovacuum",
            "autovacuum is off: dead rows stay where no worker may vacuum",
            'psql -c "alter system set autovacuum = on" -c "select pg_reload_conf()"',
        )
