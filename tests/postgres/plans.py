"""Plans as the server makes them for the engine's statements, and a backlog to make them on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

import psycopg
from psycopg import sql

from holdfast.settings import Names
from holdfast.stores.postgres import migrate, render
from holdfast.stores.postgres.rows import integers
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Database

BATCH = 500
EPOCH = datetime(1, 1, 1, tzinfo=UTC)
END = datetime(9999, 1, 1, tzinfo=UTC)
TOKENS = [UUID(int=n) for n in range(1, BATCH + 1)]
IDS = list(range(1, BATCH + 1))
NOTHING: list[None] = [None] * BATCH

FILL = """
insert into holdfast (entrypoint, priority, execute_after, payload, dedupe_key)
select case when n % 10 = 0 then 'report' else 'mail' end, n % 3,
       case when n % 7 = 0 then now() + interval '1 h'
            else now() - interval '1 day' + make_interval(secs => n / 10.0) end,
       '\\x00', case when n % 5 = 0 then 'key ' || n end
from generate_series({first}, {last}) n
"""
FILL_LOG = """
insert into holdfast_log (job_id, status, entrypoint, priority, attempt, recoveries, created)
select n, 'successful', 'mail', 0, 0, 0, now() - make_interval(secs => {rows} - n)
from generate_series(1, {rows}) n
"""
PICK = """
with taken as (
    update holdfast set status = 'picked', claim_token = '00000000-0000-0000-0000-000000000001',
        claimed_by = 'w', claimed_at = now(), heartbeat = now(), lease = interval '30 s'
    where id <= 1000 returning id
)
insert into holdfast_leases
select '00000000-0000-0000-0000-000000000001', 'w', null, now(), interval '30 s', array_agg(id)
from taken
"""

RECOVER = "update holdfast set recoveries = {deaths} where id <= {last}"
"""As after the death of a worker that had leased the first jobs."""

VALUES: dict[str, Any] = {
    "now": None,
    "relaxed": True,
    "limited": None,
    "token": UUID(int=1),
    "tokens": TOKENS,
    "worker": "w",
    "holder": UUID(int=2),
    "grace": timedelta(seconds=0.05),
    "priority": 1,
    "entrypoints": ["mail", "report"],
    "floors": [EPOCH, EPOCH],
    "floor_ids": [0, 0],
    "ceilings": [END, END],
    "priorities": [0, 1],
    "slice_floors": [EPOCH, EPOCH],
    "slice_ceilings": [END, END],
    "slice_ceiling_ids": [2**63 - 1, 2**63 - 1],
    "gap_entrypoints": ["mail", "mail"],
    "gap_tops": [2**31, 0],
    "gap_bottoms": [0, -(2**31) - 1],
    "shares": [50, 50],
    "most": 10,
    "leases": [timedelta(seconds=30)] * 2,
    "shortest": timedelta(seconds=30),
    "ids": IDS,
    "held_ids": integers(IDS),
    "owners": integers(range(1, len(TOKENS) + 1)),
    "id": 7,
    "job_id": 7,
    "reasons": NOTHING,
    "tracebacks": NOTHING,
    "fingerprints": NOTHING,
    "delays": NOTHING,
    "errors": NOTHING,
    "max_attempts": [25, 25],
    "max_recoveries": [3, 3],
    "channel": "ch",
    "actor": None,
    "reason": None,
    "payload": b"mended",
    "limit": 100,
    "span": 1000,
    "caps": [3, 3],
    "default_cap": 3,
    "asked": None,
    "after": 0,
    "contact": timedelta(minutes=1),
    "lived": timedelta(hours=1),
    "entrypoint": "mail",
    "error": None,
    "since": None,
    "older_than": None,
    "place_of": "mail",
    "heavy": True,
    "places": 3,
    "door": 1,
}
"""What a busy worker passes; a statement takes from it what it needs."""

SPECIAL: dict[str, dict[str, Any]] = {
    "requeue": {"max_attempts": None},
    "recover": {"worker": None},
    "list_held": {"entrypoint": None},
    "page_failures": {"statuses": ["exception", "queued"], "since": timedelta(days=1)},
}


def arguments(statement: render.Statement, **values: object) -> list[object]:
    return statement.args({**VALUES, **SPECIAL.get(statement.name, {}), **values})


@dataclass(frozen=True)
class Node:
    """A step of a plan, under the steps that use it."""

    fields: dict[str, Any]
    above: tuple[str, ...]

    @property
    def kind(self) -> str:
        return str(self.fields["Node Type"])

    @property
    def table(self) -> str | None:
        return self.fields.get("Relation Name")

    @property
    def index(self) -> str | None:
        return self.fields.get("Index Name")

    @property
    def is_sorted(self) -> bool:
        """What it finds is sorted, all of it: no limit cuts it short before."""
        for step in reversed(self.above):
            if step == "Limit":
                return False
            if "Sort" in step:
                return True
        return False

    @property
    def condition(self) -> str:
        return str(self.fields.get("Index Cond", ""))


def nodes(plan: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[Node]:
    yield Node(plan, above)
    for child in plan.get("Plans", []):
        yield from nodes(child, (*above, str(plan["Node Type"])))


class Planner:
    """A session that explains statements, as generic plans or as plans for the values given."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.ClientCursor)
        self.statements = render.Statements(tables.NAMES)

    def explain(self, name: str, mode: str, options: str = "", **values: object) -> dict[str, Any]:
        statement = self.statements[name]
        self.run(f"set plan_cache_mode = force_{mode}_plan")
        self.run(f"prepare explained as {statement.text}")
        try:
            listed = sql.SQL(", ").join(map(sql.Literal, arguments(statement, **values)))
            call = sql.SQL("explained({})" if statement.parameters else "explained").format(listed)
            query = sql.SQL(f"explain ({options} format json) execute ") + call
            [[[found]]] = self.connection.execute(query).fetchall()
        finally:
            self.run("deallocate explained")
        return dict(found["Plan"])

    def run(self, statement: str) -> None:
        self.connection.execute(statement.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.connection.close()


def install(database: Database) -> None:
    """Make the tables; no statistics are taken but those asked for."""
    quiet = ";".join(
        f"alter table holdfast{suffix} set (autovacuum_enabled = off)"
        for suffix in ("", "_log", "_leases")
    )
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(migrate.install_sql(Names()).encode())
        connection.execute(quiet.encode())
