"""Reads the three histories of a run, line by line, into one story a job."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chaos.checker.model import (
    Call,
    Exit,
    Fault,
    LeaseKey,
    LogRow,
    QueueRow,
    Run,
    Story,
    pid_of,
)
from chaos.files import OLD_WORKER_PROGRAM, SECOND, WORKER_PROGRAMS, Line, read, read_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_LIFE = 60 * SECOND
"""How long a fault without an end of its own is looked back at, at most."""


@dataclass(slots=True)
class History:
    """What happened, from three independent sources."""

    plan: dict[str, Any]
    stories: dict[int, Story] = field(default_factory=dict)
    table_runs: dict[int, list[Run]] = field(default_factory=dict)
    table_rows: dict[int, Line] = field(default_factory=dict)
    snooze_runs: dict[int, list[Line]] = field(default_factory=dict)
    """Of each row of the article's table: every line of its handler."""
    snooze_rows: dict[int, Line] = field(default_factory=dict)
    table_acknowledged: dict[int, int] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    exits: dict[int, Exit] = field(default_factory=dict)
    told: dict[int, int] = field(default_factory=dict)
    """When a process was asked to stop (SIGTERM)."""
    spawned: dict[int, str] = field(default_factory=dict)
    ready: dict[int, int] = field(default_factory=dict)
    """When a worker process that can recover jobs wrote its first line, before it connected."""
    settled: dict[LeaseKey, tuple[int, str]] = field(default_factory=dict)
    stalls: list[Fault] = field(default_factory=list)
    """Pauses that no fault caused: a process, its event loop or the server did not get to run.
    A stall of the harness stalls every process, because all connections pass through it."""
    expectations: list[Line] = field(default_factory=list)
    clock: int = 0
    """The server's clock when the tables were read."""

    @property
    def lease(self) -> int:
        return int(self.plan["lease"] * SECOND)

    def leases(self) -> Iterator[tuple[LeaseKey, str, int]]:
        """Every lease that the tables know: its identity, entrypoint and end (or the clock)."""
        for story in self.stories.values():
            for row in story.log:
                if (key := row.key) is not None:
                    yield key, row.entrypoint, row.t
            if story.row is not None and (key := story.row.key) is not None:
                yield key, story.row.entrypoint, self.clock

    def died(self, pid: int | None) -> int | None:
        """When a process ended."""
        found = self.exits.get(pid) if pid is not None else None
        return found.t if found else None

    def disturbed(self, pid: int | None, since: int, until: int) -> bool:
        """Whether anything was done to that process, or to all, between two instants.

        A stretch that is short beside the time between two renewals is no reason for anything.
        """
        stalls = (stall for stall in self.stalls if stall.until - stall.t > self.lease // 6)
        return any(
            (fault.pid is None or fault.pid == pid) and fault.t <= until and fault.until >= since
            for fault in (*self.faults, *stalls)
        )

    def quiet(self, pid: int, since: int, until: int) -> int:
        """The longest time between two faults in that stretch, without the stalls in it."""
        faults = [(fault.t, fault.until) for fault in self.faults if fault.pid in (None, pid)]
        stalls = [(stall.t, stall.until) for stall in self.stalls if stall.pid in (None, pid)]
        longest = 0
        for began, ended in _gaps(faults, since, until):
            longest = max(longest, sum(end - start for start, end in _gaps(stalls, began, ended)))
        return longest

    def crashed(self, since: int, until: int) -> bool:
        """Whether the server lost what was not flushed between two instants."""
        return any(
            fault.kind in ("crash", "failover") and since <= fault.until and fault.t <= until
            for fault in self.faults
        )


def _gaps(spans: Iterable[tuple[int, int]], since: int, until: int) -> Iterator[tuple[int, int]]:
    """What the spans leave of a stretch."""
    for start, end in sorted(spans):
        if since < start:
            yield since, min(start, until)
        since = max(since, end)
        if since >= until:
            return
    yield since, until


def load(directory: Path) -> History:
    """All that the directory of a run holds."""
    history = History(json.loads((directory / "plan.json").read_text()))
    stories: defaultdict[int, Story] = defaultdict(Story)  # type: ignore[arg-type]

    def story(job: int) -> Story:
        if job not in stories:
            stories[job] = Story(job)
        return stories[job]

    for line in read(directory / "clock.jsonl"):
        history.clock = line["t"]
    for line in read(directory / "log.jsonl"):
        story(line["j"]).log.append(_log_row(line))
    for line in read(directory / "queue.jsonl"):
        story(line["j"]).row = _queue_row(line)
    history.snooze_rows = {line["j"]: line for line in read(directory / "snoozes.jsonl")}
    history.table_rows = {line["j"]: line for line in read(directory / "rows.jsonl")}
    _load_effects(history, directory, story)
    _load_clients(history, directory, story)
    _load_processes(history, directory)
    _load_faults(history, directory)
    history.expectations = list(read(directory / "expectations.jsonl"))
    history.stories = dict(sorted(stories.items()))
    return history


def _log_row(line: Line) -> LogRow:
    return LogRow(
        line["id"], line["j"], line["s"], line["ep"], line["att"], line["rec"], line["by"],
        line["at"], line["actor"], line["why"], line["error"], line["t"],
    )  # fmt: skip


def _queue_row(line: Line) -> QueueRow:
    payload = json.loads(line["payload"]) if line["payload"] else {}
    return QueueRow(
        line["j"], line["ep"], line["s"], line["att"], line["rec"], line["by"], line["at"],
        line["tok"], line["due"], line["born"], line["key"], line["held"], line["slot"],
        payload.get("uid"), payload.get("kind", ""),
    )  # fmt: skip


def _key(line: Line) -> LeaseKey:
    return LeaseKey(line["q"], line["j"], line["by"], line["at"])


def _load_effects(history: History, directory: Path, story: Any) -> None:
    for path in sorted(directory.glob("effects-*.jsonl")):
        open_runs: dict[LeaseKey, Run] = {}
        _, name, number = path.stem.split("-")
        pid, last = int(number), 0
        for line in read(path):
            history.ready.setdefault(pid, line["t"])
            match line["e"]:
                case "start":
                    run = _run(line, last)
                    open_runs[run.key] = run
                    if run.key.queue:
                        history.table_runs.setdefault(run.key.job, []).append(run)
                    else:
                        story(run.key.job).runs.append(run)
                case "end":
                    run = open_runs.pop(_key(line))
                    run.end, run.how = line["t"], line["how"]
                case "snooze" | "snoozed":
                    history.snooze_runs.setdefault(line["row"], []).append(line)
                case "settled":
                    history.settled[_key(line)] = line["t"], line["how"]
                case "stall" | "lag":
                    history.stalls.append(Fault(line["e"], line["since"], name, pid, line["t"]))
            if line["e"] != "stall":
                last = line["t"]
        history.stalls += _unreported_lags(open_runs.values(), name, 2 * history.lease)


def _unreported_lags(runs: Iterable[Run], name: str, length: int) -> Iterator[Fault]:
    """Who dies in a handler that blocks cannot note how long its event loop stood still."""
    for run in runs:
        if run.kind == "block":
            yield Fault("lag", run.start, name, run.pid, run.start + length)


def _run(line: Line, last: int) -> Run:
    return Run(
        _key(line), line["pid"], line["tok"], line["u"], line["k"] or "", line["ep"], line["att"],
        line["rec"], line["due"], line["born"], line["key"], line["slot"], line["t"], last,
    )  # fmt: skip


def _load_clients(history: History, directory: Path, story: Any) -> None:
    calls: dict[str, Call] = {}
    for line in read_all(directory, "client-*.jsonl"):
        if line["e"] == "invoke":
            jobs, ids = line.get("jobs", []), line.get("ids", [])
            calls[line["c"]] = Call(line["c"], line["op"], line["t"], jobs, ids)
        elif line["e"] in ("ok", "fail", "info"):
            call = calls[line["c"]]
            call.outcome, call.ended = line["e"], line["t"]
            call.ids = line.get("ids", call.ids)
            call.final = line.get("final", False)
    history.calls = sorted(calls.values(), key=lambda call: call.invoked)
    for call in history.calls:
        if call.outcome != "ok":
            continue
        if call.op == "row":
            history.table_acknowledged[int(call.id)] = call.ended or 0
        elif call.op == "enqueue":
            for spec, job in zip(call.jobs, call.ids, strict=True):
                if job is not None:
                    known = story(job)
                    known.spec, known.invoked = spec, call.invoked
                    known.acknowledged = call.ended


def _load_processes(history: History, directory: Path) -> None:
    for line in read(directory / "processes.jsonl"):
        match line["e"]:
            case "spawn":
                if line["module"] in WORKER_PROGRAMS:
                    history.spawned[line["pid"]] = line["name"]
                if line["module"] == OLD_WORKER_PROGRAM:
                    # It recovers nothing, so no recovery waits for it.
                    history.ready.pop(line["pid"], None)
            case "exit":
                history.exits[line["pid"]] = Exit(
                    line["name"], line["pid"], line["t"], line["code"], line["told"]
                )
            case "term":
                history.told[line["pid"]] = line["t"]
            case "stall" | "slow" | "away":
                history.stalls.append(Fault(line["e"], line["since"], None, None, line["t"]))


def _load_faults(history: History, directory: Path) -> None:
    for line in read(directory / "nemesis.jsonl"):
        until = line["t"] + int(line.get("seconds", 0) * SECOND)
        if line["e"] == "kill":
            until = line["t"] + _LIFE
        if line["worker"] is None and line.get("hit") is False:
            # It hit no worker, so it explains nothing.
            until = 0
        fault = Fault(line["e"], line["t"], line["worker"], line["pid"], until, line.get("hit"))
        history.faults.append(fault)


def pids_of(history: History) -> dict[int, list[tuple[int, int]]]:
    """The leases of each process as intervals."""
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for key, _, end in history.leases():
        if (pid := pid_of(key.by)) is not None:
            found[pid].append((key.at, end))
    return found
