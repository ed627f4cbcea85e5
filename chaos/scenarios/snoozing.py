"""Workers that die on a user's table which has no column for deaths."""

from __future__ import annotations

from chaos import snoozes
from chaos.scenarios.scene import Scene, scenario

_DEADLY = 19
"""Not among the first rows, so that it kills a worker beside other rows before it does alone."""


@scenario("user table deaths", drained=True)
async def user_table_deaths(scene: Scene) -> None:
    """`a` dies with a row at every number of attempts; `b` runs them all, and none is retired."""
    rows = await snoozes.add(scene.stage, {"gate": "again"})
    await scene.worker("a", concurrency=rows, batch_size=rows, **snoozes.WORKER)
    await scene.demand(lambda: len(scene.lines("snooze")) >= rows, 20.0, "`a` runs all rows")
    await scene.worker("b", **snoozes.WORKER)
    scene.kill("a")
    scene.open("again")
    await scene.drained(20.0)


@scenario("user table poison", drained=True)
async def user_table_poison(scene: Scene) -> None:
    """A row that kills its worker is retired; the rows beside it are done."""
    scene.stage.replacing = True
    rows = await snoozes.add(scene.stage, {"seconds": 0.05}, (_DEADLY,))
    await scene.stage.start_worker("a", concurrency=rows, batch_size=rows, **snoozes.WORKER)
    await scene.drained(20.0)
    deaths = [line for line in scene.lines("snooze") if line["deadly"]]
    # Beside all rows, in groups that halve, alone.
    scene.expect(2 <= len(deaths) <= 8, f"the row has killed {len(deaths)} workers")
