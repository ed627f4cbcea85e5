"""The shape of every command: the shared options, and failures as one line and an exit code."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from holdfast.cli.connect import Given, resolve
from holdfast.cli.help import Command, Group
from holdfast.cli.output import clean
from holdfast.errors import (
    ConnectionFailed,
    HoldfastError,
    InvalidInput,
    ScheduleNotFound,
    SchemaError,
)
from holdfast.redact import redact
from holdfast.stores.postgres.drivers.dsn import shows_password

Function = TypeVar("Function", bound=Callable[..., Any])

FAILED, MISUSED, UNREACHABLE, UNFIT, BROKEN, INTERRUPTED, NO_READER = 1, 2, 3, 4, 70, 130, 141
"""Exit codes: the first that fits, as `holdfast --help` lists them."""

_PANEL = "Connection"
_GIVEN = "holdfast.given"
_WARNED = "holdfast.warned"

_SHARED: dict[str, Any] = {
    "dsn": Annotated[
        str | None,
        typer.Option(
            help="PostgreSQL to work on, as postgresql://user@host/database or embedded:DIR. "
            "Else HOLDFAST_DSN, DATABASE_URL or the PG* variables. Keep a password out of it: "
            "others see it in the list of processes.",
            rich_help_panel=_PANEL,
        ),
    ],
    "embedded": Annotated[
        str | None,
        typer.Option(
            metavar="[DIR]",
            help="Use a PostgreSQL of its own, kept in DIR (.holdfast unless given; "
            "a DIR without / is written --embedded=DIR).",
            rich_help_panel=_PANEL,
        ),
    ],
    "prefix": Annotated[
        str | None,
        typer.Option(
            help="Prefix of the tables, else HOLDFAST_PREFIX, else holdfast.",
            rich_help_panel=_PANEL,
        ),
    ],
    "schema": Annotated[
        str | None,
        typer.Option(
            help="Schema of the tables, else HOLDFAST_SCHEMA, else the search path's.",
            rich_help_panel=_PANEL,
        ),
    ],
    "driver": Annotated[
        str | None,
        typer.Option(help="Client library: asyncpg or psycopg.", rich_help_panel=_PANEL),
    ],
    "debug": Annotated[
        bool, typer.Option("--debug", help="Show tracebacks.", rich_help_panel=_PANEL)
    ],
}


def example(*lines: str) -> str:
    """An epilog for `--help`: commands to copy."""
    return "\n\n".join(["Example:", *(f"$ {line}" for line in lines)])


class App(typer.Typer):
    """Adds the shared options to each of its commands and reports what goes wrong in them."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"cls": Group, **kwargs})

    def command(self, *args: Any, **kwargs: Any) -> Callable[[Function], Function]:
        register = super().command(*args, **{"cls": Command, **kwargs})

        def add(function: Function) -> Function:
            register(shared(function))
            return function

        return add

    def callback(self, *args: Any, **kwargs: Any) -> Callable[[Function], Function]:
        register = super().callback(*args, **kwargs)

        def add(function: Function) -> Function:
            register(shared(function))
            return function

        return add


def shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the shared options added to its own, which land in `ctx.obj`."""
    hints = get_type_hints(function, include_extras=True)
    parameters = {
        name: parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in inspect.signature(function).parameters.items()
    }
    takes = next((name for name, hint in hints.items() if hint is typer.Context), None)

    @functools.wraps(function)
    def call(**arguments: Any) -> Any:
        context: typer.Context = arguments[takes or "ctx"]
        given = Given(**{name: arguments.pop(name) for name in _SHARED})
        given = given.over(context.meta.get(_GIVEN, Given()))
        context.meta[_GIVEN] = given
        if takes is None:
            del arguments["ctx"]
        with reported(debug=given.debug):
            context.obj = resolve(given)
            _warn_of_password(context, given)
            return function(**arguments)

    added = {} if takes else {"ctx": _keyword("ctx", typer.Context, inspect.Parameter.empty)}
    for name, hint in _SHARED.items():
        added[name] = _keyword(name, hint, False if name == "debug" else None)
    everything = {**parameters, **added}
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in everything.values()]
    )
    call.__annotations__ = {name: p.annotation for name, p in everything.items()}
    return call


def _warn_of_password(context: typer.Context, given: Given) -> None:
    # Once, though a group and its command both come here.
    if given.dsn and shows_password(given.dsn) and not context.meta.get(_WARNED):
        context.meta[_WARNED] = True
        say(
            "the password in --dsn is seen by all who can list processes; "
            "put it into HOLDFAST_DSN, PGPASSWORD or ~/.pgpass"
        )


def _keyword(name: str, hint: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=hint, default=default)


@contextmanager
def reported(*, debug: bool) -> Iterator[None]:
    """Turn what a command raises into one line on stderr and an exit code."""
    try:
        yield
        sys.stdout.flush()
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # The reader (head, less) has seen enough; the interpreter's last flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(NO_READER) from None
    except Exception as error:
        # Typer's own usage errors are shown by main().
        if hasattr(error, "format_message"):
            raise
        if debug:
            typer.echo(clean(redact(traceback.format_exc()), keep_lines=True), err=True, nl=False)
        say(_words(error))
        raise typer.Exit(_exit_code(error)) from None


def say(line: str) -> None:
    """One line on stderr, in the command's name."""
    typer.echo(f"holdfast: {clean(redact(' | '.join(line.splitlines())))}", err=True)


def _words(error: Exception) -> str:
    if isinstance(error, HoldfastError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}; add --debug to see where it came from"


def _exit_code(error: Exception) -> int:
    match error:
        # Not found is the same code whatever was looked for.
        case ScheduleNotFound():
            return FAILED
        case InvalidInput():
            return MISUSED
        case ConnectionFailed():
            return UNREACHABLE
        case SchemaError():
            return UNFIT
        case HoldfastError():
            return FAILED
        case _:
            return BROKEN
