"""`holdfast sql grants`: what it prints applies, again and again, whatever the names are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from holdfast.errors import InvalidInput
from holdfast.settings import Names
from holdfast.stores.postgres.grants import DatabaseRole, RoleNames, grants_sql
from holdfast.stores.postgres.migrate import install_sql
from tests.cli.command_line import holdfast, inside
from tests.security.roles import drop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.security.roles import Roles
    from tests.servers import Database

HOSTILE = (
    'a"b',
    "a'b",
    "a\\'b; drop table holdfast; --",
    "%I %s %",
    "$grants$",
    "$grants1$ $$",
    "Ünïcode Ω",
    "with space\n",
    "x" * 63,
)

ACL = """
    select c.relname, a.attname, g.grantee::regrole::text, g.privilege_type
    from pg_class c
    left join pg_attribute a on a.attrelid = c.oid and a.attacl is not null
    cross join lateral aclexplode(coalesce(a.attacl, c.relacl)) g
    where c.relnamespace = %s::regnamespace and g.grantee <> c.relowner
    order by 1, 2, 3, 4
"""


def _acl(database: Database) -> list[tuple[str, ...]]:
    with psycopg.connect(database.dsn, autocommit=True) as owner:
        return owner.execute(ACL, [database.schema]).fetchall()


def _options(roles: Roles) -> list[str]:
    return [f"--{role}={name}" for role, name in roles.names.all().items()]


def test_applying_it_twice_changes_nothing(roles: Roles) -> None:
    before = _acl(roles.database)
    assert before
    script = inside("sql", "grants", *_options(roles)).out
    with roles.owner() as owner:
        owner.execute(script.encode())
    assert _acl(roles.database) == before


def test_what_was_given_by_hand_is_taken_away(roles18: Roles) -> None:
    before = _acl(roles18.database)
    with roles18.owner() as owner:
        reader = Identifier(roles18.names.reader)
        owner.execute(SQL("grant all on holdfast, holdfast_log to {}").format(reader))
        owner.execute(SQL("grant update (payload) on holdfast to {}").format(reader))
    assert _acl(roles18.database) != before
    done = holdfast("sql", "grants", "--apply", *_options(roles18), dsn=roles18.database.dsn)
    assert done.code == 0, done
    assert roles18.names.reader in done.out
    assert _acl(roles18.database) == before


def test_only_the_owner_can_apply_it(roles18: Roles) -> None:
    for role in DatabaseRole:
        dsn = roles18.dsn(role)
        inside("sql", "grants", "--apply", *_options(roles18), "--dsn", dsn).complains(
            1, "permission denied", "owner of the tables"
        )
        for verb in ("install", "verify"):
            assert inside(verb, "--dsn", dsn).code == 0
        inside("uninstall", "--yes", "--dsn", dsn).complains(1, "must be owner")


@pytest.fixture
def bare(pg18: Database) -> Database:
    """Installed tables under other names, without any role."""
    with psycopg.connect(pg18.server_dsn, autocommit=True) as owner:
        owner.execute(install_sql(Names("jobs", pg18.schema)).encode())
    return pg18


@pytest.mark.parametrize("name", HOSTILE)
def test_a_role_may_have_any_name_that_postgresql_takes(bare: Database, name: str) -> None:
    worker = f"{name.encode()[: 60 - len(bare.schema)].decode(errors='ignore')}{bare.schema}"
    names = Names("jobs", bare.schema)
    others: dict[DatabaseRole, str | None] = {
        role: f"{bare.schema}_{role}" for role in DatabaseRole if role is not DatabaseRole.WORKER
    }
    roles = RoleNames.of(names, {**others, DatabaseRole.WORKER: worker})
    script = grants_sql(names, roles)
    try:
        with psycopg.connect(bare.server_dsn, autocommit=True) as owner:
            owner.execute(script.encode())
            found = owner.execute(
                "select has_table_privilege(%s, %s, 'delete'), rolcanlogin"
                " from pg_roles where rolname = %s",
                [worker, names.table(), worker],
            ).fetchone()
        assert found == (True, False)
    finally:
        drop(bare, *roles.all().values())


@pytest.mark.parametrize(
    "name", ["x" * 64, "ü" * 32, "a\0b", "\ud800", "public", "PUBLIC", "pg_monitor", "current_user"]
)
def test_a_name_that_would_be_another_role_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="worker"):
        RoleNames.of(Names(), {DatabaseRole.WORKER: name})


def test_the_names_follow_the_prefix_and_one_role_may_be_all() -> None:
    assert RoleNames.of(Names("jobs"), {}).worker == "jobs_worker"
    every = {role: "app" for role in DatabaseRole}
    script = grants_sql(Names(), RoleNames.of(Names(), every))
    assert '"holdfast_worker"' not in script
    assert 'from "app";' in script


def test_options_of_the_grants_are_refused_elsewhere() -> None:
    inside("sql", "claim", "--worker", "w").complains(2, "only grants")
    inside("sql", "install", "--apply").complains(2, "only grants")
    inside("sql", "grants", "--only-tables").complains(2, "--table")
    inside("sql", "grants", "--table", 'a"; drop table b').complains(2, "must be a table")
    inside("sql", "grants", "--worker", "pg_x").complains(2, "pg_")


def test_an_install_for_tables_alone_needs_none_of_ours(pg18: Database) -> None:
    names = RoleNames(**{role: f"{pg18.schema}_{role}" for role in DatabaseRole})
    options = [f"--{role}={name}" for role, name in names.all().items()]
    with psycopg.connect(pg18.dsn, autocommit=True) as owner:
        owner.execute("create table email_snoozes (id bigint)")
    try:
        arguments = ("sql", "grants", "--table", "email_snoozes", "--only-tables", "--apply")
        assert inside(*arguments, *options, "--dsn", pg18.dsn).code == 0
        given = {(grantee, privilege) for _, _, grantee, privilege in _acl(pg18)}
        assert given == {
            (names.worker, "SELECT"),
            (names.worker, "UPDATE"),
            (names.operator, "SELECT"),
            (names.reader, "SELECT"),
        }
    finally:
        drop(pg18, *names.all().values())


@pytest.fixture
def owner(pg18: Database) -> Iterator[str]:
    """A user who may install tables, and then owns them."""
    name = f"{pg18.schema}_owner"
    with psycopg.connect(pg18.server_dsn, autocommit=True) as superuser:
        superuser.execute(SQL("create role {} login").format(Identifier(name)))
        change = SQL("alter schema {} owner to {}")
        superuser.execute(change.format(Identifier(pg18.schema), Identifier(name)))
    yield name
    drop(pg18, name)


@pytest.mark.parametrize("part", DatabaseRole)
def test_an_owner_is_refused_before_it_loses_anything(
    pg18: Database, owner: str, part: DatabaseRole
) -> None:
    dsn = pg18.dsn.replace("postgres@", f"{owner}@", 1)
    assert inside("install", "--dsn", dsn).code == 0
    others = {role: f"{pg18.schema}_{role}" for role in DatabaseRole}
    options = [f"--{role}={name}" for role, name in {**others, part: owner}.items()]
    inside("sql", "grants", "--apply", *options, "--dsn", pg18.dsn).complains(
        1, f"role {owner} owns", "holdfast_worker for the worker"
    )
    assert _acl(pg18) == []
    assert inside("prune", "--older-than", "0s", "--yes", "--dsn", dsn).code == 0
    with psycopg.connect(dsn) as connection:
        connection.execute("truncate holdfast")
