"""Leases on a user's table: the same port, so the worker does not know the difference."""

from __future__ import annotations

import copy
import json
import logging
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from holdfast.clock import Clock, monotonic
from holdfast.errors import PrivilegeMissing, UnreadableReply
from holdfast.lifecycle import (
    CLAIM_RECOVERED,
    CLAIM_SUSPECT,
    RETIRE_UNCLAIMABLE,
    TRANSITIONS,
    Transition,
    Verb,
)
from holdfast.models import (
    Change,
    ClaimRule,
    Duty,
    Job,
    JobId,
    LeaseKey,
    ProgressNote,
    RecoveredWaiting,
    Recovery,
    TableDepth,
)
from holdfast.pauses import VIEW_SECONDS
from holdfast.stores.postgres.grants import DatabaseRole
from holdfast.stores.postgres.job_transaction import HandlerConnections, PostgresJobTransaction
from holdfast.stores.postgres.leases import KEY_ID, without_twins
from holdfast.stores.postgres.runner import send
from holdfast.stores.postgres.tables.fit import Deaths, Fit, fit, unreadable_column
from holdfast.stores.postgres.tables.render import LONE_VERSION, render

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.stores.postgres.drivers.base import Driver, Row
    from holdfast.stores.postgres.pauses import PauseView
    from holdfast.stores.postgres.render import Statement
    from holdfast.table import TableQueue

logger = logging.getLogger("holdfast.worker")

_RETIRE_EVERY = 60.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TableLeases:
    """One table through one driver. It looks at the live table before its first statement."""

    def __init__(
        self,
        driver: Driver,
        queue: TableQueue,
        clock: Clock,
        *,
        warned: set[str] | None = None,
        handlers: HandlerConnections | None = None,
        pauses: PauseView | None = None,
    ) -> None:
        self._handlers = handlers or HandlerConnections(driver)
        self._driver = driver
        self._queue = queue
        self._clock = clock
        self._fit: Fit | None = None
        self._statements: dict[str, Statement] = {}
        self._retire_at = 0.0
        self._group = 1
        """How many suspects the next group may have."""
        self._doubtful: list[UUID] = []
        self._warned = set() if warned is None else warned
        self._pauses = pauses

    async def verify(self) -> None:
        """Raise InvalidInput naming what the table lacks. Warn of optional columns that it
        lacks."""
        found = await self._look()
        for fault in found.faults:
            advice = f"; {fault.ddl}" if fault.ddl else ""
            warning = f"table {self._queue.table}: {fault.message}{advice}"
            if warning not in self._warned:
                self._warned.add(warning)
                logger.warning("%s", warning)

    async def claim(
        self,
        rules: Sequence[ClaimRule],
        *,
        limit: int,
        worker: str,
        sweep: bool = False,
        fleet: int = 1,
        idle: bool = False,
    ) -> list[Job]:
        return await self._claim(Verb.CLAIM, uuid4, rules, limit, worker)

    async def claim_recovered(
        self, rules: Sequence[ClaimRule], *, limit: int, worker: str, suspects: bool
    ) -> list[Job]:
        """Lease rows that a worker died with. The caller of `suspects` holds no other lease.

        Suspects come in groups that double from one call to the next, because after one death
        every row that the worker held is a suspect. Only a group of one can be convicted.
        """
        statement = (CLAIM_SUSPECT if suspects else CLAIM_RECOVERED).name
        if statement not in await self._rendered():
            return []
        if not suspects:
            return await self._claim(statement, uuid4, rules, limit, worker)
        group = min(limit, self._group)
        make_token = lone_token if group == 1 else uuid4
        jobs = await self._claim(statement, make_token, rules, group, worker)
        doubles = self._fit is not None and self._fit.deaths is Deaths.DERIVED
        self._group = 2 * group if doubles and len(jobs) == group else 1
        return jobs

    async def _paused(self) -> bool:
        """Whether people have paused this queue, as of less than half a second ago."""
        if self._pauses is None:
            return False
        await self._pauses.renew()
        return self._pauses.covers(self._queue.queue)

    @property
    def suspect_group(self) -> int:
        return self._group

    async def recovered_waiting(self, rules: Sequence[ClaimRule]) -> RecoveredWaiting:
        if "recovered_waiting" not in await self._rendered() or await self._paused():
            return RecoveredWaiting()
        [(recovered, suspects, leased)] = await self._run("recovered_waiting")
        # Only rows that are due were looked at.
        return RecoveredWaiting(
            recovered=timedelta(0) if recovered else None,
            suspects=timedelta(0) if suspects else None,
            suspects_leased=leased,
        )

    async def _claim(
        self,
        statement: str,
        make_token: Callable[[], UUID],
        rules: Sequence[ClaimRule],
        limit: int,
        worker: str,
    ) -> list[Job]:
        await self.recall()
        if await self._paused():
            return []
        # A table is one entrypoint.
        limit = min([rule.fit(limit) for rule in rules], default=limit)
        jobs: list[Job] = []
        size = limit
        # A reply that cannot be read does not show which row is at fault: the limit is halved until
        # it is one row.
        while len(jobs) < limit:
            size = min(size, limit - len(jobs))
            try:
                found = await self._take(statement, make_token(), size, worker)
            except UnreadableReply as error:
                await self._set_aside(size, error)
                size = max(1, size // 2)
                continue
            jobs += found
            if len(found) < size:
                break
            size *= 2
        for rule in rules:
            rule.took(len(jobs))
        # Clear only after every statement succeeded. Otherwise rows claimed earlier would have no
        # owner.
        self._doubtful.clear()
        return jobs

    async def _take(self, statement: str, token: UUID, limit: int, worker: str) -> list[Job]:
        # Until the reply is here, it is unknown whether the claim happened.
        self._doubtful.append(token)
        found = await self._run(statement, limit=limit, worker=worker, token=token)
        return [self._job(row, token, worker) for row in found]

    async def _set_aside(self, size: int, error: UnreadableReply) -> None:
        """Release the rows of the last claim, or retire the one that cannot be read."""
        token = self._doubtful[-1]
        if size > 1:
            await self._run("release_claim", tokens=[token])
        else:
            await self._retire_unreadable(token, error)
        self._doubtful.remove(token)

    async def _retire_unreadable(self, token: UUID, error: UnreadableReply) -> None:
        assert self._fit is not None  # noqa: S101 - a row was claimed
        found = await self._run("claimed_under", token=token)
        if not found:
            raise error
        held = LeaseKey(JobId(found[0][0]), token)
        column = error.column or await unreadable_column(self._driver, self._fit, held.id)
        reason = str(UnreadableReply(error.kind, column))
        await self.change(TRANSITIONS[Verb.HOLD], [Change(held, error=reason)])
        logger.error("row %s of %s is retired: %s", held.id, self._queue.queue, reason)

    async def next_due(self, rules: Sequence[ClaimRule]) -> timedelta | None:
        if await self._paused():
            return timedelta(seconds=VIEW_SECONDS)
        found = await self._run("next_due")
        return found[0][0] if found else None

    async def renew(self, held: Sequence[LeaseKey]) -> set[LeaseKey]:
        owned: set[LeaseKey] = set()
        for batch in without_twins(held):
            ids, tokens = [lease.id for lease in batch], [lease.token for lease in batch]
            moved = {row[0] for row in await self._run(Verb.RENEW, ids=ids, tokens=tokens)}
            owned |= {lease for lease in batch if lease.id in moved}
        return owned

    async def change(self, transition: Transition, changes: Sequence[Change]) -> list[LeaseKey]:
        done: list[LeaseKey] = []
        for batch in without_twins(changes, KEY_ID):
            held = [change.key for change in batch]
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

    def begin(self, target: object) -> PostgresJobTransaction:
        return PostgresJobTransaction(self._handlers, target, self._over)

    def _over(self, driver: Driver) -> TableLeases:
        """The same table through another driver. Its examination is not repeated."""
        joined = copy.copy(self)
        joined._driver = driver
        return joined

    async def note_progress(self, notes: Sequence[ProgressNote]) -> list[LeaseKey]:
        """A user's table has no place for it."""
        return []

    async def payloads(self, held: Sequence[LeaseKey]) -> dict[LeaseKey, bytes | None]:
        """A user's table has none: the row is the work."""
        return dict.fromkeys(held)

    async def locked(self, held: Sequence[LeaseKey]) -> set[LeaseKey]:
        ids = sorted({lease.id for lease in held})
        found = {row[0] for row in await self._run("locked", ids=ids)}
        return {lease for lease in held if lease.id in found}

    async def recall(self) -> None:
        if self._doubtful:
            await self._run("release_claim", tokens=list(self._doubtful))
            self._doubtful.clear()

    async def delete_claims(self, tokens: Sequence[UUID]) -> None:
        """The rows are the only record of a claim."""

    async def recover(
        self,
        rules: Sequence[ClaimRule],
        *,
        limit: int = 1000,
        worker: str | None = None,
        held: Sequence[LeaseKey] = (),
        contact: timedelta | None = None,
        lived: timedelta | None = None,
        duty: Duty | None = None,
    ) -> Recovery:
        [[asked]] = await self._run("now")
        found = await self._run(
            Verb.RECOVER,
            asked=asked,
            limit=limit,
            worker=worker,
            lease=self._queue.lease,
            held_keys=[lease.id for lease in held],
            held_tokens=[lease.token for lease in held],
            contact=contact,
            lived=lived,
        )
        retired = [JobId(row[0]) for row in found if row[1]]
        if worker is None and monotonic() >= self._retire_at:
            self._retire_at = monotonic() + _RETIRE_EVERY
            spent = await self._run(RETIRE_UNCLAIMABLE.name, limit=limit)
            retired += [JobId(row[0]) for row in spent]
        recovered = tuple(JobId(row[0]) for row in found if not row[1])
        if any(not row[2] for row in found):
            # A worker died. Its killer may be among the next suspects: begin with one again.
            self._group = 1
        return Recovery(
            recovered=recovered,
            retired=tuple(retired),
            excused=tuple(JobId(row[0]) for row in found if row[2]),
            recovered_by_queue=Counter({self._queue.queue: len(recovered)}),
            retired_by_queue=Counter({self._queue.queue: len(retired)}),
        )

    @property
    def shared(self) -> bool:
        """There is no place beside a user's table to say who does it."""
        return False

    async def housekeep(self, duty: Duty | None = None) -> None:
        """Nothing is counted here. The rows can be counted at any time."""

    async def vacuum(self) -> None:
        """The owner of the table decides when to vacuum it."""

    async def depth(self) -> TableDepth:
        [found] = await self._run("depth")
        return TableDepth(*found)

    async def _run(self, name: str, /, **values: object) -> Sequence[Row]:
        statement = (await self._rendered())[name]
        values["now"] = self._clock.now()
        try:
            return await send(self._driver, statement, statement.args(values))
        except PrivilegeMissing as error:
            what = f"{name} on {self._queue.table}"
            raise PrivilegeMissing(error.denied, statement=what, role=DatabaseRole.WORKER) from None

    async def _rendered(self) -> dict[str, Statement]:
        if self._fit is None:
            await self._look()
        return self._statements

    async def _look(self) -> Fit:
        self._fit = (await fit(self._driver, self._queue)).demand()
        self._statements = render(self._fit)
        return self._fit

    def _job(self, row: Row, token: UUID, worker: str) -> Job:
        assert self._fit is not None  # noqa: S101 - rows come from statements, which it renders
        values = _values(self._fit, row)
        parts = {part: values[column] for part, column in self._fit.parts.items()}
        claimed_at = parts["claimed_at"] or _EPOCH
        recoveries, max_recoveries = _deaths(self._fit, parts)
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


def _deaths(fit: Fit, parts: Mapping[str, Any]) -> tuple[int, int]:
    """How many workers died with a row, and the number at which it is retired."""
    if fit.deaths is Deaths.COUNTED:
        return parts["recoveries"] or 0, fit.queue.max_recoveries
    if fit.deaths is Deaths.DERIVED and parts.get("last_error", "") is not None:
        died = parts["last_error_at"] is not None and parts["last_error_at"] > parts["due"]
        return (1, 2) if died else (0, 2)
    return 0, fit.queue.max_recoveries


def lone_token() -> UUID:
    """A token that says: the worker holds this row, a suspect, and no other.

    Its version is 8 where other tokens have 4, so that `recover` can tell. It needs no column,
    and the tokens of other programs that claim from the table never convict a row.
    """
    return UUID(int=uuid4().int & ~(0xF << 76) | LONE_VERSION << 76)
