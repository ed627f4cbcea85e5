"""What a reader of the figures wants to know of the machine, the versions and the code."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

import holdfast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.envs import Installed
    from bench.server import Server

# Where the subjects import it from too.
SOURCE = Path(holdfast.__file__).parent


def gather(server: Server, installed: Mapping[str, Installed]) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "asyncpg": version("asyncpg"),
        "uvloop": version("uvloop"),
        "postgresql": server.facts(),
        "versions": {name: one.version for name, one in installed.items()},
        "load_at_start": os.getloadavg()[0],
    }


def add_source(facts: dict[str, Any]) -> None:
    """Remember the state of the code; a run should have seen only one."""
    sources = facts.setdefault("sources", [])
    if (digest := source_digest()) not in sources:
        sources.append(digest)


def source_digest(folder: Path = SOURCE) -> str:
    """What tells one state of the code from another, committed or not."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".sql")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
