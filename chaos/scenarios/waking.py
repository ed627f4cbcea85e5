"""Idle workers that wait for a wake-up, and schedules."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chaos.scenarios.scene import Scene, scenario

if TYPE_CHECKING:
    from chaos.workload import Spec

_POLL = 40.0
"""Longer than any scenario waits: only a wake-up can start a job in time."""

_SOON = 4.0

_RESCANS = 4.0
"""Seconds after which a worker that sleeps looks by itself only every ten seconds or less often."""

_CHOICES = 10
"""Each is made at random among two: all of them miss the frozen one in a run of a thousand."""


async def _soon(scene: Scene, spec: Spec, what: str, seconds: float = _SOON) -> None:
    await scene.demand(lambda: len(scene.starts(spec)) > 0, seconds, f"{what}: started soon")


async def _asleep(scene: Scene, **options: object) -> None:
    """A worker that has done something, listens, and has nothing more to do."""
    await scene.worker("a", poll=_POLL, **options)
    warm = scene.nap(0.0)
    await scene.enqueue(warm)
    await scene.drained()
    await scene.demand(lambda: bool(scene.stage.proxy.links("a", ["listen"])), 10.0, "it listens")
    await scene.stage.until(lambda: False, 0.5)


@scenario("wake-up", drained=True)
async def wake_up(scene: Scene) -> None:
    """Jobs are enqueued for an idle worker, some of them due in a while."""
    await _asleep(scene)
    due_later, now_due = scene.nap(0.0, delay=2.0), scene.nap(0.0)
    producer = await scene.produce("p", [due_later, now_due], calls_at_once=1)
    await scene.demand(lambda: not producer.alive, 15.0, "the producer is done")
    await _soon(scene, now_due, "enqueued")
    await _soon(scene, due_later, "due", 2.0 + _SOON)
    await scene.drained()
    alone = scene.nap(0.0, delay=1.0)
    await scene.enqueue(alone)
    await _soon(scene, alone, "delayed, with every worker idle", 1.0 + _SOON)
    await scene.drained()
    # Nothing else is due, so only its own wake-up can start it.
    last = scene.nap(0.0)
    producer = await scene.produce("q", [last], calls_at_once=1)
    await scene.demand(lambda: not producer.alive, 15.0, "the second producer is done")
    await _soon(scene, last, "enqueued with every worker idle")
    await scene.drained()


@scenario("wake-up for one job", drained=True)
async def wake_up_for_one_job(scene: Scene) -> None:
    """One job comes for a worker that has been idle for long, and no other job follows."""
    await _asleep(scene)
    # It looks again at growing intervals. By then the next time is far away.
    await scene.stage.until(lambda: False, _RESCANS)
    job = scene.nap(0.0)
    await scene.produce("p", [job], calls_at_once=1)
    await _soon(scene, job, "enqueued")
    await scene.drained()


@scenario("progress")
async def progress(scene: Scene) -> None:
    """Jobs come for an idle worker; only the invariants are checked."""
    first = scene.nap(0.0)
    await scene.enqueue(first)
    await scene.worker("a")
    await scene.started(first)
    await scene.stage.until(lambda: bool(scene.lines("settled")), 5.0)
    later = [scene.nap(0.0) for _ in range(3)]
    await scene.enqueue(*later)
    await scene.stage.until(
        lambda: all(scene.starts(spec) for spec in later), scene.stage.lease + 7.0
    )


@scenario("progress beside a job", concurrency=4)
async def progress_beside_a_job(scene: Scene) -> None:
    """The same for a worker that runs a long job in one of its slots."""
    beside = scene.gated("go")
    await scene.enqueue(beside)
    await scene.worker("a", concurrency=4, batch_size=4)
    await scene.started(beside)
    later = [scene.nap(0.0) for _ in range(3)]
    await scene.enqueue(*later)
    await scene.stage.until(
        lambda: all(scene.starts(spec) for spec in later), scene.stage.lease + 7.0
    )
    scene.open("go")


@scenario("idle worker killed", drained=True)
async def idle_worker_killed(scene: Scene) -> None:
    """One of two idle workers dies; every later job wakes the other one."""
    await _asleep(scene)
    await scene.worker("b", poll=_POLL)
    await scene.demand(lambda: bool(scene.stage.proxy.links("b", ["listen"])), 10.0, "b listens")
    await scene.stage.until(lambda: False, 0.5)
    scene.kill("b")
    await scene.stage.until(lambda: False, 1.0)
    for number in range(6):
        spec = scene.nap(0.0)
        producer = await scene.produce(f"p{number}", [spec], calls_at_once=1)
        await scene.demand(lambda: not producer.alive, 15.0, "the producer is done")  # noqa: B023
        await _soon(scene, spec, "after the death of the other sleeper")
    await scene.drained()


@scenario("woken worker frozen", drained=True)
async def woken_worker_frozen(scene: Scene) -> None:
    """One of two idle workers is frozen, so enqueues may still wake it, and then killed.

    A third worker, which serves another entrypoint, does the upkeep.
    """
    poll = 0.5
    await scene.worker("keeper", poll=poll, entrypoints=("held",))
    await scene.stage.until(lambda: False, 1.0)
    for name in ("a", "b"):
        await scene.worker(name, poll=poll)
    await scene.stage.until(lambda: False, 3.0)
    since = scene.freeze("b")
    for _ in range(_CHOICES):
        spec = scene.nap(0.0)
        await scene.enqueue(spec)
        # A wake-up that is lost costs a look of the keeper, which may choose the frozen one again.
        await _soon(scene, spec, "while the worker that was chosen is frozen", poll + 2 * _SOON)
    scene.kill("b")
    scene.thaw("b", since)
    await scene.drained()


@scenario("listener killed", drained=True)
async def listener_killed(scene: Scene) -> None:
    """The listening connection is ended by the server; a job comes later."""
    await _asleep(scene)
    scene.stage.fault("terminate", "a", seconds=1.0, roles=["listen"])
    [link] = scene.stage.proxy.links("a", ["listen"])
    await scene.ask(
        "select pg_terminate_backend(pid) from pg_stat_activity where client_port = $1",
        link.local_port,
    )
    await scene.stage.until(lambda: link not in scene.stage.proxy.links("a", ["listen"]), 5.0)
    await scene.stage.until(lambda: False, 2.5)
    spec = scene.nap(0.0)
    await scene.enqueue(spec)
    await _soon(scene, spec, "after the listener's death")
    await scene.drained()


@scenario("listener disconnected", drained=True)
async def listener_disconnected(scene: Scene) -> None:
    """A job is enqueued while no worker can listen."""
    await _asleep(scene)
    scene.stage.fault("silence", "a", seconds=3.0, roles=["listen"])
    await scene.stage.proxy.silence("a", ["listen", ""])
    scene.stage.proxy.cut("a", ["listen"])
    await scene.stage.until(lambda: False, 0.3)
    spec = scene.nap(0.0)
    await scene.enqueue(spec)
    await scene.stage.until(lambda: False, 0.7)
    await scene.stage.proxy.flow("a")
    await _soon(scene, spec, "while no worker listened", 8.0)
    await scene.drained()


@scenario("listener half open", drained=True)
async def listener_half_open(scene: Scene) -> None:
    """The listening connection is silently dead; a job comes later."""
    await _asleep(scene, ping=0.7)
    scene.stage.fault("silence", "a", seconds=3.0, roles=["listen"])
    scene.stage.proxy.strand("a", ["listen"])
    await scene.stage.until(lambda: False, 3.5)
    spec = scene.nap(0.0)
    await scene.enqueue(spec)
    await _soon(scene, spec, "after the listener fell silent")
    await scene.drained()


@scenario("schedule ticks")
async def schedule_ticks(scene: Scene) -> None:
    """Two schedulers are frozen for a while; every second still gets one job."""
    await asyncio.gather(*(scene.worker(name, scheduled=True) for name in ("a", "b")))
    await scene.stage.until(lambda: False, 2.5)
    since = {name: scene.freeze(name) for name in ("a", "b")}
    await scene.stage.until(lambda: False, 2.5)
    for name, instant in since.items():
        scene.thaw(name, instant)
    await scene.stage.until(lambda: False, 2.5)
