"""Circuit breakers: their state, why, and when they try again; open and close by hand."""

from __future__ import annotations

from typing import Any

from holdfast.breaker import BreakerState
from holdfast.monitor import pages
from holdfast.web.visit import Page, Visit

SPOKEN = {
    BreakerState.CLOSED: ("closed", "successful", "closed"),
    BreakerState.OPEN: ("open", "risk", "open"),
    BreakerState.HALF_OPEN: ("open", "warn", "half open"),
}
"""Shape, tone and word."""


async def load(visit: Visit) -> dict[str, Any]:
    found = await pages.breakers(visit.look)
    shut = [breaker for breaker in found if breaker.state is not BreakerState.CLOSED]
    if not found:
        sentence = ("There is no circuit breaker.", "")
    elif shut:
        names = ", ".join(breaker.name for breaker in shut[:3])
        verb = "lets" if len(shut) == 1 else "let"
        sentence = (f"{len(shut)} of {len(found)} {verb} no work through.", f"{names}.")
    else:
        sentence = (f"{len(found)} breaker{'s' if len(found) > 1 else ''}, all closed.", "")
    behind = pages.behind(await pages.workers(visit.look))
    return {
        "breakers": found,
        "behind": behind,
        "spoken": SPOKEN,
        "sentence": sentence,
        "open": BreakerState.OPEN,
    }


PAGE = Page("Breakers", "/breakers", "breakers.html", load, group=3)
