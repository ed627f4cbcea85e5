"""The tables that a worker claims from: Holdfast's own and those of users."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Protocol

from holdfast.errors import DatabaseError
from holdfast.models import OWN, RecoveredWaiting, Recovery
from holdfast.ports import Claims, Leases
from holdfast.worker.leases import by_source

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from datetime import timedelta
    from uuid import UUID

    from holdfast.models import ClaimRule, Duty, Job, TableDepth
    from holdfast.ports import Reports, Store
    from holdfast.worker.leases import Lease

    Take = Callable[[Leases, Sequence[ClaimRule], int], Awaitable[list[Job]]]
    """Claims from one table: its leases, the rules of its entrypoints, and the limit."""
    MakeTable = Callable[[Store], "TableLeases"]
    """Makes the leases of a user's table over the connection of a store."""

logger = logging.getLogger("holdfast.worker")


class TableLeases(Leases, Protocol):
    """Leases on a user's table, which is examined before work begins."""

    async def verify(self) -> None: ...

    async def depth(self) -> TableDepth: ...


class Sources:
    """The tables that a worker claims from, over one connection. A lease names its own.

    Without entrypoints of its own the worker needs none of Holdfast's tables, and asks for none.
    """

    def __init__(
        self, store: Store, tables: Mapping[str, MakeTable] | None = None, *, own: bool = True
    ) -> None:
        self.store = store
        self.own = own
        """Whether Holdfast's own table is one of them."""
        self._makers = dict(tables or {})
        self._tables = {name: make(store) for name, make in self._makers.items()}
        self.leases: dict[str, Leases] = dict(self._tables)
        """The leases of each, by its name; `OWN` for Holdfast's own."""
        if own:
            self.leases[OWN] = store.leases
        self._errors = _TableErrors("sweep")
        self.claims: Claims = SharedClaims(self.leases) if self._tables else store.leases

    @property
    def reports(self) -> Reports | None:
        return self.store.reports if self.own else None

    @property
    def dedicated(self) -> bool:
        return self.store.dedicated

    def fork(self, purpose: str) -> Sources:
        """The same tables over the connection for this purpose."""
        fork = self.store.fork(purpose)
        return self if fork is self.store else Sources(fork, self._makers, own=self.own)

    async def close(self) -> None:
        await self.store.close()

    async def verify(self) -> None:
        """Raise SchemaError unless this version of Holdfast can work with each of them."""
        if self.own:
            await self.store.verify()
        for table in self._tables.values():
            await table.verify()

    async def depths(self) -> dict[str, TableDepth]:
        """The depths of the users' tables."""
        return {name: await table.depth() for name, table in self._tables.items()}

    async def recover(
        self,
        rules: Sequence[ClaimRule],
        *,
        limit: int = 1000,
        worker: str | None = None,
        held: Sequence[Lease] = (),
        contact: timedelta | None = None,
        lived: timedelta | None = None,
        duty: Duty | None = None,
    ) -> Recovery:
        """Do as `Leases.recover` does, in each table. One that fails does not keep the others
        back."""
        by_table, held_by = _divide(rules, self.leases), by_source(held)
        found: list[Recovery] = []
        failure: DatabaseError | None = None
        for name, leases in self.leases.items():
            try:
                recovery = await leases.recover(
                    by_table.get(name, []),
                    limit=limit,
                    worker=worker,
                    held=[lease.key for lease in held_by.get(name, ())],
                    contact=contact,
                    lived=lived,
                    duty=duty,
                )
                self._errors.note(name, None)
                found.append(recovery)
            except DatabaseError as error:
                failure = error
                if self._tables:
                    self._errors.note(name, error)
        if failure is not None and not found:
            raise failure
        return _total(found)


class SharedClaims:
    """Claims from several tables. Each gets its share."""

    def __init__(self, tables: Mapping[str, Leases]) -> None:
        self._tables = dict(tables)
        self._turn = 0
        self._errors = _TableErrors("claim")

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
        return await self._share(
            rules,
            limit,
            lambda table, some, size: table.claim(
                some, limit=size, worker=worker, sweep=sweep, fleet=fleet, idle=idle
            ),
        )

    async def claim_recovered(
        self, rules: Sequence[ClaimRule], *, limit: int, worker: str, suspects: bool
    ) -> list[Job]:
        def take(table: Leases, some: Sequence[ClaimRule], size: int) -> Awaitable[list[Job]]:
            return table.claim_recovered(some, limit=size, worker=worker, suspects=suspects)

        if suspects:
            return await self._first(rules, limit, take)
        return await self._share(rules, limit, take)

    @property
    def suspect_group(self) -> int:
        return max(table.suspect_group for table in self._tables.values())

    async def recovered_waiting(self, rules: Sequence[ClaimRule]) -> RecoveredWaiting:
        found = [
            await self._tables[name].recovered_waiting(some)
            for name, some in _divide(rules, self._tables).items()
        ]
        return RecoveredWaiting(
            recovered=_earliest(each.recovered for each in found),
            suspects=_earliest(each.suspects for each in found),
            suspects_leased=sum(each.suspects_leased for each in found),
            workers=max((each.workers for each in found), default=0),
        )

    async def _first(self, rules: Sequence[ClaimRule], limit: int, take: Take) -> list[Job]:
        """Claim a group of suspects of one table alone. Each call begins with another table."""
        by_table = _divide(rules, self._tables)
        self._turn += 1
        names = list(by_table)
        start = self._turn % len(names)
        failure: DatabaseError | None = None
        for name in names[start:] + names[:start]:
            table = self._tables[name]
            try:
                jobs = await take(table, by_table[name], min(limit, table.suspect_group))
            except DatabaseError as error:
                failure = error
                self._errors.note(name, error)
                continue
            self._errors.note(name, None)
            if jobs:
                return jobs
        if failure is not None:
            raise failure
        return []

    async def _share(
        self,
        rules: Sequence[ClaimRule],
        limit: int,
        take: Take,
    ) -> list[Job]:
        """Divide a claim among the tables. Each call begins with another table, and one that has no
        more jobs leaves its share to the next."""
        by_table = _divide(rules, self._tables)
        names = list(by_table)
        self._turn += 1
        start = self._turn % len(names)
        jobs: list[Job] = []
        failure: DatabaseError | None = None
        hungry = names[start:] + names[:start]
        while hungry and len(jobs) < limit:
            share, rest = divmod(limit - len(jobs), len(hungry))
            unasked = hungry[rest:] if not share else []
            full: list[str] = []
            for place, name in enumerate(hungry[: len(hungry) - len(unasked)]):
                size = share + (place < rest)
                try:
                    found = await take(self._tables[name], by_table[name], size)
                except DatabaseError as error:
                    failure = error
                    self._errors.note(name, error)
                    continue
                self._errors.note(name, None)
                jobs += found
                full += [name] if len(found) == size else []
            hungry = unasked + full
        # Jobs of the other tables are leased already. Raised here, an error of one table would
        # leave them without an owner.
        if failure is not None and not jobs:
            raise failure
        return jobs

    async def next_due(self, rules: Sequence[ClaimRule]) -> timedelta | None:
        looks = [
            await self._tables[name].next_due(some)
            for name, some in _divide(rules, self._tables).items()
        ]
        return _earliest(looks)

    async def recall(self) -> None:
        for table in self._tables.values():
            await table.recall()

    async def delete_claims(self, tokens: Sequence[UUID]) -> None:
        for table in self._tables.values():
            await table.delete_claims(tokens)

    @property
    def shared(self) -> bool:
        return all(table.shared for table in self._tables.values())

    async def housekeep(self, duty: Duty | None = None) -> None:
        for table in self._tables.values():
            await table.housekeep(duty)

    async def vacuum(self) -> None:
        for table in self._tables.values():
            await table.vacuum()


class _TableErrors:
    """Logs the errors of tables, each once and not at every try."""

    def __init__(self, act: str) -> None:
        self._act = act
        self._last: dict[str, str] = {}

    def note(self, name: str, error: DatabaseError | None) -> None:
        words = "" if error is None else str(error)
        if words and self._last.get(name) != words:
            logger.warning("the %s of %s failed: %s", self._act, name or "the job table", words)
        self._last[name] = words


def _divide(rules: Sequence[ClaimRule], tables: Mapping[str, Leases]) -> dict[str, list[ClaimRule]]:
    by_table: dict[str, list[ClaimRule]] = defaultdict(list)
    for rule in rules:
        by_table[rule.entrypoint if rule.entrypoint in tables else OWN].append(rule)
    return by_table


def _earliest(times: Iterable[timedelta | None]) -> timedelta | None:
    return min((time for time in times if time is not None), default=None)


def _total(found: Sequence[Recovery]) -> Recovery:
    return Recovery(
        recovered=tuple(job_id for recovery in found for job_id in recovery.recovered),
        retired=tuple(job_id for recovery in found for job_id in recovery.retired),
        excused=tuple(job_id for recovery in found for job_id in recovery.excused),
        recovered_by_queue=_sum(recovery.recovered_by_queue for recovery in found),
        retired_by_queue=_sum(recovery.retired_by_queue for recovery in found),
    )


def _sum(parts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Sum the counts, without those of zero."""
    return sum((Counter(part) for part in parts), Counter())
