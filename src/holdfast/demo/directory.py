"""The folder of the demo: its own, so that no other data can be lost to it."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.demo.worker import REFUSALS
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MARK = "README.txt"
_TEXT = "The data of `holdfast demo`. Remove the folder when you are done with it.\n"


@contextmanager
def occupied(directory: Path) -> Iterator[None]:
    """Take the folder for one run; refuse one that the demo did not make."""
    try:
        foreign = directory.exists() and any(directory.iterdir())
        if foreign and not (directory / _MARK).exists():
            raise InvalidInput(
                f"{directory} holds something else than a demo, which would be erased; "
                f"choose another folder with --dir"
            )
        directory.mkdir(parents=True, exist_ok=True)
        mark = (directory / _MARK).open("a+")
    except OSError as error:
        raise InvalidInput(
            f"{directory} cannot be used ({error.strerror or error}); "
            f"choose another folder with --dir"
        ) from error
    with mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(
                f"another demo runs in {directory}; wait for it or choose another --dir"
            ) from None
        if not mark.tell():
            mark.write(_TEXT)
            mark.flush()
        _forget(directory)
        yield


def _forget(directory: Path) -> None:
    for name in (REFUSALS, "worker-1.log", "worker-2.log"):
        (directory / name).unlink(missing_ok=True)
