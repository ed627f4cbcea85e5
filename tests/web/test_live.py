"""The live stream: one poller for all, within its budget, through a restart of the server."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Holdfast
from holdfast.web import Identity, Role, app
from holdfast.web.live import BUDGET, Live, Stream, Topic
from holdfast.web.visit import Address
from tests.postgres import tables
from tests.web.conftest import OPERATOR, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from devtools.cluster import Cluster
    from tests.servers import Database
    from tests.web.conftest import Told

WHO = Identity("", Role.OPERATOR)
_DEADLINE_SECONDS = 60


def topic(page: str, path: str, query: str = "", **item: int) -> Topic:
    return Topic(Address("", page, path, query, tuple(item.items())), WHO)


def watch(live: Live, *topics: Topic) -> list[Stream]:
    """Browsers that look at these, without a poller of their own."""
    streams = [Stream(each) for each in topics]
    live._streams |= set(streams)
    return streams


async def test_fifty_pages_of_one_kind_are_read_once(told: Told) -> None:
    async with opened(told.database) as browser:
        live = browser.web.live
        streams = watch(live, *[topic("Overview", "/")] * 50)
        await live.tick()
        alone = live.statements
        assert all("live-figures" in stream.pending for stream in streams)
        # Beside a list that is renewed stands how long it is.
        assert all("live-all-workers" in stream.pending for stream in streams)
        for _ in range(9):
            await live.tick()
        assert live.statements / 10 < 20
        assert alone <= 20


async def test_fifty_different_pages_keep_the_budget_and_all_have_their_turn(told: Told) -> None:
    async with opened(told.database) as browser:
        live = browser.web.live
        pages = [topic("Job", f"/jobs/{n}", id=n) for n in range(1, 46)]
        pages += [topic("Overview", "/"), topic("Jobs", "/jobs"), topic("Failures", "/failures")]
        pages += [topic("Workers", "/workers"), topic("System", "/system")]
        streams = watch(live, *pages)
        ticks = 0
        while not all(stream.pending for stream in streams):
            await live.tick()
            ticks += 1
            assert ticks < 100
        assert live.statements / ticks < 20
        assert BUDGET < 20


async def test_only_what_has_changed_is_sent(told: Told) -> None:
    async with opened(told.database) as browser:
        live = browser.web.live
        [stream] = watch(live, topic("System", "/system"))
        await live.tick()
        assert set(stream.pending) >= {"live-nav", "live-rows"}
        stream.pending.clear()
        await live.tick()
        assert "live-sentence" not in stream.pending


PROGRESS = """
insert into holdfast_progress (job_id, fraction, message, updated)
select id, 0.45, 'page 4 of 9', now() from holdfast where status = 'picked' limit 1
on conflict (job_id) do update set fraction = 0.9 returning job_id
"""


async def test_progress_moves_in_the_list_of_what_runs(told: Told) -> None:
    async with opened(told.database) as browser, tables.session(told.database.dsn) as connection:
        live = browser.web.live
        [stream] = watch(live, topic("Jobs", "/jobs", "status=running"))
        try:
            for share in ("45 %", "90 %"):
                job_id = await connection.fetchval(PROGRESS)
                await live.tick()
                assert share in stream.pending[f"live-far-{job_id}"]
        finally:
            await connection.execute("delete from holdfast_progress")


async def test_a_viewer_is_sent_what_a_viewer_may_see(told: Told) -> None:
    async with opened(told.database) as browser:
        live = browser.web.live
        address = Address("", "Job", f"/jobs/{told.job}", "", (("id", told.job),))
        [stream] = watch(live, Topic(address, Identity("", Role.VIEWER)))
        await live.tick()
        assert "live-ledger" in stream.pending
        assert "cus_9fL2" not in json.dumps(stream.pending)


async def test_a_job_that_is_gone_does_not_end_the_stream_of_others(told: Told) -> None:
    async with opened(told.database) as browser:
        live = browser.web.live
        _, other = watch(
            live, topic("Job", "/jobs/99999999", id=99999999), topic("Workers", "/workers")
        )
        await live.tick()
        assert other.pending


async def test_a_page_that_cannot_be_shown_does_not_end_the_look_at_others(told: Told) -> None:
    async with opened(told.database) as browser:
        live = browser.web.live
        broken, other = watch(live, topic("Job", "/jobs/x"), topic("Workers", "/workers"))
        await live.tick()
        assert other.pending
        assert not broken.pending


async def messages(live: Live, stream: Stream) -> AsyncIterator[dict[str, Any]]:
    async for event in live._events(stream):
        if event.startswith("data: "):
            yield json.loads(event.removeprefix("data: "))


@pytest.mark.timeout(180)
async def test_the_stream_survives_a_restart_of_the_server(controlled_server: Cluster) -> None:
    async with Holdfast.connect(controlled_server.dsn) as hf:
        await hf.install()
        web = app(hf, auth=OPERATOR)
        events = messages(web.live, Stream(topic("Overview", "/")))
        async with asyncio.timeout(_DEADLINE_SECONDS):
            first = await anext(events)
            assert not first["lost"]
            await asyncio.to_thread(controlled_server.stop)
            while not (await anext(events))["lost"]:
                pass
            await asyncio.to_thread(controlled_server.start)
            while (await anext(events))["lost"]:
                pass
            await hf.queries.enqueue("after", b"")
            while "after" not in (await anext(events))["parts"].get("live-trouble", ""):
                pass
        await events.aclose()  # type: ignore[attr-defined]
        await web.aclose()


async def test_the_poller_ends_with_the_last_browser(pg18: Database) -> None:
    async with opened(pg18) as browser:
        await browser.hf.install()
        live = browser.web.live
        events = messages(live, Stream(topic("Overview", "/")))
        async with asyncio.timeout(_DEADLINE_SECONDS):
            await anext(events)
            poller = live._poller
            assert poller is not None
            await events.aclose()  # type: ignore[attr-defined]
            await poller
        assert live._streams == set()


async def test_a_stream_says_which_page_it_is_about(told: Told) -> None:
    async with opened(told.database) as browser:
        assert (await browser.get("/live?page=Overview")).status_code == 401
        await browser.sign_in()
        assert (await browser.get("/live?page=Nothing")).status_code == 404
        assert (await browser.get("/live")).status_code == 404
