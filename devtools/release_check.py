"""Build the wheel and the sdist, install each into fresh environments, and use what was installed.

`make release-check` runs it. It prints one line for each check and ends with 1 when one failed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from email.message import Message

ROOT = Path(__file__).parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
NEEDED = ("Name", "Version", "Summary", "License-Expression", "Requires-Python", "Keywords")
SMOKE = """
import asyncio, sys
import holdfast
from holdfast import Holdfast, Job

for heavy in ("typer", "rich", "asyncpg", "psycopg", "pydantic", "starlette"):
    assert heavy not in sys.modules, f"import holdfast also imports {heavy}"

async def main():
    hf = Holdfast.in_memory()
    seen = []

    @hf.entrypoint("greet")
    async def greet(job: Job) -> None:
        seen.append(job.payload)

    await hf.queries.enqueue("greet", b"world")
    await hf.run(mode="drain")
    assert seen == [b"world"], seen

asyncio.run(main())
print(holdfast.__version__)
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        built = build(Path(folder))
        faults = [fault for path in built for fault in check_contents(path)]
        for python in installed_pythons():
            faults += [fault for path in built for fault in check_install(python, path)]
    for fault in faults:
        print(f"FAILED  {fault}")
    print(f"{len(faults)} checks failed" if faults else "the release can go out")
    return 1 if faults else 0


def build(folder: Path) -> list[Path]:
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 (our own command)
    return sorted(folder.iterdir())


def installed_pythons() -> list[str]:
    """The interpreters on the path, and those that pyenv keeps, each version once."""
    kept = sorted(Path.home().glob(".pyenv/versions/3.1[1-9].*/bin/python3"))
    found: dict[str, str] = {}
    for python in (*PYTHONS, *map(str, kept)):
        if shutil.which(python):
            asked = [python, "-c", "import sys; print(sys.version_info[:2])"]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
            if done.returncode == 0:
                found.setdefault(done.stdout, python)
    return list(found.values())


def check_contents(path: Path) -> Iterable[str]:
    """What an archive must hold: metadata, a long description, the data files of the package."""
    names, metadata = _opened(path)
    missing = [header for header in NEEDED if not metadata.get(header)]
    if missing:
        yield f"{path.name}: metadata without {', '.join(missing)}"
    if len(str(metadata.get_payload())) < 1000:
        yield f"{path.name}: the long description is not the README"
    for needed in (
        "py.typed",
        "sql/claim.sql",
        "migrations/0001_initial.sql",
        "web/static/holdfast.css",
        "web/templates/base.html",
    ):
        if not any(name.endswith(f"holdfast/{needed}") or name.endswith(needed) for name in names):
            yield f"{path.name}: {needed} is missing"
    print(f"ok      {path.name}: {len(names)} files")


def _opened(path: Path) -> tuple[list[str], Message]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            [entry] = [name for name in names if name.endswith(".dist-info/METADATA")]
            return names, message_from_bytes(archive.read(entry))
    with tarfile.open(path) as archive:
        names = archive.getnames()
        [entry] = [name for name in names if name.count("/") == 1 and name.endswith("/PKG-INFO")]
        opened = archive.extractfile(entry)
        assert opened is not None  # noqa: S101 (a regular file)
        return names, message_from_bytes(opened.read())


def check_install(python: str, path: Path) -> Iterable[str]:
    """Install into a fresh environment, with no extra, and run a job in memory."""
    with tempfile.TemporaryDirectory() as folder:
        steps = (
            [python, "-m", "venv", folder],
            [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", str(path)],
            [f"{folder}/bin/python", "-P", "-c", SMOKE],
            [f"{folder}/bin/holdfast", "--version"],
        )
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False, cwd=folder)  # noqa: S603
            if done.returncode:
                yield f"{path.name} on {python}: {done.stderr.strip()[-500:]}"
                return
    print(f"ok      {path.name} on {python}")


if __name__ == "__main__":
    sys.exit(main())
