"""Bugs of leases: writes without the token, recoveries without a second check, old clocks."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from chaos.mutants.base import entries, mutant, patch, rewrite, unguard
from holdfast.lifecycle import Guard, Transition, Verb
from holdfast.models import Cancellation, JobId, Recovery
from holdfast.stores.postgres import leases, render
from holdfast.stores.postgres.leases import PostgresLeases
from holdfast.stores.postgres.tables.render import TableWords
from holdfast.worker import renew, run
from holdfast.worker.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.models import ClaimRule
    from holdfast.worker.renew import Renewer, RenewingThread


@mutant("finish-without-token", "late success")
def finish_without_token() -> None:
    """Success is recorded by the job's id alone."""
    unguard("complete")


@mutant("retry-without-token", "late retry")
def retry_without_token() -> None:
    """A retry is recorded by the job's id alone, if the job is leased."""
    unguard("retry", instead="j.status = 'picked'")


@mutant("fail-without-token", "late failure")
def fail_without_token() -> None:
    """A failure is recorded by the job's id alone."""
    unguard("fail")


@mutant("hold-without-token", "late hold")
def hold_without_token() -> None:
    """A hold is recorded by the job's id alone, if the job is leased."""
    unguard("hold", instead="j.status = 'picked'")


@mutant("release-without-token", "late release")
def release_without_token() -> None:
    """A release is recorded by the job's id alone, if the job is leased."""
    unguard("release", instead="j.status = 'picked'")


@mutant("state-only-guard", "late success")
def state_only_guard() -> None:
    """Every write checks that the job is leased, but not the token."""
    names = ("complete", "retry", "fail", "hold", "release", "renew", "retire:last_retry")
    unguard(*names, instead="j.status = 'picked'")


@mutant("row-finish-without-token", "late row")
def row_finish_without_token() -> None:
    """The row of a table queue is finished by its key alone."""
    original = TableWords.guards

    def guards(self: TableWords, transition: Transition) -> str:
        text = original(self, transition)
        if transition.verb is Verb.COMPLETE:
            return text.replace(self.guard(Guard.OWNED), "true")
        return text

    patch(TableWords, "guards", guards)


@mutant("heartbeat-by-id", "stale heartbeat")
def heartbeat_by_id() -> None:
    """Leases are renewed by the job's id alone."""
    unguard("renew", instead="j.status = 'picked'")


@mutant("token-reused", "earlier jobs recovered")
def token_reused() -> None:
    """A process uses one token for all its claims."""
    token = uuid4()

    def always() -> UUID:
        return token

    patch(leases, "uuid4", always)
    rewrite(
        "claim",
        "    where taken.ids is not null\n",
        "    where taken.ids is not null\n"
        "    on conflict (token) do update set claimed_at = excluded.claimed_at,\n"
        "        ids = {leases}.ids || excluded.ids\n",
    )


@mutant("claim-without-lock", "racing claims")
def claim_without_lock() -> None:
    """Due rows are read without a lock and then claimed by id."""
    rewrite("claim", "        for update skip locked\n", "")
    rewrite(
        "claim",
        "    where j.ctid = any(array(select place from due where not spent))\n",
        "    where j.id = any(array(select id from due, pg_sleep(0.05) where not spent))\n",
    )


@mutant("slots-not-kept", "slots")
def slots_not_kept() -> None:
    """Jobs that were claimed ahead start without a slot."""
    patch(Slots, "add", lambda self, leases, until: leases)


@mutant("limit-counted-before-lock", "racing limit")
def limit_counted_before_lock() -> None:
    """Running jobs are counted before the claim, without a lock."""

    async def take(
        self: PostgresLeases, claim: Transition, priority: int, lane: Any, share: int, worker: str
    ) -> list[Any]:
        name = lane.rule.entrypoint
        most = lane.rule.concurrency_limit
        [[running, _]] = await self._runner.run("running", entrypoint=name, most=most)
        await asyncio.sleep(0.03)
        room = min(share, most - running)
        lane.dry = room <= 0
        if room <= 0:
            return []
        lanes = [(lane, room)]
        return await self._lease(self._runner, claim, priority, lanes, worker, limited=name)

    patch(PostgresLeases, "_take_limited", take)


@mutant("lease-from-transaction-start", "old transaction")
def lease_from_transaction_start() -> None:
    """Leases begin at now(), the start of the transaction."""
    rewrite(
        "claim",
        "coalesce(:now::timestamptz, clock_timestamp())",
        "coalesce(:now::timestamptz, now())",
    )


@mutant("recovery-by-age", "long jobs")
def recovery_by_age() -> None:
    """A lease counts as expired when its claim is old, even if it was renewed."""
    entries(render.GUARDS)[Guard.STALE] = "j.claimed_at + j.lease <= (select now from clock)"


_SNAPSHOT = """
select j.id from holdfast j
where j.status = 'picked' and j.heartbeat + j.lease <= clock_timestamp()
"""

_TAKE_BACK = """
with was as materialized (
    select * from holdfast where id = any($1) and status = 'picked' for update
),
freed as (
    update holdfast j
    set status = 'queued', recoveries = j.recoveries + 1, claim_token = null, claimed_by = null,
        claimed_at = null, heartbeat = null, lease = null
    where j.id in (select id from was)
)
insert into holdfast_log (
    job_id, status, entrypoint, priority, attempt, recoveries, claimed_by, claimed_at, reason
)
select id, 'queued', entrypoint, priority, attempts, recoveries, claimed_by, claimed_at,
       'lease_expired'
from was
returning job_id
"""


@mutant("recovery-from-snapshot", "worker killed")
def recovery_from_snapshot() -> None:
    """Expired leases are read first and recovered later, without a second check."""

    async def recover(
        self: PostgresLeases, rules: Sequence[ClaimRule], *, worker: str | None = None, **_: object
    ) -> Recovery:
        driver = self._runner.driver
        ids = [row[0] for row in await driver.fetch(_SNAPSHOT)]
        if not ids:
            return Recovery()
        await asyncio.sleep(random.uniform(0.4, 1.2))
        back = await driver.fetch(_TAKE_BACK, [ids])
        await driver.fetch("select pg_notify($1, '')", [self._names.channel])
        return Recovery(recovered=tuple(JobId(row[0]) for row in back))

    patch(PostgresLeases, "recover", recover)


@mutant("nothing-is-recovered", "worker killed")
def nothing_is_recovered() -> None:
    """No worker recovers expired leases."""

    async def recover(self: PostgresLeases, *_: object, **__: object) -> Recovery:
        return Recovery()

    patch(PostgresLeases, "recover", recover)


@mutant("heartbeat-on-the-loop", "long jobs")
def heartbeat_on_the_loop() -> None:
    """Leases are renewed on the event loop, which handlers may block."""

    async def on_loop(self: RenewingThread) -> None:
        await self._renewer.keep(lambda: self._sources.fork("renew"))

    patch(renew.RenewingThread, "run", on_loop)


@mutant("no-self-fence", "worker cut off")
def no_self_fence() -> None:
    """A worker that cannot renew its leases lets its handlers run on."""

    def trust(_: Renewer) -> None:
        return None

    patch(renew.Renewer, "_distrust", trust)


@mutant("late-start", "late release")
def late_start() -> None:
    """A claimed job is started even if its lease has expired."""
    original = run.run

    async def trusting(resources: Any, lease: Any, services: Any) -> Any:
        lease.trusted_until, lease.cancellation = float("inf"), Cancellation()
        return await original(resources, lease, services)

    from holdfast.worker import task_pool

    patch(task_pool, "run", trusting)
