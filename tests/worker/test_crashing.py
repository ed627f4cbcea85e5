"""A worker never looks healthy while one of its parts is dead."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Holdfast, InvalidInput, Job, Status
from holdfast.worker.claim import Claimer
from holdfast.worker.renew import Renewer
from holdfast.worker.settle import Settler
from holdfast.worker.sweep import Housekeeper, Sweeper
from tests.worker.rig import ends, eventually, the_row

if TYPE_CHECKING:
    from collections.abc import Callable


class Broken(Exception):
    pass


def breaking(when: asyncio.Event) -> Callable[..., Any]:
    async def run(*_: object) -> None:
        await when.wait()
        raise Broken

    return run


@pytest.mark.parametrize("part", [Claimer, Sweeper, Housekeeper, Settler])
async def test_a_part_that_crashes_ends_the_run_and_its_handlers(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, part: type
) -> None:
    crash, started, stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @hf.entrypoint("endless")
    async def endless(job: Job) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    if part is not Claimer:
        monkeypatch.setattr(part, "run", breaking(crash))
    run = asyncio.create_task(hf.run())
    [job_id] = await hf.queries.enqueue("endless")
    await ends(started.wait())
    if part is Claimer:
        monkeypatch.setattr(part, "_wait", breaking(crash))
        monkeypatch.setattr(part, "_claim", breaking(crash))
        await hf.queries.enqueue("endless")
    crash.set()
    with pytest.raises(Broken):
        await ends(run)

    assert stopped.is_set()
    assert hf.queue_manager.state == "stopped"
    if part is not Settler:
        assert (await the_row(hf, job_id)).status == Status.QUEUED


async def test_a_renewing_thread_that_crashes_ends_the_run(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hf.entrypoint("one")
    async def one(job: Job) -> None:
        await asyncio.sleep(0)

    async def crash(*_: object) -> None:
        raise Broken

    monkeypatch.setattr(Renewer, "_renew", crash)
    with pytest.raises(Broken):
        await ends(hf.run())


async def test_a_worker_without_handlers_is_refused(hf: Holdfast) -> None:
    with pytest.raises(InvalidInput, match="no entrypoint is registered"):
        await hf.run()


async def test_an_observer_that_raises_does_not_disturb_the_work(hf: Holdfast) -> None:
    @hf.entrypoint("one")
    async def one(job: Job) -> None:
        await asyncio.sleep(0)

    class Grumpy:
        def notify(self, event: object) -> None:
            raise Broken

    hf.observe(Grumpy())
    await hf.queries.enqueue(["one"] * 3)
    await ends(hf.run(mode="drain"))

    async def done() -> bool:
        return await hf.queries.queue_size() == []

    await eventually(done)
