"""The page in a real browser: live updates, keys, forms, phones, darkness, accessibility.

`make pictures` draws the pictures of the documentation with the same tests.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import async_playwright, expect

from holdfast import Holdfast, NewJob, Status
from holdfast.cli.web import Serving, served
from tests.servers import Database
from tests.web import story
from tests.web.conftest import OPERATOR, VIEWER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from playwright.async_api import Browser, BrowserContext, Page

    from tests.servers import SharedServers

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)
IMAGES = os.environ.get("HOLDFAST_PICTURES")
"""A folder: then pictures of the pages are left in it."""

pytestmark = [
    pytest.mark.skipif(not CHROMIUM.exists(), reason="Chromium is not installed"),
    pytest.mark.asyncio(loop_scope="module"),
]


class Stage:
    """A served page, a browser, and the database behind both."""

    def __init__(
        self, browser: Browser, address: str, hf: Holdfast, job: int, database: Database
    ) -> None:
        self.database = database
        self.browser = browser
        self.address = address
        self.hf = hf
        self.job = job
        self._contexts: list[BrowserContext] = []

    async def page(self, path: str = "", *, token: str = OPERATOR, **options: Any) -> Page:
        """A page in a session of its own, whose console must stay silent."""
        context = await self.browser.new_context(**options)
        self._contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = await context.new_page()
        page.on("pageerror", _fail)
        page.on("console", _heard)
        await page.goto(f"{self.address}?token={token}")
        if path:
            await page.goto(f"{self.address}{path}")
        return page

    async def close(self) -> None:
        for context in self._contexts:
            await context.close()


def _fail(error: object) -> None:
    raise AssertionError(error)


def _heard(message: Any) -> None:
    assert "Content Security Policy" not in message.text, message.text


@contextmanager
def _database(servers: SharedServers) -> Iterator[Database]:
    """For pictures a server with fsync: the doctor would speak of the others."""
    if IMAGES is None:
        with servers.schema("embedded18") as database:
            yield database
        return
    with servers.private("embedded18") as server:
        yield Database("embedded18", server.dsn, "public")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine(pg_servers: Any) -> AsyncIterator[tuple[Browser, str, Holdfast, int, Database]]:
    with _database(pg_servers) as database:
        job = await story.tell(database)
        serving = Serving(
            "127.0.0.1", 0, OPERATOR, VIEWER, True, ("127.0.0.1",), "orders", "production"
        )
        async with (
            Holdfast.connect(database.dsn) as hf,
            served(hf, serving) as address,
            async_playwright() as playwright,
        ):
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            yield browser, address, hf, job, database
            await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def stage(machine: tuple[Browser, str, Holdfast, int, Database]) -> AsyncIterator[Stage]:
    browser, address, hf, job, database = machine
    await asyncio.to_thread(story.beat, database)
    made = Stage(browser, address, hf, job, database)
    yield made
    await made.close()


async def held(stage: Stage, entrypoint: str) -> int:
    """A new job that is held."""
    return await asyncio.to_thread(story.hold, stage.database, entrypoint)


async def test_what_is_enqueued_appears_without_a_reload(stage: Stage) -> None:
    page = await stage.page("jobs")
    newer = page.locator("#live-newer")
    await expect(page.locator("#stream")).to_have_attribute("data-state", "live")
    await stage.hf.queries.enqueue(["send_email"] * 17, [None] * 17, [0] * 17)
    await expect(newer).to_have_text("17 newer, show", timeout=PATIENCE_MS)
    await newer.locator("a").click()
    await expect(page.locator("#rows tr")).to_have_count(50)
    await expect(newer).to_have_text("")


async def test_figures_are_renewed_and_frozen(stage: Stage) -> None:
    page = await stage.page()
    due = page.locator("#live-figures .v").first
    before = await due.inner_text()
    await stage.hf.queries.enqueue(["send_email"] * 3, [None] * 3, [0] * 3)
    await expect(due).not_to_have_text(before, timeout=PATIENCE_MS)
    await page.keyboard.press(".")
    await expect(page.locator("#stream")).to_have_attribute("data-state", "frozen")
    await page.keyboard.press(".")
    await expect(page.locator("#stream")).to_have_attribute("data-state", "live")


async def test_a_group_is_requeued_with_a_dry_run(stage: Stage) -> None:
    for _ in range(3):
        await held(stage, "webhook_deliver")
    page = await stage.page("failures")
    row = page.locator("tr", has_text="webhook_deliver").first
    await row.get_by_role("link", name="Requeue…").click()
    await expect(page.locator(".tally")).to_contain_text("would be queued")
    await page.get_by_label("Reason, for the log").fill("the hook is back")
    await page.get_by_label("Rate").select_option("")
    await page.get_by_role("button", name="Requeue 3 jobs").click()
    await expect(page.locator("#note")).to_have_text("3 jobs requeued.")
    await expect(page.locator("tr", has_text="webhook_deliver")).to_have_count(0)


async def test_a_selection_is_previewed_and_canceled(stage: Stage) -> None:
    ids = await stage.hf.queries.enqueue(["bulk_cancel"] * 3, [None] * 3, [0] * 3)
    page = await stage.page("jobs?entrypoint=bulk_cancel")
    for job_id in ids[:2]:
        await page.get_by_label(f"Select job {job_id}", exact=True).check()
    await expect(page.locator("#selected")).to_contain_text("2 selected")
    await page.get_by_role("button", name="Cancel…").click()
    await page.get_by_role("button", name="Cancel 2 jobs").click()
    await expect(page.locator("#note")).to_contain_text("2 jobs canceled.")
    # After an act one is where one was, filter and all.
    assert "entrypoint=bulk_cancel" in page.url
    await expect(page.locator("#rows tr")).to_have_count(1)
    await page.get_by_role("button", name="Delete…").click()
    await expect(page.locator("#sheet")).to_contain_text("all that match")
    await page.get_by_role("button", name="Delete 1 job").click()
    await expect(page.locator("#note")).to_contain_text("1 job deleted.")


async def test_a_held_job_is_edited_and_requeued(stage: Stage) -> None:
    job_id = await held(stage, "edit_me")
    page = await stage.page(f"jobs/{job_id}")
    await page.get_by_role("link", name="Edit and requeue…").click()
    await page.locator("textarea").fill('{"order": 8, "token": "[redacted]"}')
    await page.get_by_label("Reason, for the log").fill("typo")
    await page.get_by_role("button", name="Replace and requeue").click()
    await expect(page.locator("#note")).to_contain_text("1 job requeued.")
    await expect(page.locator(".explain")).to_contain_text("Queued")
    [job] = await stage.hf.queries.get_jobs([job_id])  # type: ignore[list-item]
    assert job.payload == b'{"order": 8, "token": "s3cret"}'
    history = await stage.hf.queries.job_history(job_id)  # type: ignore[arg-type]
    assert {entry.actor for entry in history if entry.actor} == {"web:token"}


async def test_a_job_page_follows_its_job(stage: Stage) -> None:
    job_id = await held(stage, "follow_me")
    page = await stage.page(f"jobs/{job_id}")
    await expect(page.locator(".explain")).to_contain_text("Held")
    await stage.hf.queries.requeue_jobs([job_id])  # type: ignore[list-item]
    await expect(page.locator(".explain")).to_contain_text("Queued", timeout=PATIENCE_MS)


async def test_schedules_and_breakers_are_steered(stage: Stage) -> None:
    page = await stage.page("schedules")
    row = page.locator("tr", has_text="sync_prices")
    await row.get_by_role("button", name="Pause").click()
    await expect(page.locator("#note")).to_have_text("Schedule sync_prices is paused.")
    await expect(row).to_contain_text("paused")
    await row.get_by_role("button", name="Resume").click()
    await expect(row).to_contain_text("active")
    await row.get_by_role("button", name="Run now").click()
    await expect(page.locator("#note")).to_contain_text("of schedule sync_prices enqueued.")
    await page.goto(f"{stage.address}breakers")
    row = page.locator("tr", has_text="search")
    await row.get_by_role("button", name="Hold open").click()
    await expect(row).to_contain_text("held open by web:token")
    await row.get_by_role("button", name="Close").click()
    await expect(row).to_contain_text("closed")


async def test_an_entrypoint_is_paused_and_resumed(stage: Stage) -> None:
    page = await stage.page("entrypoints")
    await page.locator("tr", has_text="send_email").get_by_role("link", name="Pause…").click()
    await page.get_by_label("Reason, for the log").fill("the relay is down")
    await page.get_by_role("button", name="Pause send_email").click()
    await expect(page.locator("#note")).to_contain_text("send_email is paused.")
    row = page.locator("tr", has_text="send_email")
    await expect(row).to_contain_text("paused by web:token: the relay is down")
    [pause] = await stage.hf.queries.list_pauses()
    assert (pause.name, pause.actor) == ("send_email", "web:token")
    await row.get_by_role("link", name="Resume…").click()
    await page.get_by_role("button", name="Resume send_email").click()
    await expect(page.locator("#note")).to_contain_text("send_email goes on.")
    assert await stage.hf.queries.list_pauses() == []


async def test_everything_is_in_reach_of_the_keyboard(stage: Stage) -> None:
    page = await stage.page("jobs?status=held&entrypoint=charge_card")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("k")
    await page.keyboard.press("j")
    cursor = page.locator("tr[data-cursor]")
    await expect(cursor).to_have_count(1)
    await page.keyboard.press("x")
    await expect(page.locator("#selected")).to_contain_text("1 selected")
    chosen = await cursor.locator("a").first.inner_text()
    await page.keyboard.press("r")
    await expect(page.get_by_role("button", name="Requeue 1 job")).to_be_visible()
    # The script, which hears the keys, runs when the page has been read.
    await page.wait_for_load_state()
    await page.keyboard.press("?")
    await expect(page.locator("#keys")).to_be_visible()
    await page.keyboard.press("?")
    await expect(page.locator("#keys")).to_be_hidden()
    await page.keyboard.press("/")
    await page.keyboard.type(chosen)
    await expect(page.locator("#q")).to_have_value(chosen)
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text(chosen)
    await page.goto(f"{stage.address}jobs?status=held")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(r"/jobs/\d+$"))


async def test_one_signs_in_and_out(stage: Stage) -> None:
    page = await stage.page("jobs?status=held")
    await page.get_by_role("button", name="Sign out").click()
    await page.goto(f"{stage.address}jobs?status=held")
    await page.get_by_label("Token").fill("not the right token")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("not a token")
    await page.get_by_label("Token").fill(OPERATOR)
    await page.get_by_label("Your name, for the log").fill("mara")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.locator(".foot")).to_contain_text("mara, operator")
    assert "status=held" in page.url


async def test_a_viewer_has_no_button_that_acts(stage: Stage) -> None:
    page = await stage.page(f"jobs/{stage.job}", token=VIEWER)
    for path in (f"jobs/{stage.job}", "failures", "jobs", "schedules", "breakers"):
        await page.goto(f"{stage.address}{path}")
        acting = page.locator("main form[method=post] button, main button.btn:not([disabled])")
        for button in await acting.all():
            disabled = await button.get_attribute("aria-disabled")
            kind = await button.inner_text()
            assert disabled == "true" or "ilter" in kind, (path, kind)


async def test_the_page_works_without_scripts(stage: Stage) -> None:
    page = await stage.page("failures", java_script_enabled=False)
    await page.get_by_role("link", name="Requeue…").first.click()
    await expect(page.locator("#sheet")).to_be_visible()
    await page.goto(f"{stage.address}jobs")
    await page.get_by_label("Entrypoint").select_option("charge_card")
    await page.get_by_role("button", name="Filter").click()
    assert "entrypoint=charge_card" in page.url


PAGES = {
    "overview": "", "jobs": "jobs?entrypoint=charge_card", "job": "jobs/{job}",
    "failures": "failures", "sheet": "jobs?status=held&do=requeue&all=1",
    "entrypoints": "entrypoints", "workers": "workers", "schedules": "schedules",
    "breakers": "breakers", "tables": "tables", "log": "log", "system": "system", "more": "more",
    "edit": "jobs/{job}?do=edit", "nothing": "jobs?entrypoint=nobody",
    "long": "jobs/{long}", "people": "log?who=people",
}  # fmt: skip
LONG = "billing.invoices." + "render_and_deliver_" * 8


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
async def test_every_page_is_accessible_and_fits(stage: Stage, scheme: Any, width: int) -> None:
    size: Any = {"width": width, "height": 844}
    page = await stage.page(color_scheme=scheme, viewport=size)
    axe = Axe()
    [long] = await stage.hf.queries.enqueue_many([NewJob(LONG, b"{}", dedupe_key=LONG + scheme)])
    for name, path in PAGES.items():
        await page.goto(f"{stage.address}{path.format(job=stage.job, long=long)}")
        found = await axe.run(page)
        assert found.violations_count == 0, (name, found.generate_report())
        wide = await page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, name
    await stage.hf.queries.delete_jobs([long])  # type: ignore[list-item]


async def test_the_sign_in_page_is_accessible(stage: Stage) -> None:
    page = await stage.page()
    await page.get_by_role("button", name="Sign out").click()
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.skipif(not IMAGES, reason="`make pictures` draws the pictures")
async def test_pictures_of_the_pages(stage: Stage) -> None:
    folder = Path(IMAGES or "")
    for name, path, scheme, size in (
        ("overview", "", "light", (1280, 800)),
        ("job", f"jobs/{stage.job}", "light", (1280, 800)),
        ("failures", "failures", "light", (1280, 560)),
        ("jobs-dark", "jobs?status=held", "dark", (1280, 640)),
        ("phone", "", "light", (390, 780)),
    ):
        options: Any = {"color_scheme": scheme, "viewport": {"width": size[0], "height": size[1]}}
        page = await stage.page(path, **options)
        await expect(page.locator("#stream")).to_have_attribute("data-state", "live")
        await page.screenshot(path=folder / f"web-{name}.png")


async def test_a_held_job_ends_where_it_should(stage: Stage) -> None:
    job_id = await held(stage, "resolve_me")
    page = await stage.page(f"jobs/{job_id}")
    await page.get_by_role("link", name="Resolve…").click()
    await page.get_by_label("Reason, for the log").fill("the customer is gone")
    await page.get_by_role("button", name="Resolve 1 job").click()
    await expect(page.locator(".explain")).to_contain_text("Deleted")
    await expect(page.locator(".explain")).to_contain_text("the customer is gone")
    [(_, status)] = await stage.hf.queries.job_status([job_id])  # type: ignore[list-item]
    assert status is Status.DELETED
