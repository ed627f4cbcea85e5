"""What an operator does on the page is done, and logged with the name of whoever did it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from holdfast.errors import DatabaseError
from holdfast.web.acts import ACTS
from tests.postgres import tables
from tests.web import story
from tests.web.conftest import Browser, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from holdfast import JobId
    from tests.servers import Database

MARA = "web:mara"


@pytest.fixture
async def browser(pg18: Database) -> AsyncIterator[Browser]:
    async with opened(pg18) as found:
        await found.hf.install()
        await found.sign_in()
        yield found


async def _send(browser: Browser, act: str, **fields: object) -> None:
    answer = await browser.send(f"/act/{act}", **fields)
    assert answer.status_code == 303
    assert "Not done" not in await browser.note()


async def _on_a_job(browser: Browser, database: Database, act: str) -> None:
    job_id = story.hold(database, act)
    await _send(browser, act, id=job_id, reason="it is time", payload="{}")
    history = await browser.hf.queries.job_history(job_id)  # type: ignore[arg-type]
    assert [(entry.actor, entry.reason) for entry in history] == [(MARA, "it is time")]


async def _cancel(browser: Browser, _: Database, __: str) -> None:
    [job_id] = await browser.hf.queries.enqueue("cancel")
    await _send(browser, "cancel", id=job_id, reason="not wanted")
    [entry] = await browser.hf.queries.job_history(job_id)
    assert (entry.actor, entry.reason) == (MARA, "not wanted")


async def _enqueue(browser: Browser, _: Database, __: str) -> None:
    await _send(browser, "enqueue", entrypoint="mail", payload="{}")
    [job] = await browser.hf.queries.browse_queue(entrypoint="mail")
    assert (job.headers or {})["enqueued_by"] == MARA


async def _acts(browser: Browser) -> list[tuple[str, str, str | None]]:
    return [(act.act, act.subject, act.actor) for act in await browser.hf.queries.list_acts()]


async def _pause(browser: Browser, _: Database, __: str) -> None:
    await _send(browser, "pause", name="mail", reason="smtp is down")
    assert await _acts(browser) == [("pause", "mail", MARA)]


async def _resume(browser: Browser, _: Database, __: str) -> None:
    await browser.hf.queries.pause(everything=True, reason="a move")
    await _send(browser, "resume", everything="1")
    assert (await _acts(browser))[0] == ("resume", "", MARA)


async def _schedule(browser: Browser, _: Database, __: str) -> None:
    browser.hf.schedule("report", "0 3 * * *")(_nothing)
    await browser.hf.run(mode="drain", signals=False)
    for do in ("pause", "resume", "run"):
        await _send(browser, "schedule", name="report", do=do)
        assert (await _acts(browser))[0] == (f"{do} schedule", "report", MARA)


async def _nothing(_: object) -> None:
    """A handler."""


async def _breaker(browser: Browser, _: Database, __: str) -> None:
    for do in ("open", "close"):
        await _send(browser, "breaker", name="stripe", do=do)
        assert (await _acts(browser))[0] == (f"{do} breaker", "stripe", MARA)


LEASED = """
update holdfast set status = 'picked', claimed_by = 'gone', claimed_at = now(), heartbeat = now(),
    lease = interval '30 s', claim_token = '00000000-0000-0000-0000-000000000001'
where id = %(id)s;
insert into holdfast_leases (token, worker, claimed_at, lease, ids)
values ('00000000-0000-0000-0000-000000000001', 'gone', now(), interval '30 s', array[%(id)s]);
insert into holdfast_workers (id, host, pid, version, entrypoints, concurrency, running, state,
    started_at, heartbeat, heartbeat_timeout)
values ('gone', 'host', 1, '1', '{}', 1, 1, 'running', now(), now() - interval '1 h', '30 s')
"""


async def _release(browser: Browser, database: Database, _: str) -> None:
    [job_id] = await browser.hf.queries.enqueue("lost")
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for statement in LEASED.split(";"):
            connection.execute(statement.encode(), {"id": job_id})
    await _send(browser, "release", name="gone")
    [entry] = await browser.hf.queries.job_history(job_id)
    assert entry.actor == MARA


async def _stop(browser: Browser, database: Database, _: str) -> None:
    ids: list[JobId] = [story.hold(database, "many") for _ in range(3)]  # type: ignore[misc]
    errand = browser.web.site.errands.requeue(ids, 0.01, actor=MARA, reason=None, cap=None)
    await _send(browser, "stop", number=errand.number)
    assert "stopped by web:mara" in await browser.text("/failures")
    assert (await _acts(browser))[0] == ("stop requeue", "3 jobs", MARA)


ON_JOBS = ("requeue", "delete", "resolve", "edit")
TRIED: dict[str, Callable[[Browser, Database, str], Awaitable[None]]] = {
    **dict.fromkeys(ON_JOBS, _on_a_job),
    "cancel": _cancel,
    "enqueue": _enqueue,
    "pause": _pause,
    "resume": _resume,
    "schedule": _schedule,
    "breaker": _breaker,
    "release": _release,
    "stop": _stop,
}


@pytest.mark.parametrize("act", [act.path.removeprefix("/act/") for act in ACTS])
async def test_every_act_is_logged_with_its_actor(
    browser: Browser, pg18: Database, act: str
) -> None:
    await TRIED[act](browser, pg18, act)


async def test_the_log_lists_what_people_did_to_no_single_job(browser: Browser) -> None:
    await browser.hf.queries.pause("mail", reason="<b>smtp</b>", actor="ann")
    page = await browser.text("/log?who=people")
    assert "On entrypoints, schedules and breakers" in page
    assert "&lt;b&gt;smtp&lt;/b&gt;" in page
    assert "On entrypoints" not in await browser.text("/log")


async def test_pages_read_in_transactions_that_write_nothing_and_end_soon(
    browser: Browser, pg18: Database
) -> None:
    for reader in (browser.web.site.reader, browser.web.site.live_reader):
        async with reader.open() as look:
            [[timeout]] = await look.driver.fetch("show statement_timeout")
            assert timeout == "2s"
        with pytest.raises(DatabaseError, match="read-only transaction"):
            async with reader.open() as look:
                await look.driver.fetch(f"delete from {tables.NAMES.table()}")
