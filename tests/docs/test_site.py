"""The site builds without a warning and asks no other host for anything."""

from __future__ import annotations

import fcntl
import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import async_playwright, expect

from holdfast import Status
from tests.docs.blocks import ROOT
from tests.web.test_browser import ARGUMENTS, CHROMIUM

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from playwright.async_api import Browser

pytest.importorskip("mkdocs", reason="MkDocs is not installed")

SHOWN = ("index.html", "guides/run-once.html", "reference/tables.html", "lifecycle.html")
QUESTIONS = {
    "limits per tenant": "guides/limits",
    "return values": "guides/results",
    "upgrade without downtime": "upgrading",
    "why is my job not running": "guides/why-not-running",
    "pausing": "guides/pause",
    "retry failed job": "guides/retry",
    "hold failed jobs": "guides/requeue",
    "transaction with SQLAlchemy": "guides/sqlalchemy",
    "FastAPI": "guides/fastapi",
    "Kubernetes": "guides/kubernetes",
    "moving from Celery": "guides/from-celery",
    "cron time zone": "schedules",
    "idempotency": "guides/run-once",
    # From the trackers of other queues:
    "stuck jobs after worker killed": "guides/dead-workers",
    "reconnect after database restart": "guides/database-restart",
    "what happens when a job times out": "guides/timeout",
    "prune old jobs": "guides/retention",
    "cron multiple workers": "schedules",
    "max tasks per child": "guides/workers",
    "pgbouncer": "guides/connections",
    "alembic": "guides/sqlalchemy",
    "job runs twice": "guides/run-once",
    "dead letter": "guides/requeue",
    "mount dashboard login": "web",
}
"""What a newcomer types, and the page that answers it among the first three results."""
FIRST_PAGES = """links => {
    const pages = links.map(link => new URL(link.href).pathname)
    return [...new Set(pages)].slice(0, 3)
}"""
LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"(https?:)?//", re.I
)
IMPORTED = re.compile(r"@import|url\(\s*['\"]?https?:", re.I)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site: one for all test processes of a run."""
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    directory = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "built").exists():
            _build(directory)
            (directory / "built").touch()
    return directory


def _build(directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(directory)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not LOADED.search(page.read_text("utf-8")), page.relative_to(site)
    for sheet in site.rglob("*.css"):
        assert not IMPORTED.search(sheet.read_text("utf-8")), sheet.relative_to(site)


def test_every_command_has_a_place(site: Path) -> None:
    commands = (site / "reference" / "command.html").read_text("utf-8")
    for name in ("holdfast-run", "holdfast-enqueue", "holdfast-requeue", "holdfast-install"):
        assert f'id="{name}"' in commands


def test_every_variable_that_the_command_reads_is_a_setting(site: Path) -> None:
    settings = (site / "reference" / "settings.html").read_text("utf-8")
    read = {
        name
        for source in (ROOT / "src" / "holdfast" / "cli").rglob("*.py")
        for name in re.findall(r"HOLDFAST_[A-Z_]+", source.read_text("utf-8"))
    }
    assert "HOLDFAST_DSN" in read
    assert [name for name in sorted(read) if name not in settings] == []


def test_the_drawing_of_a_jobs_life_has_every_state(site: Path) -> None:
    page = (site / "lifecycle.html").read_text("utf-8")
    drawing = page[page.index('<svg class="lifecycle"') : page.index("</g></svg>")]
    assert [each for each in Status if f">{each}<" not in drawing] == []


@contextmanager
def _served(site: Path) -> Iterator[str]:
    handler = functools.partial(_Silent, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """A test prints no requests."""


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip("Chromium is not installed")
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        await found.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
async def test_pages_are_quiet_and_fit(
    site: Path, browser: Browser, width: int, scheme: Literal["light", "dark"]
) -> None:
    heard: list[str] = []
    page = await browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    with _served(site) as address:
        page.on("request", lambda request: _note_stranger(heard, request.url, address))
        for name in SHOWN:
            await page.goto(address + name, wait_until="networkidle")
            root = "document.documentElement"
            assert await page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth"), name
            found = await Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]})
            heard += [f"{name}: {fault}" for fault in found.response["violations"]]
    assert heard == []


def _note_stranger(heard: list[str], url: str, address: str) -> None:
    if not url.startswith((address, "data:")):
        heard.append(url)


async def test_the_commands_of_a_block_are_copied_without_what_they_print(
    site: Path, browser: Browser
) -> None:
    context = await browser.new_context()
    await context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = await context.new_page()
    with _served(site) as address:
        await page.goto(f"{address}learn/1-first-job.html", wait_until="networkidle")
        block = page.locator(".highlight").filter(has_text="holdfast install")
        await block.get_by_role("button").click()
        await expect(page.get_by_text("Copied to clipboard")).to_be_visible()
        copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied == "export HOLDFAST_DSN=embedded:data\nholdfast install"


async def test_everyday_questions_are_answered_by_the_search(site: Path, browser: Browser) -> None:
    page = await browser.new_page()
    links = page.locator(".md-search-result__item > a")
    missed = []
    with _served(site) as address:
        await page.goto(f"{address}index.html")
        await page.keyboard.press("/")
        field = page.get_by_role("textbox", name="Search")
        await expect(field).to_be_focused()
        for question, answer in QUESTIONS.items():
            await field.fill(question)
            await field.press("End")  # The page reads the field when a key goes up.
            await links.first.wait_for()
            found = await links.evaluate_all(FIRST_PAGES)
            if f"/{answer}.html" not in found:
                missed.append((question, found))
            await field.fill("")
            await field.press("End")
            await expect(links).to_have_count(0)
    assert missed == []
