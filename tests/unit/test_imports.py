"""What `import holdfast` brings along. A producer pays for it at every start."""

from __future__ import annotations

import subprocess
import sys

OPTIONAL = (
    "asyncpg",
    "jinja2",
    "opentelemetry",
    "psutil",
    "psycopg",
    "pydantic",
    "rich",
    "sqlalchemy",
    "starlette",
    "typer",
    "uvloop",
)


def test_the_library_imports_neither_the_command_nor_a_driver() -> None:
    script = f"import holdfast, sys; print([name for name in {OPTIONAL} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
