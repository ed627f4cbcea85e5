"""Errors in a worker's own code, and a handler that blocks its event loop without end."""

from __future__ import annotations

from chaos.scenarios.scene import Scene, scenario

_CHARGED = "select count(*) from holdfast_log where entrypoint = 'work' and recoveries > 0"


async def _nothing_charged(scene: Scene) -> None:
    scene.expect(int(await scene.ask(_CHARGED)) == 0, "no job counts a recovery")


@scenario("immediate retries", drained=True)
async def immediate_retries(scene: Scene) -> None:
    """Jobs ask for a retry without a delay, several at a time."""
    does = {"do": "nap", "seconds": 0.0, "fails": 3, "delay": 0.0}
    await scene.enqueue(*(scene.spec(does=does) for _ in range(6)))
    await scene.worker("a")
    await scene.drained()
    scene.expect(not scene.lines("step"), "no step of the worker fails")


@scenario("step fails", drained=True)
async def step_fails(scene: Scene) -> None:
    """The settler of `a` raises an unexpected error once, while other jobs run."""
    beside = [scene.gated("go") for _ in range(8)]
    await scene.enqueue(*beside)
    await scene.worker("a", trip="settle")
    for spec in beside:
        await scene.started(spec)
    await scene.enqueue(scene.nap(0.01))
    await scene.demand(lambda: bool(scene.lines("tripped")), 10.0, "the settler raises an error")
    await scene.worker("b")
    scene.open("go")
    await scene.drained()
    scene.expect(all(len(scene.starts(spec)) == 1 for spec in beside), "each job runs once")
    await _nothing_charged(scene)


@scenario("lost before start", drained=True)
async def lost_before_start(scene: Scene) -> None:
    """An error loses the first jobs of `a` between their claim and their start."""
    jobs = [scene.nap(0.01) for _ in range(4)]
    await scene.enqueue(*jobs)
    await scene.worker("a", trip="dispatch")
    await scene.demand(lambda: bool(scene.lines("tripped")), 10.0, "jobs are claimed and lost")
    await scene.drained(2 * scene.stage.lease + 5.0)
    await _nothing_charged(scene)


@scenario("loop blocked", drained=True, innocent=True, max_recoveries=3)
async def loop_blocked(scene: Scene) -> None:
    """A handler that blocks the event loop without end counts as one that kills its worker."""
    scene.stage.replacing = True
    beside = [scene.gated("go", max_recoveries=None) for _ in range(6)]
    does = {"do": "block", "seconds": 3600}
    blocking = scene.spec("poison", "poison", does=does, max_recoveries=None)
    await scene.enqueue(*beside)
    await scene.worker("a", max_block=1.5)
    for spec in beside:
        await scene.started(spec)
    await scene.enqueue(blocking)

    async def held() -> bool:
        return bool(await scene.ask("select exists (select from holdfast where held_at < now())"))

    await scene.stage.until(lambda: len(scene.starts(blocking)) > 1, 20.0)
    # It is a suspect now, so it runs once the others have ended.
    scene.open("go")
    await scene.stage.eventually(held, 30.0)
    scene.expect(len(scene.starts(blocking)) == 3, "three workers are replaced, no more")
    await scene.drained()
    await _nothing_charged(scene)
