"""What the command says about itself, and to those who mistype it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from holdfast.cli import app, complete_embedded
from holdfast.cli.command import App
from holdfast.errors import InvalidInput
from tests.cli.command_line import holdfast, inside
from tests.cli.terminal import on_a_terminal

if TYPE_CHECKING:
    from pathlib import Path

EXPECTED = {
    *("install", "upgrade", "uninstall", "verify", "sql", "run", "enqueue", "failed", "requeue"),
    *("cancel", "delete", "show", "log", "dashboard", "stats", "workers", "schedules", "demo"),
    *("prune", "clear", "version", "retention"),
}


def _commands(command: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path]
    for name, child in getattr(command, "commands", {}).items():
        found += _commands(child, (*path, name))
    return found


COMMANDS = _commands(typer.main.get_command(app))


def test_every_promised_command_exists() -> None:
    assert {path[0] for path in COMMANDS if path} >= EXPECTED


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_ends_with_an_example_and_names_the_shared_options(path: tuple[str, ...]) -> None:
    done = inside(*path, "--help")
    assert done.code == 0
    assert not done.err
    assert "$ holdfast" in done.out.split("Example:")[-1]
    for option in ("--dsn", "--embedded", "--prefix", "--schema", "--driver", "--debug"):
        assert option in done.out


def _parameters(path: tuple[str, ...]) -> list[Any]:
    command: Any = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    return [each for each in command.params if not getattr(each, "hidden", False)]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_cuts_no_name_and_no_word_on_80_columns(path: tuple[str, ...]) -> None:
    # Longer than 80 columns is no line of it.
    lines = on_a_terminal(*path, "--help")
    text = " ".join(" ".join(lines).replace(" \\ ", " ").split())
    assert "Usage: holdfast" in text
    for parameter in _parameters(path):
        if parameter.param_type_name == "option":
            assert all(name in text for name in parameter.opts), parameter.name
        assert " ".join((parameter.help or "").split()) in text


def test_the_real_command_prints_its_help_without_colour_into_a_pipe() -> None:
    done = holdfast("--help")
    assert done.code == 0
    assert "\x1b" not in done.out
    assert all(name in done.out for name in EXPECTED)


def test_no_arguments_print_the_help_once() -> None:
    done = inside()
    assert done.out.count("Usage:") == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("nonsense",), "nonsense"),
        (("failed", "--nonsense"), "--nonsense"),
        (("failed", "-n", "many"), "-n"),
        (("enqueue",), "entrypoint"),
        (("requeue",), "IDS"),
        (("requeue", "4x"), "'4x'"),
        (("show", "abc"), "'abc'"),
        (("show", "99999999999999999999"), "99999999999999999999"),
        (("cancel", "1.5", "--yes"), "'1.5'"),
        (("enqueue", "x", "--on-conflict", "explode"), "explode"),
        (("enqueue", "x", "--delay", "soon"), "'soon'"),
        (("enqueue", "x", "--delay", "5 parsecs"), "'5 parsecs'"),
        (("enqueue", "x", "--delay", "99999999999999d"), "--delay"),
        (("enqueue", "x", "--delay", "1h", "--at", "2030-01-01T00:00:00Z"), "--at"),
        (("enqueue", "x", "--at", "tomorrow"), "'tomorrow'"),
        (("enqueue", "x", "--at", "2030-01-01T00:00:00"), "time zone"),
        (("enqueue", "x", "--header", "nonsense"), "key=value"),
        (("enqueue", "x", "--count", "0"), "--count"),
        (("enqueue", "x", "--count", "2", "--dedupe-key", "k"), "--dedupe-key"),
        (("enqueue", "x", "p", "--payload-file", "/dev/null"), "--payload-file"),
        (("enqueue", "x", "--payload-file", "/nonexistent/file"), "/nonexistent/file"),
        (("stats", "--last", "week"), "'week'"),
        (("prune", "--older-than", "-3"), "'-3'"),
        (("prune",), "--older-than"),
        (("sql",), "install"),
        (("sql", "nonsense"), "'nonsense'"),
        (("schedules", "explode"), "explode"),
        (("schedules", "--json", "list"), "--json goes last: holdfast schedules list --json"),
        (("schedules", "--json", "run", "x"), "--json goes last: holdfast schedules run --json"),
        (("schedules", "--json", "pause", "x"), "schedules pause prints no JSON"),
        (("schedules", "--json", "resume", "x"), "schedules resume prints no JSON"),
        (("schedules", "--json", "remove", "x"), "schedules remove prints no JSON"),
        (("failed", "--driver", "odbc"), "'odbc'"),
        (("sql", "install", "--prefix", "No-Good"), "'No-Good'"),
        (("sql", "install", "--schema", 'a"; drop'), "schema"),
        (("--dsn", "postgresql://h/d", "--embedded=.", "failed"), "--embedded"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: tuple[str, ...], word: str) -> None:
    inside(*arguments).complains(2, word)


def test_the_version_is_printed_by_option_and_by_command() -> None:
    assert re.fullmatch(r"holdfast \d+\.\d+\.\d+\n", inside("--version").out)
    facts = inside("version", "--json").json
    assert facts["holdfast"] in inside("version").out
    assert facts["schema"] >= 1


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["install", "--embedded"], ["install", "--embedded=.holdfast"]),
        (["--embedded", "install"], ["--embedded=.holdfast", "install"]),
        (["install", "--embedded", "./data"], ["install", "--embedded", "./data"]),
        (["install", "--embedded", "--debug"], ["install", "--embedded=.holdfast", "--debug"]),
        (["install", "--embedded=data"], ["install", "--embedded=data"]),
        (["enqueue", "x", "--", "--embedded"], ["enqueue", "x", "--", "--embedded"]),
    ],
)
def test_embedded_takes_a_directory_only_if_it_looks_like_one(
    typed: list[str], meant: list[str]
) -> None:
    assert complete_embedded(typed) == meant


@pytest.fixture
def queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder has two embedded databases, one of them named like a command."""
    monkeypatch.chdir(tmp_path)
    for name in ("my-first-queue", "install"):
        (tmp_path / name / "pgdata").mkdir(parents=True)


@pytest.mark.usefixtures("queues")
def test_an_argument_after_embedded_that_names_a_database_is_refused() -> None:
    done = inside("enqueue", "greet", "--embedded", "my-first-queue")
    done.complains(2, "--embedded=my-first-queue", "--embedded=.holdfast")


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize("word", ["install", "other", "x" * 5000, ""])
def test_any_other_argument_after_embedded_is_one(word: str) -> None:
    assert complete_embedded(["--embedded", word]) == ["--embedded=.holdfast", word]


def _failing(error: Exception) -> App:
    failing = App()

    @failing.command()
    def fail() -> None:
        raise error

    return failing


def test_a_fault_of_the_program_itself_is_one_line_and_exit_code_70() -> None:
    done = CliRunner().invoke(_failing(RuntimeError("boom\x1b[2J")), [])
    assert done.exit_code == 70
    assert done.stderr.count("\n") == 1
    assert "RuntimeError: boom\\x1b[2J" in done.stderr
    assert "--debug" in done.stderr


def test_debug_adds_the_traceback_and_keeps_the_exit_code() -> None:
    done = CliRunner().invoke(_failing(InvalidInput("wrong")), ["--debug"])
    assert done.exit_code == 2
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("holdfast: wrong\n")
