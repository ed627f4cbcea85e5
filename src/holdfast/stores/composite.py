"""The composite store: several tables behind one store, Holdfast's own and those of users."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Protocol

from holdfast.errors import DatabaseError
from holdfast.models import RecoveredWaiting, Recovery
from holdfast.ports import Leases

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from datetime import timedelta
    from uuid import UUID

    from holdfast.lifecycle import Transition
    from holdfast.models import (
        Change,
        ClaimRule,
        Duty,
        Job,
        LeaseKey,
        ProgressNote,
        TableDepth,
    )
    from holdfast.ports import (
        Breakers,
        Jobs,
        JobTransaction,
        Only,
        Pauses,
        Reports,
        Results,
        Schedules,
        Store,
        Upkeep,
        Wakeups,
    )

    Take = Callable[[Leases, Sequence[ClaimRule], int], Awaitable[list[Job]]]
    """Claims from one table: its leases, the rules of its entrypoints, and the limit."""

logger = logging.getLogger("holdfast.worker")

OWN = ""
"""The queue name of Holdfast's own table."""


class TableParty(Leases, Protocol):
    """Leases on a user's table, which is examined before work begins."""

    async def verify(self) -> None: ...

    async def depth(self) -> TableDepth: ...


class SeveralLeases:
    """Sends each call to the table that it concerns. A claim gives each table its share."""

    def __init__(self, parties: Mapping[str, Leases]) -> None:
        self._parties = dict(parties)
        self._turn = 0
        self._troubled: dict[tuple[str, str], str] = {}

    async def claim(
        self, rules: Sequence[ClaimRule], *, limit: int, worker: str, sweep: bool = False
    ) -> list[Job]:
        return await self._share(
            rules,
            limit,
            lambda party, some, size: party.claim(some, limit=size, worker=worker, sweep=sweep),
        )

    async def claim_recovered(
        self, rules: Sequence[ClaimRule], *, limit: int, worker: str, suspects: bool
    ) -> list[Job]:
        def take(party: Leases, some: Sequence[ClaimRule], size: int) -> Awaitable[list[Job]]:
            return party.claim_recovered(some, limit=size, worker=worker, suspects=suspects)

        if suspects:
            return await self._first(rules, limit, take)
        return await self._share(rules, limit, take)

    @property
    def suspect_group(self) -> int:
        return max(party.suspect_group for party in self._parties.values())

    async def recovered_waiting(self, rules: Sequence[ClaimRule]) -> RecoveredWaiting:
        found = [
            await self._parties[name].recovered_waiting(some)
            for name, some in self._divide(rules).items()
        ]
        return RecoveredWaiting(
            recovered=_earliest(each.recovered for each in found),
            suspects=_earliest(each.suspects for each in found),
            suspects_leased=sum(each.suspects_leased for each in found),
            workers=max((each.workers for each in found), default=0),
        )

    async def _first(self, rules: Sequence[ClaimRule], limit: int, take: Take) -> list[Job]:
        """Claim a group of suspects of one table alone. Each call begins with another table."""
        by_party = self._divide(rules)
        self._turn += 1
        names = list(by_party)
        start = self._turn % len(names)
        failure: DatabaseError | None = None
        for name in names[start:] + names[:start]:
            party = self._parties[name]
            try:
                jobs = await take(party, by_party[name], min(limit, party.suspect_group))
            except DatabaseError as error:
                failure = error
                self._note("claim", name, error)
                continue
            self._note("claim", name, None)
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
        by_party = self._divide(rules)
        names = list(by_party)
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
                    found = await take(self._parties[name], by_party[name], size)
                except DatabaseError as error:
                    failure = error
                    self._note("claim", name, error)
                    continue
                self._note("claim", name, None)
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
            await self._parties[name].next_due(some) for name, some in self._divide(rules).items()
        ]
        return _earliest(looks)

    async def renew(self, held: Sequence[LeaseKey]) -> set[LeaseKey]:
        owned: set[LeaseKey] = set()
        for name, leases in _by_party(held).items():
            owned |= await self._parties[name].renew(leases)
        return owned

    def begin(self, queue: str, target: object) -> JobTransaction:
        return self._parties[queue].begin(queue, target)

    async def payloads(self, held: Sequence[LeaseKey]) -> dict[LeaseKey, bytes | None]:
        found: dict[LeaseKey, bytes | None] = {}
        for name, leases in _by_party(held).items():
            found |= await self._parties[name].payloads(leases)
        return found

    async def locked(self, held: Sequence[LeaseKey]) -> set[LeaseKey]:
        found: set[LeaseKey] = set()
        for name, leases in _by_party(held).items():
            found |= await self._parties[name].locked(leases)
        return found

    async def change(self, transition: Transition, changes: Sequence[Change]) -> list[LeaseKey]:
        by_party: dict[str, list[Change]] = defaultdict(list)
        for change in changes:
            by_party[change.key.queue].append(change)
        moved: list[LeaseKey] = []
        for name, some in by_party.items():
            moved += await self._parties[name].change(transition, some)
        return moved

    async def note_progress(self, notes: Sequence[ProgressNote]) -> list[LeaseKey]:
        # A user's table has no place for it.
        own = [note for note in notes if note.key.queue == OWN]
        return await self._parties[OWN].note_progress(own) if own else []

    async def recall(self) -> None:
        for party in self._parties.values():
            await party.recall()

    async def delete_claims(self, tokens: Sequence[UUID]) -> None:
        for party in self._parties.values():
            await party.delete_claims(tokens)

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
        by_party, held_by = self._divide(rules), _by_party(held)
        found: list[Recovery] = []
        failure: DatabaseError | None = None
        for name, party in self._parties.items():
            try:
                found.append(
                    await party.recover(
                        by_party.get(name, []),
                        limit=limit,
                        worker=worker,
                        held=held_by.get(name, ()),
                        contact=contact,
                        lived=lived,
                        duty=duty,
                    )
                )
                self._note("sweep", name, None)
            except DatabaseError as error:
                failure = error
                self._note("sweep", name, error)
        if failure is not None and not found:
            raise failure
        return Recovery(
            recovered=tuple(job_id for recovery in found for job_id in recovery.recovered),
            retired=tuple(job_id for recovery in found for job_id in recovery.retired),
            excused=tuple(job_id for recovery in found for job_id in recovery.excused),
            recovered_by_queue=_sum(recovery.recovered_by_queue for recovery in found),
            retired_by_queue=_sum(recovery.retired_by_queue for recovery in found),
        )

    @property
    def shared(self) -> bool:
        return all(party.shared for party in self._parties.values())

    async def housekeep(self, duty: Duty | None = None) -> None:
        for party in self._parties.values():
            await party.housekeep(duty)

    async def vacuum(self) -> None:
        for party in self._parties.values():
            await party.vacuum()

    def _note(self, act: str, name: str, error: DatabaseError | None) -> None:
        """Log the error of a table once, not at every claim."""
        words = "" if error is None else str(error)
        if words and self._troubled.get((act, name)) != words:
            logger.warning("the %s of %s failed: %s", act, name or "the job table", words)
        self._troubled[act, name] = words

    def _divide(self, rules: Sequence[ClaimRule]) -> dict[str, list[ClaimRule]]:
        by_party: dict[str, list[ClaimRule]] = defaultdict(list)
        for rule in rules:
            by_party[rule.entrypoint if rule.entrypoint in self._parties else OWN].append(rule)
        return by_party


def _earliest(times: Iterable[timedelta | None]) -> timedelta | None:
    return min((time for time in times if time is not None), default=None)


def _sum(parts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Sum the counts, without those of zero."""
    return sum((Counter(part) for part in parts), Counter())


def _by_party(held: Sequence[LeaseKey]) -> dict[str, list[LeaseKey]]:
    by_party: dict[str, list[LeaseKey]] = defaultdict(list)
    for lease in held:
        by_party[lease.queue].append(lease)
    return by_party


class CompositeStore:
    """Holdfast's own store with user tables beside it, for a worker that serves both.

    Without entrypoints of its own the worker needs none of Holdfast's tables, and asks for none.
    """

    def __init__(
        self, own: Store, tables: Mapping[str, Callable[[Store], TableParty]], *, with_own: bool
    ) -> None:
        self._own = own
        self._makers = dict(tables)
        self.with_own = with_own
        self._tables = {name: make(own) for name, make in self._makers.items()}
        parties: dict[str, Leases] = dict(self._tables)
        if with_own:
            parties[OWN] = own.leases
        self.leases = SeveralLeases(parties)

    async def depths(self) -> dict[str, TableDepth]:
        """The depths of the users' tables."""
        return {name: await table.depth() for name, table in self._tables.items()}

    @property
    def jobs(self) -> Jobs:
        return self._own.jobs

    @property
    def results(self) -> Results:
        return self._own.results

    @property
    def schedules(self) -> Schedules:
        return self._own.schedules

    @property
    def breakers(self) -> Breakers:
        return self._own.breakers

    @property
    def pauses(self) -> Pauses:
        return self._own.pauses

    @property
    def wakeups(self) -> Wakeups:
        return self._own.wakeups

    @property
    def upkeep(self) -> Upkeep:
        return self._own.upkeep

    @property
    def reports(self) -> Reports | None:
        return self._own.reports if self.with_own else None

    @property
    def dedicated(self) -> bool:
        return self._own.dedicated

    def fork(self, role: str) -> CompositeStore:
        own = self._own.fork(role)
        return (
            self if own is self._own else CompositeStore(own, self._makers, with_own=self.with_own)
        )

    @property
    def synchronous(self) -> bool:
        return self._own.synchronous

    def on(self, transaction: object, *, autocommit: bool = False) -> Store:
        return self._own.on(transaction, autocommit=autocommit)

    async def verify(self) -> None:
        if self.with_own:
            await self._own.verify()
        for table in self._tables.values():
            await table.verify()

    async def install(self, only: Only | None = None) -> list[str]:
        return await self._own.install(only)

    async def notify_inserts(self, *, wanted: bool) -> None:
        await self._own.notify_inserts(wanted=wanted)

    async def functions(self, *, wanted: bool) -> None:
        await self._own.functions(wanted=wanted)

    async def notifies_inserts(self) -> bool:
        return await self._own.notifies_inserts()

    async def uninstall(self) -> None:
        await self._own.uninstall()

    async def close(self) -> None:
        await self._own.close()
