"""Roles with least privilege: the privileges of each role on each table, as GRANT statements.

Privileges end at columns. A producer cannot read a payload, a worker cannot write who cancelled a
job, an operator cannot forge a claim, and only the pruner can take a row out of the log.
Privileges cannot restrict the values that an operator writes into the log, so a policy of the log
does.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING

from holdfast.errors import InvalidInput
from holdfast.lifecycle import TRANSITIONS, Status, Verb
from holdfast.stores.postgres.binding import (
    BREAKER_COLUMNS,
    HIDDEN_COLUMNS,
    JOB_COLUMNS,
    LEASE_COLUMNS,
    NEW_COLUMNS,
    Binding,
)
from holdfast.stores.postgres.catalogue import DatabaseRole as DatabaseRole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.settings import Names
    from holdfast.table import TableQueue

_LONGEST_NAME = 63
_RESERVED = ("public", "none", "current_role", "current_user", "session_user")


@dataclass(frozen=True, slots=True)
class Grant:
    """A privilege on a table as the templates call it; no columns means all of them."""

    privilege: str
    relation: str
    columns: tuple[str, ...] = ()

    def sql(self, relations: Mapping[str, str], role: str) -> str:
        columns = f" ({', '.join(self.columns)})" if self.columns else ""
        return f"grant {self.privilege}{columns} on {relations[self.relation]} to {role};"


def _grants(privilege: str, **columns: tuple[str, ...]) -> tuple[Grant, ...]:
    return tuple(Grant(privilege, relation, names) for relation, names in columns.items())


_OPERATED = (Verb.REQUEUE, Verb.EDIT, Verb.MOVE, Verb.CANCEL, Verb.DELETE)
"""The acts of an operator on jobs."""

_ALL: tuple[str, ...] = ()
_COUNTERS = ("status", "attempts", "recoveries", "execute_after", "held_at", "updated")
_LOGGED = (
    *("job_id", "status", "entrypoint", "priority", "attempt", "recoveries"),
    *("claimed_by", "claimed_at", "reason", "created", "enqueued_at", "due_at", "lease"),
)
# A row that was restored has an xmin of another transaction than the one it names.
_COUNTED = (
    *("job_id", "id", "status", "entrypoint", "priority", "claimed_at", "created", "due_at", "tx"),
    "xmin",
)
_BREAKER = (*BREAKER_COLUMNS[1:], "revision")
_REGISTERED = ("name", "expression", "timezone", "misfire", "overlap", "next_run", "created")
_BEATEN = (
    *("entrypoints", "concurrency", "running", "state", "heartbeat"),
    *("full_entrypoints", "breaker_names"),
)

_VERSION = _grants("select", migrations=("version", "name", "compatible"))
# Producers may wait for results. Readers see nothing that others may not see.
_RESULTS = _grants("select", results=_ALL, progress=_ALL)
_ENQUEUE = (
    *_grants("insert", table=NEW_COLUMNS, enqueues=_ALL),
    *_grants("select", enqueues=_ALL),
)
# Counting reads the log and moves the mark; the statistics are all it writes.
_COUNT = (
    *_grants("select", log=_COUNTED, counted=_ALL, statistics=_ALL, upkeep=_ALL),
    *_grants("insert", statistics=_ALL),
    *_grants("update", counted=("tx",), statistics=("count", "busy", "waited", "ran")),
)
_LOOK = _grants(
    "select",
    **dict.fromkeys(
        ("leases", "log", "counted", "statistics", "schedules", "workers", "breakers", "retention"),
        _ALL,
    ),
    pauses=_ALL,
    acts=_ALL,
    limits=_ALL,
)
_BREAK = (
    *_grants("insert", breakers=("name", "updated")),
    *_grants("update", breakers=_BREAKER),
)

GRANTS: Mapping[DatabaseRole, tuple[Grant, ...]] = {
    DatabaseRole.PRODUCER: (
        *_VERSION,
        *_ENQUEUE,
        *_RESULTS,
        *_grants(
            "select",
            table=("id", "dedupe_key", "execute_after", "held_at", "status"),
            log=("id", "job_id", "status"),
            # These columns decide which worker is woken.
            workers=("id", "entrypoints", "concurrency", "running"),
        ),
    ),
    DatabaseRole.WORKER: (
        *_VERSION,
        *_ENQUEUE,
        *_COUNT,
        *_BREAK,
        *_grants("select", table=_ALL, leases=_ALL, workers=_ALL, limits=_ALL),
        *_grants("select", schedules=_ALL, breakers=_ALL, retention=_ALL, pauses=_ALL),
        *_grants("insert", leases=_ALL, workers=_ALL, log=(*_LOGGED, "traceback", "fingerprint")),
        *_grants("insert", limits=_ALL),
        *_RESULTS,
        *_grants("insert", results=_ALL, progress=_ALL),
        *_grants("update", results=("value", "error", "created", "expires_at")),
        *_grants("update", progress=("fraction", "message", "updated")),
        *_grants("insert", schedules=(*_REGISTERED, "updated")),
        *_grants("update", table=(*_COUNTERS, *LEASE_COLUMNS, "last_error", "last_error_at")),
        # To lock a row means to be allowed to change one of its columns.
        *_grants("update", leases=("ids",), limits=("entrypoint",), workers=_BEATEN),
        *_grants("update", schedules=(*_REGISTERED[1:6], "last_run", "updated")),
        *_grants("delete", table=_ALL, leases=_ALL, workers=_ALL, enqueues=_ALL),
        *_grants("delete", results=_ALL, progress=_ALL),
        *_grants("insert", upkeep=_ALL),
        *_grants("update", upkeep=("worker", "token", "expires")),
        *_grants("delete", upkeep=_ALL),
    ),
    DatabaseRole.OPERATOR: (
        *_VERSION,
        *_ENQUEUE,
        *_LOOK,
        *_BREAK,
        *_RESULTS,
        *_grants("select", table=_ALL),
        *_grants("insert", log=(*_LOGGED, "actor")),
        *_grants("update", table=(*_COUNTERS, "max_attempts", "payload", "priority", "entrypoint")),
        *_grants("update", schedules=("paused", "next_run", "updated")),
        *_grants("insert", pauses=_ALL, acts=("created", "act", "subject", "actor", "reason")),
        *_grants("update", pauses=("until", "actor", "reason", "created")),
        *_grants("delete", table=_ALL, schedules=_ALL, pauses=_ALL),
    ),
    DatabaseRole.PRUNER: (
        *_VERSION,
        *_COUNT,
        *_grants("select", table=("id",), retention=_ALL),
        *_grants("update", retention=("succeeded", "others")),
        *_grants("delete", log=_ALL, statistics=_ALL),
    ),
    DatabaseRole.READER: (
        *_VERSION,
        *_LOOK,
        *_grants("select", progress=_ALL),
        # xmax says who has locked a row.
        *_grants(
            "select",
            table=(*(name for name in JOB_COLUMNS if name not in HIDDEN_COLUMNS), "xmax"),
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class RoleNames:
    """The names of the roles in the database. They may exist already, or be one role."""

    producer: str
    worker: str
    operator: str
    pruner: str
    reader: str

    def __post_init__(self) -> None:
        faults = [
            f"{role} {name!r} must be 1 to {_LONGEST_NAME} bytes, without NUL, and none of "
            f"PostgreSQL's own (pg_…, {', '.join(_RESERVED)})"
            for role, name in self.all().items()
            if not _is_role_name(name)
        ]
        if faults:
            raise InvalidInput("names of roles: " + "; ".join(faults))

    @classmethod
    def of(cls, names: Names, given: Mapping[DatabaseRole, str | None]) -> RoleNames:
        """Those given, and for the others the prefix of the tables: holdfast_worker."""
        return cls(**{role: given.get(role) or f"{names.prefix}_{role}" for role in DatabaseRole})

    def all(self) -> dict[DatabaseRole, str]:
        return {role: getattr(self, role) for role in DatabaseRole}


def _is_role_name(name: object) -> bool:
    if not isinstance(name, str) or "\0" in name:
        return False
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    # A longer name is cut by the server, and may then be another role's.
    reserved = name.lower() in _RESERVED or name.lower().startswith("pg_")
    return 1 <= size <= _LONGEST_NAME and not reserved


def grants_sql(
    names: Names,
    roles: RoleNames,
    tables: Sequence[TableQueue] = (),
    *,
    own: bool = True,
    payloads: bool = False,
) -> str:
    """A script that makes the roles and gives each exactly its privileges; safe to repeat.

    `tables` are queues on tables of the user's own; `own=False` leaves out Holdfast's tables but
    for the breakers, which such queues may use. `payloads` lets the reader see what jobs carry.
    """
    parts = [
        "begin;",
        _create(_distinct(roles, DatabaseRole)),
        *(_own_sql(names, roles, payloads) if own else [_breakers_sql(names, roles)]),
        *(line for table in tables for line in _table_sql(table, roles)),
        "commit;",
    ]
    return "\n".join(parts) + "\n"


def _own_sql(names: Names, roles: RoleNames, payloads: bool) -> list[str]:
    relations = Binding(names).relations
    tables = [name for key, name in relations.items() if key not in ("prefix", "status")]
    everyone = _list(roles, DatabaseRole)
    given = [(role, grant) for role, grants in GRANTS.items() for grant in grants]
    if payloads:
        given.append((DatabaseRole.READER, Grant("select", "table", tuple(HIDDEN_COLUMNS))))
    return [
        _spare_owner(
            tables, _distinct(roles, DatabaseRole), f"{names.prefix}_{DatabaseRole.WORKER}"
        ),
        _open(relations["table"], _distinct(roles, DatabaseRole)),
        # Privileges that an earlier version or a person granted beyond the list below are taken
        # away.
        f"revoke all on {', '.join(sorted(tables))} from {everyone};",
        f"grant usage on type {relations['status']} to {everyone};",
        *(grant.sql(relations, _quote(roles.all()[role])) for role, grant in given),
        *_log_policies(names, roles),
    ]


def _log_policies(names: Names, roles: RoleNames) -> list[str]:
    """Let an operator log only what operators do: never that a job succeeded or raised.

    The worker's policy and those for all others allow every row, so their plans do not change. The
    owner is not bound by policies. A role that plays several parts may do what any of them may.
    """
    binding = Binding(names)
    log = binding.relations["log"]
    done = sorted({row.target for row in TRANSITIONS.values() if row.verb in _OPERATED})
    words = ", ".join(binding.word(Status(target)) for target in done)
    return [
        f"alter table {log} enable row level security;",
        *_policy(log, "look", "for select using (true)"),
        *_policy(log, "prune", "for delete using (true)"),
        *_insert_policy(log, roles.worker, "true"),
        *_insert_policy(log, roles.operator, f"status in ({words})"),
    ]


def _insert_policy(log: str, role: str, condition: str) -> list[str]:
    # One for each role that was ever named: several may be workers of one queue.
    mark = sha256(f"{role} {condition}".encode()).hexdigest()[:16]
    return _policy(log, mark, f"for insert to {_quote(role)} with check ({condition})")


def _policy(log: str, mark: str, rule: str) -> list[str]:
    name = f'"holdfast_{mark}"'
    return [f"drop policy if exists {name} on {log};", f"create policy {name} on {log} {rule};"]


def _table_sql(queue: TableQueue, roles: RoleNames) -> list[str]:
    """The row is the work: the worker reads all of it, and writes what the queue's rules say."""
    table = ".".join(map(_quote, queue.path))
    lookers = (DatabaseRole.OPERATOR, DatabaseRole.READER)
    return [
        _open(table, _distinct(roles, (DatabaseRole.WORKER, *lookers))),
        f"grant select, update on {table} to {_list(roles, [DatabaseRole.WORKER])};",
        f"grant select on {table} to {_list(roles, lookers)};",
    ]


def _breakers_sql(names: Names, roles: RoleNames) -> str:
    relations, worker = Binding(names).relations, _list(roles, [DatabaseRole.WORKER])
    grants = (Grant("select", "breakers"), *_BREAK)
    return _do(
        "begin",
        f"  if to_regclass({_literal(relations['breakers'])}) is not null then",
        *(f"    {grant.sql(relations, worker)}" for grant in grants),
        "  end if;",
        "end",
    )


def _create(roles: Iterable[str]) -> str:
    return _for_each(
        roles,
        "    if not exists (select from pg_roles where rolname = grantee) then",
        "      execute format('create role %I nologin', grantee);",
        "    end if;",
    )


def _spare_owner(tables: Iterable[str], roles: Iterable[str], instead: str) -> str:
    """Refuse to take privileges from an owner, who could then neither prune nor upgrade."""
    relations = ", ".join(map(_literal, tables))
    return _for_each(
        roles,
        "    if exists (",
        f"      select from pg_class where oid = any(array[{relations}]::regclass[]::oid[])",
        "      and pg_get_userbyid(relowner) = grantee",
        "    ) then",
        "      raise exception 'role % owns tables of the queue and would lose the privileges of "
        f"an owner; give each part a role of its own, such as {instead} for the worker', grantee;",
        "    end if;",
    )


def _open(table: str, roles: Iterable[str]) -> str:
    """Grant the privileges that lead to a table. Its schema may be one of the search path."""
    return _for_each(
        roles,
        "    if not has_database_privilege(grantee, current_database(), 'connect') then",
        "      execute format('grant connect on database %I to %I', current_database(), grantee);",
        "    end if;",
        "    select nspname into strict place from pg_namespace where oid = (",
        f"      select relnamespace from pg_class where oid = {_literal(table)}::regclass);",
        "    if not has_schema_privilege(grantee, place, 'usage') then",
        "      execute format('grant usage on schema %I to %I', place, grantee);",
        "    end if;",
    )


def _for_each(roles: Iterable[str], *lines: str) -> str:
    names = ", ".join(map(_literal, roles))
    return _do(
        "declare grantee name; place name;",
        "begin",
        f"  foreach grantee in array array[{names}]::name[] loop",
        *lines,
        "  end loop;",
        "end",
    )


def _do(*lines: str) -> str:
    body = "\n".join(lines)
    # A name may contain anything, also what looks like the end of the block.
    tag = next(tag for n in count() if (tag := f"$grants{n or ''}$") not in body)
    return f"do {tag}\n{body}\n{tag};"


def _distinct(roles: RoleNames, some: Iterable[DatabaseRole]) -> list[str]:
    return list(dict.fromkeys(roles.all()[role] for role in some))


def _list(roles: RoleNames, some: Iterable[DatabaseRole]) -> str:
    return ", ".join(map(_quote, _distinct(roles, some)))


def _quote(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _literal(text: str) -> str:
    # E'' so that a backslash means itself whatever standard_conforming_strings says.
    return "E'{}'".format(text.replace("\\", "\\\\").replace("'", "''"))
