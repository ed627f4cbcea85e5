"""Clients: keys in high demand, lost replies, and crashes of the server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chaos.files import SECOND, now
from chaos.scenarios.scene import Scene, scenario

if TYPE_CHECKING:
    from chaos.stage import Process, Stage


@scenario("hot keys", drained=True)
async def hot_keys(scene: Scene) -> None:
    """Many clients enqueue under the same few keys while a worker works on them."""
    await scene.worker("a", poll=0.1)
    clients = []
    for name in ("p", "q"):
        jobs = [
            scene.spec("keyed", does={"do": "nap", "seconds": 0.1}, key=f"hot:{n % 2}")
            for n in range(120)
        ]
        options = {"calls_at_once": 6, "per_second": 400.0}
        clients.append(await scene.produce(name, jobs, **options))
    for client in clients:
        await scene.demand(lambda c=client: not c.alive, 20.0, "the client is done")  # type: ignore[misc]
    await scene.drained()


async def drop_replies(stage: Stage, producer: Process, pause: float) -> int:
    """Drop one reply to an enqueue after the other until the producer is done. Return how many.

    In the pauses the next attempt gets its reply.
    """
    dropped = 0
    while producer.alive:
        trap = stage.proxy.trap(producer.name, "main", request=b'"uid"')
        await stage.until(lambda: trap.sprung.is_set() or not producer.alive, 60.0)  # noqa: B023
        if trap.sprung.is_set():
            stage.fault("drop-enqueue", producer.name, hit=True)
            dropped += 1
            await asyncio.sleep(pause)
    return dropped


@scenario("lost replies", drained=True)
async def lost_replies(scene: Scene) -> None:
    """Replies to enqueues are dropped; the client itself repeats only calls with a dedupe key."""
    plain = [scene.nap(0.0) for _ in range(30)]
    keyed = [scene.nap(0.0, key=f"once:{n}") for n in range(30)]
    producer = await scene.produce("p", [*plain, *keyed], calls_at_once=1)
    dropping = asyncio.create_task(drop_replies(scene.stage, producer, 0.15))
    await scene.demand(lambda: not producer.alive, 40.0, "the producer is done")
    await dropping
    await scene.worker("a")
    await scene.drained()


@scenario("crash after enqueue", exclusive=True, probing=False, drained=True)
async def crash_after_enqueue(scene: Scene) -> None:
    """The server crashes right after it has acknowledged jobs."""
    await scene.ask("alter system set wal_writer_delay = '10s'")
    await scene.ask("select pg_reload_conf()")
    jobs = [scene.nap(0.0) for _ in range(10)]
    producer = await scene.produce("p", jobs, calls_at_once=1, per_second=1000.0)
    await scene.demand(lambda: not producer.alive, 15.0, "the producer is done")
    await crash(scene)
    await scene.worker("a")
    await scene.drained()


@scenario("crash after outcome", exclusive=True, probing=False, drained=True)
async def crash_after_outcome(scene: Scene) -> None:
    """The server crashes right after it has acknowledged outcomes."""
    await scene.ask("alter system set wal_writer_delay = '10s'")
    await scene.ask("select pg_reload_conf()")
    jobs = [scene.gated("open") for _ in range(10)]
    await scene.enqueue(*jobs)
    await scene.worker("a")
    for spec in jobs:
        await scene.started(spec)
    scene.open("open")
    await scene.demand(lambda: len(scene.lines("settled")) >= 10, 10.0, "all are settled")
    await crash(scene)
    await scene.drained()


@scenario("outage", exclusive=True, drained=True)
async def outage(scene: Scene) -> None:
    """The server is away for a while; the same workers go on when it is back."""
    await asyncio.gather(scene.worker("a"), scene.worker("b"))
    await scene.enqueue(*(scene.nap(0.5) for _ in range(20)))
    await scene.demand(lambda: len(scene.lines("start")) >= 5, 10.0, "jobs are started")
    began = now()
    await scene.stage.cluster.crash()
    await asyncio.sleep(1.0)
    await scene.stage.cluster.start()
    scene.stage.fault("crash", t=began, seconds=(now() - began) / SECOND)
    await scene.enqueue(scene.nap(0.0))
    await scene.drained(20.0)


async def crash(scene: Scene) -> None:
    began = now()
    await scene.stage.cluster.crash()
    await scene.stage.cluster.start()
    scene.stage.fault("crash", t=began, seconds=(now() - began) / SECOND)
    await scene.ask("alter system reset wal_writer_delay")
    await scene.ask("select pg_reload_conf()")
