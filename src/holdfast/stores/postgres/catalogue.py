"""The SQL files: each says in its first line which role runs it."""

from __future__ import annotations

import enum
from functools import cache
from importlib import resources


class DatabaseRole(enum.StrEnum):
    """The purpose for which a program or a person connects."""

    PRODUCER = "producer"
    WORKER = "worker"
    OPERATOR = "operator"
    PRUNER = "pruner"
    READER = "reader"


_HEADER = "-- role: "
OWNER = "owner"
"""The role in the header of a file that only the owner of the tables runs. It is no statement."""


def source(file: str) -> str:
    """The text of a file as it is written."""
    return resources.files(__package__).joinpath("sql", f"{file}.sql").read_text("utf-8")


@cache
def roles() -> dict[str, DatabaseRole]:
    """Return the role of each file. Other roles may run its statements as well."""
    folder = resources.files(__package__).joinpath("sql")
    files = sorted(each.name for each in folder.iterdir() if each.name.endswith(".sql"))
    found = {file.removesuffix(".sql"): source(file.removesuffix(".sql")) for file in files}
    headers = {file: text.partition("\n")[0] for file, text in found.items()}
    unnamed = [file for file, header in headers.items() if not header.startswith(_HEADER)]
    assert not unnamed, f"the first line of sql/{unnamed[0]}.sql must be {_HEADER}ROLE"  # noqa: S101
    words = {file: header.removeprefix(_HEADER) for file, header in headers.items()}
    return {file: DatabaseRole(word) for file, word in words.items() if word != OWNER}
