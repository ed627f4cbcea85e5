"""The pages of reference that are written by hand name what the code has, all of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psycopg
import pytest

import holdfast
from holdfast import Holdfast, errors
from tests.docs.blocks import ROOT

if TYPE_CHECKING:
    from tests.servers import Database

REFERENCE = ROOT / "docs" / "reference"
ENTRY = re.compile(r"^### (\w+)\n(.*?)(?=\n#|\Z)", flags=re.M | re.S)
SECTION = re.compile(r"^## (holdfast\w*)\n(.*?)(?=^## |\Z)", flags=re.M | re.S)
COLUMN = re.compile(r"^\| `(\w+)` \| ([^|]+) \|", flags=re.M)
COLUMNS = """
select table_name, column_name,
       case data_type when 'USER-DEFINED' then udt_name
                      when 'ARRAY' then 'integer[]' else data_type end
from information_schema.columns where table_schema = %s
"""


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, errors.HoldfastError)


def test_every_error_has_an_entry_with_a_fix() -> None:
    entries = dict(ENTRY.findall((REFERENCE / "errors.md").read_text("utf-8")))
    kinds = {
        name for module in (errors, holdfast) for name, v in vars(module).items() if _is_error(v)
    }
    assert set(entries) == kinds
    assert [name for name, text in entries.items() if "**Fix:** " not in text] == []


def test_every_public_name_is_in_the_reference() -> None:
    page = (REFERENCE / "api.md").read_text("utf-8")
    names = {name for name in holdfast.__all__ if not _is_error(getattr(holdfast, name))}
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", page)) == []


@pytest.fixture
async def tables(pg18: Database) -> dict[str, set[tuple[str, str]]]:
    """The columns of each table of a new installation, with their types."""
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()
    found: dict[str, set[tuple[str, str]]] = {}
    with psycopg.connect(pg18.dsn) as connection:
        for table, column, kind in connection.execute(COLUMNS, [pg18.schema]):
            found.setdefault(table, set()).add((column, kind))
    return found


async def test_every_table_and_column_is_described(
    tables: dict[str, set[tuple[str, str]]],
) -> None:
    page = (REFERENCE / "tables.md").read_text("utf-8")
    for table, text in SECTION.findall(page):
        described = {(column, kind.strip()) for column, kind in COLUMN.findall(text)}
        assert described == tables.pop(table), table
    named = re.findall(r"`(holdfast_\w+)` \(", page.partition("## Tables of the engine")[2])
    assert sorted(named) == sorted(tables)
