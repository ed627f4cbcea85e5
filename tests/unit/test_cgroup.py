"""Where one process without memory ends all, suspects run one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.service import quarantine
from holdfast.service.cgroup import ends_as_one
from holdfast.service.quarantine import Keeper
from holdfast.worker.quarantine import MOST_PROCESSES

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.service.child import Worker
    from holdfast.worker.quarantine import Suspects


@pytest.mark.parametrize(
    ("own", "marked", "together"),
    [
        ("0::/", ".", True),
        ("0::/", "other", False),
        ("0::/system.slice/jobs.service", "system.slice/jobs.service", True),
        ("0::/system.slice/jobs.service", "system.slice", True),
        ("0::/system.slice/jobs.service", "system.slice/other.service", False),
        ("4:memory:/jobs", "jobs", False),
    ],
)
def test_the_group_of_the_process_and_those_above_count(
    tmp_path: Path, own: str, marked: str, together: bool
) -> None:
    process, root = tmp_path / "cgroup", tmp_path / "root"
    process.write_text(f"1:name=systemd:/elsewhere\n{own}\n")
    for group in (".", "other", "jobs", "system.slice/jobs.service", "system.slice/other.service"):
        (root / group).mkdir(parents=True, exist_ok=True)
        (root / group / "memory.oom.group").write_text("0\n")
    (root / marked / "memory.oom.group").write_text("1\n")

    assert ends_as_one(process, root) is together


def test_where_it_cannot_be_known_it_is_not_so(tmp_path: Path) -> None:
    assert not ends_as_one(tmp_path / "missing", tmp_path)


async def attend(worker: Worker) -> int:
    raise AssertionError(worker)


async def treat(suspects: Suspects) -> None:
    raise AssertionError(suspects)


@pytest.mark.parametrize(("together", "most"), [(True, 1), (False, MOST_PROCESSES)])
def test_the_keeper_runs_one_process_where_one_death_is_that_of_all(
    monkeypatch: pytest.MonkeyPatch, together: bool, most: int
) -> None:
    monkeypatch.setattr(quarantine, "ends_as_one", lambda: together)
    assert Keeper(attend, treat).most == most
