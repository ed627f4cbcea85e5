"""What an act would do, before it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.app import Holdfast
from holdfast.models import JobId, Requeued


@dataclass(frozen=True, slots=True)
class Preview:
    """The outcome of a requeue by kind; at most some ids of each."""

    go: int
    taken: tuple[JobId, ...]
    not_held: tuple[JobId, ...]
    gone: tuple[JobId, ...]

    @property
    def total(self) -> int:
        return self.go + len(self.taken) + len(self.not_held) + len(self.gone)


async def preview(hf: Holdfast, ids: Sequence[int]) -> Preview:
    """Ask what a requeue of these jobs would do now."""
    outcomes = await hf.queries.preview_requeue([JobId(job_id) for job_id in ids])

    def those(outcome: Requeued) -> tuple[JobId, ...]:
        return tuple(job_id for job_id, found in outcomes.items() if found is outcome)

    return Preview(
        go=len(those(Requeued.REQUEUED)),
        taken=those(Requeued.KEY_TAKEN),
        not_held=those(Requeued.NOT_HELD),
        gone=those(Requeued.NOT_FOUND),
    )
