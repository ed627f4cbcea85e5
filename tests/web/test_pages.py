"""What the pages say of a queue, and that they say it as text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import psycopg
import pytest

from holdfast import Holdfast, Job, NewJob, Status
from holdfast.lifecycle import SPOKEN
from holdfast.models import JobId
from holdfast.monitor.doctor.finding import warning
from holdfast.web.checkup import _without_queries
from holdfast.web.words import compact
from tests.postgres import tables
from tests.web import story
from tests.web.conftest import VIEWER, Browser, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import Database
    from tests.web.conftest import Told

PAGES = (
    *("/", "/?range=24h", "/?range=7d", "/jobs", "/failures", "/entrypoints", "/workers"),
    *("/schedules", "/tables", "/breakers", "/log", "/system", "/more"),
)


@pytest.fixture
async def browser(told: Told) -> AsyncIterator[Browser]:
    story.beat(told.database)
    async with opened(told.database) as found:
        await found.sign_in()
        yield found


def plain(html: str) -> str:
    """The words of a page, in their order."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_opens_with_a_title_and_a_sentence(browser: Browser, path: str) -> None:
    html = await browser.text(path)
    assert html.count("<h1") == 1
    assert '<main class="main" id="main"' in html
    assert " style=" not in html
    assert " onclick=" not in html
    assert "<script>" not in html


async def test_the_overview_says_what_needs_a_person(browser: Browser) -> None:
    page = plain(await browser.text("/"))
    assert "things need a person." in page
    assert "36 jobs are held, in 3 groups 24 by ReadTimeout in charge_card." in page
    assert "Breaker stripe is open" in page
    assert "27 jobs of charge_card wait for it." in page
    assert "charge_card breaker stripe is open" in page
    assert "render_invoice_v2 has no worker" in page
    assert "4 workers, 1 silent" in page
    assert "no live worker serves it" in page


async def test_what_failed_in_the_statistics_is_a_group_of_failures(browser: Browser) -> None:
    page = plain(await browser.text("/failures?kind=failed"))
    assert "CardDeclined card of order n was declined charge_card" in page
    assert "app/charge_card.py:27 in run" in page
    assert "No job failed" not in page
    assert "ReadTimeout no response in n s" in plain(await browser.text("/failures?kind=retried"))


def test_figures_fit_their_columns() -> None:
    assert [compact(n) for n in (0, 57_300, 999_999)] == ["0", "57,300", "999,999"]
    assert [compact(n) for n in (1_024_000, 12_345_678, 10**9)] == ["1.02 M", "12.3 M", "1 G"]


async def test_a_long_error_is_cut_in_the_sentence_and_whole_below(
    browser: Browser, told: Told
) -> None:
    job_id = story.hold(told.database, "long_error")
    with psycopg.connect(told.database.dsn, autocommit=True) as connection:
        connection.execute(
            "update holdfast set last_error = 'ValueError: ' || repeat('long ', 400) || 'end'"
            " where id = %s",
            [job_id],
        )
    page = await browser.text(f"/jobs/{job_id}")
    [sentence] = re.findall(r'<p class="sentence".*?</p>', page, re.S)
    assert "lo… " in sentence
    assert len(plain(sentence)) < 500
    assert "long end</dd>" in page
    await browser.hf.queries.delete_jobs([JobId(job_id)])


async def test_a_job_page_tells_the_whole_life(browser: Browser, told: Told) -> None:
    page = plain(await browser.text(f"/jobs/{told.job}"))
    assert "Held (status failed) since" in page
    assert "Reason attempts_spent" in page
    for verb in ("retried", "recovered", "released", "held", "edited"):
        assert f" {verb} " in page
    assert "5 leases and 1 change by hand" in page
    assert "stripe.py" in page


async def test_an_ended_job_keeps_its_enqueue_and_says_where_its_payload_went(
    browser: Browser,
) -> None:
    queries = browser.hf.queries
    [job_id] = await queries.enqueue("bye", b"{}")
    await queries.mark_job_as_cancelled([job_id], actor="test", reason="enough")
    page = plain(await browser.text(f"/jobs/{job_id}"))
    assert "Canceled at" in page
    assert "by test: enough" in page
    assert "left the queue, and its payload with it" in page
    assert re.search(r"Enqueued \d+ s ago", page)


async def test_secret_fields_are_masked_for_all_and_values_for_viewers(
    browser: Browser, told: Told
) -> None:
    page = await browser.text(f"/jobs/{told.job}")
    assert "4111111111111111" not in page
    assert "cus_9fL2" in page
    assert "acme" in page
    await browser.sign_in(VIEWER)
    page = await browser.text(f"/jobs/{told.job}")
    assert "cus_9fL2" not in page
    assert "acme" not in page
    assert "customer" in page


async def test_filters_choose_by_everything_that_the_form_offers(browser: Browser) -> None:
    queries = browser.hf.queries
    [job_id] = await queries.enqueue_many(
        [NewJob("resize_image", b"1", dedupe_key="k-77", headers={"tenant": "blue", "n": 1})]
    )
    for query in (
        *("entrypoint=resize_image", "key=k-77", "key=-77", "header=tenant%3Dblue", "header=n%3D1"),
        *("entrypoint=resize_image&status=queued", "entrypoint=resize_image&since=15m"),
    ):
        assert f'href="/jobs/{job_id}"' in await browser.text(f"/jobs?{query}"), query
    for query in ("entrypoint=other", "status=held", "header=tenant%3Dred", "worker=w", "error=x"):
        assert f'href="/jobs/{job_id}"' not in await browser.text(f"/jobs?{query}"), query


async def test_the_list_says_which_breaker_jobs_wait_for(browser: Browser) -> None:
    page = plain(await browser.text("/jobs?entrypoint=charge_card"))
    assert "Those that wait cannot start: breaker stripe is open" in page
    assert "waits: breaker stripe is open" in page
    breakers = plain(await browser.text("/breakers"))
    assert "stripe charge_card" in breakers
    assert "search webhook_deliver" in breakers
    assert "waits: breaker" not in await browser.text("/jobs?entrypoint=webhook_deliver")


async def test_people_read_other_words_than_sql(browser: Browser) -> None:
    running = await browser.text("/jobs?status=running")
    assert 'title="status picked"' in running
    assert len(re.findall(r'aria-label="Select job', running)) == 5
    assert running.count("select") == (await browser.text("/jobs?status=picked")).count("select")
    assert SPOKEN[Status.EXCEPTION] == "failed"
    held = await browser.text("/jobs?status=held")
    assert len(re.findall(r'aria-label="Select job', held)) == 36


async def test_pages_of_a_list_follow_each_other_without_gaps(browser: Browser) -> None:
    seen: list[str] = []
    path = "/jobs"
    while path:
        html = await browser.text(path)
        seen += re.findall(r'aria-label="Select job (\d+)', html)
        following = re.search(r'href="([^"]+)" rel="next"', html)
        path = following[1].replace("&amp;", "&") if following else ""
    assert seen == sorted(set(seen), key=int, reverse=True)
    assert len(seen) >= 134


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ("112", "/jobs/112"),
        ("1,234", "/jobs/1234"),
        ("tenant=acme", "/jobs?header=tenant%3Dacme"),
        ("no such key", "/jobs?key=no+such+key"),
    ],
)
async def test_the_search_field_knows_ids_keys_and_headers(
    browser: Browser, words: str, where: str
) -> None:
    answer = await browser.get("/find", params={"q": words})
    assert (answer.status_code, answer.headers["location"]) == (303, where)


async def test_the_search_field_finds_the_job_of_a_key(browser: Browser) -> None:
    [job_id] = await browser.hf.queries.enqueue_many([NewJob("resize_image", dedupe_key="find-me")])
    answer = await browser.get("/find", params={"q": "find-me"})
    assert answer.headers["location"] == f"/jobs/{job_id}"


@pytest.mark.parametrize(
    "path",
    [
        *("/jobs?before=x", "/jobs?before=99999999999999999999", "/jobs?status=nonsense"),
        *("/log?before=1-x", "/log?before=1e400-1", "/jobs?entrypoint=%00", "/jobs?header=%3D"),
        *("/jobs?status=successful&before=0-0", "/failures?group=zz&do=requeue", "/?range=x"),
        *("/jobs?do=delete&id=999999999", "/jobs?do=requeue&id=x", "/jobs?top=-1"),
    ],
)
async def test_an_address_that_was_typed_wrong_is_still_a_page(browser: Browser, path: str) -> None:
    assert (await browser.get(path)).status_code == 200


async def test_a_job_that_never_was_is_not_found(browser: Browser) -> None:
    assert (await browser.get("/jobs/999999999")).status_code == 404
    assert (await browser.get("/jobs/99999999999999999999")).status_code == 404


HOSTILE = (
    '<img src=x onerror="alert(1)">',
    "</script><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "{{ 7 * 7 }}",
    "javascript:alert(1)",
    "</title><b>x",
    "&lt;i&gt;",
)


class Parts(HTMLParser):
    """What a browser would make of a page: its tags and their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.scripts = 0
        self.bad: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag in ("img", "i", "iframe", "object"):
            self.bad.append(tag)
        for name, value in attrs:
            if name.startswith("on") or (value or "").lower().startswith("javascript:"):
                self.bad.append(f"{tag} {name}")


async def test_what_jobs_carry_is_shown_as_text(pg18: Database) -> None:
    async with opened(pg18) as browser:
        hf = browser.hf
        await hf.install()
        text = " ".join(HOSTILE)
        held: list[int] = []

        @hf.entrypoint(text[:200], on_failure="hold")
        async def fail(_: object) -> None:
            raise RuntimeError(text)

        payload = json.dumps({text: text}).encode()
        jobs = [NewJob(text[:200], payload, dedupe_key=text, headers={text: text})]
        jobs += [NewJob(text[:200], text.encode(), execute_after=None)]
        held += [job_id for job_id in await hf.queries.enqueue_many(jobs) if job_id]
        await hf.run(mode="drain", signals=False)
        await hf.queries.enqueue_many([NewJob(text[:200], payload)])
        await hf.queries.edit_job(held[1], text.encode(), actor=text, reason=text)  # type: ignore[arg-type]
        await browser.sign_in(name=HOSTILE[0])
        paths = [*PAGES, f"/jobs/{held[0]}", f"/jobs/{held[1]}", f"/jobs/{held[0]}?do=edit"]
        paths += ["/jobs?status=held&do=requeue&all=1", "/jobs?do=enqueue", "/log"]
        for path in paths:
            html = await browser.text(path)
            parts = Parts(html)
            assert parts.bad == [], path
            assert parts.scripts == 1, path
        page = await browser.text(f"/jobs/{held[1]}")
        assert "&lt;img src=x onerror=" in page
        assert "49" not in plain(page).split()
        query = "/jobs?" + "&".join(
            f"{name}=%22%3E%3Cimg%20src%3Dx%3E" for name in ("error", "key")
        )
        assert Parts(await browser.text(query)).bad == []


async def test_an_empty_queue_says_what_to_do(pg18: Database) -> None:
    async with opened(pg18) as browser:
        await browser.hf.install()
        await browser.sign_in()
        assert "Nothing has been enqueued yet." in await browser.text("/")
        assert "holdfast enqueue send_email hello" in await browser.text("/jobs")
        assert "Nothing is held" in await browser.text("/failures")
        assert "holdfast run myapp:hf" in await browser.text("/workers")
        for path in PAGES:
            await browser.text(path)


async def test_a_database_that_is_away_is_said_in_words(told: Told) -> None:
    async with opened(told.database) as browser:
        await browser.sign_in()
        async with Holdfast.connect("postgresql://nobody@127.0.0.1:1/none") as away:
            browser.web.site.reader._hf = away
            answer = await browser.get("/")
        assert answer.status_code == 503
        assert "No contact with the database" in answer.text


async def test_a_transaction_that_stays_open_hides_nothing_of_the_log(pg18: Database) -> None:
    async with (
        opened(pg18) as browser,
        tables.session(pg18.dsn) as connection,
        tables.session(pg18.dsn) as other,
    ):
        await browser.hf.install()
        await browser.sign_in()

        @browser.hf.entrypoint("broken")
        async def broken(job: Job) -> None:
            raise KeyError("lost")

        async with other.transaction():
            await other.execute("select pg_current_xact_id()")
            await browser.hf.queries.enqueue("broken")
            await browser.hf.run(mode="drain")
            # As if the transaction had been open for an hour.
            await connection.execute("update holdfast_log set created = now() - interval '1 hour'")
            log = plain(await browser.text("/log?status=exception"))
            failures = plain(await browser.text("/failures"))
        assert "KeyError" in log
        assert "Failures of the last 24 h: 1" in failures


async def test_what_the_doctor_found_is_on_the_page(browser: Browser) -> None:
    overview = plain(await browser.text("/"))
    # The servers of the tests are thrown away, and so they run without fsync.
    assert "Fsync is off A crash of the machine can lose or damage jobs. Doctor" in overview
    system = plain(await browser.text("/system"))
    assert "Error: fsync is off: a crash of the machine" in system
    assert 'psql -c "alter system set fsync = on"' in html_text(await browser.text("/system"))
    # What the page tells in words of its own is not told twice.
    assert overview.count("render_invoice_v2 has no worker") == 1


async def test_no_page_but_the_first_waits_for_the_doctor(browser: Browser) -> None:
    await browser.text("/")
    checkup = browser.web.site.checkup
    found, checkup._next_at, checkup.findings = checkup.findings, 0.1, ()
    async with checkup._looking:
        assert "Fsync is off" not in await browser.text("/")
    assert checkup._task is not None
    await checkup._task
    assert checkup.findings == found


def test_the_query_of_another_session_is_not_on_the_page() -> None:
    told = warning("old_transaction", "pid 7 is old: select 'a@b.example'", "psql")
    assert _without_queries(told).finding == "pid 7 is old"
    told = warning("doctor", "no answer from postgresql://u:s3cret@h/d", "holdfast doctor")
    assert "s3cret" not in _without_queries(told).finding


def html_text(html: str) -> str:
    return html.replace("&#34;", '"')


async def test_a_result_is_shown_and_its_secrets_are_masked(pg18: Database) -> None:
    async with opened(pg18) as browser:
        hf = browser.hf
        await hf.install()

        @hf.task(name="render", store_result=True)
        async def render() -> dict[str, object]:
            return {"pages": 41, "token": "s3cret", "url": "<b>x</b>"}

        handle = await render.enqueue()
        await hf.run(mode="drain", signals=False)
        await browser.sign_in()
        page = await browser.text(f"/jobs/{handle.id}")
        assert "41" in plain(page)
        assert "s3cret" not in page
        assert "<b>x</b>" not in page
        browser.client.cookies.clear()
        await browser.sign_in(VIEWER)
        page = plain(await browser.text(f"/jobs/{handle.id}"))
        assert "Result" in page
        assert "41" not in page.partition("Result")[2].partition("Payload")[0]


PROGRESS = """
insert into holdfast_progress (job_id, fraction, message, updated)
select id, 0.45, 'page <4> of 9', now() from holdfast where status = 'picked' limit 1
returning job_id
"""


async def test_progress_is_on_the_job_page_and_in_the_list_of_what_runs(told: Told) -> None:
    with psycopg.connect(told.database.dsn, autocommit=True) as connection:
        [[job_id]] = connection.execute(PROGRESS.encode()).fetchall()
        try:
            async with opened(told.database) as browser:
                await browser.sign_in()
                for path in (f"/jobs/{job_id}", "/jobs?status=running"):
                    page = await browser.text(path)
                    assert "45 %" in page, path
                    assert "page &lt;4&gt; of 9" in page, path
        finally:
            connection.execute(b"delete from holdfast_progress")
