"""Outcomes on their way to the database: torn, refused, silent, weird."""

from __future__ import annotations

import asyncio

from chaos.scenarios.scene import Scene, scenario
from chaos.workload import WEIRD

_TAGS = (b"INSERT 0 1\0", b"DELETE 1\0")


@scenario("lost outcome reply", drained=True)
async def lost_outcome_reply(scene: Scene) -> None:
    """The reply to the first outcome is lost, and the connection with it."""
    worker = await scene.worker("a", connections=7)
    spec = scene.nap(0.0)
    await scene.enqueue(spec)
    for _ in range(2):
        # Nothing of an earlier outcome is under way that the trap could take for this one's.
        await scene.told(spec, worker.pid)
        trap = scene.stage.proxy.trap("a", "settle", replies=_TAGS)
        spec = scene.nap(0.01)
        await scene.enqueue(spec)
        await scene.demand(trap.sprung.is_set, 8.0, "an outcome's reply is dropped")
        scene.stage.fault("drop-settle", "a", seconds=1.0)
    await scene.drained()


@scenario("unusual errors", drained=True)
async def unusual_errors(scene: Scene) -> None:
    """Whatever a handler raises is recorded, and the worker and its other jobs go on."""
    await scene.worker("a")
    errors = [
        scene.spec("weird", entrypoint, does={"do": "raise", "error": error})
        for error in WEIRD
        for entrypoint in ("fragile", "held")
    ]
    await scene.enqueue(*errors, *(scene.nap(0.02) for _ in range(5)))
    await scene.drained(12.0)


@scenario("retries", drained=True)
async def retries(scene: Scene) -> None:
    """A job that fails twice runs three times, each time after its delay."""
    await scene.worker("a", poll=0.2)
    does = {"do": "nap", "seconds": 0.01, "fails": 2, "delay": 0.7}
    jobs = [scene.spec("fail", does=does) for _ in range(4)]
    scene.plan["delays"] = {str(spec.uid): 0.7 for spec in jobs}
    await scene.enqueue(*jobs)
    await scene.drained(12.0)


@scenario("delayed jobs", drained=True)
async def delayed_jobs(scene: Scene) -> None:
    """A delayed job does not run early, whatever the client's clock says."""
    await scene.worker("a", poll=0.2)
    jobs = [scene.nap(0.01, delay=1.0 + 0.1 * n) for n in range(5)]
    producer = await scene.produce("p", jobs, skew=-3600.0)
    await scene.demand(lambda: not producer.alive, 15.0, "the producer is done")
    await scene.drained()


@scenario("silent connection", drained=True)
async def silent_connection(scene: Scene) -> None:
    """The connection for outcomes falls silent; a deadline replaces it."""
    await scene.worker("a", timeout=1.5, poll=0.3, connections=7)
    await scene.enqueue(scene.nap(0.0))
    await scene.drained()
    scene.stage.fault("silence", "a", seconds=4.0, roles=["settle"])
    scene.stage.proxy.strand("a", ["settle"])
    await scene.enqueue(scene.nap(0.01))
    await scene.drained(9.0)


@scenario("released at stop", drained=True, drain=0.5)
async def released_at_stop(scene: Scene) -> None:
    """A worker that stops releases what it cannot finish in time, uncounted, and ends."""
    jobs = [scene.gated("open", max_recoveries=None) for _ in range(4)]
    await scene.enqueue(*jobs)
    await scene.worker("a", drain=0.5)
    for spec in jobs:
        await scene.started(spec)
    took = await scene.stage.retire("a", 6.0)
    scene.expect(took < 5.5, "it ends soon after its half second")
    scene.open("open")
    await scene.worker("b")
    await scene.drained()


@scenario("earlier jobs released", drained=True, drain=0.5)
async def earlier_jobs_released(scene: Scene) -> None:
    """`b`, which has already claimed later jobs, scans below them for what `a` releases."""
    jobs = [scene.gated("open", max_recoveries=None) for _ in range(3)]
    await scene.enqueue(*jobs)
    await scene.worker("a", concurrency=len(jobs), drain=0.5)
    for spec in jobs:
        await scene.started(spec)
    await scene.worker("b")
    later = scene.nap(0.01)
    await scene.enqueue(later)
    await scene.started(later)
    await scene.stage.retire("a", 6.0)
    scene.open("open")
    for spec in jobs:
        await scene.started(spec, 2)
    await scene.drained()


@scenario("long graceful stop", drained=True, drain=8.0)
async def long_graceful_stop(scene: Scene) -> None:
    """A worker that stops keeps the leases of the jobs that it still finishes."""
    spec = scene.nap(3 * scene.stage.lease)
    await scene.enqueue(spec)
    await scene.worker("a", drain=8.0)
    await scene.started(spec)
    await asyncio.gather(scene.stage.retire("a", 10.0), scene.worker("b"))
    await scene.drained()
    scene.expect(len(scene.starts(spec)) == 1, "it is finished where it was begun")


@scenario("canceled jobs", drained=True)
async def canceled_jobs(scene: Scene) -> None:
    """Jobs canceled before they are due never run."""
    await scene.worker("a", poll=0.2)
    jobs = [
        scene.spec("cancel", does={"do": "nap", "seconds": 0.01}, delay=1.0, cancel_after=0.0)
        for _ in range(4)
    ]
    producer = await scene.produce("p", jobs)
    await scene.demand(lambda: not producer.alive, 15.0, "the producer is done")
    await scene.drained()


@scenario("breaker stays closed")
async def breaker_stays_closed(scene: Scene) -> None:
    """Failures of jobs that were claimed before a breaker opened do not open it again."""
    await scene.worker("a", poll=0.1)
    early = [
        scene.gated("early", entrypoint="guarded", then=("retry",), delay=30.0) for _ in range(3)
    ]
    await scene.enqueue(*early)
    for spec in early:
        await scene.started(spec)
    (scene.stage.directory / "down").touch()
    calls = [scene.spec("guarded", "guarded", does={"do": "call", "delay": 0.2}) for _ in range(3)]
    await scene.enqueue(*calls)
    state = "select state || generation from holdfast_breakers where name = 'dependency'"

    async def opened() -> bool:
        return (await scene.ask(state)) not in (None, "closed0")

    scene.expect(await scene.stage.eventually(opened, 8.0), "three failures open the breaker")
    (scene.stage.directory / "down").unlink()

    async def closed() -> bool:
        return str(await scene.ask(state)).startswith("closed")

    scene.expect(await scene.stage.eventually(closed, 15.0), "a probe closes it")
    before = await scene.ask(state)
    scene.open("early")

    def late() -> int:
        jobs = {line["j"] for spec in early for line in scene.starts(spec)}
        return sum(line["j"] in jobs for line in scene.lines("settled"))

    await scene.demand(lambda: late() >= 3, 8.0, "the late failures are settled")
    await scene.stage.until(lambda: False, 0.7)
    after = await scene.ask(state)
    scene.expect(before == after, f"it stays {before}, and is {after}")
