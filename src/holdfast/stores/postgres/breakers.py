"""Circuit breakers in PostgreSQL: rows that the rules of `holdfast.breaker` are applied to."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from functools import partial, reduce
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.breaker import (
    Admission,
    Breaker,
    BreakerPolicy,
    BreakerState,
    Verdicts,
    admit,
    force,
    record,
    return_permits,
)
from holdfast.errors import DatabaseError, SchemaMissing
from holdfast.stores.postgres.binding import BREAKER_COLUMNS
from holdfast.stores.postgres.migrate import UNDEFINED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from holdfast.settings import Names
    from holdfast.stores.postgres.drivers.base import Row
    from holdfast.stores.postgres.runner import Runner

T = TypeVar("T")

_Admitted = tuple[Breaker, Admission]

_TRIES = 30
_LONGEST_PAUSE = 0.05


class Seen(NamedTuple):
    """A row as it was read; without a revision it is not there yet."""

    breaker: Breaker
    revision: int | None


class PostgresBreakers:
    """One look where nothing changes. Else read, decide, and write if the row is still the same."""

    def __init__(self, runner: Runner, names: Names) -> None:
        self._runner = runner
        self._names = names

    async def admit(self, policies: Sequence[BreakerPolicy], wanted: int) -> dict[str, Admission]:
        by_name = {policy.name: policy for policy in policies}
        seen, now = await self._read(by_name)
        if any(row.revision is None for row in seen.values()):
            await self._run("breaker_register", names=sorted(by_name))
            seen, now = await self._read(by_name)
        admissions: dict[str, Admission] = {}
        for name, policy in by_name.items():

            def rule(was: Breaker, at: datetime, of: BreakerPolicy = policy) -> _Admitted:
                return admit(was, of, at, wanted)

            decided = await self._decide(seen[name], now, rule)
            # Other workers are deciding on this row now, so the answer changes soon.
            admissions[name] = decided or Admission(seen[name].breaker.generation, 0)
        return admissions

    async def return_permits(
        self, name: str, generation: int, expires: datetime, count: int
    ) -> None:
        def rule(was: Breaker, now: datetime) -> tuple[Breaker, bool]:
            return return_permits(was, generation, expires, count, now), True

        seen, now = await self._read([name])
        await self._decide(seen[name], now, rule)

    async def record(self, outcomes: Sequence[Verdicts]) -> None:
        by_name: defaultdict[str, list[Verdicts]] = defaultdict(list)
        for verdicts in outcomes:
            by_name[verdicts.policy.name].append(verdicts)
        seen, now = await self._read(by_name)
        for name, some in by_name.items():

            def rule(
                was: Breaker, at: datetime, some: Sequence[Verdicts] = some
            ) -> tuple[Breaker, bool]:
                return reduce(partial(_record, at), some, was), True

            if not await self._decide(seen[name], now, rule):
                raise DatabaseError(f"breaker {name!r} changed too often to count an outcome")

    async def all(self) -> list[Breaker]:
        return [row.breaker for row in (await self._read(None))[0].values()]

    async def force(
        self, name: str, state: BreakerState, *, actor: str, reason: str | None
    ) -> Breaker:
        def rule(was: Breaker, now: datetime) -> tuple[Breaker, Breaker]:
            after = force(was, state, actor, reason, now)
            return after, after

        seen, now = await self._read([name])
        forced = await self._decide(seen[name], now, rule)
        if forced is None:
            raise DatabaseError(f"breaker {name!r} changed too often to be forced; try again")
        return forced

    async def _decide(
        self, seen: Seen, now: datetime, rule: Callable[[Breaker, datetime], tuple[Breaker, T]]
    ) -> T | None:
        """Apply a rule to a row until it holds. None means that too many other workers changed the
        row."""
        name = seen.breaker.name
        for attempt in range(_TRIES):
            after, answer = rule(seen.breaker, now)
            if after == seen.breaker:
                return answer
            if seen.revision is None:
                await self._run("breaker_register", names=[name])
            elif await self._write(seen.revision, after):
                return answer
            else:
                pause = min(_LONGEST_PAUSE, 0.001 * 2**attempt)
                await asyncio.sleep(pause * random.random())  # noqa: S311 - not a secret
            rows, now = await self._read([name])
            seen = rows[name]
        return None

    async def _write(self, revision: int, breaker: Breaker) -> bool:
        values = {name: getattr(breaker, name) for name in BREAKER_COLUMNS}
        values |= {"state": str(breaker.state), "probes": list(breaker.probes), "seen": revision}
        return bool(await self._run("breaker_write", **values))

    async def _read(self, names: Iterable[str] | None) -> tuple[dict[str, Seen], datetime]:
        """The rows and the time; a breaker that has no row yet is a new one."""
        wanted = None if names is None else sorted(names)
        found = await self._run("breaker_read", names=wanted)
        now: datetime = found[0][0]
        seen = {row[2]: Seen(breaker_of(row[2:]), row[1]) for row in found if row[1] is not None}
        missing = (name for name in wanted or () if name not in seen)
        return seen | {name: Seen(Breaker.new(name, now), None) for name in missing}, now

    async def _run(self, statement: str, **values: object) -> Sequence[Row]:
        try:
            return await self._runner.run(statement, **values)
        except DatabaseError as error:
            if error.sqlstate not in UNDEFINED:
                raise
            table = self._names.table("_breakers")
            raise SchemaMissing(
                f"circuit breakers need the table {table}, which is not there; "
                f"run `holdfast install`, or `holdfast install --breakers-only` where Holdfast's "
                f"other tables are not wanted"
            ) from error


def _record(now: datetime, was: Breaker, said: Verdicts) -> Breaker:
    return record(was, said.policy, said.generation, said.verdicts, now)


def breaker_of(row: Row) -> Breaker:
    values = dict(zip(BREAKER_COLUMNS, row, strict=True))
    state, probes = BreakerState(values.pop("state")), tuple(values.pop("probes"))
    return Breaker(state=state, probes=probes, **values)
