"""Several tables served as one: Holdfast's own, and those that users declared as queues."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

from holdfast.errors import DatabaseError
from holdfast.models import Recovery
from holdfast.ports import Leases

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta
    from uuid import UUID

    from holdfast.lifecycle import Transition
    from holdfast.models import Change, Held, Job, TableDepth, Want, WorkerInfo
    from holdfast.ports import Breakers, Jobs, Only, Schedules, Store, Wakeups

logger = logging.getLogger("holdfast.worker")

OWN = ""
"""The queue name of Holdfast's own table."""


class TableParty(Leases, Protocol):
    """Leases on a user's table, which is looked at before work begins."""

    async def verify(self) -> None: ...

    async def depth(self) -> TableDepth: ...


class SeveralLeases:
    """Sends each call to the table it is about; a claim gives each table its share."""

    def __init__(self, parties: Mapping[str, Leases]) -> None:
        self._parties = dict(parties)
        self._turn = 0
        self._troubled: dict[tuple[str, str], str] = {}

    async def claim(
        self, wants: Sequence[Want], *, limit: int, worker: str, sweep: bool = False
    ) -> list[Job]:
        """What one table leaves over the next may have; who is first changes every time."""
        by_party = self._divide(wants)
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
                    found = await self._parties[name].claim(
                        by_party[name], limit=size, worker=worker, sweep=sweep
                    )
                except DatabaseError as error:
                    failure = error
                    self._note("claim", name, error)
                    continue
                self._note("claim", name, None)
                jobs += found
                full += [name] if len(found) == size else []
            hungry = unasked + full
        # What one table gave is leased: the trouble of another must not leave it to nobody.
        if failure is not None and not jobs:
            raise failure
        return jobs

    async def next_due(self, wants: Sequence[Want]) -> timedelta | None:
        looks = [
            await self._parties[name].next_due(some) for name, some in self._divide(wants).items()
        ]
        return min((look for look in looks if look is not None), default=None)

    async def renew(self, held: Sequence[Held]) -> set[Held]:
        owned: set[Held] = set()
        for name, leases in _by_party(held).items():
            owned |= await self._parties[name].renew(leases)
        return owned

    async def locked(self, held: Sequence[Held]) -> set[Held]:
        found: set[Held] = set()
        for name, leases in _by_party(held).items():
            found |= await self._parties[name].locked(leases)
        return found

    async def change(self, transition: Transition, changes: Sequence[Change]) -> list[Held]:
        by_party: dict[str, list[Change]] = defaultdict(list)
        for change in changes:
            by_party[change.held.queue].append(change)
        moved: list[Held] = []
        for name, some in by_party.items():
            moved += await self._parties[name].change(transition, some)
        return moved

    async def recall(self) -> None:
        for party in self._parties.values():
            await party.recall()

    async def forget(self, tokens: Sequence[UUID]) -> None:
        for party in self._parties.values():
            await party.forget(tokens)

    async def recover(
        self, wants: Sequence[Want], *, limit: int = 1000, worker: str | None = None
    ) -> Recovery:
        by_party = self._divide(wants)
        found: list[Recovery] = []
        failure: DatabaseError | None = None
        for name, party in self._parties.items():
            try:
                found.append(
                    await party.recover(by_party.get(name, []), limit=limit, worker=worker)
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
        )

    async def housekeep(self) -> None:
        for party in self._parties.values():
            await party.housekeep()

    async def tidy(self) -> None:
        for party in self._parties.values():
            await party.tidy()

    async def report(self, worker: WorkerInfo) -> None:
        for party in self._parties.values():
            await party.report(worker)

    async def farewell(self, worker: str) -> None:
        for party in self._parties.values():
            await party.farewell(worker)

    def _note(self, act: str, name: str, error: DatabaseError | None) -> None:
        """Say it once, not at every claim."""
        words = "" if error is None else str(error)
        if words and self._troubled.get((act, name)) != words:
            logger.warning("the %s of %s failed: %s", act, name or "the job table", words)
        self._troubled[act, name] = words

    def _divide(self, wants: Sequence[Want]) -> dict[str, list[Want]]:
        by_party: dict[str, list[Want]] = defaultdict(list)
        for want in wants:
            by_party[want.entrypoint if want.entrypoint in self._parties else OWN].append(want)
        return by_party


def _by_party(held: Sequence[Held]) -> dict[str, list[Held]]:
    by_party: dict[str, list[Held]] = defaultdict(list)
    for lease in held:
        by_party[lease.queue].append(lease)
    return by_party


class SeveralStores:
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
        """How full the users' tables are."""
        return {name: await table.depth() for name, table in self._tables.items()}

    @property
    def jobs(self) -> Jobs:
        return self._own.jobs

    @property
    def schedules(self) -> Schedules:
        return self._own.schedules

    @property
    def breakers(self) -> Breakers:
        return self._own.breakers

    @property
    def wakeups(self) -> Wakeups:
        return self._own.wakeups

    @property
    def dedicated(self) -> bool:
        return self._own.dedicated

    def fork(self, role: str) -> SeveralStores:
        own = self._own.fork(role)
        return (
            self if own is self._own else SeveralStores(own, self._makers, with_own=self.with_own)
        )

    def on(self, connection: object) -> Store:
        return self._own.on(connection)

    async def verify(self) -> None:
        if self.with_own:
            await self._own.verify()
        for table in self._tables.values():
            await table.verify()

    async def install(self, only: Only | None = None) -> list[str]:
        return await self._own.install(only)

    async def uninstall(self) -> None:
        await self._own.uninstall()

    async def close(self) -> None:
        await self._own.close()
