"""The sheet of a bulk act: which jobs it is about, what would become of them, and the button."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.lifecycle import TRANSITIONS, Status, Verb
from holdfast.models import Job, JobId
from holdfast.monitor.chosen import MOST_AT_ONCE, Chosen, find
from holdfast.stores.postgres import rows
from holdfast.web.preview import Preview, preview

if TYPE_CHECKING:
    from holdfast.web.visit import Visit

ACTS = {"requeue": Verb.REQUEUE, "cancel": Verb.CANCEL, "delete": Verb.DELETE}
_WORDS = {
    "requeue": "Counters start at 0. Nothing is sent until you press the button on the right.",
    "cancel": "They leave the queue. Handlers that run are asked to stop.",
    "delete": "They leave the queue, and their payloads with them. Jobs that run stay.",
}
_BECOMES = {
    "cancel": {Status.PICKED: "their handlers would be asked to stop"},
    "delete": {Status.PICKED: "stay: they run"},
}


@dataclass(frozen=True, slots=True)
class Sheet:
    """A preview that names the number."""

    act: str
    title: str
    words: str
    count: int
    go: int
    button: str
    close: str
    others: str | None
    """Where all that match the filter are taken instead of a selection."""
    all: bool
    ids: tuple[JobId, ...]
    tally: tuple[tuple[Status, int, str], ...] = ()
    preview: Preview | None = None


async def sheet(visit: Visit, wanted: Chosen) -> Sheet | None:
    """The sheet that the address asks for; None where it asks for none."""
    act = visit.params.get("do", "")
    if act not in ACTS or not visit.who.acts:
        return None
    everything = bool(visit.params.get("all"))
    picked = [JobId(int(word)) for word in visit.params.getlist("id") if is_id(word)]
    if everything or not picked:
        jobs, everything = (
            await find(visit.look, wanted, limit=MOST_AT_ONCE, window=MOST_AT_ONCE),
            True,
        )
        ids = [job.id for job in jobs]
    else:
        found = await visit.look.run("get", ids=picked)
        jobs, ids = [rows.job(row) for row in found], picked
    look = await preview(visit.site.hf, ids) if act == "requeue" else None
    sources = TRANSITIONS[ACTS[act]].sources
    go = look.go if look else sum(job.status in sources for job in jobs)
    of = "all that match" if everything else "the selection"
    return Sheet(
        act,
        f"{act.capitalize()} {of}",
        _WORDS[act],
        len(ids),
        go,
        f"{act.capitalize()} {go:,} job{'' if go == 1 else 's'}",
        visit.address.with_query(do=None, id=None, all=None),
        None if everything else visit.address.with_query(id=None, all="1"),
        everything,
        tuple(ids),
        _tally(act, jobs),
        look,
    )


def _tally(act: str, jobs: list[Job]) -> tuple[tuple[Status, int, str], ...]:
    counts = Counter(job.status for job in jobs)
    becomes = _BECOMES.get(act, {})
    return tuple(
        (status, count, becomes.get(status, "would leave the queue"))
        for status, count in counts.items()
    )


def is_id(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 18
