"""The fault harness stays outside of what is shipped."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "holdfast"


def test_the_shipped_package_knows_nothing_of_the_harness() -> None:
    mentions = [
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*")
        if path.suffix in (".py", ".sql")
        and any(word in path.read_text() for word in ("import chaos", "from chaos", "mutant"))
    ]

    assert mentions == []
