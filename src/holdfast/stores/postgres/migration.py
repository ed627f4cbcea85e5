"""A migration: one numbered file, which is one step of an upgrade.

The header of the file says how it runs in a rolling upgrade: `-- compatible: yes` when workers of
the version before go on working with the tables that it leaves, and `-- run:` when it cannot run in
one short transaction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from holdfast.stores.postgres.binding import Binding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.settings import Names

_HEADER = re.compile(r"^-- (compatible|run): *(\S+) *$", re.MULTILINE)
_INDEX = re.compile(
    r'index concurrently if not exists ("[^"]+"|\w+)\s+on\s+(?:only\s+)?(\S+)', re.IGNORECASE
)
_PIECE = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"[^"]*"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|;|.""", re.DOTALL
)
_CONCURRENTLY = re.compile(r"\bconcurrently\s+", re.IGNORECASE)


class Way(StrEnum):
    """How a migration runs where the tables are in use."""

    TRANSACTION = "transaction"
    """In one short transaction, together with its row in the ledger."""
    CONCURRENTLY = "concurrently"
    """One `create index concurrently if not exists`, outside any transaction."""
    BATCHES = "batches"
    """One statement that ends with `returning`, repeated until it returns no row."""


@dataclass(frozen=True, slots=True)
class Migration:
    """A numbered file; never edited once released."""

    version: int
    name: str
    template: str

    @property
    def compatible(self) -> bool:
        """Whether workers of the version before can use the tables that it leaves."""
        return self._header().get("compatible") == "yes"

    @property
    def way(self) -> Way:
        return Way(self._header().get("run", Way.TRANSACTION))

    def _header(self) -> Mapping[str, str]:
        return dict(_HEADER.findall(self.template))

    def sql(self, names: Names) -> str:
        binding = Binding(names)
        return self.template.format(**binding.relations, **binding.functions)

    def sql_for_new_tables(self, names: Names) -> str:
        """The same for tables that are not in use yet, in the transaction that creates them."""
        sql = self.sql(names)
        return _CONCURRENTLY.sub("", sql) if self.way is Way.CONCURRENTLY else sql

    def only_statement(self, names: Names) -> str:
        """The statement of a migration that does not run in one transaction."""
        [statement] = statements_of(self.sql(names))
        return statement

    def index(self, names: Names) -> tuple[str, str]:
        """The index that is built concurrently, and its table."""
        found = _INDEX.search(self.only_statement(names))
        if found is None:
            raise ValueError(f"{self.name}: `create index concurrently if not exists` is missing")
        table = found.group(2)
        schema, dot, _ = table.rpartition(".")
        return f"{schema}{dot}{found.group(1)}", table


def statements_of(sql: str) -> list[str]:
    """The statements of a script, without its comments."""
    found, current = [], ""
    for piece in _PIECE.finditer(sql):
        text = piece.group()
        if text == ";":
            found.append(current.strip())
            current = ""
        elif not text.startswith(("--", "/*")):
            current += text
    return [statement for statement in (*found, current.strip()) if statement]


@cache
def migrations() -> tuple[Migration, ...]:
    files = resources.files(__package__).joinpath("migrations").iterdir()
    found = [
        Migration(
            int(file.name.split("_")[0]), file.name.removesuffix(".sql"), file.read_text("utf-8")
        )
        for file in files
        if file.name.endswith(".sql")
    ]
    return tuple(sorted(found, key=lambda migration: migration.version))
