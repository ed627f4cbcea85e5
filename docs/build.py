"""Writes the pages of the documentation that are made from the code."""

from __future__ import annotations

from pathlib import Path

from holdfast.lifecycle import LIFECYCLE, Status, Transition, mermaid

DOCS = Path(__file__).parent

MEANINGS = {
    Status.QUEUED: "waiting to be claimed, now or later",
    Status.PICKED: "leased to a worker",
    Status.SUCCESSFUL: "the handler returned",
    Status.EXCEPTION: "the handler raised, and the entrypoint does not hold failures",
    Status.FAILED: "held for a person: requeue, cancel or delete it",
    Status.CANCELED: "canceled by hand",
    Status.DELETED: "deleted by hand",
}


def row(transition: Transition) -> str:
    """A transition as a row of the table."""
    sources = ", ".join(transition.sources) or "-"
    guards = ", ".join(guard.value for guard in transition.guards) or "-"
    effects = ", ".join(effect.value for effect in transition.effects)
    leaves = "row leaves" if transition.leaves else ""
    log = "log" if transition.logged else ""
    written = "; ".join(part for part in (effects, leaves, log) if part) or "-"
    return f"| `{transition.name}` | {sources} → {transition.target} | {guards} | {written} |"


_LIFECYCLE = """\
# A job's life

A job is in one of seven states, and only the changes on this page are possible. Use it when you
read the log, write a report on the tables, or wonder what may happen next.

```mermaid
{diagram}
```

| state | meaning |
|---|---|
{states}

`queued`, `picked` and `failed` are rows of the queue table. The other four are final: the row has
left, and the job's last log row has the state.

## Every change

A change happens only if all its conditions hold, which PostgreSQL checks while it holds the row's
lock. Each one that says *log* writes a log row in the same statement. A name behind a colon tells
changes of one kind apart by their conditions: `claim:recovered` is the claim of a job that has lost
a worker, `claim:suspect` of one that one more death would hold
([When a worker dies](reliability.md#when-a-worker-dies)).

| change | from → to | only if | what is written besides the state |
|---|---|---|---|
{changes}

`the token is the row's` is a condition of every change that a worker makes to a job it claimed. A
worker that lost its lease therefore changes nothing, in any table.

The SQL and the in-memory store are made from `src/holdfast/lifecycle.py`, and so is this page
(`make docs`).
"""


def lifecycle() -> str:
    """The page about a job's life."""
    return _LIFECYCLE.format(
        diagram=mermaid().rstrip(),
        states="\n".join(f"| `{status}` | {MEANINGS[status]} |" for status in Status),
        changes="\n".join(map(row, LIFECYCLE)),
    )


PAGES = {"lifecycle.md": lifecycle}


def main() -> None:
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), "utf-8")


if __name__ == "__main__":
    main()
