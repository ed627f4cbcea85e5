"""Whether the kernel ends all processes of this container or service together."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

_PROCESS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def ends_as_one(process: Path = _PROCESS, root: Path = _ROOT) -> bool:
    """Whether one process without memory ends the others: `memory.oom.group` is set.

    That is so in a container of Kubernetes, and in a systemd service with `OOMPolicy=kill`. False
    where it cannot be known.
    """
    try:
        lines = process.read_text().splitlines()
    except OSError:
        return False
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    # In a container the root of what it sees is its own group.
    path = PurePosixPath(own.lstrip("/"))
    return any(_is_set(root / group / "memory.oom.group") for group in (path, *path.parents))


def _is_set(file: Path) -> bool:
    try:
        return file.read_text().strip() == "1"
    except OSError:
        return False
