"""What Holdfast and the raw limit of its statements enqueue."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast import NewJob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol import Spec


def new_jobs(specs: Sequence[Spec]) -> list[NewJob]:
    return [
        NewJob(
            spec.task,
            spec.data.encode(),
            spec.priority,
            timedelta(seconds=spec.delay) if spec.delay else None,
        )
        for spec in specs
    ]
