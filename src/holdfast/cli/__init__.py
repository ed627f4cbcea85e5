"""The command `holdfast`."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

from holdfast.cli import (
    breaker,
    cases,
    clear,
    dashboard,
    demo,
    doctor,
    enqueue,
    explain,
    operate,
    pauses,
    read,
    retention,
    run,
    schedules,
    schema,
    show,
    sql,
    stats,
    table,
    tasks,
    version,
    web,
    workers,
)
from holdfast.cli.command import MISUSED, App, say
from holdfast.cli.connect import DEFAULT_DIRECTORY
from holdfast.embedded import DATA
from holdfast.errors import InvalidInput

__all__ = ["app", "main"]

_EPILOG = "\n\n".join(
    [
        "Exit codes: 0 done, 1 refused or not found, 2 wrong usage, 3 no connection, "
        "4 tables missing or of another version, 70 a fault of Holdfast itself.",
        "Example:",
        "$ holdfast install --embedded && holdfast enqueue greet world --embedded",
    ]
)

app = App(
    name="holdfast",
    help="A PostgreSQL job queue that you can read like a ledger.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=version.eager, is_eager=True),
    ] = False,
) -> None:
    """A PostgreSQL job queue that you can read like a ledger."""


for module in (
    schema,
    sql,
    version,
    run,
    enqueue,
    read,
    workers,
    explain,
    doctor,
    show,
    stats,
    schedules,
    cases,
    operate,
    retention,
    pauses,
    clear,
    breaker,
    table,
    tasks,
    dashboard,
    web,
    demo,
):
    module.register(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter of some job's data must not end the command.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        words = complete_embedded(sys.argv[1:] if arguments is None else arguments)
        code = app(words, prog_name="holdfast", standalone_mode=False)
    except typer.Abort:
        code = 1
    except InvalidInput as error:
        say(str(error))
        code = MISUSED
    except Exception as error:
        code = _misused(error)
    sys.exit(code if isinstance(code, int) else 0)


def _misused(error: Exception) -> int:
    """Typer's usage errors, whose classes differ between its versions, as one line."""
    describe = getattr(error, "format_message", None)
    if describe is None:
        raise error
    # Without a message the help was wanted, and has been printed.
    if message := describe().strip():
        context = getattr(error, "ctx", None)
        place = context.command_path if context else "holdfast"
        say(f"{message.rstrip('.')}; see `{place} --help`")
    return int(getattr(error, "exit_code", 2))


def complete_embedded(arguments: Sequence[str]) -> list[str]:
    """Give `--embedded` its directory where the next word is not one.

    An option with an optional value would otherwise swallow the name of the command after it, so
    only a word that looks like a path counts.
    """
    words: list[str] = []
    for place, word in enumerate(arguments):
        if word == "--":
            return [*words, *arguments[place:]]
        following = next(iter(arguments[place + 1 : place + 2]), "")
        if word == "--embedded" and not _is_path(following):
            _check_doubt(following)
            word = f"--embedded={DEFAULT_DIRECTORY}"
        words.append(word)
    return words


def _is_path(word: str) -> bool:
    return not word.startswith("-") and ("/" in word or word.startswith((".", "~")))


def _check_doubt(word: str) -> None:
    """Refuse a word that is an argument to us but names a folder where a database is kept."""
    # Unlike pathlib this also answers for a payload that is too long to be a name.
    if word and os.path.isdir(os.path.join(word, DATA)) and word not in _commands():
        raise InvalidInput(
            f"{word!r} after --embedded may be a folder or an argument; write --embedded={word} "
            f"for the folder, or --embedded={DEFAULT_DIRECTORY} if it is an argument"
        )


def _commands() -> Collection[str]:
    commands: Collection[str] = getattr(typer.main.get_command(app), "commands", ())
    return commands
