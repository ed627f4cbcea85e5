"""Workers that die or freeze, and claims that compete."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from chaos.files import SECOND, now
from chaos.scenarios.scene import NEVER, Scene, scenario


@scenario("worker killed", drained=True)
async def worker_killed(scene: Scene) -> None:
    """`a` dies while it runs jobs; `b` and `c`, busy with later ones, recover them."""
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
    # Long enough for a worker that read before the others to write after them.
    await scene.stage.until(lambda: False, 1.5)
    scene.open("again")
    await scene.drained()


@scenario("earlier jobs recovered", drained=True)
async def earlier_jobs_recovered(scene: Scene) -> None:
    """`a` dies; `b`, which has already claimed later jobs, scans below them for those of `a`."""
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


_UPKEEP = "select worker from holdfast_upkeep where expires > clock_timestamp()"


@scenario("upkeep holder frozen", drained=True)
async def upkeep_holder_frozen(scene: Scene) -> None:
    """`a` does the upkeep and freezes with a job; `b` takes over both, and keeps them."""
    lost = scene.gated(NEVER, "again")
    await scene.enqueue(lost)
    await scene.worker("a")
    await scene.started(lost)
    await scene.worker("b")
    await scene.stage.until(lambda: False, 1.5)
    since = scene.freeze("a")
    await scene.started(lost, 2, scene.stage.lease + 5.0)
    holder = await scene.ask(_UPKEEP)
    scene.thaw("a", since)
    # A worker that lost its leases pauses for four seconds before it asks for the upkeep again.
    for _ in range(40):
        await scene.stage.until(lambda: False, 0.2)
        scene.expect(await scene.ask(_UPKEEP) == holder, "the upkeep is not taken back")
    scene.open("again")
    await scene.drained()


@scenario("long jobs", drained=True)
async def long_jobs(scene: Scene) -> None:
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


@scenario("quarantine", drained=True)
async def quarantine(scene: Scene) -> None:
    """`b` runs a suspect that takes long; `c` goes on with everything else."""
    gates = {"do": "gate", "gates": (NEVER, "again"), "then": ("ok",), "block": (False,)}
    suspects = [scene.spec("gate", does=gates, max_recoveries=2) for _ in range(4)]
    await scene.enqueue(*suspects)
    await scene.worker("a")
    for spec in suspects:
        await scene.started(spec)
    scene.kill("a")
    await scene.worker("b")

    def alone() -> int:
        return sum(len(scene.starts(spec)) > 1 for spec in suspects)

    await scene.demand(lambda: alone() > 0, scene.stage.lease + 5.0, "a suspect runs again")
    await scene.worker("c")
    fresh = [scene.nap(0.01) for _ in range(20)]
    await scene.enqueue(*fresh)
    for spec in fresh:
        await scene.started(spec, 1, 5.0)
    scene.expect(alone() == 1, "one suspect runs at a time")
    scene.open("again")
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
    """A worker with four slots never runs more than four jobs, even when they are short."""
    await scene.enqueue(*(scene.nap(0.001 * (n % 7)) for n in range(300)))
    await scene.worker("a", concurrency=4, batch_size=40, entrypoints=("work",))
    await scene.drained()


@scenario("racing limit", drained=True, limits={"limited": 2})
async def racing_limit(scene: Scene) -> None:
    """Three workers claim under a limit of two."""
    await asyncio.gather(*(scene.worker(name, poll=0.1) for name in ("a", "b", "c")))
    jobs = [scene.spec("nap", "limited", does={"do": "nap", "seconds": 0.05}) for _ in range(24)]
    await scene.enqueue(*jobs)
    await scene.drained(20.0)


_LOCK = "select from holdfast_limits where entrypoint = 'limited' for update"
_WAITING = """
select count(*) from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock' and query like '%holdfast_limits%'
"""


# The lease is long because a claim gives up its wait after a twentieth of it.
@scenario("old transaction", lease=40.0, drained=True, limits={"limited": 2})
async def old_transaction(scene: Scene) -> None:
    """A claim that waited for the limit's lock begins its leases when it gets the lock."""
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


@scenario("strict isolation", lease=60.0, drained=True, limits={"limited": 2})
async def strict_isolation(scene: Scene) -> None:
    """The database's default is repeatable read; a claim that waited sees the leases of others."""
    level = "default_transaction_isolation = 'repeatable read'"
    await scene.ask(f"alter database {scene.stage.database} set {level}")
    # An enqueue may wake the frozen worker alone; the other one finds the jobs by its poll.
    options = {"poll": 1.0, "entrypoints": ("limited",)}
    await asyncio.gather(scene.worker("a", **options), scene.worker("b", **options))
    # Both workers know the high priority from here on, and look there first.
    await scene.enqueue(replace(scene.nap(0.0), entrypoint="limited", priority=5))
    await scene.demand(
        lambda: len(scene.lines("settled")) >= 1, 8.0, "the row of the limit is there"
    )
    low = [scene.gated("go", entrypoint="limited") for _ in range(2)]
    high = [replace(scene.gated("go", entrypoint="limited"), priority=5) for _ in range(2)]
    connection = await scene.stage.connect()

    async def waiting(count: int) -> None:
        async def true() -> bool:
            return int(await scene.ask(_WAITING)) >= count

        scene.expect(await scene.stage.eventually(true, 6.0), f"{count} claims wait for the limit")

    try:
        async with connection.transaction():
            # In this order: a worker that is frozen with the lock would keep it.
            await connection.execute(_LOCK)
            frozen = scene.freeze("b")
            await scene.enqueue(*low)
            await waiting(1)
            await scene.enqueue(*high)
            scene.thaw("b", frozen)
            await waiting(2)
    finally:
        await connection.close()
    await scene.demand(lambda: len(scene.lines("start")) >= 3, 8.0, "jobs are started")
    await asyncio.sleep(1.0)
    scene.open("go")
    await scene.drained(20.0)
    said = "".join((scene.stage.directory / f"{name}.log").read_text() for name in ("a", "b"))
    scene.expect("could not serialize" not in said, "no claim is refused for an old snapshot")


_BACKENDS = """
select coalesce(max(n), 0) from (
    select count(*) as n from pg_stat_activity
    where datname = current_database() and application_name like 'holdfast:%'
    group by application_name
) each
"""


@scenario("locked table", lease=20.0, drained=True)
async def locked_table(scene: Scene) -> None:
    """While a table is locked, a worker opens no second connection for any purpose."""
    await scene.worker("a", timeout=0.7, poll=0.1)
    await scene.enqueue(*(scene.nap(0.0) for _ in range(5)))
    await scene.demand(lambda: len(scene.lines("settled")) >= 5, 8.0, "jobs are settled")
    connection = await scene.stage.connect()
    most, until = 0, now() + 5 * SECOND
    try:
        async with connection.transaction():
            await connection.execute("lock table holdfast")
            while now() < until:
                most = max(most, int(await scene.ask(_BACKENDS)))
                await asyncio.sleep(0.1)
    finally:
        await connection.close()
    scene.expect(most <= 2, f"a worker has at most 2 connections of one name, found {most}")
    await scene.enqueue(*(scene.nap(0.0) for _ in range(5)))
    await scene.drained(20.0)


@scenario("lost claim", lease=8.0, drained=True)
async def lost_claim(scene: Scene) -> None:
    """A claim whose reply was lost is released at once, not when its lease expires."""
    await scene.worker("a", poll=0.5, connections=7)
    trap = scene.stage.proxy.trap("a", "claim", replies=(b'"uid"',))
    jobs = [scene.nap(0.01) for _ in range(3)]
    await scene.enqueue(*jobs)
    await scene.demand(trap.sprung.is_set, 8.0, "a claim's reply is dropped")
    scene.stage.fault("drop-claim", "a", seconds=1.0)
    for spec in jobs:
        await scene.started(spec, 1, 4.0)
    await scene.drained()


_COUNTED = "select count(*) from holdfast_log where reason in ('lease_expired', 'crash_loop')"
_EXCUSED = "select count(*) from holdfast_log where reason = 'outage'"


@scenario("long outage", exclusive=True, drained=True)
async def long_outage(scene: Scene) -> None:
    """The server is away for two leases, in which `b` dies; no recovery is counted."""
    halves = {"concurrency": 10, "batch_size": 10}
    await asyncio.gather(scene.worker("a", **halves), scene.worker("b", **halves))
    jobs = [scene.gated("again") for _ in range(20)]
    await scene.enqueue(*jobs)
    for spec in jobs:
        await scene.started(spec)
    # Claims that a crash forgets would be queued again without any recovery.
    await scene.stage.until(lambda: False, 0.3)
    began = now()
    await scene.stage.cluster.crash()
    scene.kill("b")
    await asyncio.sleep(2 * scene.stage.lease)
    await scene.stage.cluster.start()
    scene.stage.fault("crash", t=began, seconds=(now() - began) / SECOND)
    scene.open("again")
    await scene.drained(20.0)
    scene.expect(await scene.ask(_COUNTED) == 0, "no recovery is counted after an outage")
    scene.expect(await scene.ask(_EXCUSED) > 0, "the jobs of the dead worker are recovered")


@scenario("slow link", lease=4.0, drained=True)
async def slow_link(scene: Scene) -> None:
    """The payloads of a whole claim do not arrive within its deadline, those of a few jobs do.

    They are just small enough to be in its reply.
    """
    pad = "x" * 60_000
    jobs = [scene.spec(does={"do": "nap", "seconds": 0.0, "pad": pad}) for _ in range(40)]
    await scene.worker("a", timeout=1.0)
    scene.stage.proxy.throttle("a", 6e5)
    scene.stage.fault("slow", "a", seconds=25.0)
    await scene.enqueue(*jobs)
    await scene.drained(25.0)
