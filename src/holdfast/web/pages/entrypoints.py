"""Every entrypoint: what waits and runs, how it does, and whether it is paused."""

from __future__ import annotations

from typing import Any

from holdfast.web.pages import overview
from holdfast.web.visit import Page, Visit


async def load(visit: Visit) -> dict[str, Any]:
    facts = await overview.read(visit, overview.RANGES["1h"])
    rows = overview.troubles(facts, visit.now)
    n = sum(row.weight > 0 for row in rows)
    words = "All keep up." if not n else f"{n} need{'s' if n == 1 else ''} attention."
    return {
        "rows": rows,
        "everything": next((pause for pause in facts.pauses if not pause.name), None),
        "do": visit.params.get("do", "") if visit.who.acts else "",
        "name": visit.text("name") or "",
        "home": "/tables" if visit.params.get("back") == "tables" else "/entrypoints",
        "sentence": ("No entrypoint is known.", "")
        if not rows
        else (f"{len(rows):,} entrypoint{'s' if len(rows) != 1 else ''}.", words),
    }


PAGE = Page("Entrypoints", "/entrypoints", "entrypoints.html", load, group=2)
