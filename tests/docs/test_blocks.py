"""Every block of the documentation runs, or says why it does not."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import linecache
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import typer

from holdfast import Holdfast
from holdfast.cli import app
from tests.cli.command_line import inside
from tests.docs.blocks import (
    PAGES,
    PRELUDE,
    ROOT,
    SHELL,
    Block,
    blocks,
    program,
    shows,
    steps,
    tutorial_files,
    typed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.servers import Database

WITH_PYTHON = [page for page in PAGES if program(page)]
TO_RUN = [page for page in PAGES if steps(page) and page.name != "README.md"]
"""The blocks of the README are programs of their own: see tests/guide/test_readme.py."""
_EXCUSED = '# mypy: disable-error-code="empty-body,no-redef,import-untyped"'
"""What a page may do and a module should not: leave out a body, show a function twice."""
_MYPY = ("mypy", "--strict", "--config-file", "")
_PYRIGHT = ("basedpyright", "--level", "error", "--pythonpath", sys.executable, "--project")
_PATIENCE_SECONDS = 100
INLINE = re.compile(r"`(holdfast [^`]+)`")
FENCED = re.compile(r"^```.*?^```", flags=re.M | re.S)
COMMAND = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(holdfast [^\n]*?)(?:\s+#.*)?$", flags=re.M)


def _page(page: Path) -> str:
    return str(page.relative_to(ROOT))


class Reader:
    """Does what a page says, on a database of its own where the page has SQL or commands."""

    def __init__(self, page: Path, dsn: str) -> None:
        self.steps = steps(page)
        self.names: dict[str, Any] = {"__name__": "page"}
        self.dsn = dsn
        exec(PRELUDE, self.names)  # noqa: S102 (our own pages)
        self.names["DSN"] = dsn

    async def read(self) -> None:
        if all(step.block.language == "python" for step in self.steps):
            await self._follow()
            return
        self.names["hf"] = hf = Holdfast.connect(self.dsn)
        async with hf:
            await hf.install(functions=True)
            await self._follow()

    async def _follow(self) -> None:
        follow = {"python": self._python, "sql": self._sql}
        for step in self.steps:
            printed = await follow.get(step.block.language, self._shell)(step.block)
            if step.prints is not None:
                assert shows(printed, step.prints), f"{step.block.name} printed\n{printed}"

    async def _python(self, block: Block) -> str:
        # So that dataclasses, type hints and tracebacks find the source.
        lines = block.code.splitlines(keepends=True)
        linecache.cache[block.name] = (len(block.code), None, lines, block.name)
        code = compile(
            block.code, block.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            result = eval(code, self.names)  # noqa: S307 (our own pages)
            if inspect.iscoroutine(result):
                await asyncio.wait_for(result, timeout=_PATIENCE_SECONDS)
        return printed.getvalue()

    async def _sql(self, block: Block) -> str:
        """Run the statements; return the rows of the last one as a table."""
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            cursor = await connection.execute(block.code)
            while cursor.nextset():
                pass
            if cursor.description is None:
                return ""
            rows = [[column.name for column in cursor.description], *await cursor.fetchall()]
        return "\n".join(" | ".join(map(_cell, row)) for row in rows)

    async def _shell(self, block: Block) -> str:
        console = block.language == "console"
        lines = typed(block.code) if console else ((line, "") for line in _lines(block.code))
        output = []
        for line, expected in lines:
            words = shlex.split(line, comments=True)
            assert words[0] == "holdfast", f"{block.name}: mark `{line}` as not run, and say why"
            done = await asyncio.to_thread(inside, *words[1:])
            assert done.code == 0, f"{block.name}: {line}\n{done.out}{done.err}"
            assert shows(done.out, expected), f"{block.name}: {line} printed\n{done.out}"
            output.append(done.out)
        return "".join(output)


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _lines(code: str) -> list[str]:
    return [line for line in code.replace("\\\n", " ").splitlines() if line.split("#")[0].strip()]


@pytest.mark.parametrize("page", TO_RUN, ids=_page)
async def test_the_blocks_of_a_page_run(
    page: Path, pg18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DSN", pg18.dsn)
    monkeypatch.setenv("COLUMNS", "120")
    await Reader(page, pg18.dsn).read()


@pytest.mark.parametrize("checker", [_MYPY, _PYRIGHT], ids=["mypy", "pyright"])
def test_the_python_of_all_pages_is_typed(checker: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    for page in WITH_PYTHON:
        name = _page(page).removesuffix(".md").replace("/", "_").replace("-", "_")
        (tmp_path / f"page_{name}.py").write_text(_as_module(page), "utf-8")
    for name, code in tutorial_files("python").items():
        (tmp_path / name).write_text(code, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", *checker, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _as_module(page: Path) -> str:
    """The page as a module: blocks that await something stand in functions of their own."""
    parts = [_EXCUSED, PRELUDE]
    for number, block in enumerate(program(page)):
        if _awaits(block):
            body = "\n".join(f"    {line}" for line in block.code.splitlines())
            parts.append(f"async def block_{number}() -> None:\n{body}\n")
        else:
            parts.append(block.code)
    return "\n".join(parts)


def _awaits(block: Block) -> bool:
    try:
        compile(block.code, block.name, "exec", dont_inherit=True)
    except SyntaxError:
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=_page)
def test_commands_on_a_page_are_those_of_the_command(page: Path) -> None:
    root = typer.main.get_command(app)
    for block in blocks(page, *SHELL):
        for line in COMMAND.findall(block.code):
            _parse(root, line, block)


def test_commands_in_sentences_exist() -> None:
    root = typer.main.get_command(app)
    wrong = []
    for page in PAGES:
        prose = FENCED.sub("", page.read_text("utf-8"))
        for line in INLINE.findall(prose):
            known, words = _known(root, line.replace("…", "").split()[1:])
            options = [word.split("=")[0] for word in words if word.startswith("--")]
            wrong += [(_page(page), line) for option in options if option not in known]
    assert wrong == []


def _known(command: Any, words: list[str]) -> tuple[set[str], list[str]]:
    """The options of the command that the words name, and the words behind its name."""
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        command, words = command.commands[words[0]], words[1:]
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    return options | {"--help"}, words


def _parse(root: Any, line: str, block: Block) -> None:
    words = shlex.split(re.split(r"\s[|&><;]", line)[0])[1:]
    command, context = root, root.context_class(root, info_name="holdfast")
    try:
        while words and hasattr(command, "commands"):
            name, command, words = command.resolve_command(context, words)
            context = command.context_class(command, info_name=name, parent=context)
        command.make_parser(context).parse_args(list(words))
    except Exception as error:  # Typer carries its own copy of the classes.
        if not hasattr(error, "format_message"):
            raise
        pytest.fail(f"{block.name}: `{line}`: {error.format_message()}")
