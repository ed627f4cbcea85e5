"""Released versions as they were: their tables as SQL, and a client that runs their statements.

`schemas/0.1.sql` is the script that version 0.1 installed itself with, `schemas/0.1/` has the
statements of its workers as they were printed then. Neither is ever rendered again.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from holdfast.errors import DatabaseError
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.postgres.drivers.base import Row

SCHEMAS = Path(__file__).parent / "schemas"
LOCK_TIMEOUT = "20s"
"""A migration gives up its locks after 0.3 s. This is for machines that stand still."""
RELEASES = sorted(path.stem for path in SCHEMAS.glob("*.sql"))
LEASE = timedelta(seconds=2)
_PARAMETER = re.compile(r"\$\d+ (\w+)")


def schema_of(release: str) -> str:
    return (SCHEMAS / f"{release}.sql").read_text("utf-8")


@dataclass(slots=True)
class OldClient:
    """One connection of a program that has not been upgraded: it enqueues, claims and settles."""

    release: str
    connection: Any
    name: str = field(default_factory=lambda: f"old-{uuid.uuid4().hex[:8]}")
    lease: timedelta = LEASE

    @classmethod
    async def connect(cls, release: str, dsn: str) -> OldClient:
        # Whatever waits for a lock for longer than that fails, and the test with it.
        settings = {"lock_timeout": LOCK_TIMEOUT}
        return cls(release, await asyncpg.connect(dsn, server_settings=settings))

    async def run(self, statement: str, **values: object) -> Sequence[Row]:
        text = (SCHEMAS / self.release / f"{statement}.sql").read_text("utf-8")
        parameters = _PARAMETER.findall(text.splitlines()[0])
        args = [values.pop(name, None) for name in parameters]
        assert not values, f"{statement} has no parameters {sorted(values)}"
        while True:
            try:
                return await AsyncpgDriver(self.connection).fetch(text, args)
            except DatabaseError as error:
                # Its outcomes and renewals wait 0.1 s for a lock, and the worker tries again.
                if not error.locked:
                    raise

    async def enqueue(self, entrypoint: str, **values: object) -> int:
        [[ids, _]] = await self.run(
            "enqueue_one-raise",
            entrypoint=entrypoint,
            soon=timedelta(seconds=1),
            channel="ch_holdfast",
            **{"payload": b"old", "priority": 0, **values},
        )
        return int(ids[0])

    async def claim(self, entrypoint: str, limit: int) -> tuple[uuid.UUID, list[int]]:
        token, rows = await self.claim_rows(entrypoint, limit)
        return token, [row[0] for row in rows]

    async def claim_rows(self, entrypoint: str, limit: int) -> tuple[uuid.UUID, Sequence[Row]]:
        token = uuid.uuid4()
        rows = await self.run(
            "claim",
            relaxed=True,
            entrypoints=[entrypoint],
            floors=[datetime(1970, 1, 1, tzinfo=UTC)],
            floor_ids=[0],
            ceilings=[datetime(2999, 1, 1, tzinfo=UTC)],
            shares=[limit],
            max_attempts=[None],
            priority=0,
            token=token,
            worker=self.name,
            leases=[self.lease],
            shortest=self.lease,
        )
        return token, rows

    async def complete(self, token: uuid.UUID, ids: Sequence[int]) -> list[int]:
        """The jobs whose lease was still this one."""
        [[done]] = await self.run(
            "complete",
            **_leases(token, ids),
            reasons=[None] * len(ids),
            tracebacks=[None] * len(ids),
        )
        return list(done)

    async def renew(self, token: uuid.UUID, ids: Sequence[int]) -> list[int]:
        [[renewed]] = await self.run("renew", **_leases(token, ids))
        return list(renewed)

    def die(self) -> None:
        """End without a word to the server."""
        self.connection.terminate()


def _leases(token: uuid.UUID, ids: Sequence[int]) -> dict[str, object]:
    """Leases of one claim as the statements take them: sorted ids, and the place of each token."""
    return {
        "held_ids": f"{{{','.join(map(str, sorted(ids)))}}}",
        "tokens": [token],
        "owners": f"{{{','.join('1' for _ in ids)}}}",
    }
