"""Invariants of processes: how they end, and how soon others take over."""

from __future__ import annotations

import json
from bisect import bisect_left
from typing import TYPE_CHECKING

from chaos.checker.model import LeaseKey, Violation, pid_of
from chaos.files import PATIENCE, SECOND
from holdfast.lifecycle import Status
from holdfast.stores.postgres.tables.render import DEATH_ERROR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaos.checker.history import History
    from chaos.checker.model import Fault

_SLACK = int(5 * PATIENCE * SECOND)
_FIRST_CLAIM = 5 * SECOND


def clean_exit(history: History) -> Iterator[Violation]:
    """A worker that is asked to stop ends in time, and a clean exit leaves no lease."""
    grace = int((history.plan.get("drain", 5.0) + 1.0) * SECOND)
    held = {pid_of(s.row.by) for s in history.stories.values() if s.row and s.row.by}
    held |= {pid_of(row["by"]) for row in history.table_rows.values() if row["by"]}
    for pid, told in history.told.items():
        exit_ = history.exits.get(pid)
        if exit_ is None or exit_.t - told > grace + _starved(history, pid, told):
            yield Violation("", f"pid {pid} did not stop in time", t=told)
        elif exit_.code != 0 and not _killed(history, pid):
            yield Violation("", f"pid {pid} was asked to stop and ended with {exit_.code}", t=told)
        elif exit_.code == 0 and pid in held:
            yield Violation("", f"pid {pid} ended with 0 and still holds leases", t=exit_.t)


def _starved(history: History, pid: int, since: int) -> int:
    """How long the process, or the machine, did not get to run meanwhile."""
    return SECOND // 2 + sum(
        stall.until - stall.t
        for stall in history.stalls
        if stall.pid in (None, pid) and stall.until >= since
    )


def _killed(history: History, pid: int) -> bool:
    return any(fault.kind == "kill" and fault.pid == pid for fault in history.faults)


def no_silent_death(history: History) -> Iterator[Violation]:
    """No worker ends by itself, unless a job kills it."""
    poisoned = {
        run.pid
        for story in history.stories.values()
        for run in story.runs
        if run.kind == "poison" and run.end is None
    }
    poisoned |= {
        line["pid"] for lines in history.snooze_runs.values() for line in lines if line["deadly"]
    }
    for exit_ in history.exits.values():
        if exit_.pid in history.spawned and not exit_.told and exit_.pid not in poisoned:
            text = f"worker {exit_.name} (pid {exit_.pid}) ended with {exit_.code} by itself"
            yield Violation("", text, t=exit_.t)


def drained(history: History) -> Iterator[Violation]:
    """Every job that is due ends after the last fault."""
    if not history.plan.get("drained"):
        return
    for story in history.stories.values():
        if story.row is not None and story.row.status != Status.FAILED:
            yield Violation("", f"job {story.job} is still {story.row.status}", story.job)
    for row_id, row in history.table_rows.items():
        if not row["inactive"]:
            yield Violation("", f"row {row_id} is still not done")


def deaths(history: History) -> list[tuple[int, int]]:
    """(pid, instant) of every worker that ended without a word."""
    return [
        (exit_.pid, exit_.t)
        for exit_ in history.exits.values()
        if exit_.pid in history.spawned and exit_.code < 0 and exit_.pid not in history.told
    ]


def orphans(history: History) -> Iterator[tuple[LeaseKey, int, int]]:
    """The leases that a dead worker left: identity, its death, and when the lease was ended."""
    died = dict(deaths(history))
    for key, _, end in history.leases():
        pid = pid_of(key.by)
        if pid in died and end > died[pid]:
            yield key, died[pid], end


def recovery(history: History) -> Iterator[Violation]:
    """The leases of a dead worker end within the lease and 5 seconds, if another worker lives."""
    for key, died, end in orphans(history):
        most = history.lease + _SLACK + _away(history, died, end) + _grace(history, died, end)
        most += _deserted(history, died, end)
        if end - died > most:
            late = (end - died) / SECOND
            yield Violation(
                "", f"job {key.job} waited {late:.1f} s for a dead worker", key.job, end
            )


def _away(history: History, since: int, until: int) -> int:
    """How long there was no server, or no machine, to recover anything meanwhile."""
    spans = [f for f in history.faults if f.kind in ("crash", "failover", "disk")]
    return sum(
        max(0, min(until, found.until) - max(since, found.t))
        for found in (*spans, *(s for s in history.stalls if s.pid is None))
    )


def _deserted(history: History, since: int, until: int) -> int:
    """How long no worker lived that could recover anything meanwhile."""
    lives = sorted(
        (start, history.exits[pid].t if pid in history.exits else until)
        for pid, start in history.ready.items()
    )
    gaps, reached = 0, since
    for start, end in lives:
        gaps += max(0, min(start, until) - reached)
        reached = max(reached, min(end, until))
    return gaps + max(0, until - reached)


def _grace(history: History, since: int, until: int) -> int:
    """After an outage holders have one lease to renew what is theirs, the dead ones too."""
    downs = ("crash", "failover", "disk")
    ends = [f.until for f in history.faults if f.kind in downs and since <= f.until <= until]
    return history.lease if ends else 0


def recovery_times(history: History) -> list[float]:
    """Seconds from a worker's death to the next start of each job it had, or to its retirement.

    Where the successor was struck down before it could start the job, the claim counts: what came
    then is another fault's time.
    """
    times = []
    for key, died, end in orphans(history):
        story = history.stories[key.job]
        leases = [row.key for row in story.log] + ([story.row.key] if story.row else [])
        following = min((k for k in leases if k and k.at >= end), key=lambda k: k.at, default=None)
        taken = following.at if following else end
        starts = [run.start for run in story.runs if run.key == following]
        times.append((min(starts, default=taken) - died) / SECOND)
    return sorted(times)


def resumed(history: History) -> Iterator[Violation]:
    """Jobs are claimed again within five seconds of the server's return."""
    if not history.plan.get("sustained"):
        return
    for down, wait in _returns(history):
        if wait > _FIRST_CLAIM + _starved(history, 0, down.until):
            text = f"no claim for {wait / SECOND:.1f} s after the server's return"
            yield Violation("", text, t=down.t)


def resume_times(history: History) -> list[float]:
    """Seconds from each return of the server, or promotion of another, to the first claim."""
    return sorted(wait / SECOND for _, wait in _returns(history))


def _returns(history: History) -> Iterator[tuple[Fault, int]]:
    """Each outage, and how long after it the first claim came; unless another was in between."""
    claims = sorted(key.at for key, _, _ in history.leases())
    downs = [fault for fault in history.faults if fault.kind in ("crash", "failover")]
    for down in downs:
        place = bisect_left(claims, down.until)
        first = claims[place] if place < len(claims) else history.clock
        if not any(down.until <= other.t < first for other in downs if other is not down):
            yield down, first - down.until


def retired_innocents(history: History) -> Iterator[Violation]:
    """A job that kills its worker is held at its cap of recoveries, and no other job with it."""
    cap = history.plan.get("max_recoveries", 3)
    for story in history.stories.values():
        kind = story.spec[1] if story.spec else (story.runs[0].kind if story.runs else "")
        excused = sum(row.verb == "excuse" for row in story.log)
        if kind == "poison" and len(story.runs) > cap + excused:
            text = f"poison job {story.job} killed {len(story.runs)} workers"
            yield Violation("", text, story.job)
        if kind == "poison" or not history.plan.get("innocent"):
            continue
        if any(row.verb == "retire" for row in story.log):
            yield Violation("", f"job {story.job} was retired for another's", story.job)


def retired_neighbours(history: History) -> Iterator[Violation]:
    """On a table queue, a death changes no attempts and retires only the row that caused it."""
    for row_id, row in history.snooze_rows.items():
        does = json.loads(row["does"])
        retired = row["inactive"] and DEATH_ERROR in (row["error"] or "")
        done = any(line["e"] == "snoozed" for line in history.snooze_runs.get(row_id, ()))
        if row["att"] != does["attempts"]:
            text = f"row {row_id} had {does['attempts']} attempts and a death made it {row['att']}"
            yield Violation("", text)
        if does["deadly"] and not retired:
            yield Violation("", f"row {row_id} kills its workers and was not retired for it")
        if not does["deadly"] and (retired or not done):
            word = "was retired for another's death" if retired else "never ended its run"
            yield Violation("", f"row {row_id} {word}")


def expectations(history: History) -> Iterator[Violation]:
    """What the scenario of a planted bug expects, beside these rules."""
    for line in history.expectations:
        if not line["ok"]:
            yield Violation("", line["text"], line.get("job"), line["t"])
