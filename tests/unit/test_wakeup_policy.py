"""How long a worker that finds job after job waits before it looks again."""

from __future__ import annotations

import math

import pytest

from holdfast.stores.memory import MemoryStore
from holdfast.worker.wakeup_policy import WakeupPolicy

BUSY = 1_000


@pytest.mark.parametrize(("took", "pause"), [(0.0001, 0.002), (0.004, 0.012), (3.0, 0.02)])
async def test_a_busy_worker_waits_longer_where_looking_takes_long(
    took: float, pause: float
) -> None:
    rest = WakeupPolicy(MemoryStore().wakeups)
    rest.found(BUSY, took)

    assert await rest.pause() == pytest.approx(pause)


async def test_a_worker_that_finds_little_waits_to_be_told() -> None:
    rest = WakeupPolicy(MemoryStore().wakeups)
    rest.found(1, 0.004)

    assert await rest.pause() == math.inf
