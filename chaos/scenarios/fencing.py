"""A frozen worker whose lease expired goes on: it writes its outcome, or renews."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.scenarios.scene import NEVER, Scene, scenario

if TYPE_CHECKING:
    from chaos.workload import Spec


async def _zombie(scene: Scene, spec: Spec, **options: object) -> None:
    """`a` is frozen inside the handler; `b` recovers the job and still runs it when `a` writes."""
    a = await scene.worker("a", **options)
    await scene.started(spec)
    since = scene.freeze("a")
    scene.open("first")
    await scene.worker("b", **options)
    await scene.started(spec, 2)
    scene.thaw("a", since)
    await scene.told(spec, a.pid)
    scene.open("second")
    await scene.drained()


def _report(scene: Scene, entrypoint: str, then: str) -> Spec:
    return scene.gated(
        "first", "second", entrypoint=entrypoint, then=(then, "ok"), block=(True, False), delay=0.1
    )


@scenario("late success", drained=True)
async def late_success(scene: Scene) -> None:
    spec = _report(scene, "work", "ok")
    await scene.enqueue(spec)
    await _zombie(scene, spec)


@scenario("late retry", drained=True)
async def late_retry(scene: Scene) -> None:
    spec = _report(scene, "work", "retry")
    await scene.enqueue(spec)
    await _zombie(scene, spec)


@scenario("late failure", drained=True)
async def late_failure(scene: Scene) -> None:
    spec = _report(scene, "fragile", "raise")
    await scene.enqueue(spec)
    await _zombie(scene, spec)


@scenario("late hold", drained=True)
async def late_hold(scene: Scene) -> None:
    spec = _report(scene, "held", "raise")
    await scene.enqueue(spec)
    await _zombie(scene, spec)


@scenario("late row", drained=True)
async def late_row(scene: Scene) -> None:
    spec = _report(scene, "work", "ok")
    await scene.insert_row(spec)
    await _zombie(scene, spec, tables=True)


@scenario("late release", drained=True)
async def late_release(scene: Scene) -> None:
    """`a` releases what it had not started after `b` has claimed it."""
    blocking = scene.gated("first", "second", block=(True, False))
    waiting = scene.gated("second")
    await scene.enqueue(blocking, waiting)
    a = await scene.worker("a")
    await scene.started(blocking)
    since = scene.freeze("a")
    scene.open("first")
    await scene.worker("b")
    await scene.started(blocking, 2)
    await scene.started(waiting)
    scene.thaw("a", since)
    await scene.told(blocking, a.pid)
    await scene.told(waiting, a.pid, 2.0)
    scene.open("second")
    await scene.drained()


@scenario("stale heartbeat", drained=True)
async def stale_heartbeat(scene: Scene) -> None:
    """`a` renews the lease that is now `b`'s; `b` dies, and its job must be recovered.

    The handler of `a` blocks its event loop, so that it cannot be cancelled.
    """
    spec = scene.gated("first", NEVER, "third", block=(True, False, False))
    await scene.enqueue(spec)
    await scene.worker("a")
    await scene.started(spec)
    since = scene.freeze("a")
    await scene.worker("b")
    await scene.started(spec, 2)
    await scene.worker("c")
    scene.thaw("a", since)
    await scene.stage.until(lambda: False, scene.stage.lease / 2)
    scene.kill("b")
    scene.open("third")
    await scene.started(spec, 3, scene.stage.lease + 5.0)
    scene.open("first")
    await scene.drained()


@scenario("worker cut off", drained=True)
async def worker_cut_off(scene: Scene) -> None:
    """A worker without a connection cancels its handlers before another worker starts them."""
    spec = scene.nap(4 * scene.stage.lease)
    await scene.enqueue(spec)
    await scene.worker("a")
    await scene.started(spec)
    silence = 3 * scene.stage.lease
    scene.stage.fault("silence", "a", seconds=silence + 3.0)
    await scene.stage.proxy.silence("a")
    await scene.worker("b")
    await scene.started(spec, 2)
    await scene.stage.until(lambda: False, silence / 2)
    await scene.stage.proxy.flow("a")
    await scene.drained(20.0)
