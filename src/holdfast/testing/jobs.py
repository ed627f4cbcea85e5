"""Jobs as a worker would give them to a handler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from holdfast.lifecycle import TRANSITIONS, Verb
from holdfast.models import Job, JobId


def make_job(entrypoint: str = "test", payload: bytes | None = None, **fields: Any) -> Job:
    """A leased job for a handler that is called without a worker. `fields` replaces any of it."""
    now = datetime.now(UTC)
    unset: dict[str, Any] = dict.fromkeys(Job._fields)
    given = {
        "id": JobId(1),
        "entrypoint": entrypoint,
        "payload": payload,
        "priority": 0,
        "status": TRANSITIONS[Verb.CLAIM].target,
        "execute_after": now,
        "attempts": 0,
        "recoveries": 0,
        "created": now,
        "updated": now,
        "heartbeat": now,
        "claim_token": uuid4(),
        "claimed_by": "test",
        "claimed_at": now,
        "lease": timedelta(seconds=30),
    }
    return Job(**(unset | given | fields))
