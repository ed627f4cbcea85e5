"""The keys of the dashboard: what they choose, what they do to a queue, and what then is seen."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from rich.console import Console

from devtools.dashboard_picture import scene
from holdfast import Holdfast, Job, Status
from holdfast.cli.dashboard import _screen
from holdfast.cli.dashboard_acts import grant
from holdfast.cli.dashboard_view import Asking, View, Wish
from holdfast.cli.show import look_at_job
from holdfast.lifecycle import Verb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.models import JobId
    from holdfast.monitor.snapshot import Snapshot
    from tests.servers import Database

ENTER, ESCAPE, BACKSPACE = "\r", "\x1b", "\x7f"


def pressed(*keys: str, failures: bool = False, snapshot: Snapshot | None = None) -> View:
    view = View(asyncio.Event(), failures=failures)
    view.seen(snapshot or scene())
    for key in "".join(keys):
        view.press(key)
    return view


def on_screen(view: View, snapshot: Snapshot | None = None, height: int = 24) -> list[str]:
    """The lines of a terminal of 80 columns."""
    screen = Console(width=80, height=height, color_system=None, force_terminal=True)
    with screen.capture() as shown:
        screen.print(_screen(snapshot or scene(), screen, 2.0, "", view))
    lines = [line.rstrip() for line in shown.get().split("\n")][:height]
    assert max(map(len, lines)) <= 80
    return lines


async def test_a_line_is_typed_corrected_and_left() -> None:
    view = pressed("/maik", BACKSPACE, "l")
    assert on_screen(view)[-1] == (
        "show only entrypoints with: mail█   (Enter does it, Esc leaves)"
    )
    # What is typed is no command.
    assert not pressed("/q").quit_asked.is_set()
    view.press(ESCAPE)
    assert (view.asking, view.filter) == (None, "")


async def test_a_filter_leaves_the_entrypoints_that_have_the_words() -> None:
    view = pressed("/IMPORT", ENTER)
    text = "\n".join(on_screen(view))
    assert "only entrypoints with 'IMPORT'" in text
    assert "import_file" in text
    assert "send_email" not in text
    view = pressed("/x", ENTER, "/", ENTER)
    assert view.filter == ""


@pytest.mark.parametrize(
    ("keys", "wish"),
    [
        (f"o42{ENTER}", Wish(Asking.OPEN, "42")),
        (f"email{ENTER}", Wish(Asking.EXPLAIN, "mail")),
        (f"pmail{ENTER}", Wish(Asking.PAUSE, "mail")),
        (f"o{ENTER}", None),
    ],
)
async def test_a_typed_line_becomes_a_wish(keys: str, wish: Wish | None) -> None:
    assert pressed(keys).wish == wish


async def test_the_chosen_failure_is_opened_and_requeued() -> None:
    assert pressed("o", failures=True).wish == Wish(Asking.OPEN, "41902")
    assert pressed("r", failures=True).wish == Wish(Verb.REQUEUE, "41902")
    # The second one failed for good: it has left the queue.
    view = pressed("nr", failures=True)
    assert view.wish is None
    assert "not held" in view.note
    assert "choose a held job first" in pressed("r").note


@pytest_asyncio.fixture
async def hf(pg18: Database) -> AsyncIterator[Holdfast]:
    async with Holdfast.connect(pg18.dsn) as opened:
        await opened.install()
        yield opened


async def held(hf: Holdfast) -> JobId:
    @hf.entrypoint("mail", on_failure="hold")
    async def mail(job: Job) -> None:
        raise ValueError("no address")

    [job_id] = await hf.queries.enqueue("mail", b'{"to": "x"}')
    assert job_id is not None
    await hf.run(mode="drain", signals=False)
    return job_id


async def test_a_job_is_opened_explained_and_requeued(hf: Holdfast) -> None:
    job_id = await held(hf)
    view = pressed(f"o{job_id}", ENTER)
    await grant(hf, view)
    lines = on_screen(view)
    assert f"job {job_id}  mail  held (failed)" in lines
    assert any(line.startswith("held  ") for line in lines)
    assert any(line.strip() == f"try  holdfast requeue {job_id}" for line in lines)
    assert lines[-2] == "ValueError: no address"
    assert lines[-1].startswith("q ends · f back · r requeue")
    view.press("r")
    await grant(hf, view)
    assert view.note == f"job {job_id} is queued again"
    assert (await look_at_job(hf, job_id)).status is Status.QUEUED
    [*_, entry] = await hf.queries.job_history(job_id)
    assert (entry.actor or "").startswith("cli:")
    view.press("f")
    assert view.job is None


async def test_an_entrypoint_is_paused_with_a_reason_and_goes_on(hf: Holdfast) -> None:
    view = pressed("pmail", ENTER)
    await grant(hf, view)
    assert view.asking is Asking.REASON
    for key in f"smtp is down{ENTER}":
        view.press(key)
    await grant(hf, view)
    [pause] = await hf.queries.list_pauses()
    assert (pause.name, pause.reason) == ("mail", "smtp is down")
    for key in f"pmail{ENTER}":
        view.press(key)
    await grant(hf, view)
    assert await hf.queries.list_pauses() == []
    assert view.note == "mail goes on"


async def test_what_cannot_be_done_is_said_in_a_line(hf: Holdfast) -> None:
    for words, told in (("abc", "not an integer"), ("999999", "999999")):
        view = pressed(f"o{words}", ENTER)
        await grant(hf, view)
        assert told in view.note
        assert view.job is None
    view = pressed("enobody", ENTER)
    await grant(hf, view)
    assert "nobody" in view.note


async def test_a_long_life_shows_its_end_on_24_lines(hf: Holdfast) -> None:
    found = await look_at_job(hf, await held(hf))
    [entry] = found.history
    record = {"traceback": "\n".join(f"line {n}" for n in range(60)) + "\nValueError: no address"}
    view = pressed()
    view.opened(replace(found, history=[entry._replace(traceback=record)] * 40))
    for height in (24, 12, 5):
        lines = on_screen(view, height=height)
        assert len(lines) == height
        assert lines[-1].startswith("q ends")
    lines = on_screen(view)
    assert lines[-2] == "ValueError: no address"
    assert sum("lines above" in line for line in lines) == 2


async def test_why_a_job_does_not_run_is_said_in_full(hf: Holdfast) -> None:
    found = await look_at_job(hf, await held(hf))
    words = "It is held for a person, because " + "its handler failed again and again " * 3 + "."
    view = pressed()
    view.opened(replace(found, explanation=replace(found.explanation, sentence=words)))
    assert " ".join(words.split()) in " ".join(" ".join(on_screen(view)).split())
