"""Failures are grouped by the mark of their error that the log has stored."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from holdfast import DatabaseRetryEntrypointExecutor, EntrypointExecutorParameters, Job, Status
from holdfast.monitor.failures import ended_groups, held_groups
from tests.web import story
from tests.web.conftest import Browser, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import Database


@pytest.fixture
async def browser(pg18: Database) -> AsyncIterator[Browser]:
    async with opened(pg18) as found:
        await found.hf.install()
        await found.sign_in()
        yield found


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def charge(number: int) -> None:
    raise TimeoutError(f"no answer for card {number}")


def refund(number: int) -> None:
    raise TimeoutError(f"no answer for card {number}")


async def test_one_text_from_two_places_is_two_groups(browser: Browser) -> None:
    hf = browser.hf

    @hf.entrypoint("pay", on_failure="hold")
    async def pay(job: Job) -> None:
        number = int(job.payload or b"0")
        (charge if number < 3 else refund)(number)

    ids = await hf.queries.enqueue(["pay"] * 5, [b"%d" % n for n in range(5)], [0] * 5)
    await hf.run(mode="drain", signals=False)
    async with browser.web.site.reader.open() as look:
        groups = await held_groups(look)
    assert [(group.count, set(group.jobs)) for group in groups] == [
        (3, set(ids[:3])),
        (2, set(ids[3:])),
    ]
    page = plain(await browser.text("/failures"))
    assert "5 jobs wait for a person, in 2 groups." in page
    assert "TimeoutError no answer for card n" in page
    assert re.search(r"pay web/test_failures.py:\d+ in charge", page)
    assert re.search(r"pay web/test_failures.py:\d+ in refund", page)
    await browser.send("/act/resolve", group=groups[1].key, reason="refunded by hand")
    assert "3 jobs wait for a person, in 1 group." in plain(await browser.text("/failures"))


async def test_what_a_person_edited_stays_in_its_group(browser: Browser) -> None:
    hf = browser.hf

    @hf.entrypoint("pay", on_failure="hold")
    async def pay(_: Job) -> None:
        charge(1)

    [job_id] = await hf.queries.enqueue("pay", b"1")
    await hf.run(mode="drain", signals=False)
    await hf.queries.edit_job(job_id, b"2", actor="ann", reason="typo")
    assert "in charge" in plain(await browser.text("/failures"))


async def test_what_ended_and_what_was_retried_have_groups_too(browser: Browser) -> None:
    hf = browser.hf

    def once(parameters: EntrypointExecutorParameters) -> DatabaseRetryEntrypointExecutor:
        return DatabaseRetryEntrypointExecutor(
            parameters, max_attempts=1, initial_delay=timedelta(0)
        )

    @hf.entrypoint("mail", executor_factory=once)
    async def mail(_: Job) -> None:
        charge(7)

    await hf.queries.enqueue(["mail"] * 2, [None] * 2, [0] * 2)
    await hf.run(mode="drain", signals=False)
    failed = plain(await browser.text("/failures?kind=failed"))
    assert "2 jobs failed for good, in 1 group." in failed
    assert "in charge" in failed
    assert "Requeue…" not in failed
    assert "2 attempts were retried, in 1 group." in plain(
        await browser.text("/failures?kind=retried")
    )
    async with browser.web.site.reader.open() as look:
        groups = await ended_groups(look, [Status.EXCEPTION])
    assert [group.count for group in groups[Status.EXCEPTION]] == [2]


async def test_a_crash_loop_is_a_group_that_a_search_finds(
    browser: Browser, pg18: Database
) -> None:
    job_id = story.hold(pg18, "resize")
    with psycopg.connect(pg18.dsn, autocommit=True) as connection:
        connection.execute(
            "insert into holdfast_log (job_id, status, entrypoint, priority, attempt, recoveries,"
            " reason) values (%s, 'failed', 'resize', 0, 0, 3, 'crash_loop')",
            [job_id],
        )
    page = await browser.text("/failures")
    assert "crash_loop its workers died while they ran it" in plain(page)
    [link] = re.findall(r'class="err"><div class="few"><a href="([^"]+)"', page)
    assert f'href="/jobs/{job_id}"' in await browser.text(link.replace("&amp;", "&"))
