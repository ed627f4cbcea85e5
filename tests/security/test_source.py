"""What the source must not contain, because data could become code by it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
FILES = sorted(SOURCE.rglob("*.py"))

MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "imp", "runpy", "xml"}
CALLS = {"eval", "exec", "compile", "__import__", "import_module", "ForkingPickler", "system"}

ALLOWED = {
    # The annotation of the user's own handler.
    ("executors/table.py", "eval"),
    # Between a worker and a child that it started itself, over a pipe that only they hold.
    ("executors/child.py", "ForkingPickler"),
    ("executors/process.py", "ForkingPickler"),
    # The MODULE:ATTRIBUTE of the command line.
    ("cli/target.py", "import_module"),
    # Names of our own.
    ("db.py", "import_module"),
}


def _dangers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (name.name.split(".")[0] for name in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module.split(".")[0]
                yield from (name.name for name in names)
            case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
                yield name
            case ast.keyword(arg="shell"):
                yield "system"


def test_no_data_can_become_code() -> None:
    found = {
        (str(file.relative_to(SOURCE)), name)
        for file in FILES
        for name in _dangers(ast.parse(file.read_text("utf-8")))
        # re.compile and the like make no code of ours.
        if name in MODULES | CALLS - {"compile"}
    }
    assert found == ALLOWED


def test_statements_are_put_together_in_one_room_only() -> None:
    """The linter forbids SQL made of strings everywhere else; no file opts out of it."""
    for file in FILES:
        if SOURCE / "stores" / "postgres" not in file.parents:
            assert "S608" not in file.read_text("utf-8"), file
    ignores = re.findall(r'"(.+)" = \[[^\]]*"S608"', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert set(ignores) <= {"src/holdfast/stores/postgres/**", "tests/**"}


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.sql")), ids=lambda file: file.stem)
def test_no_function_runs_with_the_rights_of_its_owner(file: Path) -> None:
    text = file.read_text("utf-8").lower()
    assert "security definer" not in text
    makes_function = re.search(r"create (or replace )?function", text) is not None
    # The trigger that wakes workers, which an installation may ask for, and the one that counts log
    # rows which an operator deletes.
    assert makes_function == (file.stem in ("notify_inserts", "0016_deleted_log"))
