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


def lifecycle() -> str:
    """The page about a job's life."""
    states = [f"| `{status}` | {MEANINGS[status]} |" for status in Status]
    return "\n".join(
        [
            "# A job's life",
            "",
            "Made from `src/holdfast/lifecycle.py` by `make docs`. That table drives the SQL and",
            "the in-memory store; this page only prints it.",
            "",
            "```mermaid",
            mermaid().rstrip(),
            "```",
            "",
            "| state | meaning |",
            "|---|---|",
            *states,
            "",
            "`queued`, `picked` and `failed` are rows of the queue table. The other four are",
            "final: the row has left, and the job's last log row carries the word.",
            "",
            "| verb | from → to | only if | what is written besides the status |",
            "|---|---|---|---|",
            *map(row, LIFECYCLE),
            "",
            "A guard is judged while the row's lock is held. `the token is the row's` stands on",
            "every write a worker makes about its claim: a worker that lost its lease changes",
            "nothing, in any table.",
            "",
        ]
    )


PAGES = {"lifecycle.md": lifecycle}


def main() -> None:
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), "utf-8")


if __name__ == "__main__":
    main()
