"""After a failover to a lagging standby, checks that exactly the jobs it had not received are lost.

The standby is asked for its jobs before any client connects. The old primary is started again and
asked for the jobs it had when it crashed. The difference is the tail. The standby gives the ids of
the tail to new jobs, so jobs of the tail are recognised by their payload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.checker.model import LeaseKey, Violation
from chaos.files import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import asyncpg

    from chaos.checker.check import Verdict
    from chaos.checker.history import History

_NOTHING_LOST = "I-1 nothing is lost"
_KNOWN = "select id from holdfast union select job_id from holdfast_log"


async def known_jobs(connection: asyncpg.Connection[asyncpg.Record]) -> set[int]:
    """Those in the tables, waiting, running or ended."""
    try:
        return {row[0] for row in await connection.fetch(_KNOWN)}
    finally:
        await connection.close()


@dataclass(frozen=True, slots=True)
class Failover:
    """What each server knew."""

    primary: set[int]
    standby: set[int]
    switched: int
    """The instant from which on the standby was the only one to acknowledge anything."""

    @property
    def tail(self) -> set[int]:
        return self.primary - self.standby


def judge(verdict: Verdict, failover: Failover, directory: Path) -> None:
    """Replace the verdict. Ids are reused here, so no other invariant can be checked."""
    history = verdict.history
    recorded = {story.job for story in history.stories.values() if story.ended or story.row}
    there = _payloads_there(history, directory)
    wrong: list[Violation] = []
    gone = 0
    for uid, job, acknowledged in _acknowledged(history):
        before = acknowledged < failover.switched
        text = ""
        if before and job not in failover.primary:
            text = f"job {job} was acknowledged, and its primary did not know it when it died"
        elif before and job in failover.tail:
            gone += 1
            if uid in there:
                text = f"job {job} is there, and the standby had not received it"
        elif job not in recorded:
            text = f"job {job} was acknowledged and is lost, and is not of the tail"
        if text:
            wrong.append(Violation(_NOTHING_LOST, text, job, acknowledged))
    verdict.violations = {_NOTHING_LOST: wrong}
    verdict.figures["lost_with_the_tail"] = gone
    verdict.figures["unacknowledged_of_the_tail"] = len(failover.tail) - gone


def _payloads_there(history: History, directory: Path) -> set[int | None]:
    """Jobs of which the new primary has the row or the log of a run."""
    logged = {row.key for story in history.stories.values() for row in story.log}
    there = {story.row.uid for story in history.stories.values() if story.row}
    for line in read_all(directory, "effects-*.jsonl"):
        if line["e"] == "start" and LeaseKey("", line["j"], line["by"], line["at"]) in logged:
            there.add(line["u"])
    return there


def _acknowledged(history: History) -> Iterator[tuple[int, int, int]]:
    for call in history.calls:
        if call.op == "enqueue" and call.outcome == "ok" and call.ended is not None:
            for spec, job in zip(call.jobs, call.ids, strict=True):
                if job is not None:
                    yield spec[0], job, call.ended
