"""Leases on a user's table: the same port, so the worker does not know the difference."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from holdfast.clock import Clock, monotonic
from holdfast.errors import PrivilegeMissing, UnreadableReply
from holdfast.lifecycle import RETIRE_UNCLAIMABLE, STALE_ERROR, TRANSITIONS, Transition, Verb
from holdfast.models import Change, Held, Job, JobId, Recovery, TableDepth, Want, WorkerInfo
from holdfast.stores.postgres.grants import Role
from holdfast.stores.postgres.leases import HELD_ID, without_twins
from holdfast.stores.postgres.tables.fit import Fit, fit, unreadable_column
from holdfast.stores.postgres.tables.render import render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.stores.postgres.drivers.base import Driver, Row
    from holdfast.stores.postgres.render import Statement
    from holdfast.table import TableQueue

logger = logging.getLogger("holdfast.worker")

_RETIRE_EVERY = 60.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TableLeases:
    """One table through one driver. It looks at the live table before its first statement."""

    def __init__(
        self, driver: Driver, queue: TableQueue, clock: Clock, *, told: set[str] | None = None
    ) -> None:
        self._driver = driver
        self._queue = queue
        self._clock = clock
        self._fit: Fit | None = None
        self._statements: dict[str, Statement] = {}
        self._retire_at = 0.0
        self._doubtful: list[UUID] = []
        self._told = set() if told is None else told

    async def verify(self) -> None:
        """Raise InvalidInput naming what the table lacks; warn of what it could do better with."""
        found = await self._look()
        for fault in found.faults:
            advice = f"; {fault.ddl}" if fault.ddl else ""
            warning = f"table {self._queue.table}: {fault.message}{advice}"
            if warning not in self._told:
                self._told.add(warning)
                logger.warning("%s", warning)

    async def claim(
        self, wants: Sequence[Want], *, limit: int, worker: str, sweep: bool = False
    ) -> list[Job]:
        await self.recall()
        # A table is one entrypoint.
        limit = min([want.fit(limit) for want in wants], default=limit)
        jobs: list[Job] = []
        size = limit
        # A reply that cannot be read does not tell whose fault it is: halved until it is one row's.
        while len(jobs) < limit:
            size = min(size, limit - len(jobs))
            try:
                found = await self._take(size, worker)
            except UnreadableReply as error:
                await self._set_aside(size, error)
                size = max(1, size // 2)
                continue
            jobs += found
            if len(found) < size:
                break
            size *= 2
        for want in wants:
            want.took(len(jobs))
        # Only now: had a later statement failed, the rows of the earlier ones would be nobody's.
        self._doubtful.clear()
        return jobs

    async def _take(self, limit: int, worker: str) -> list[Job]:
        token = uuid4()
        # Until the reply is here, nobody knows whether the claim happened.
        self._doubtful.append(token)
        found = await self._run(Verb.CLAIM, limit=limit, worker=worker, token=token)
        return [self._job(row, token, worker) for row in found]

    async def _set_aside(self, size: int, error: UnreadableReply) -> None:
        """Of the last claim: hand its rows back, or retire the one that cannot be read."""
        token = self._doubtful[-1]
        if size > 1:
            await self._run("hand_back", tokens=[token])
        else:
            await self._retire_unreadable(token, error)
        self._doubtful.remove(token)

    async def _retire_unreadable(self, token: UUID, error: UnreadableReply) -> None:
        assert self._fit is not None  # noqa: S101 - a row was claimed
        found = await self._run("claimed_under", token=token)
        if not found:
            raise error
        held = Held(JobId(found[0][0]), token, self._queue.queue)
        column = error.column or await unreadable_column(self._driver, self._fit, held.id)
        reason = str(UnreadableReply(error.kind, column))
        await self.change(TRANSITIONS[Verb.HOLD], [Change(held, error=reason)])
        logger.error("row %s of %s is retired: %s", held.id, self._queue.queue, reason)

    async def next_due(self, wants: Sequence[Want]) -> timedelta | None:
        found = await self._run("next_due")
        return found[0][0] if found else None

    async def renew(self, held: Sequence[Held]) -> set[Held]:
        owned: set[Held] = set()
        for batch in without_twins(held):
            ids, tokens = [lease.id for lease in batch], [lease.token for lease in batch]
            moved = {row[0] for row in await self._run(Verb.RENEW, ids=ids, tokens=tokens)}
            owned |= {lease for lease in batch if lease.id in moved}
        return owned

    async def change(self, transition: Transition, changes: Sequence[Change]) -> list[Held]:
        done: list[Held] = []
        for batch in without_twins(changes, HELD_ID):
            held = [change.held for change in batch]
            found = await self._run(
                transition.name,
                ids=[lease.id for lease in held],
                tokens=[lease.token for lease in held],
                delays=[change.delay for change in batch],
                errors=[change.error for change in batch],
            )
            moved = {row[0] for row in found}
            done += [lease for lease in held if lease.id in moved]
        return done

    async def locked(self, held: Sequence[Held]) -> set[Held]:
        ids = sorted({lease.id for lease in held})
        found = {row[0] for row in await self._run("locked", ids=ids)}
        return {lease for lease in held if lease.id in found}

    async def recall(self) -> None:
        if self._doubtful:
            await self._run("hand_back", tokens=list(self._doubtful))
            self._doubtful.clear()

    async def forget(self, tokens: Sequence[UUID]) -> None:
        """The rows are the only record of a claim."""

    async def recover(
        self, wants: Sequence[Want], *, limit: int = 1000, worker: str | None = None
    ) -> Recovery:
        found = await self._run(Verb.RECOVER, limit=limit, worker=worker, lease=self._queue.lease)
        retired = [JobId(row[0]) for row in found if row[1]]
        if worker is None and monotonic() >= self._retire_at:
            self._retire_at = monotonic() + _RETIRE_EVERY
            spent = await self._run(RETIRE_UNCLAIMABLE.name, limit=limit)
            retired += [JobId(row[0]) for row in spent]
        recovered = tuple(JobId(row[0]) for row in found if not row[1])
        return Recovery(recovered=recovered, retired=tuple(retired))

    async def housekeep(self) -> None:
        """Nothing is counted: the rows are there to be asked."""

    async def tidy(self) -> None:
        """When to vacuum the table is for its owner to say."""

    async def report(self, worker: WorkerInfo) -> None:
        """A table has no place for workers."""

    async def farewell(self, worker: str) -> None:
        """A table has no place for workers."""

    async def depth(self) -> TableDepth:
        [found] = await self._run("depth")
        return TableDepth(*found)

    async def _run(self, name: str, /, **values: object) -> Sequence[Row]:
        if self._fit is None:
            await self._look()
        statement = self._statements[name]
        values["now"] = self._clock.now()
        try:
            return await self._driver.fetch(statement.text, statement.args(values))
        except PrivilegeMissing as error:
            what = f"{name} on {self._queue.table}"
            raise PrivilegeMissing(error.denied, statement=what, role=Role.WORKER) from None

    async def _look(self) -> Fit:
        self._fit = (await fit(self._driver, self._queue)).demand()
        self._statements = render(self._fit)
        return self._fit

    def _job(self, row: Row, token: UUID, worker: str) -> Job:
        assert self._fit is not None  # noqa: S101 - rows come from statements, which it renders
        values = _values(self._fit, row)
        parts = {part: values[column] for part, column in self._fit.parts.items()}
        claimed_at = parts["claimed_at"] or _EPOCH
        recoveries, max_recoveries = _deaths(self._queue, parts)
        return Job(
            id=parts["key"],
            entrypoint=self._queue.queue,
            payload=None,
            priority=0,
            status=TRANSITIONS[Verb.CLAIM].target,
            execute_after=parts["due"],
            attempts=parts["attempts"] or 0,
            recoveries=recoveries,
            max_attempts=parts.get("max_attempts", self._queue.max_attempts),
            max_recoveries=max_recoveries,
            dedupe_key=None,
            headers=None,
            created=claimed_at,
            updated=claimed_at,
            heartbeat=claimed_at,
            claim_token=token,
            claimed_by=worker,
            claimed_at=claimed_at,
            lease=self._queue.lease,
            last_error=parts.get("last_error"),
            last_error_at=parts.get("last_error_at"),
            held_at=None,
            row=values,
        )


def _values(fit: Fit, row: Row) -> dict[str, Any]:
    """A row by its columns, as its handler gets it."""
    values = dict(zip(fit.columns, row, strict=True))
    for column in fit.json:
        if values[column] is not None:
            values[column] = _from_json(column, values[column])
    for column in fit.instants:
        # asyncpg gives the ends of time, which stand for infinity, without a zone.
        if values[column] is not None and values[column].tzinfo is None:
            values[column] = values[column].replace(tzinfo=UTC)
    return values


def _from_json(column: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or lists in lists in lists: PostgreSQL takes them.
        raise UnreadableReply(type(error).__name__, column) from None


def _deaths(queue: TableQueue, parts: Mapping[str, Any]) -> tuple[int, int]:
    """How many recoveries a row has had, and their cap.

    Where they count as attempts nobody knows. There a row that one more would retire, and that
    shows no error of its own, is presented as on its last chance: it runs alone then.
    """
    if "recoveries" in parts:
        return parts["recoveries"] or 0, queue.max_recoveries
    attempts, cap = parts["attempts"] or 0, parts.get("max_attempts", queue.max_attempts)
    error = parts.get("last_error", STALE_ERROR)
    # A short column has but the beginning of it.
    recovered = bool(error) and STALE_ERROR.startswith(error)
    if recovered and cap is not None and attempts + 1 >= cap:
        return attempts, cap
    return 0, queue.max_recoveries
