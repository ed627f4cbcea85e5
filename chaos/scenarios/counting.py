"""A frozen worker whose lease expired goes on: it commits, stores a result or writes progress."""

from __future__ import annotations

from chaos import counting
from chaos.scenarios.scene import Scene, scenario

_LEASE = 2.5
"""Long enough that `b` does not lose its own lease on a busy machine."""

_RESULT = "select value from counting.holdfast_results"
_WRITTEN = "select coalesce(string_agg(by, ',' order by by), '') from counting.written"
_SAID = "select message from counting.holdfast_progress"
_LEFT = "select count(*) from counting.holdfast"


async def _sleeps(scene: Scene, what: str) -> int:
    """`a` is frozen inside the handler, and `b` has begun the next run. Return when `a` froze."""
    await counting.install(scene.stage)
    async with counting.connect(scene.stage.dsn) as hf:
        await counting.Tasks(hf).late.enqueue(what)
    await scene.worker("a", **counting.WORKER)
    await scene.demand(lambda: len(scene.lines("counting")) == 1, 20.0, "`a` runs the job")
    since = scene.freeze("a")
    scene.open("first")
    await scene.worker("b", **counting.WORKER)
    await scene.demand(lambda: len(scene.lines("counting")) == 2, 20.0, "`b` runs the job")
    return since


async def _ended(scene: Scene) -> None:
    async def none_left() -> bool:
        return not await scene.ask(_LEFT)

    scene.expect(await scene.stage.eventually(none_left, 20.0), "the job ends")


async def _told(scene: Scene) -> None:
    await scene.demand(
        lambda: any(line["me"] == "a" for line in scene.lines("uncounted")),
        20.0,
        "`a` learns that its lease is lost",
    )


async def _belongs_to_b(scene: Scene) -> None:
    result, written = await scene.ask(_RESULT), await scene.ask(_WRITTEN)
    scene.expect(result == '"b"', f"the result is that of `b`, found {result}")
    scene.expect(written in ("", "b"), f"only `b` has written, found {written}")


@scenario("late commit", lease=_LEASE)
async def late_commit(scene: Scene) -> None:
    """`a` commits while `b` holds the lease."""
    since = await _sleeps(scene, "transaction")
    scene.thaw("a", since)
    await scene.stage.until(lambda: bool(scene.lines("uncounted")), 5.0)
    # Were `b` to lose its lease, `a` could run the job again, and rightly.
    scene.kill("a")
    scene.open("second")
    await _ended(scene)
    await _belongs_to_b(scene)


@scenario("late commit after the end", lease=_LEASE)
async def late_commit_after_the_end(scene: Scene) -> None:
    """`a` commits when `b` has ended the job."""
    since = await _sleeps(scene, "transaction")
    scene.open("second")
    await _ended(scene)
    scene.thaw("a", since)
    await scene.stage.until(lambda: bool(scene.lines("uncounted")), 5.0)
    await _belongs_to_b(scene)


@scenario("late result", lease=_LEASE)
async def late_result(scene: Scene) -> None:
    """`a` returns when `b` has ended the job."""
    since = await _sleeps(scene, "plain")
    scene.open("second")
    await _ended(scene)
    scene.thaw("a", since)
    await _told(scene)
    await _belongs_to_b(scene)


@scenario("late progress", lease=_LEASE)
async def late_progress(scene: Scene) -> None:
    """`a` writes progress while `b` holds the lease."""
    since = await _sleeps(scene, "progress")

    async def said() -> bool:
        return bool(await scene.ask(_SAID) == "b")

    scene.expect(await scene.stage.eventually(said, 10.0), "`b` writes progress")
    scene.thaw("a", since)
    await scene.stage.until(lambda: False, 1.5)
    found = await scene.ask(_SAID)
    scene.expect(found == "b", f"the progress is that of `b`, found that of {found}")
    scene.open("second")
    await _ended(scene)
