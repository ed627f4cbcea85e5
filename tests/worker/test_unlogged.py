"""What a worker says in a program of the user's, with logging configured and without."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast import Holdfast, Job
from tests.worker.workers import ends

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


async def test_where_logging_is_configured_it_is_logged(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    worker = await _run_once()
    assert capsys.readouterr().err == ""
    assert f"worker {worker} serves mail with 20 slots" in caplog.messages


async def test_failures_are_logged_with_tracebacks_and_retries_with_their_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    hf = Holdfast.in_memory()

    @hf.entrypoint("mail")
    async def mail(job: Job) -> None:
        raise OSError(f"no route for {(job.payload or b'').decode()}")

    @hf.task(name="once", retry=None)
    async def once() -> None:
        raise OSError("no route")

    @hf.task(name="again")
    async def again() -> None:
        raise OSError("no route")

    await hf.queries.enqueue("mail", b"ann@example.org")
    await once.enqueue()
    await again.enqueue()
    await ends(hf.run(mode="drain"))
    standard = logging.Formatter("%(levelname)s %(message)s")
    said = {each.getMessage().split()[2]: standard.format(each) for each in caplog.records}
    assert "WARNING job 1 (mail) failed with OSError: no route for ***" in said["(mail)"]
    assert said["(mail)"].endswith("OSError: no route for ***")
    assert "by retry=1 of task 'once' with OSError: no route; to lift the cap" in said["(once)"]
    assert "Traceback (most recent call last)" in said["(once)"]
    assert "will be retried in 0:00:0" in said["(again)"]
    assert "with OSError: no route" in said["(again)"]
