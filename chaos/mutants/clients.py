"""Bugs of enqueuing: keys without an index, repeated calls, the client's clock, early replies."""

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


@mutant("dedupe-without-index", "hot keys", ddl="drop index holdfast_dedupe_key")
def dedupe_without_index() -> None:
    """An enqueue looks for its key before the insert, and no index enforces it."""
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
    """A claim frees the dedupe key of its job."""
    clause = entries(render._ON_CONFLICT)
    clause["skip"] = clause["skip"].replace(
        "dedupe_key is not null", "dedupe_key is not null and status = 'queued'"
    )


@mutant("enqueue-repeated-without-key", "lost replies")
def enqueue_repeated_without_key() -> None:
    """An enqueue whose reply was lost is repeated under another idempotency key."""
    original = idempotent_enqueue.Inserter._try

    async def blind(self: idempotent_enqueue.Inserter, key: UUID, *given: Any, again: bool) -> Any:
        return await original(self, idempotent_enqueue.new_key(), *given, again=False)

    patch(idempotent_enqueue.Inserter, "_try", blind)


@mutant("repeated-enqueue-refused", "lost replies")
def repeated_enqueue_refused() -> None:
    """A repeated enqueue takes the rows of its first attempt for another client's."""

    async def nothing(self: idempotent_enqueue.Inserter, key: UUID, patience: float) -> None:
        raise DatabaseError("the key is taken")

    patch(idempotent_enqueue.Inserter, "_recall", nothing)


@mutant("enqueue-not-durable", "crash after enqueue")
def enqueue_not_durable() -> None:
    """Enqueues are acknowledged before they are flushed to disk."""
    for file in ("insert", "insert_one"):
        rewrite(
            file,
            "as now, {marked}\n",
            "as now, {marked}, set_config('synchronous_commit', 'off', true)\n",
        )


@mutant("client-clock-decides", "delayed jobs")
def client_clock_decides() -> None:
    """The client's clock decides when a delayed job is due."""
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


@mutant("claimed-early", "delayed jobs")
def claimed_early() -> None:
    """A job is claimed up to a second before it is due."""
    rewrite(
        "claim",
        "least(l.ceiling, (select now from clock))",
        "least(l.ceiling, (select now from clock) + interval '1 second')",
    )


@mutant("cancel-acknowledged-early", "canceled jobs")
def cancel_acknowledged_early() -> None:
    """A cancellation is acknowledged before it is written."""
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
