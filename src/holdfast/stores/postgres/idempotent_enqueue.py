"""One enqueue statement: its columns, its reply, and the repetition when the reply is lost."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed, ConnectionLost, DuplicateJobError, HoldfastError
from holdfast.lifecycle import Verb
from holdfast.models import SOON, JobId
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.drivers.error_mapping import overdue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.models import NewJob, OnConflict
    from holdfast.stores.postgres.runner import Runner

MOST = 1000
"""A statement of up to this many jobs is sent again when half of the timeout has passed."""

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_LEAST = 0.5
"""Seconds that a try needs to be worth it."""
_GRACE = 0.25


class Inserter:
    """Sends jobs in one statement.

    Where the statement commits by itself it has a key, and is sent again under it when the
    connection is lost: the jobs are then in the queue once. In a caller's transaction a lost
    connection is the end of that transaction, and nothing is repeated.
    """

    def __init__(self, runner: Runner, channel: str | None) -> None:
        self._runner = runner
        self._channel = channel

    async def insert(
        self, jobs: Sequence[NewJob], on_conflict: OnConflict, since: float
    ) -> list[JobId | None]:
        """ConnectionLost when the outcome is unknown; `since` is when the caller began to wait."""
        if not self._runner.driver.autocommits and on_conflict == "raise":
            return await self._insert_or_raise(jobs)
        return await self._insert(self._runner, jobs, on_conflict, since)

    async def _insert_or_raise(self, jobs: Sequence[NewJob]) -> list[JobId | None]:
        """A duplicate must not end the caller's transaction, as a violated constraint would."""
        keyed = any(job.dedupe_key is not None for job in jobs)
        if not keyed:
            return await self._insert(self._runner, jobs, "raise", 0.0)
        if len(jobs) == 1:
            ids = await self._insert(self._runner, jobs, "skip", 0.0)
            if ids == [None]:
                raise DuplicateJobError(jobs[0].dedupe_key or "")
            return ids
        async with self._runner.driver.transaction() as savepoint:
            return await self._insert(self._runner.over(savepoint), jobs, "raise", 0.0)

    async def _insert(
        self, runner: Runner, jobs: Sequence[NewJob], on_conflict: OnConflict, since: float
    ) -> list[JobId | None]:
        if len(jobs) == 1:
            statement, values = f"{Verb.ENQUEUE}_one:{on_conflict}", fields(jobs[0])
        else:
            statement, values = f"{Verb.ENQUEUE}:{on_conflict}", columns(jobs)
        values["channel"], values["soon"] = self._channel, SOON
        if runner.driver.autocommits:
            reply = await self._persist(statement, values, len(jobs), since)
        else:
            [reply] = await runner.run(statement, key=None, **values)
        return _in_order(jobs, *reply)

    async def _persist(
        self, statement: str, values: dict[str, object], count: int, since: float
    ) -> rows.Row:
        """Try until the outcome is known or the time is up."""
        key, pause = new_key(), _FIRST_PAUSE
        ends = max(since + self._runner.driver.timeout, monotonic() + _LEAST)
        doubt: ConnectionLost | None = None
        while True:
            left = ends - monotonic()
            # A reply that was lost without a trace leaves time for another try.
            patience = max(left / 2 if count <= MOST else left, _LEAST)
            try:
                # Connecting has a deadline of its own, which does not know how late it is.
                async with asyncio.timeout(max(left, _LEAST) + _GRACE):
                    return await self._try(
                        key, statement, values, patience, again=doubt is not None
                    )
            except TimeoutError:
                doubt = doubt or overdue(monotonic() - since)
            except ConnectionLost as error:
                doubt = error
            except ConnectionFailed:
                if doubt is None:
                    raise
            if monotonic() + pause + _LEAST > ends:
                raise doubt
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _try(
        self,
        key: UUID,
        statement: str,
        values: dict[str, object],
        patience: float,
        *,
        again: bool,
    ) -> rows.Row:
        try:
            [reply] = await self._runner.run(statement, patience, key=key, **values)
        except (ConnectionFailed, ConnectionLost):
            raise
        except HoldfastError:
            # The key is taken, or a dedupe key is, which may be the work of the first try.
            if not again or (found := await self._recall(key, patience)) is None:
                raise
            return found
        return reply

    async def _recall(self, key: UUID, patience: float) -> rows.Row | None:
        """Return the outcome under the key. A statement that has not happened by now never will."""
        await self._runner.run("enqueue_close", patience, key=key)
        # A statement of its own: only a new snapshot sees the transaction that the first one waited
        # for.
        found = await self._runner.run("enqueue_recall", patience, key=key)
        return found[0] if found else None


def new_key() -> UUID:
    """Make a key. It begins with the time, as in a UUID of version 7, so keys made one after the
    other lie side by side in the index. The rest is chance."""
    return UUID(bytes=(time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10))


def fields(job: NewJob) -> dict[str, object]:
    """A job that goes alone."""
    entrypoint, payload, priority, after, key, headers, attempts, recoveries = job
    return {
        "entrypoint": entrypoint,
        "payload": payload,
        "priority": priority,
        "instant": after if isinstance(after, datetime) else None,
        "delay": after if isinstance(after, timedelta) else None,
        "dedupe_key": key,
        "headers": None if headers is None else rows.headers(headers),
        "max_attempts": attempts,
        "max_recoveries": recoveries,
    }


def columns(jobs: Sequence[NewJob]) -> dict[str, object]:
    """The jobs as arrays; one that says nothing is not sent."""
    entrypoints, payloads, priorities, after, keys, headers, attempts, recoveries = map(
        list, zip(*jobs, strict=True)
    )
    timed = rows.column(after) or []
    # Some array has to be sent, or there would be no rows.
    alike = None not in payloads and entrypoints.count(entrypoints[0]) == len(jobs)
    return {
        "entrypoint": entrypoints[0],
        "entrypoints": None if alike else entrypoints,
        "payloads": rows.column(payloads),
        "priorities": priorities if any(priorities) else None,
        "instants": rows.column([v if isinstance(v, datetime) else None for v in timed]),
        "delays": rows.column([v if isinstance(v, timedelta) else None for v in timed]),
        "dedupe_keys": rows.column(keys),
        "headers": rows.column(headers) and [rows.headers(value) for value in headers],
        "max_attempts": rows.column(attempts),
        "max_recoveries": rows.column(recoveries),
    }


def _in_order(
    jobs: Sequence[NewJob], ids: list[int] | None, skipped: list[str] | None
) -> list[JobId | None]:
    """Ids rise in the order given; of a key that is there twice the first place has the job."""
    places: list[JobId | None] = [*sorted(map(JobId, ids or ()))]
    if len(places) == len(jobs):
        return places
    rest, gone, places = iter(places), set(skipped or ()), []
    for job in jobs:
        places.append(None if job.dedupe_key in gone else next(rest))
        if job.dedupe_key is not None:
            gone.add(job.dedupe_key)
    return places
