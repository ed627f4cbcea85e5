"""Bugs of outcomes: in two transactions, not durable, refused, without deadline or release."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from chaos.mutants.base import mutant, patch, rewrite
from holdfast import breaker as rules
from holdfast import retry
from holdfast.errors import ConnectionFailed, ConnectionLost
from holdfast.lifecycle import Transition, Verb
from holdfast.models import LeaseKey, Outcome, Released
from holdfast.stores.postgres import breakers
from holdfast.stores.postgres.drivers import asyncpg as driver
from holdfast.stores.postgres.leases import PostgresLeases
from holdfast.worker import backoff, renew, task_pool, worker, write
from holdfast.worker.run import run as run_lease

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence
    from datetime import datetime

    from holdfast.breaker import Breaker, Verdicts
    from holdfast.models import Change
    from holdfast.worker.leases import Lease

_MINE = "j.id = any($1::bigint[]) and j.claim_token = any($2::uuid[])"
_DELETE = f"""
delete from holdfast j where {_MINE}
returning id, entrypoint, priority, attempts, recoveries, claimed_by, claimed_at
"""
_LOG = """
insert into holdfast_log (
    job_id, status, entrypoint, priority, attempt, recoveries, claimed_by, claimed_at
) values ($1, 'successful', $2, $3, $4, $5, $6, $7)
"""
_LOG_FIRST = f"""
insert into holdfast_log (
    job_id, status, entrypoint, priority, attempt, recoveries, claimed_by, claimed_at
)
select id, 'successful', entrypoint, priority, attempts, recoveries, claimed_by, claimed_at
from holdfast j where {_MINE}
"""


def _torn(first_delete: bool) -> None:
    original = PostgresLeases.change

    async def change(
        self: PostgresLeases, transition: Transition, changes: Sequence[Change]
    ) -> list[LeaseKey]:
        if transition.verb is not Verb.COMPLETE:
            return await original(self, transition, changes)
        fetch = self._runner.driver.fetch
        mine = [[change.key.id for change in changes], [change.key.token for change in changes]]
        if not first_delete:
            await fetch(_LOG_FIRST, mine)
        gone = await fetch(_DELETE, mine)
        if first_delete:
            for row in gone:
                await fetch(_LOG, list(row))
        moved = {row[0] for row in gone}
        return [change.key for change in changes if change.key.id in moved]

    patch(PostgresLeases, "change", change)


@mutant("delete-before-log", "lost outcome reply")
def delete_before_log() -> None:
    """The row is deleted in one transaction and logged in the next."""
    _torn(True)


@mutant("log-before-delete", "lost outcome reply")
def log_before_delete() -> None:
    """The outcome is logged in one transaction and the row deleted in the next."""
    _torn(False)


@mutant("outcome-not-durable", "crash after outcome")
def outcome_not_durable() -> None:
    """Outcomes are acknowledged before they are flushed to disk."""
    rewrite("finish", "{patience}", "{patience}, set_config('synchronous_commit', 'off', true)")


@mutant("nul-not-sanitised", "unusual errors")
def nul_not_sanitised() -> None:
    """Error texts are sent to the database with their NUL characters."""

    def as_is(text: str, limit: int) -> str:
        return str.__str__(text)[:limit]

    patch(retry, "sanitise", as_is)


@mutant("refused-outcome-blocks", "unusual errors")
def refused_outcome_blocks() -> None:
    """An outcome that the database refuses is repeated without end."""
    nul_not_sanitised()

    def passes(_: object) -> bool:
        return True

    patch(write, "_passes", passes)


@mutant("only-exceptions-are-caught", "unusual errors")
def only_exceptions_are_caught() -> None:
    """SystemExit and other non-Exceptions of a handler end the worker."""

    async def careless(resources: MutableMapping[Any, Any], lease: Lease, services: Any) -> Outcome:
        escaped: list[BaseException] = []
        execute = lease.entrypoint.executor.execute

        async def watched(job: Any, context: Any) -> None:
            try:
                await execute(job, context)
            except Exception:
                raise
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                escaped.append(error)
                raise

        patch(lease.entrypoint.executor, "execute", watched)
        try:
            outcome = await run_lease(resources, lease, services)
        finally:
            patch(lease.entrypoint.executor, "execute", execute)
        if escaped:
            raise escaped[0]
        return outcome

    patch(task_pool, "run", careless)


@mutant("no-deadline", "silent connection")
def no_deadline() -> None:
    """A call waits for its reply without a deadline."""

    bounded = driver.AsyncpgConnection.fetch

    async def patient(
        self: driver.AsyncpgConnection, sql: str, args: Sequence[object], timeout: float
    ) -> Any:
        return await bounded(self, sql, args, 3600.0)

    patch(driver.AsyncpgConnection, "fetch", patient)


@mutant("release-not-written", "released at stop")
def release_not_written() -> None:
    """A worker that stops does not release its unfinished jobs."""
    del write._ASKED_BY[Released]


@mutant("drain-has-no-end", "released at stop")
def drain_has_no_end() -> None:
    """A worker that stops waits for its handlers without a limit."""
    original = worker.Worker._drain

    async def drain(self: worker.Worker, patience: Any, settling: Any) -> None:
        await original(self, patience * 1000, settling)

    patch(worker.Worker, "_drain", drain)


@mutant("heartbeat-stops-at-drain", "long graceful stop")
def heartbeat_stops_at_drain() -> None:
    """A worker that stops ends its renewals first."""
    original = renew.Renewer._renew

    async def renew_(self: renew.Renewer, *stores: Any) -> bool | None:
        if self._reporter.report().state == "draining":
            return True
        return await original(self, *stores)

    patch(renew.Renewer, "_renew", renew_)


@mutant("lost-claim-not-released", "lost claim")
def lost_claim_not_released() -> None:
    """A claim whose reply was lost stays leased until its lease expires."""

    async def forget(self: PostgresLeases) -> None:
        self._doubtful.clear()

    patch(PostgresLeases, "_release_doubtful", forget)


@mutant("outage-ends-worker", "outage")
def outage_ends_worker() -> None:
    """A worker that cannot reach the server ends."""

    def pause(_: backoff.Backoff, what: str, error: Exception) -> float:
        if isinstance(error, (ConnectionFailed, ConnectionLost)):
            raise SystemExit(f"{what}: {error}")
        return 0.1

    patch(backoff.Backoff, "pause", pause)


@mutant("breaker-without-generation", "breaker stays closed")
def breaker_without_generation() -> None:
    """A breaker counts outcomes of jobs that were claimed in an earlier state."""

    def record(now: datetime, was: Breaker, told: Verdicts) -> Breaker:
        return rules.record(was, told.policy, was.generation, told.verdicts, now)

    patch(breakers, "_record", record)
