"""A short run of the fault harness, and the proof that it would notice: five planted bugs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chaos.run import new_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PATIENCE = 110

MUTANTS = (
    "finish-without-token",
    "state-only-guard",
    "delete-before-log",
    "crash-not-counted",
    "enqueue-repeated-blindly",
)


@pytest.fixture
def directory() -> Iterator[Path]:
    """One that PostgreSQL's account can pass through."""
    made = new_directory("holdfast-test-chaos-")
    yield made
    shutil.rmtree(made, ignore_errors=True)


def chaos(directory: Path, *arguments: str) -> dict[str, Any]:
    """Run the harness; what it reported."""
    report = directory / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "chaos", *arguments, "--report", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert report.is_file(), f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(report.read_text())
    violations = sum(found.get("invariants", {}).values())
    assert not violations, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
    return found


def test_a_short_run_under_faults_violates_no_invariant(directory: Path) -> None:
    """A run whose faults met too few leases says nothing, so another schedule is tried."""
    for seed in range(7, 11):
        report = chaos(directory, "run", "--profile", "short", "--seed", str(seed))
        if report["faults_effective"] >= 0.8 * report["faults"]:
            break
    assert report["faults_effective"] >= 0.8 * report["faults"]
    assert report["jobs"] >= 1500


def test_planted_bugs_are_caught(directory: Path) -> None:
    chosen = [part for name in MUTANTS for part in ("--only", name)]

    report = chaos(directory, "mutants", *chosen)

    assert report["mutants"] == dict.fromkeys(MUTANTS, True)


def test_the_shipped_package_knows_nothing_of_the_harness() -> None:
    package = ROOT / "src" / "holdfast"

    mentions = [
        path.relative_to(package)
        for path in package.rglob("*")
        if path.suffix in (".py", ".sql")
        and any(word in path.read_text() for word in ("import chaos", "from chaos", "mutant"))
    ]

    assert mentions == []
