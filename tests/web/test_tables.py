"""The page of table queues: each table apart, looked at now and then, paused and resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from holdfast.table import TableQueue
from holdfast.web.inspected import Inspected
from tests.web.conftest import Browser, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import Database

TABLE = """
create table {name} (
    id bigint generated always as identity primary key, remind_at timestamptz not null,
    claimed_at timestamptz, claimed_by text, claim_token uuid, attempts int not null default 0,
    max_attempts int not null default 5, inactive boolean not null default false,
    last_error text, last_error_at timestamptz, updated_at timestamptz not null default now()
);
create index on {name} (inactive, claimed_at, remind_at);
create index on {name} (claimed_at) where claimed_at is not null;
insert into {name} (remind_at, attempts, inactive, last_error)
values (now() - interval '1 h', 0, false, null), (now() + interval '1 h', 0, false, null),
       (now() - interval '1 h', 5, true, '<b>refused</b>')
"""


async def _handler(_: dict[str, object]) -> None:
    """Never runs here."""


@pytest.fixture
async def browser(pg18: Database) -> AsyncIterator[Browser]:
    with psycopg.connect(pg18.dsn, autocommit=True) as connection:
        for name in ("exports", "snoozes"):
            for statement in TABLE.format(name=name).split(";"):
                connection.execute(statement.encode())
    async with opened(pg18) as found:
        await found.hf.install()
        for name in ("exports", "missing", "snoozes"):
            found.hf.table(TableQueue(name))(_handler)
        await found.sign_in()
        yield found


async def test_a_table_that_cannot_be_read_hides_no_other(browser: Browser) -> None:
    page = await browser.text("/tables")
    assert "3 tables of your own." in page
    assert "2 rows due, 2 retired." in page
    assert "missing" in page.partition('class="fault')[2]
    assert page.count("&lt;b&gt;refused&lt;/b&gt;") == 4
    assert page.count("st st-held") >= 2


async def test_a_table_queue_is_paused_from_its_page_and_back_there(browser: Browser) -> None:
    page = await browser.text("/tables")
    assert 'href="/entrypoints?do=pause&amp;name=snoozes&amp;back=tables"' in page
    sheet = await browser.text("/entrypoints?do=pause&name=snoozes&back=tables")
    assert 'name="back" value="/tables"' in sheet
    await browser.send("/act/pause", name="snoozes", reason="a move", back="/tables")
    page = await browser.text("/tables")
    assert "paused by web:mara: a move" in page
    assert "do=resume&amp;name=snoozes" in page
    [act] = await browser.hf.queries.list_acts()
    assert (act.act, act.subject, act.actor, act.reason) == (
        "pause",
        "snoozes",
        "web:mara",
        "a move",
    )
    await browser.send("/act/resume", name="snoozes", back="/tables")
    assert "do=pause&amp;name=snoozes" in await browser.text("/tables")


async def test_tables_are_not_counted_at_every_look(browser: Browser, pg18: Database) -> None:
    assert "2 rows due" in await browser.text("/tables")
    with psycopg.connect(pg18.dsn, autocommit=True) as connection:
        connection.execute("insert into snoozes (remind_at) values (now())")
    assert "2 rows due" in await browser.text("/tables")
    browser.web.site.inspected = Inspected()
    assert "3 rows due" in await browser.text("/tables")
