"""Which database a command works on, and how it gets there. Only here is the environment read."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import typer

from holdfast import embedded
from holdfast.app import Holdfast
from holdfast.errors import InvalidInput
from holdfast.settings import Names
from holdfast.stores.postgres.drivers import dsn as dsns

T = TypeVar("T")
Driver = Literal["asyncpg", "psycopg"]

DEFAULT_DIRECTORY = embedded.DEFAULT_DIRECTORY
_DSN_VARIABLES = ("HOLDFAST_DSN", "DATABASE_URL")
_NAMING = ("dsn", "embedded", "prefix", "schema")
"""The options that say which tables are meant: an empty one never means some others."""
# The client library reads the others (PGPASSWORD, PGSSLMODE, …) itself.
_PG_VARIABLES = ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER")


@dataclass(frozen=True, slots=True)
class Options:
    """What the options of the command line and the environment amount to."""

    dsn: str | None = field(default=None, repr=False)
    embedded: str | None = None
    """The directory of `--embedded`; then `dsn` is `embedded:DIR`."""
    prefix: str = "holdfast"
    schema: str | None = None
    driver: Driver | None = None
    debug: bool = False
    source: str = ""
    """Where the DSN was found: `--dsn`, `--embedded` or the name of a variable."""
    typed: frozenset[str] = frozenset()
    """The options on the command line that say which tables are meant."""

    @property
    def target(self) -> str:
        """The DSN to connect to; InvalidInput when none was given."""
        if self.dsn is None:
            raise InvalidInput(
                "no database given; pass --dsn postgresql://user@host/database, set HOLDFAST_DSN, "
                "DATABASE_URL or PGHOST, or pass --embedded, which needs nothing but Python"
            )
        return self.dsn

    @property
    def names(self) -> Names:
        return Names(self.prefix, self.schema)

    def describe(self) -> str:
        """The database in words fit for a message: no password."""
        directory = embedded.parse(self.target)
        return f"embedded database {directory}" if directory else str(dsns.parse(self.target))


@dataclass(frozen=True, slots=True)
class Given:
    """The shared options as they were typed; None where they were not."""

    dsn: str | None = field(default=None, repr=False)
    embedded: str | None = None
    prefix: str | None = None
    schema: str | None = None
    driver: str | None = None
    debug: bool = False

    def over(self, earlier: Given) -> Given:
        """Those typed after the command's name win over those before it."""
        database = earlier if self.dsn is None and self.embedded is None else self
        return Given(
            dsn=database.dsn,
            embedded=database.embedded,
            prefix=earlier.prefix if self.prefix is None else self.prefix,
            schema=earlier.schema if self.schema is None else self.schema,
            driver=self.driver or earlier.driver,
            debug=self.debug or earlier.debug,
        )


def resolve(given: Given, environment: Mapping[str, str] = os.environ) -> Options:
    """Fill what was not typed from the environment."""
    for name in _NAMING:
        if getattr(given, name) == "":
            raise InvalidInput(
                f"--{name} is empty, perhaps a variable of the shell that is not set; "
                f"give it a value, or leave it out to use the environment's"
            )
    dsn, source = _find_dsn(given, environment)
    directory = given.embedded
    if dsn is not None and dsn.startswith(embedded.SCHEME):
        directory = dsn.removeprefix(embedded.SCHEME) or DEFAULT_DIRECTORY
    return Options(
        dsn=dsn,
        embedded=directory,
        prefix=given.prefix or environment.get("HOLDFAST_PREFIX") or "holdfast",
        schema=given.schema or environment.get("HOLDFAST_SCHEMA") or None,
        driver=_driver(given.driver),
        debug=given.debug,
        source=source,
        typed=frozenset(name for name in _NAMING if getattr(given, name) is not None),
    )


def _find_dsn(given: Given, environment: Mapping[str, str]) -> tuple[str | None, str]:
    if given.dsn and given.embedded:
        raise InvalidInput("--dsn and --embedded name two databases; pass one of them")
    if given.dsn:
        return given.dsn, "--dsn"
    if given.embedded:
        return f"{embedded.SCHEME}{given.embedded}", "--embedded"
    for variable in _DSN_VARIABLES:
        if environment.get(variable):
            return environment[variable], variable
    for variable in _PG_VARIABLES:
        if environment.get(variable):
            return _from_pg_variables(environment), variable
    return None, ""


def _from_pg_variables(environment: Mapping[str, str]) -> str:
    """Spelled out, so that messages can name the server and the database."""
    host, port, database, user = (
        quote(environment.get(name, ""), safe="") for name in _PG_VARIABLES
    )
    options = "&".join(f"{key}={value}" for key, value in (("host", host), ("port", port)) if value)
    address = f"postgresql://{f'{user}@' if user else ''}/{database}"
    return f"{address}?{options}" if options else address


def _driver(name: str | None) -> Driver | None:
    match name:
        case None | "asyncpg" | "psycopg":
            return name
        case _:
            raise InvalidInput(f"--driver must be asyncpg or psycopg, got {name!r}")


def options_of(ctx: typer.Context) -> Options:
    """The options of the command that runs."""
    return ctx.obj if isinstance(ctx.obj, Options) else resolve(Given())


def connect(options: Options) -> Holdfast:
    """A queue that is connected inside `async with`."""
    return Holdfast.connect(
        options.target, driver=options.driver, prefix=options.prefix, schema=options.schema
    )


@asynccontextmanager
async def open_holdfast(options: Options, *, verify: bool = True) -> AsyncIterator[Holdfast]:
    """A connected queue whose tables fit this version, unless `verify` is off."""
    async with connect(options) as holdfast:
        if verify:
            await holdfast.verify()
        yield holdfast


def run_async(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a command's coroutine to its end; what it raises is reported by `App.command`."""
    return asyncio.run(work())


def on_holdfast(
    options: Options, work: Callable[[Holdfast], Coroutine[Any, Any, T]], *, verify: bool = True
) -> T:
    """Run one coroutine function on an open queue."""

    async def opened() -> T:
        async with open_holdfast(options, verify=verify) as holdfast:
            return await work(holdfast)

    return run_async(opened)


def actor() -> str:
    """Who acts, for the log: `cli:USER@HOST`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under an id without a name
        user = str(os.getuid())
    return f"cli:{user}@{socket.gethostname()}"
