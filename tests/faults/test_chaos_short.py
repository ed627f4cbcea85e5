"""Short runs of the fault harness, and the proof that it would notice: five planted bugs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chaos.run import new_directory
from tests.postgres.released import RELEASES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PATIENCE = 600
"""Seconds for what takes thirty on a quiet machine."""

MUTANTS = (
    "finish-without-token",
    "delete-before-log",
    "crash-not-counted",
    "enqueue-repeated-without-key",
    "claim-without-lock",
)


@pytest.fixture
def directory() -> Iterator[Path]:
    """One that PostgreSQL's account can pass through."""
    made = new_directory("holdfast-test-chaos-")
    yield made
    shutil.rmtree(made, ignore_errors=True)


def chaos(directory: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Run the harness; what it reported, and what it said besides."""
    report = directory / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "chaos", *arguments, "--report", str(report)],
        cwd=ROOT,
        # The invariants are tested here. `make chaos` holds them to their times.
        env={**os.environ, "CHAOS_PATIENCE": "6"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    said = f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
    assert report.is_file(), said
    return json.loads(report.read_text()), said


@pytest.mark.timeout(PATIENCE + 60)
def test_a_short_run_under_faults_violates_no_invariant(directory: Path) -> None:
    report, said = chaos(directory, "run", "--profile", "short", "--seed", "7")

    assert {name: count for name, count in report["invariants"].items() if count} == {}, said
    assert report["faults_effective"] >= 0.8 * report["faults"], said
    assert report["jobs"] >= 1000


@pytest.mark.timeout(PATIENCE + 60)
def test_upgrades_while_workers_of_both_versions_are_killed_violate_no_invariant(
    directory: Path,
) -> None:
    report, said = chaos(directory, "run", "--profile", "upgrade-short", "--seed", "7")

    assert set(report["acts"]) == {f"upgrade from {release}" for release in RELEASES}
    for act in report["acts"].values():
        assert {name: count for name, count in act["invariants"].items() if count} == {}, said
        assert act["faults"] >= 5, said


@pytest.mark.timeout(PATIENCE + 60)
def test_planted_bugs_are_caught(directory: Path) -> None:
    chosen = [part for name in MUTANTS for part in ("--only", name)]

    report, said = chaos(directory, "mutants", *chosen)

    assert report["mutants"] == dict.fromkeys(MUTANTS, True), said
