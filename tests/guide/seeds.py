"""Takes the blocks out of the source documents and puts Holdfast's names into them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from types import CodeType

DIRECTORY = Path(__file__).parents[3] / "shared" / "seeds"


def text(number: int) -> str:
    """A document, renamed."""
    [path] = DIRECTORY.glob(f"{number:03d}_*.txt")
    found = path.read_text("utf-8").replace("pgqueuer", "holdfast").replace("PgQueuer", "Holdfast")
    return found.replace("\N{NO-BREAK SPACE}", " ")


def block(number: int, first: str, last: str, *, nth: int = 1) -> str:
    """From the nth line that starts with `first` to the next one that ends with `last`."""
    lines = text(number).splitlines()
    starts = [at for at, line in enumerate(lines) if line.startswith(first)]
    start = starts[nth - 1]
    end = next(at for at in range(start, len(lines)) if lines[at].rstrip().endswith(last))
    return textwrap.dedent("\n".join(lines[start : end + 1])) + "\n"


async def run(source: str, names: dict[str, object]) -> dict[str, object]:
    """Run a block as if it stood in an async function, with these names around it."""
    code = compile(source, "<seed>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(code, CodeType)
    waiting = eval(code, names)  # noqa: S307 - the documents are part of the test
    if inspect.isawaitable(waiting):
        await waiting
    return names
