"""Bugs of enqueuing: keys that are looked up first, calls repeated blindly, clocks, promises."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from chaos.mutants import base
from chaos.mutants.base import entries, mutant, patch, rewrite
from holdfast.errors import DatabaseError
from holdfast.stores.postgres import idempotent_enqueue, render
from holdfast.stores.postgres.jobs import PostgresJobs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from holdfast.lifecycle import Transition
    from holdfast.models import JobId, NewJob

_later: set[asyncio.Task[Any]] = set()


@mutant("dedupe-by-looking", "hot keys", ddl="drop index holdfast_dedupe_key")
def dedupe_by_looking() -> None:
    """Whether a key is free is looked up before the insert; no index enforces it."""
    entries(render._ON_CONFLICT)["skip"] = ""
    rewrite(
        "insert",
        "    {on_conflict}\n",
        "    where case\n"
        "        when i.dedupe_key is null then true\n"
        "        when exists (\n"
        "            select from {table} k\n"
        "            where k.dedupe_key = i.dedupe_key and k.held_at is null\n"
        "        ) then false\n"
        "        else pg_sleep(0.01)::text is not null\n"
        "    end\n"
        "    {on_conflict}\n",
    )
    rewrite(
        "insert_one",
        "    {on_conflict}\n",
        "    where case\n"
        "        when :dedupe_key::text is null then true\n"
        "        when exists (\n"
        "            select from {table} k\n"
        "            where k.dedupe_key = :dedupe_key::text and k.held_at is null\n"
        "        ) then false\n"
        "        else pg_sleep(0.01)::text is not null\n"
        "    end\n"
        "    {on_conflict}\n",
    )


_KEY_WHILE_QUEUED = """
drop index holdfast_dedupe_key;
create unique index holdfast_dedupe_key on holdfast (dedupe_key)
    where held_at is null and dedupe_key is not null and status = 'queued'
"""


@mutant("key-released-at-claim", "hot keys", ddl=_KEY_WHILE_QUEUED)
def key_released_at_claim() -> None:
    """A job lets go of its key when it is claimed."""
    clause = entries(render._ON_CONFLICT)
    clause["skip"] = clause["skip"].replace(
        "dedupe_key is not null", "dedupe_key is not null and status = 'queued'"
    )


@mutant("enqueue-repeated-blindly", "lost replies")
def enqueue_repeated_blindly() -> None:
    """An enqueue whose reply was lost is sent again without the key of the first try."""
    original = idempotent_enqueue.Inserter._try

    async def blind(self: idempotent_enqueue.Inserter, key: UUID, *given: Any, again: bool) -> Any:
        return await original(self, idempotent_enqueue.new_key(), *given, again=False)

    patch(idempotent_enqueue.Inserter, "_try", blind)


@mutant("own-enqueue-refused", "lost replies")
def own_enqueue_refused() -> None:
    """An enqueue that is sent again takes the traces of its first try for somebody else's."""

    async def nothing(self: idempotent_enqueue.Inserter, key: UUID, patience: float) -> None:
        raise DatabaseError("the key is taken")

    patch(idempotent_enqueue.Inserter, "_recall", nothing)


@mutant("enqueue-not-durable", "forgetful enqueue")
def enqueue_not_durable() -> None:
    """Jobs are acknowledged without waiting for the disk."""
    for file in ("insert", "insert_one"):
        rewrite(
            file,
            "as now, {marked}\n",
            "as now, {marked}, set_config('synchronous_commit', 'off', true)\n",
        )


@mutant("client-clock-decides", "later")
def client_clock_decides() -> None:
    """When a job is due is computed by the client's clock."""
    fields, columns = idempotent_enqueue.fields, idempotent_enqueue.columns

    def computed(job: NewJob) -> NewJob:
        if not isinstance(job.execute_after, timedelta):
            return job
        now = datetime.now(UTC) + timedelta(seconds=base.skew)
        return job._replace(execute_after=now + job.execute_after)

    def one(job: NewJob) -> dict[str, object]:
        return fields(computed(job))

    def many(jobs: Sequence[NewJob]) -> dict[str, object]:
        return columns([computed(job) for job in jobs])

    patch(idempotent_enqueue, "fields", one)
    patch(idempotent_enqueue, "columns", many)


@mutant("claimed-early", "later")
def claimed_early() -> None:
    """A job is claimed up to a second before it is due."""
    rewrite(
        "claim",
        "least(l.ceiling, (select now from clock))",
        "least(l.ceiling, (select now from clock) + interval '1 second')",
    )


@mutant("cancel-acknowledged-early", "canceled")
def cancel_acknowledged_early() -> None:
    """A cancellation is acknowledged before it is done."""
    original = PostgresJobs.remove

    async def remove(
        self: PostgresJobs, transition: Transition, ids: Sequence[JobId], **more: Any
    ) -> set[JobId]:
        async def do() -> None:
            await asyncio.sleep(2.0)
            await original(self, transition, ids, **more)

        task = asyncio.create_task(do())
        _later.add(task)
        task.add_done_callback(_later.discard)
        return set(ids)

    patch(PostgresJobs, "remove", remove)
