"""Each role may run its own statements and no others, and has no privilege beyond them.

EXPLAIN checks every privilege that the statement would need, and runs nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from holdfast.settings import Names
from holdfast.stores.postgres.binding import Binding
from holdfast.stores.postgres.grants import GRANTS, DatabaseRole, Grant, grants_sql
from holdfast.stores.postgres.render import READING, statements
from tests.security.roles import drop

if TYPE_CHECKING:
    from typing import Any

    from tests.security.roles import Roles

ALL = frozenset(statements(Names()).names())
CARRYING = frozenset(READING)
LOOKING = frozenset(
    name for name in ALL if statements(Names())[name].role is DatabaseRole.READER
) | {
    "statuses",
    "uncounted",
    "upkeep_look",
}
ENQUEUING = frozenset(name for name in ALL if name.startswith("enqueue")) | {"wake"}
READS_ONE_LEASE = frozenset(
    {
        "claimed_under",
        "leased_to",
        "running",
        "lanes",
        "lanes:fleet",
        "lanes:recovered",
        "recovered_waiting",
    }
) | {"schedule_due", "limit_holder"}

OPEN = frozenset(
    {
        "doctor_server",
        "doctor_tables",
        "doctor_roles",
        "doctor_lacking",
        "now",
        "dead_rows",
        "free_connections",
        "sees_payloads",
        "sees_results",
        "page_open",
        "page_system",
        "page_server",
        "wake_recovered",
    }
)
"""They read no table of Holdfast's, or only its version."""

WAITING = {"results", "progress", "list_progress"}

MAY: dict[DatabaseRole, frozenset[str]] = {
    DatabaseRole.PRODUCER: ENQUEUING | OPEN | WAITING | {"statuses", "requeue_preview"},
    # To settle is to delete a row and log it: SQL cannot tell that from a cancellation, but the
    # log can, for a worker may not write an actor.
    DatabaseRole.WORKER: ALL
    - {"requeue", "edit", "cancel", "delete", "schedule_pause", "schedule_remove", "prune"}
    - {"raise_priority", "clear_log", "clear_statistics", "delete_expired", "retention_write"}
    - {"log", "history", "move", "pause", "resume", "acts", "record_act"},
    DatabaseRole.OPERATOR: ENQUEUING
    | OPEN
    | LOOKING
    | READS_ONE_LEASE
    | WAITING
    | {"lock", "locked", "payloads"}
    | {"requeue", "edit", "move", "cancel", "delete", "schedule_pause", "schedule_remove"}
    | {"breaker_register", "breaker_write", "raise_priority", "pause", "resume"}
    | {"record_act"},
    DatabaseRole.PRUNER: OPEN
    | {"prune", "uncounted"}
    | {"clear_log", "clear_statistics", "aggregate", "statistics", "timings", "uncounted_since"}
    | {"delete_expired", "retention_read", "retention_write"},
    DatabaseRole.READER: LOOKING - CARRYING | READS_ONE_LEASE | OPEN | {"wake"},
}

MAY[DatabaseRole.PRODUCER] |= {"page_reach", "page_newer", "page_key"}
MAY[DatabaseRole.WORKER] -= {"page_log", "page_held", "page_failures", "page_samples"}
MAY[DatabaseRole.PRUNER] |= {
    "doctor_log",
    "page_waits",
    "page_rates",
    "page_rates_of",
    "page_log_minutes",
    "page_newer",
    "page_reach",
}
"""Pages are made of small statements, some of which ask for no more than a role has anyway."""


def _refused(connection: psycopg.Connection[Any], name: str) -> bool:
    """Whether the server would refuse this statement to the user of the connection."""
    statement = statements(Names())[name]
    prepared = f'"{name}"'
    arguments = ", ".join(["null"] * len(statement.parameters))
    try:
        connection.execute(f"prepare {prepared} as {statement.text}".encode())
        connection.execute(
            f"explain execute {prepared} {f'({arguments})' if arguments else ''}".encode()
        )
    except psycopg.errors.InsufficientPrivilege:
        return True
    finally:
        connection.execute(b"deallocate all")
    return False


@pytest.mark.parametrize("role", DatabaseRole)
def test_a_role_may_run_exactly_its_statements(shared_roles: Roles, role: DatabaseRole) -> None:
    with shared_roles.connection(role) as connection:
        assert {name for name in ALL if not _refused(connection, name)} == MAY[role]


def _atoms(role: DatabaseRole) -> list[Grant]:
    """Every privilege of a role, column by column."""
    return [
        Grant(grant.privilege, grant.relation, (column,) if column else ())
        for grant in GRANTS[role]
        for column in (grant.columns or ("",))
    ]


@pytest.mark.parametrize("role", DatabaseRole)
def test_a_role_has_no_privilege_that_its_statements_do_not_need(
    roles18: Roles, role: DatabaseRole
) -> None:
    relations, name = Binding(Names()).relations, f'"{roles18.names.all()[role]}"'
    idle = []
    with roles18.owner() as owner, roles18.connection(role) as connection:
        for grant in _atoms(role):
            columns = f" ({', '.join(grant.columns)})" if grant.columns else ""
            what = f"{grant.privilege}{columns} on {relations[grant.relation]}"
            owner.execute(f"revoke {what} from {name}".encode())
            # A generic plan reads the upkeep; one that was made for no holder leaves it out.
            if grant.relation not in ("migrations", "upkeep") and not any(
                _refused(connection, statement) for statement in MAY[role]
            ):
                idle.append(what)
            owner.execute(f"grant {what} to {name}".encode())
    assert idle == []


def test_only_the_pruner_can_change_the_log(shared_roles: Roles) -> None:
    for role in DatabaseRole:
        with shared_roles.connection(role) as connection:
            for statement in ("update holdfast_log set reason = 'x'", "truncate holdfast_log"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement.encode())
            if role is not DatabaseRole.PRUNER:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(b"delete from holdfast_log")


LOGGED = (
    "insert into holdfast_log (job_id, status, entrypoint, priority, attempt, recoveries,"
    " claimed_by, claimed_at, reason) values (1, '{status}', 'x', 0, 0, 0, 'w', now(), 'x')"
)


def test_what_the_pruner_deletes_before_it_is_counted_stays_in_the_statistics(
    roles18: Roles,
) -> None:
    with roles18.owner() as owner:
        owner.execute(LOGGED.format(status="successful").encode())
    with roles18.connection(DatabaseRole.PRUNER) as connection:
        assert connection.execute(b"delete from holdfast_log").rowcount == 1
    with roles18.owner() as owner:
        found = owner.execute(b"select entrypoint, count from holdfast_statistics").fetchall()
    assert found == [("x", 1)]


@pytest.mark.parametrize("status", ["successful", "exception"])
def test_an_operator_cannot_log_what_only_a_worker_can_know(roles18: Roles, status: str) -> None:
    statement = LOGGED.format(status=status).encode()
    with roles18.connection(DatabaseRole.OPERATOR) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            connection.execute(statement)
        connection.execute(LOGGED.format(status="canceled").encode())
    with roles18.connection(DatabaseRole.WORKER) as connection:
        connection.execute(statement)
    with roles18.owner() as owner:
        owner.execute(statement)


def test_a_user_who_is_worker_and_operator_may_log_both(roles18: Roles) -> None:
    names = roles18.names
    with roles18.owner() as owner:
        owner.execute(f'grant "{names.worker}" to "{names.operator}_user"'.encode())
    with roles18.connection(DatabaseRole.OPERATOR) as connection:
        connection.execute(LOGGED.format(status="successful").encode())


def test_a_second_worker_role_leaves_the_first_one_its_rows(roles18: Roles) -> None:
    others = replace(roles18.names, worker=f"{roles18.names.worker}_two")
    try:
        with roles18.owner() as owner:
            owner.execute(grants_sql(Names(), others).encode())
        with roles18.connection(DatabaseRole.WORKER) as connection:
            connection.execute(LOGGED.format(status="successful").encode())
    finally:
        drop(roles18.database, others.worker)


def test_policies_cost_a_worker_and_a_reader_no_filter(roles18: Roles) -> None:
    for role, statement in ((DatabaseRole.WORKER, "statuses"), (DatabaseRole.READER, "history")):
        text = statements(Names())[statement].text
        with roles18.owner() as owner, roles18.connection(role) as connection:
            asked = f"explain (generic_plan, costs off) {text}".encode()
            plans = [session.execute(asked).fetchall() for session in (owner, connection)]
        assert plans[0] == plans[1]


@pytest.mark.parametrize(
    "statement",
    [
        "insert into holdfast_log (job_id, status, entrypoint, priority, attempt, recoveries,"
        " actor) values (1, 'canceled', 'x', 0, 0, 0, 'another role')",
        "update holdfast set payload = 'x'",
        "update holdfast_schedules set paused = true",
        "select traceback from holdfast_log",
        "insert into holdfast_migrations values (99, 'x')",
        "create table mine ()",
        "alter table holdfast add column x int",
        "drop table holdfast",
    ],
)
def test_a_worker_cannot_overstep(shared_roles: Roles, statement: str) -> None:
    with (
        shared_roles.connection(DatabaseRole.WORKER) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())


@pytest.mark.parametrize(
    "statement",
    [
        "select payload from holdfast",
        "select headers from holdfast",
        "select reason from holdfast_log",
        "insert into holdfast (entrypoint, status) values ('x', 'failed')",
        "update holdfast set priority = 9",
        "delete from holdfast",
    ],
)
def test_a_producer_sees_no_payload_and_changes_no_job(shared_roles: Roles, statement: str) -> None:
    with (
        shared_roles.connection(DatabaseRole.PRODUCER) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())
