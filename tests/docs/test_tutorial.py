"""The tutorial runs from its first chapter to its last, as a reader types it.

A block with a title is written to that file. The commands of a console block are run in order, and
what they print must have the lines shown; `…` stands for any text.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import CHAPTERS, TITLE, Block, blocks, shows, typed

_PATIENCE_SECONDS = 100


class Reader:
    """A shell in the folder of the tutorial."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tools = Path(sys.executable).parent
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        self.environment = kept | {
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "120",
            "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(folder),
        }

    def follow(self, block: Block) -> None:
        if title := TITLE.search(block.info):
            (self.folder / title[1]).write_text(block.code, "utf-8")
        elif block.language == "console":
            for command, expected in typed(block.code):
                self._type(command, expected, block)

    def _type(self, command: str, expected: str, block: Block) -> None:
        if command.startswith("export "):
            name, _, value = shlex.split(command)[1].partition("=")
            self.environment[name] = value
            return
        done = subprocess.run(  # noqa: S602 (our own tutorial)
            command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{block.name}: $ {command}\n{done.stdout}"
        assert shows(done.stdout, expected), (
            f"{block.name}: $ {command}\nexpected:\n{expected}\nprinted:\n{done.stdout}"
        )


@pytest.mark.timeout(600)
def test_the_tutorial_runs_as_printed(server_directory: Path) -> None:
    reader = Reader(server_directory)
    for chapter in CHAPTERS:
        for block in blocks(chapter, "python", "console", "ini"):
            if block.not_run is None:
                reader.follow(block)
