"""Ties a process to the harness: when that is killed, so is everything it started.

As a script, `python leash.py UID GID COMMAND ...` becomes the command, tied; 0 0 keeps the user.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tie() -> None:
    """Die with the process that started this one. Only Linux can promise it."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def become(uid: int, gid: int) -> None:
    """PostgreSQL refuses root. The tie must come after this, which would undo it."""
    if uid:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)


if __name__ == "__main__":
    become(int(sys.argv[1]), int(sys.argv[2]))
    tie()
    os.execv(sys.argv[3], sys.argv[3:])  # noqa: S606 - the command is the harness's own
