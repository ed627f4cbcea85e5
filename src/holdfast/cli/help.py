"""The output of `--help`: names are never cut, and lines end between words, on 80 columns too."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import typer.core
from rich.text import Text

from holdfast.cli.output import console

_WIDEST = 100
_INDENT = 2
_NAMES = 28
"""Columns of the names. Longer ones have a line of their own."""

_METAVARS = {
    "integer": "N",
    "integer range": "N",
    "int": "N",
    "int range": "N",
    "float": "NUMBER",
    "float range": "NUMBER",
    "text": "TEXT",
    "str": "TEXT",
    "path": "PATH",
}
_TITLE, _NAME = "bold cyan", "bold"


class Command(typer.core.TyperCommand):
    """A command with the help of this module."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        print_help(self, ctx)


class Group(typer.core.TyperGroup):
    """The same for a group of commands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        print_help(self, ctx)


def print_help(command: Any, ctx: Any) -> None:
    """Print it. Typer's own help is printed as well, and what asks for help expects no text."""
    screen = console()
    for each in _lines(command, ctx, min(screen.width, _WIDEST)):
        screen.print(each, soft_wrap=True)


def _lines(command: Any, ctx: Any, width: int) -> Iterator[Text]:
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    yield from _wrapped(f"Usage: {usage}", width, "       ")
    for paragraph in _paragraphs(command.help):
        yield Text()
        yield from _wrapped(paragraph, width)
    for title, rows in _panels(command, ctx).items():
        yield Text()
        yield Text(f"{title}:", style=_TITLE)
        for names, words in rows:
            yield from _row(names, words, width)
    yield from _epilog(command.epilog, width)


def _paragraphs(text: str | None) -> list[str]:
    parts = inspect.cleandoc(text or "").split("\n\n")
    return [" ".join(part.split()) for part in parts if part.strip()]


def _wrapped(text: str, width: int, later: str = "") -> list[Text]:
    lines = textwrap.wrap(
        text, width, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
    return [Text(line) for line in lines]


Rows = list[tuple[str, str]]


def _panels(command: Any, ctx: Any) -> dict[str, Rows]:
    """Arguments, options and commands by their panel: names, and what they mean."""
    found: dict[str, Rows] = {}
    for parameter in command.get_params(ctx):
        if getattr(parameter, "hidden", False):
            continue
        is_option = parameter.param_type_name == "option"
        panel = getattr(parameter, "rich_help_panel", None)
        title = panel or ("Options" if is_option else "Arguments")
        names = _option(parameter, ctx) if is_option else _argument(parameter)
        found.setdefault(title, []).append((names, _meaning(parameter, ctx)))
    # Options that all commands share come after the command's own.
    found = {
        title: found[title] for title in sorted(found, key=lambda title: title == "Connection")
    }
    for name in command.list_commands(ctx) if isinstance(command, Group) else ():
        child = command.get_command(ctx, name)
        if not child.hidden:
            panel = getattr(child, "rich_help_panel", None) or "Commands"
            first = (_paragraphs(child.help) or [""])[0]
            found.setdefault(panel, []).append((name, first))
    return found


def _option(parameter: Any, ctx: Any) -> str:
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag or parameter.name == "help":
        return names
    return f"{names} {parameter.metavar or _metavar(parameter, ctx)}"


def _metavar(parameter: Any, ctx: Any) -> str:
    # Typer asks a parameter of its own for its type, and click's has it as an attribute.
    name = (
        parameter.display_type(ctx) if hasattr(parameter, "display_type") else parameter.type.name
    )
    word = str(name).strip("<>")
    word = word.removeprefix("list[").removesuffix("]")
    return _METAVARS.get(word, word)


def _argument(parameter: Any) -> str:
    words = parameter.metavar or str(parameter.name).upper()
    return words if parameter.nargs == 1 or parameter.metavar else f"{words}..."


def _meaning(parameter: Any, ctx: Any) -> str:
    parts = [" ".join((parameter.help or "").split())]
    default = parameter.get_default(ctx, call=False)
    shown = default is not None and default is not False and default != () and default != ""
    if parameter.required:
        parts.append("[required]")
    elif shown and not callable(default) and getattr(parameter, "show_default", True):
        value = "on" if default is True else getattr(default, "value", default)
        parts.append(f"[default: {value:g}]" if isinstance(value, float) else f"[default: {value}]")
    return " ".join(part for part in parts if part)


def _row(names: str, words: str, width: int) -> Iterator[Text]:
    lines = _wrapped(words, width - _NAMES) or [Text()]
    start = " " * _INDENT + names
    if len(start) + 2 > _NAMES:
        yield Text(start, style=_NAME)
    else:
        first, *lines = lines
        yield Text.assemble((start.ljust(_NAMES), _NAME), first)
    for line in lines:
        yield Text(" " * _NAMES).append_text(line)


def _epilog(text: str | None, width: int) -> Iterator[Text]:
    """Commands to copy are continued in the way of a shell."""
    for paragraph in _paragraphs(text):
        if not paragraph.startswith("$ "):
            yield Text()
            yield from _wrapped(paragraph, width)
            continue
        lines: Sequence[Text] = _wrapped(paragraph, width - 4, "      ")
        for n, line in enumerate(lines):
            end = " \\" if n < len(lines) - 1 else ""
            yield Text(f"  {line.plain}{end}")
