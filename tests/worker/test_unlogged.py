"""A worker in a program that has not configured logging says on stderr that it works."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast import Holdfast, Job
from tests.worker.rig import ends

if TYPE_CHECKING:
    import pytest


async def _run_once() -> str:
    hf = Holdfast.in_memory()

    @hf.entrypoint("mail")
    async def mail(job: Job) -> None:
        hf.shutdown.set()

    await hf.queries.enqueue("mail")
    await ends(hf.run(signals=False))
    return hf.queue_manager.id


async def test_it_names_what_it_serves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # pytest gives the root a handler.
    monkeypatch.setattr(logging.getLogger("holdfast"), "propagate", False)
    worker = await _run_once()
    assert capsys.readouterr().err.splitlines()[0] == (
        f"holdfast: worker {worker} serves mail with 20 slots; configure logging to hear more"
    )


async def test_it_is_silent_where_logging_is_configured(capsys: pytest.CaptureFixture[str]) -> None:
    await _run_once()
    assert capsys.readouterr().err == ""
