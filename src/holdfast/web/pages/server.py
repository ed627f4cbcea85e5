"""The database behind the queue: sizes, dead rows, the oldest transaction, versions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from holdfast.monitor.doctor import Finding
from holdfast.stores.postgres.binding import Binding
from holdfast.web.visit import Page, Visit
from holdfast.web.words import coarse, size

_LONG = timedelta(minutes=5)
"""A transaction that is open for longer keeps dead rows that slow the queue down."""


_MOST_ALIKE, _SHOWN = 4, 3
"""More findings of one check than the first number are folded after the second."""


async def load(visit: Visit) -> dict[str, Any]:
    relations = Binding(visit.site.hf.names).relations
    names = [name for key, name in relations.items() if key not in ("prefix", "status")]
    tables = await visit.look.run("page_system", tables=names)
    server = await visit.look.one("page_server")
    oldest = server[8]
    long = oldest is not None and visit.now - oldest > _LONG
    total = sum(row[1] for row in tables)
    head = f"The queue takes {size(total)} of disk."
    findings = visit.site.checkup.findings
    n = len(findings)
    rest = f"The doctor found {n} thing{'' if n == 1 else 's'} to put right." if n else ""
    if long and not n:
        rest = f"A transaction is open for {coarse(visit.now - oldest)}."
    return {
        "tables": [
            {"name": row[0], "size": row[1], "live": row[2], "dead": row[3], "vacuumed": row[4]}
            for row in tables
        ],
        "server": {
            "version": server[0], "database": server[1], "user": server[2], "size": server[3],
            "started": server[4], "pid": server[5], "application": server[6], "state": server[7],
            "oldest": oldest, "migration": server[9],
        },
        "long": long,
        "findings": _by_check(findings),
        "version": version("holdfast"),
        "sentence": (head, rest),
    }  # fmt: skip


def _by_check(found: Sequence[Finding]) -> list[tuple[Sequence[Finding], Sequence[Finding]]]:
    """Those of each check: what is shown, and what is folded because it says the same again."""
    kinds: dict[str, list[Finding]] = {}
    for finding in found:
        kinds.setdefault(finding.check, []).append(finding)
    return [
        (some, ()) if len(some) <= _MOST_ALIKE else (some[:_SHOWN], some[_SHOWN:])
        for some in kinds.values()
    ]


PAGE = Page("System", "/system", "system.html", load, group=4, examined=True)
