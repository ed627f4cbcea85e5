"""Statements use their index, whatever moment the statistics were taken at."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.lifecycle import TRANSITIONS, Verb
from holdfast.models import ClaimRule, NewJob
from holdfast.stores.postgres import render
from holdfast.stores.postgres.binding import Binding
from tests.postgres import tables
from tests.postgres.plans import FILL, FILL_LOG, PICK, RECOVER, Planner, install, nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres.plans import Node
    from tests.servers import Database

BINDING = Binding(tables.NAMES)
CLAIM, RENEW = TRANSITIONS[Verb.CLAIM], TRANSITIONS[Verb.RENEW]

ROWS = 200_000
LOAD = f"{FILL.format(first=1, last=ROWS)};{FILL_LOG.format(rows=ROWS)}"
ANALYZE = "analyze holdfast; analyze holdfast_log; analyze holdfast_leases"

PKEY, READY, HELD = "holdfast_pkey", "holdfast_ready", "holdfast_held"
RECOVERED, LOG_FAILURES = "holdfast_recovered", "holdfast_log_failures"
DEDUPE, LOG_PKEY, LOG_TIME = "holdfast_dedupe_key", "holdfast_log_pkey", "holdfast_log_time"

INDEXES: dict[str, set[str]] = {
    "claim": {READY, PKEY},
    "claim:fleet": {READY, PKEY},
    "claim:recovered": {RECOVERED, PKEY},
    "claim:suspect": {RECOVERED, PKEY},
    "lanes": {READY},
    "lanes:fleet": {READY},
    "lanes:recovered": {RECOVERED},
    "recovered_waiting": {RECOVERED},
    "oldest": {READY},
    "upkeep_look": {READY, RECOVERED},
    "renew": {PKEY},
    "payloads": {PKEY},
    **{
        name: {PKEY}
        for name in ("complete", "fail", "retry", "hold", "release", "retire:last_retry")
    },
    "recover": {PKEY},
    "running": {PKEY},
    "claimed_under": {PKEY},
    "delete_ended_claims": {PKEY},
    "list_running": {PKEY},
    "requeue": {PKEY, DEDUPE},
    "cancel": {PKEY},
    "delete": {PKEY},
    "edit": {PKEY},
    "get": {PKEY},
    "statuses": {PKEY, LOG_PKEY},
    "history": {LOG_PKEY},
    "list_held": {HELD},
    "page_held": {HELD, LOG_PKEY},
    "page_failures": {LOG_FAILURES},
    "aggregate": {LOG_TIME},
    "uncounted_since": {LOG_TIME},
}
"""Of each statement the indexes by which it may reach the queue table and the log."""

BIG = {PKEY, READY, RECOVERED, HELD, DEDUPE, LOG_PKEY, LOG_TIME, LOG_FAILURES}
ORDERED = {READY, RECOVERED, HELD}
"""Indexes read for their order, so that nothing is sorted."""
LANED = {READY, RECOVERED}
"""Indexes in which each lane is a range."""


HISTORIES = {
    "never analyzed, then late": [
        ("never", LOAD + ";" + PICK),
        ("while some were picked", ANALYZE),
    ],
    "analyzed too early": [
        ("when empty", ANALYZE + ";" + LOAD),
        ("when all were queued", ANALYZE),
        ("when nothing was picked", PICK),
    ],
    "around deaths": [
        (
            "when no worker had died",
            LOAD + ";" + ANALYZE + ";" + RECOVER.format(deaths=1, last=3000),
        ),
        ("when some had died", ANALYZE),
        ("before more died", RECOVER.format(deaths=2, last=100_000)),
    ],
    "after deaths": [
        (
            "when all jobs had been recovered",
            ";".join(
                [
                    LOAD,
                    RECOVER.format(deaths=1, last=ROWS),
                    ANALYZE,
                    RECOVER.format(deaths=0, last=ROWS - 9),
                ]
            ),
        ),
    ],
}
"""What happens to the tables, and what can be said then of the moment of their statistics."""


EXCUSED = {
    (moment, name)
    for moment in ("never", "when empty")
    for name in ("aggregate", "uncounted_since")
}
"""Of a log without statistics a BRIN index promises nothing; autovacuum soon takes some."""

FLOOR = ("entrypoint =", "priority =", "ROW(execute_after, id) >")


@pytest.mark.parametrize("history", HISTORIES)
def test_no_plan_depends_on_when_the_statistics_were_taken(pg: Database, history: str) -> None:
    install(pg)
    faults = []
    with Planner(pg.dsn) as planner:
        for moment, script in HISTORIES[history]:
            planner.run(script)
            faults += [
                f"{moment}, {mode} plan of {name}: {fault}"
                for mode in ("generic", "custom")
                for name in INDEXES
                if (moment, name) not in EXCUSED
                for fault in faults_of(name, planner.explain(name, mode))
            ]
    assert not faults, "\n".join(faults)


def faults_of(name: str, plan: dict[str, Any]) -> Iterator[str]:
    """Why the plan reads more than it needs to."""
    used = set()
    for node in nodes(plan):
        if node.kind == "Seq Scan" and node.table in ("holdfast", "holdfast_log"):
            yield f"scans all of {node.table}"
        if node.index in BIG:
            used.add(node.index)
            if not node.condition and node.index not in ORDERED:
                yield f"walks all of {node.index}"
            if node.index in ORDERED and node.is_sorted:
                yield f"sorts what {node.index} has in order"
            if name.startswith("claim") and node.index in LANED and not floored(node):
                yield "does not start at the floor of its lane"
    if not used <= INDEXES[name]:
        yield f"uses {used - INDEXES[name]}"


def floored(node: Node) -> bool:
    return all(part in node.condition for part in FLOOR)


def test_a_plan_that_reads_too_much_is_noticed(pg18: Database) -> None:
    install(pg18)
    with Planner(pg18.dsn) as planner:
        planner.run(FILL.format(first=1, last=10_000))
        rendered = planner.statements["claim"]
        slow = rendered.text.replace(
            "j.entrypoint = l.entrypoint", "j.entrypoint || '' = l.entrypoint"
        )
        planner.statements["claim"] = replace(rendered, text=slow)
        assert list(faults_of("claim", planner.explain("claim", "custom")))


def blocks(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def test_a_claim_of_a_hundred_costs_the_same_with_twenty_times_the_backlog(pg: Database) -> None:
    install(pg)
    costs = []
    with Planner(pg.dsn) as planner:
        for first, last in ((1, 10_000), (10_001, ROWS)):
            planner.run(FILL.format(first=first, last=last))
            planner.run("begin")
            plan = planner.explain("claim", "generic", "analyze, buffers,")
            planner.run("rollback")
            # What was undone must not be in the way of the second claim.
            planner.run("vacuum holdfast")
            assert plan["Actual Rows"] == 100
            costs.append(blocks(plan))
    assert costs[1] < 1.5 * costs[0], costs


@pytest.mark.parametrize(("payload", "share"), [(b"", 0.85), (b"x" * 256, 1.0)])
async def test_claims_are_heap_only_updates(pg: Database, payload: bytes, share: float) -> None:
    """No index is written, though every index of the table has the row."""
    rule = ClaimRule("mail", lease=timedelta(seconds=30))
    async with tables.installed(pg.dsn) as (connection, store):
        await connection.execute("alter table holdfast set (autovacuum_enabled = off)")
        jobs = [NewJob("mail", payload, dedupe_key=f"order-{n}") for n in range(2_000)]
        await store.jobs.insert(jobs, "raise")
        for _ in range(4):
            claimed = await store.leases.claim([rule], limit=500, worker="host:1234:abcdef")
            assert len(claimed) == 500
        await connection.execute("select pg_stat_force_next_flush()")
        updates, hot = await connection.fetchrow(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables"
            " where relid = 'holdfast'::regclass"
        )
    assert updates == 2_000
    assert hot >= share * updates


async def test_no_index_mentions_a_column_that_a_claim_or_a_renewal_changes(pg18: Database) -> None:
    changed = set(
        re.findall(r"(\w+) = ", render.sets(CLAIM, BINDING) + render.sets(RENEW, BINDING))
    )
    assert {"status", "claim_token", "heartbeat", "updated"} <= changed
    async with tables.installed(pg18.dsn) as (connection, _):
        definitions = await connection.fetch(
            "select pg_get_indexdef(indexrelid) from pg_index where indrelid = 'holdfast'::regclass"
        )
    for [definition] in definitions:
        assert changed.isdisjoint(re.findall(r"\w+", definition.partition(" USING ")[2]))
