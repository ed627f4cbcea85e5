"""Installs each peer from its registry into an environment of its own under bench/.envs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from devtools.release_check import installed_pythons

if TYPE_CHECKING:
    from bench.contestants import Contestant

ENVS = Path(__file__).parent / ".envs"
_PATIENCE = 600
# Its newest release may need a newer package than a mirror has; older ones are tried in turn.
_RELEASES_TRIED = 8


class CannotInstall(Exception):
    """A peer that cannot be measured here, and why."""


@dataclass(frozen=True, slots=True)
class Installed:
    """How to start a subject: the command before the DSN, what follows it, and its version."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    version: str


def install(contestant: Contestant, *, anew: bool = False) -> Installed:
    """Make the environment unless it is there; CannotInstall when it cannot be made."""
    if contestant.kind == "own":
        return Installed((sys.executable, str(contestant.path)), (), version("holdfast"))
    place = ENVS / contestant.name
    if anew:
        shutil.rmtree(place, ignore_errors=True)
    try:
        return (_python if contestant.kind == "python" else _node)(contestant, place)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise CannotInstall(_reason(error)) from error


def _python(contestant: Contestant, place: Path) -> Installed:
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        _run([_interpreter(contestant.newer), "-m", "venv", "--clear", str(place)])
        pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run([*pip, *contestant.requirements])
        (place / "ready").touch()
    asked = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"
    found = _run([str(python), "-c", asked, contestant.name]).strip()
    return Installed((str(python), str(contestant.path)), (), found)


def _interpreter(oldest: str) -> str:
    """This one, or the first that is here and new enough for the peer."""
    needed = tuple(int(part) for part in oldest.split(".") if part)
    if sys.version_info[:2] >= needed:
        return sys.executable
    for python in installed_pythons():
        asked = _run([python, "-c", "import sys; print(*sys.version_info[:2])"])
        if tuple(map(int, asked.split())) >= needed:
            return python
    raise ValueError(f"it needs Python {oldest} or newer, and there is none here")


def _node(contestant: Contestant, place: Path) -> Installed:
    node = _runtime()
    [package] = contestant.requirements
    if not (place / "ready").exists():
        place.mkdir(parents=True, exist_ok=True)
        (place / "package.json").write_text('{"private": true}')
        _npm_newest(package, place, node)
        (place / "ready").touch()
    manifest = place / "node_modules" / package / "package.json"
    found = str(json.loads(manifest.read_text())["version"])
    runs_on = _run([str(node), "--version"]).strip()
    return Installed((str(node), str(contestant.path)), (str(place),), f"{found} (Node {runs_on})")


def _runtime() -> Path:
    """Node from npm's own package: the peers' newest releases need a newer one than most have."""
    place = ENVS / "node"
    node = place / "node_modules" / ".bin" / "node"
    if not node.exists():
        place.mkdir(parents=True, exist_ok=True)
        (place / "package.json").write_text('{"private": true}')
        _run(["npm", "install", "--no-audit", "--no-fund", "node"], place)
    return node


def _npm_newest(package: str, place: Path, node: Path) -> None:
    # npm picks releases that fit the Node it runs on, so it must run on this one.
    path = f"{node.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    install = ("npm", "install", "--no-audit", "--no-fund")
    known = json.loads(_run(["npm", "view", package, "versions", "--json"], place, path))
    plain = [release for release in known if "-" not in release]
    newest = sorted(plain, key=lambda release: [int(part) for part in release.split(".")])
    failure: Exception = ValueError(f"{package} has no releases")
    for release in reversed(newest[-_RELEASES_TRIED:]):
        try:
            _run([*install, f"{package}@{release}"], place, path)
            return
        except subprocess.CalledProcessError as error:
            failure = error
    raise failure


def _run(command: list[str], place: Path | None = None, path: str | None = None) -> str:
    environment = os.environ | ({"PATH": path} if path else {})
    done = subprocess.run(  # noqa: S603 (commands named above, no shell)
        command,
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=_PATIENCE,
    )
    return done.stdout


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in error.stderr.splitlines() if "error" in line.lower()]
        return str((lines or [error])[-1]).strip()
    return str(error)
