"""Programs that know nothing of Holdfast insert rows with plain SQL."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from holdfast.settings import Names
from holdfast.stores.postgres.drivers.listening import _NEED
from tests.worker.workers import ends, working

if TYPE_CHECKING:
    from holdfast import Holdfast, Job
    from tests.servers import Database

INSERT = "insert into holdfast (entrypoint) values ('mail')"
CHANNEL = Names().channel
END = "end"


class Heard:
    """The notifications of the queue's channel, up to a mark that is sent last."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._words: asyncio.Queue[str] = asyncio.Queue()

    async def listen(self) -> None:
        await self._connection.add_listener(CHANNEL, self._hear)
        # As a worker at rest does, so that enqueues notify.
        await self._connection.execute(_NEED.replace("$1", f"'{CHANNEL}'"))

    def _hear(self, *arguments: Any) -> None:
        self._words.put_nowait(arguments[-1])

    async def since(self) -> list[str]:
        await self._connection.execute(f"notify {CHANNEL}, '{END}'")
        heard: list[str] = []
        while (word := await ends(self._words.get())) != END:
            heard.append(word)
        return heard


async def test_rows_that_others_insert_are_picked_up_at_once(pg_hf: Holdfast, witness: Any) -> None:
    ran: asyncio.Queue[Job] = asyncio.Queue()

    @pg_hf.entrypoint("mail")
    async def mail(job: Job) -> None:
        ran.put_nowait(job)

    await pg_hf.install(notify_inserts=True)
    async with working(pg_hf, dequeue_timeout=timedelta(minutes=10)):
        for _ in range(6):
            await witness.execute(INSERT)
            # The worker would look again in ten minutes.
            job = await ends(ran.get())
            assert (job.payload, job.priority, job.dedupe_key, job.attempts) == (None, 0, None, 0)


async def test_an_enqueue_of_our_own_notifies_once(pg_hf: Holdfast, witness: Any) -> None:
    heard = Heard(witness)
    await heard.listen()
    await pg_hf.queries.enqueue("mail")
    assert await heard.since() == [""]
    await pg_hf.install(notify_inserts=True)
    await pg_hf.queries.enqueue("mail")
    assert await heard.since() == [""]
    await pg_hf.queries.enqueue(["mail"] * 3)
    assert await heard.since() == [""]


async def test_the_trigger_is_removed_when_it_is_not_wanted(pg_hf: Holdfast, witness: Any) -> None:
    heard = Heard(witness)
    await heard.listen()
    assert not await pg_hf.store.notifies_inserts()
    await pg_hf.install(notify_inserts=True)
    await pg_hf.install(notify_inserts=True)
    assert await pg_hf.store.notifies_inserts()
    await witness.execute(INSERT)
    assert await heard.since() == [""]
    # An install that does not speak of it leaves it.
    await pg_hf.install()
    assert await pg_hf.store.notifies_inserts()
    await pg_hf.install(notify_inserts=False)
    assert not await pg_hf.store.notifies_inserts()
    await witness.execute(INSERT)
    assert await heard.since() == []


async def test_uninstall_removes_the_trigger_and_its_function(
    pg_hf: Holdfast, pg18: Database, witness: Any
) -> None:
    await pg_hf.install(notify_inserts=True)
    await pg_hf.uninstall()
    found = await witness.fetch(
        "select proname from pg_proc where pronamespace = $1::text::regnamespace", pg18.schema
    )
    assert found == []


async def test_a_taken_key_is_skipped_by_the_predicate_of_its_index(
    pg_hf: Holdfast, witness: Any
) -> None:
    """A condition must imply the predicate of a partial index for PostgreSQL to choose that index.

    The predicate cannot be the state: every claim changes it, and would have to write the index."""
    insert = "insert into holdfast (entrypoint, dedupe_key) values ('mail', 'k') on conflict"
    skipping = (
        f"{insert} (dedupe_key) where held_at is null and dedupe_key is not null do nothing",
        f"{insert} do nothing",
    )
    await pg_hf.queries.enqueue("mail", dedupe_key="k")
    for statement in skipping:
        assert await witness.execute(statement) == "INSERT 0 0"
    with pytest.raises(asyncpg.InvalidColumnReferenceError):
        await witness.execute(
            f"{insert} (dedupe_key) where status in ('queued', 'picked') do nothing"
        )
