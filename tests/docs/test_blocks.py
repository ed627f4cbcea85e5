"""Every block of the documentation runs, or says why it does not."""

from __future__ import annotations

import ast
import asyncio
import inspect
import linecache
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer

from holdfast.cli import app
from tests.docs.blocks import PAGES, PRELUDE, ROOT, Block, blocks, program

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import Database

WITH_PYTHON = [page for page in PAGES if program(page)]
PROGRAMS = ("README.md",)
"""Pages whose blocks are programs of their own: see tests/guide/test_readme.py."""
_EXCUSED = '# mypy: disable-error-code="empty-body,no-redef,import-untyped"'
"""What a page may do and a module should not: leave out a body, show a function twice."""
COMMAND = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(holdfast [^\n]*?)(?:\s+#.*)?$", flags=re.M)


def _page(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "page", [page for page in WITH_PYTHON if page.name not in PROGRAMS], ids=_page
)
async def test_the_python_of_a_page_runs(
    page: Path, pg18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    exec(PRELUDE, names)  # noqa: S102 (our own pages)
    names["DSN"] = pg18.dsn
    for block in program(page):
        # So that dataclasses, type hints and tracebacks find the source.
        linecache.cache[block.name] = (
            len(block.code),
            None,
            block.code.splitlines(keepends=True),
            block.name,
        )
        code = compile(
            block.code, block.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        result = eval(code, names)  # noqa: S307 (our own pages)
        if inspect.iscoroutine(result):
            await asyncio.wait_for(result, timeout=60)


def test_the_python_of_all_pages_is_typed(tmp_path: Path) -> None:
    for page in WITH_PYTHON:
        name = _page(page).removesuffix(".md").replace("/", "_").replace("-", "_")
        (tmp_path / f"page_{name}.py").write_text(_as_module(page), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", str(tmp_path)],
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
    for block in blocks(page, "sh", "console", "bash"):
        for line in COMMAND.findall(block.code):
            if block.not_run is None:
                _parse(root, line, block)


def _parse(root: Any, line: str, block: Block) -> None:
    words = shlex.split(re.split(r"\s[|&><;]", line)[0])[1:]
    command, context = root, root.context_class(root, info_name="holdfast")
    try:
        while hasattr(command, "commands"):
            name, command, words = command.resolve_command(context, words)
            context = command.context_class(command, info_name=name, parent=context)
        command.make_parser(context).parse_args(list(words))
    except Exception as error:  # Typer carries its own copy of the classes.
        if not hasattr(error, "format_message"):
            raise
        pytest.fail(f"{block.name}: `{line}`: {error.format_message()}")
