"""Circuit breakers in the tests of a worker: a dependency that fails, and a look at the breaker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from holdfast import Breaker, BreakerPolicy, BreakerState, Holdfast, Job
from holdfast.breaker import Verdicts
from tests.worker.workers import Watch, eventually

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=200)


def policy(**options: Any) -> BreakerPolicy:
    return BreakerPolicy(
        **{"name": "stripe", "threshold": 2, "cooldown": HOUR, "max_cooldown": HOUR, **options}
    )


QUICK = policy(cooldown=SOON)


class Dependency:
    """What handlers call; it can be taken down."""

    def __init__(self) -> None:
        self.up = False
        self.calls = 0

    async def __call__(self, job: Job) -> None:
        self.calls += 1
        if not self.up:
            raise ConnectionError("the dependency is down")


async def breaker_of(hf: Holdfast, name: str = "stripe") -> Breaker:
    [breaker] = [row for row in await hf.queries.list_breakers() if row.name == name]
    return breaker


async def until_breaker(
    hf: Holdfast, state: BreakerState | None = None, generation: int = 0
) -> Breaker:
    """In that state, or in any, once it has moved so often."""
    found: list[Breaker] = []

    async def there() -> bool:
        found[:] = [row for row in await hf.queries.list_breakers() if row.name == "stripe"]
        return any(
            (state is None or row.state is state) and row.generation >= generation for row in found
        )

    await eventually(there)
    return found[0]


async def look_around(hf: Holdfast, watch: Watch) -> None:
    """Have the worker claim and settle something else, so that it has looked at everything."""
    for _ in range(2):
        done = len(watch.settled)
        await hf.queries.enqueue("other")
        await watch.until_settled(done + 1)


def serve_others(hf: Holdfast) -> None:
    @hf.entrypoint("other")
    async def other(job: Job) -> None:
        pass


async def open_and_cooled(hf: Holdfast, policy: BreakerPolicy, failures: int = 2) -> None:
    """Before any worker starts: the breaker is open and its cooldown is over."""
    await hf.store.breakers.record([Verdicts(policy, 0, (False,) * failures)])
    assert (await breaker_of(hf)).state is OPEN

    async def cooled() -> bool:
        admission = (await hf.store.breakers.admit([policy], 0))[policy.name]
        return admission.wait == timedelta(0)

    await eventually(cooled)
