"""A queue whose users have the roles of `holdfast sql grants` and nothing else."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.sql import SQL, Identifier

from holdfast.settings import Names
from holdfast.stores.postgres.grants import DatabaseRole, RoleNames, grants_sql
from tests import servers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Database


@dataclass(frozen=True, slots=True)
class Roles:
    """Where each role connects to: as a user who is a member of that role alone."""

    database: Database
    names: RoleNames

    def dsn(self, role: DatabaseRole, *, search_path: bool = True) -> str:
        dsn = self.database.dsn if search_path else self.database.server_dsn
        return dsn.replace("postgres@", f"{_login(self.names, role)}@", 1)

    @contextmanager
    def connection(self, role: DatabaseRole) -> Iterator[psycopg.Connection[Any]]:
        # Tests prepare statements themselves.
        dsn = self.dsn(role)
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
            yield connection

    @contextmanager
    def owner(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.database.dsn, autocommit=True) as connection:
            yield connection


def _login(names: RoleNames, role: DatabaseRole) -> str:
    return f"{names.all()[role]}_user"


@contextmanager
def granted(
    database: Database, names: Names | None = None, *, installed: bool = False
) -> Iterator[Roles]:
    """Tables of the owner's, and a user for each role. Roles belong to the whole server."""
    if not installed:
        servers.prepare(database.dsn)
    roles = RoleNames(**{role: f"{database.schema}_{role}" for role in DatabaseRole})
    with psycopg.connect(database.dsn, autocommit=True) as owner:
        owner.execute(grants_sql(names or Names(), roles).encode())
        for role, name in roles.all().items():
            login = SQL("create role {} login in role {}")
            owner.execute(login.format(Identifier(_login(roles, role)), Identifier(name)))
    try:
        yield Roles(database, roles)
    finally:
        drop(database, *[_login(roles, role) for role in DatabaseRole], *roles.all().values())


def granted_again(database: Database) -> Roles:
    """The same with users that stay for the next test: to make and drop them takes longer.

    Their privileges go with the schema.
    """
    servers.prepare(database.dsn)
    name = database.server_dsn.rpartition("/")[2]
    roles = RoleNames(**{role: f"{name}_{role}" for role in DatabaseRole})
    users = [
        f"if to_regrole('{_login(roles, role)}') is null then"
        f" create role {_login(roles, role)} login in role {group}; end if;"
        for role, group in roles.all().items()
    ]
    users_sql = f"do $$ begin {' '.join(users)} end $$"
    database.script(grants_sql(Names(), roles) + users_sql)
    return Roles(database, roles)


def drop(database: Database, *names: str) -> None:
    with psycopg.connect(database.server_dsn, autocommit=True) as owner:
        for name in map(Identifier, names):
            owner.execute(SQL("drop owned by {} cascade").format(name))
            owner.execute(SQL("drop role {}").format(name))
