"""The live stream: one poller a process reads for all pages, and sends what has changed."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from holdfast.errors import ConnectionFailed, ConnectionLost, DatabaseError, HoldfastError
from holdfast.monitor.reader import Look
from holdfast.repeated import RepeatedLog
from holdfast.web.auth import Identity
from holdfast.web.checkup import STATEMENTS
from holdfast.web.visit import Address, Page

if TYPE_CHECKING:
    from holdfast.web.site import Site

TICK_SECONDS = 1.0
BUDGET = 14
"""Statements a tick. Where open pages differ, they are read in turns."""

_COUNT_TICKS = 5
"""Between two counts of the log into the statistics, a few statements each."""
_CHECKUP_TICKS = 60
"""Between two looks of the doctor, for which a tick is spent."""
_MOST_STREAMS = 500
_STREAM_SECONDS = 600.0
"""Then a browser connects again, and shows once more who it is."""
_LONGEST_PAUSE = 5.0

Parts = dict[str, str]


@dataclass(frozen=True, slots=True)
class Topic:
    """What some browsers look at: a page as one role sees it."""

    address: Address
    who: Identity


@dataclass(eq=False, slots=True)
class Stream:
    """One browser. What it was not sent yet is kept by part, so a slow one takes no memory."""

    topic: Topic
    session: str = ""
    """Whose sign-out ends it."""
    pending: Parts = field(default_factory=dict)
    at: str = ""
    lost: str = ""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False

    def tell(self, parts: Parts, at: str, lost: str = "") -> None:
        self.pending |= parts
        self.at, self.lost = at, lost
        self.news.set()

    def end(self) -> None:
        self.ended = True
        self.news.set()


class Live:
    """Starts with the first browser and stops after the last."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._pages = {page.name: page for page in site.pages}
        self._streams: set[Stream] = set()
        self._sent: dict[Topic, Parts] = {}
        self._read: dict[Topic, int] = {}
        self._ticks = 0
        self._lost = ""
        self._poller: asyncio.Task[None] | None = None
        self._log = RepeatedLog(logging.getLogger("holdfast.web"))
        self.statements = 0
        """Sent so far, for the tests of the budget."""

    async def stream(self, request: Request) -> Response:
        """Server-sent events about the page that the address names."""
        who: Identity = request.scope["holdfast.who"]
        page = self._pages.get(request.query_params.get("page", ""))
        if page is None or len(self._streams) >= _MOST_STREAMS:
            return PlainTextResponse("There is no such page, or there are too many.", 404)
        stream = Stream(Topic(_address(request, page), _seen_by(who)), who.session)
        events = self._events(stream)
        return StreamingResponse(
            events,
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    async def _events(self, stream: Stream) -> AsyncIterator[str]:
        self._join(stream)
        deadline = time.monotonic() + _STREAM_SECONDS
        try:
            yield "retry: 2000\n\n"
            while not stream.ended and time.monotonic() < deadline:
                with suppress(TimeoutError):
                    async with asyncio.timeout(10):
                        await stream.news.wait()
                if not stream.news.is_set():
                    # A proxy closes a stream that is silent.
                    yield ": here\n\n"
                    continue
                if stream.ended:
                    return
                stream.news.clear()
                parts, stream.pending = stream.pending, {}
                yield _event({"at": stream.at, "lost": stream.lost, "parts": parts})
        finally:
            self._streams.discard(stream)

    def end(self, session: str) -> None:
        """End the streams of a session that has signed out."""
        for stream in self._streams:
            if session and stream.session == session:
                stream.end()

    def _join(self, stream: Stream) -> None:
        self._streams.add(stream)
        if self._lost:
            stream.tell({}, _now(), self._lost)
        elif known := self._sent.get(stream.topic):
            stream.tell(known, _now())
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        pause = TICK_SECONDS
        while self._streams:
            try:
                await self.tick()
            except (ConnectionFailed, ConnectionLost):
                self._lose()
                pause = min(_LONGEST_PAUSE, pause * 1.5)
            except Exception:
                # One page that cannot be read must not end the stream of all others.
                self._log.warning("the live stream missed a look", exc_info=True)
                pause = min(_LONGEST_PAUSE, pause * 1.5)
            else:
                pause = TICK_SECONDS
            await asyncio.sleep(pause)
        self._sent.clear()
        self._read.clear()

    def _lose(self) -> None:
        self._lost = self._lost or _now()
        for stream in self._streams:
            stream.tell({}, _now(), self._lost)

    async def tick(self) -> None:
        """Read the pages that were not read for longest, as many as the budget allows."""
        self._ticks += 1
        if self._ticks % _COUNT_TICKS == 1:
            await self._site.hf.store.jobs.aggregate()
            self.statements += 4
        topics = {stream.topic for stream in self._streams}
        self._sent = {topic: parts for topic, parts in self._sent.items() if topic in topics}
        self._read = {topic: tick for topic, tick in self._read.items() if topic in topics}
        if self._ticks % _CHECKUP_TICKS == 0 and any(
            self._pages[topic.address.page].examined for topic in topics
        ):
            await self._site.checkup.refresh()
            self.statements += STATEMENTS
            return
        async with self._site.live_reader.open() as look:
            for topic in sorted(topics, key=lambda topic: self._read.get(topic, 0)):
                if look.statements >= BUDGET:
                    break
                self._read[topic] = self._ticks
                self._send(topic, await self._parts(topic, look))
        self.statements += look.statements
        self._lost = ""
        for stream in self._streams:
            stream.tell({}, _now())

    async def _parts(self, topic: Topic, look: Look) -> Parts:
        site, page = self._site, self._pages[topic.address.page]
        try:
            visit = site.visit_on(look, await site.nav(look), topic.who, topic.address)
            found = await page.load(visit)
            if "redirect" in found:
                return {}
            return site.parts(page, site.context(visit, found))
        except DatabaseError:
            # The transaction, in which the others are read, is over.
            raise
        except HoldfastError:
            # What the page is about is gone. The next load of the page says so.
            return {}
        except Exception:
            # One page that cannot be shown must not end the look at all others.
            self._log.warning("page %s cannot be shown live", page.name, exc_info=True)
            return {}

    def _send(self, topic: Topic, parts: Parts) -> None:
        before = self._sent.get(topic, {})
        changed = {name: html for name, html in parts.items() if before.get(name) != html}
        self._sent[topic] = parts
        for stream in self._streams:
            if stream.topic == topic:
                stream.tell(changed, _now())

    async def close(self) -> None:
        for stream in list(self._streams):
            stream.end()
        if self._poller is not None:
            self._poller.cancel()
            with suppress(asyncio.CancelledError):
                await self._poller


def _address(request: Request, page: Page) -> Address:
    """The address of the page, as the stream's own address names it."""
    base = str(request.scope.get("root_path", "")).rstrip("/")
    query = request.query_params.get("query", "").removeprefix("?")[:2000]
    job = request.query_params.get("id", "")
    item = (("id", int(job)),) if job.isascii() and job.isdigit() and len(job) < 19 else ()
    path = page.path.replace("{id:int}", job) if item else page.path
    return Address(base, page.name, path, query, item)


def _seen_by(who: Identity) -> Identity:
    """What people of one role see is the same, so that they share what is read."""
    return Identity("", who.role)


def _event(values: object) -> str:
    return f"data: {json.dumps(values)}\n\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
