"""Workers that die, or only seem to."""

from __future__ import annotations

import asyncio

from chaos.scenarios.scene import NEVER, Scene, scenario


@scenario("killed", drained=True)
async def killed(scene: Scene) -> None:
    """`a` dies with jobs in its hands; `b` and `c`, busy with later ones, take them over."""
    lost = [scene.gated(NEVER, "again") for _ in range(8)]
    await scene.enqueue(*lost)
    await scene.worker("a")
    for spec in lost:
        await scene.started(spec)
    await asyncio.gather(scene.worker("b"), scene.worker("c"))
    later = [scene.nap(0.3) for _ in range(6)]
    await scene.enqueue(*later)
    for spec in later:
        await scene.started(spec)
    scene.kill("a")
    for spec in lost:
        await scene.started(spec, 2, scene.stage.lease + 5.0)
    # Long enough for somebody who looked before the others to act after them.
    await scene.stage.until(lambda: False, 1.5)
    scene.open("again")
    await scene.drained()


@scenario("left behind", drained=True)
async def left_behind(scene: Scene) -> None:
    """`a` dies; `b`, which has claimed later jobs already, goes back for those of `a`."""
    lost = [scene.gated(NEVER, "again") for _ in range(3)]
    await scene.enqueue(*lost)
    await scene.worker("a", concurrency=len(lost))
    for spec in lost:
        await scene.started(spec)
    await scene.worker("b")
    later = scene.nap(0.01)
    await scene.enqueue(later)
    await scene.started(later)
    scene.kill("a")
    scene.open("again")
    for spec in lost:
        await scene.started(spec, 2, scene.stage.lease + 5.0)
    await scene.drained()


@scenario("patient", drained=True)
async def patient(scene: Scene) -> None:
    """Jobs that run for several leases, one of them blocking the event loop, run once."""
    long = 3 * scene.stage.lease
    awaiting = scene.nap(long)
    blocking = scene.spec("block", does={"do": "block", "seconds": long})
    await asyncio.gather(scene.worker("a", concurrency=1), scene.worker("b", concurrency=1))
    await scene.enqueue(awaiting, blocking)
    await scene.started(awaiting)
    await scene.started(blocking)
    await scene.worker("c")
    await scene.drained(20.0)


_WAITING_JOBS = "select count(*) from holdfast where held_at is null"


@scenario("poison", drained=True, innocent=True, max_recoveries=3)
async def poison(scene: Scene) -> None:
    """A job that kills its worker is held after three deaths; those beside it are not."""
    scene.stage.replacing = True
    deadly = scene.spec("poison", "poison", does={"do": "die"}, max_recoveries=None)
    beside = [scene.nap(0.5, max_recoveries=None) for _ in range(6)]
    await scene.enqueue(*beside, deadly)
    await scene.stage.start_worker("a")

    def over() -> bool:
        return len(scene.starts(deadly)) > 3

    async def settled() -> bool:
        return (
            over()
            or int(await scene.ask("select count(*) from holdfast where held_at is null")) == 0
        )

    await scene.stage.eventually(settled, 40.0)
    scene.expect(len(scene.starts(deadly)) == 3, "three deaths, no more")
    await scene.drained()


@scenario("racing claims", drained=True)
async def racing_claims(scene: Scene) -> None:
    """Three workers claim from one short queue."""
    names = ("a", "b", "c")
    options = {"concurrency": 4, "batch_size": 4, "poll": 0.1}
    await asyncio.gather(*(scene.worker(name, **options) for name in names))
    await scene.enqueue(*(scene.nap(0.03) for _ in range(60)))
    await scene.drained()


@scenario("slots", drained=True, concurrency=4)
async def slots(scene: Scene) -> None:
    """A worker with four slots runs four jobs at once, also where they are short."""
    await scene.enqueue(*(scene.nap(0.001 * (n % 7)) for n in range(300)))
    await scene.worker("a", concurrency=4, batch_size=40, entrypoints=("work",))
    await scene.drained()


@scenario("racing limit", drained=True, limits={"limited": 2})
async def racing_limit(scene: Scene) -> None:
    """Three workers, a limit of two."""
    await asyncio.gather(*(scene.worker(name, poll=0.1) for name in ("a", "b", "c")))
    jobs = [scene.spec("nap", "limited", does={"do": "nap", "seconds": 0.05}) for _ in range(24)]
    await scene.enqueue(*jobs)
    await scene.drained(20.0)


_LOCK = """select pg_advisory_xact_lock(hashtextextended('holdfast limit "holdfast" limited', 0))"""
_WAITING = "select count(*) from pg_locks where locktype = 'advisory' and not granted"


# The lease is long because a claim gives up its wait after a twentieth of it.
@scenario("old transaction", lease=40.0, drained=True, limits={"limited": 2})
async def old_transaction(scene: Scene) -> None:
    """A claim that waited long for the limit's lock begins its leases when it has it."""
    first = [scene.gated("first", entrypoint="limited") for _ in range(2)]
    second = [scene.gated("second", entrypoint="limited") for _ in range(2)]
    await scene.enqueue(*first, *second)
    await asyncio.gather(scene.worker("a", poll=0.1), scene.worker("b", poll=0.1))
    for spec in first:
        await scene.started(spec)
    connection = await scene.stage.connect()
    try:
        async with connection.transaction():
            await connection.execute(_LOCK)

            async def waiting() -> bool:
                return int(await scene.ask(_WAITING)) > 0

            await scene.stage.eventually(waiting, 5.0)
            scene.open("first")
            await scene.demand(lambda: len(scene.lines("settled")) >= 2, 5.0, "both have ended")
    finally:
        await connection.close()
    scene.open("second")
    await scene.drained()


@scenario("lost claim", lease=8.0, drained=True)
async def lost_claim(scene: Scene) -> None:
    """A claim whose reply was lost is taken back at once, not when its lease has run out."""
    await scene.worker("a", poll=0.5)
    trap = scene.stage.proxy.trap("a", "claim", replies=(b'"uid"',))
    jobs = [scene.nap(0.01) for _ in range(3)]
    await scene.enqueue(*jobs)
    await scene.demand(trap.sprung.is_set, 8.0, "a claim's reply is dropped")
    scene.stage.fault("drop-claim", "a", seconds=1.0)
    for spec in jobs:
        await scene.started(spec, 1, 4.0)
    await scene.drained()
