"""The rules of pauses: how old a worker's view of them may be."""

from __future__ import annotations

VIEW_SECONDS = 0.5
"""A claim needs a view of the pauses that is younger than this."""

LATE_SECONDS = 1.0
"""A claim whose reply comes later than this after the view was read is checked again: what has been
paused meanwhile is released, and does not start."""

RELEASED_BY_PAUSE = "paused"
"""The reason in the log of a job that was released because its entrypoint had been paused."""
