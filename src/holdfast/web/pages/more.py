"""All pages by name, for phones, where the navigation has no room."""

from __future__ import annotations

from typing import Any

from holdfast.web.visit import Page, Visit


async def load(visit: Visit) -> dict[str, Any]:
    del visit
    return {}


PAGE = Page("More", "/more", "more.html", load)
