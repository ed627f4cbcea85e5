"""The web page over a real database, asked without a socket."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.web import Tokens, app
from tests.web import story

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from holdfast.web import WebApp
    from tests.servers import Database, SharedServers

OPERATOR, VIEWER = "operator-token-of-tests", "viewer-token-of-the-tests"
ORIGIN = "http://queue.test"
SAME = {"sec-fetch-site": "same-origin"}


@dataclass
class Told:
    """A schema with the story in it, and the job that has a history."""

    database: Database
    job: int


@pytest.fixture(scope="module")
def told(pg_servers: SharedServers) -> Iterator[Told]:
    """For tests that only read."""
    import asyncio

    with pg_servers.schema("embedded18") as database:
        yield Told(database, asyncio.run(story.tell(database)))


@dataclass
class Browser:
    """A client that signs in and sends forms as a browser does."""

    client: httpx.AsyncClient
    web: WebApp
    hf: Holdfast

    async def sign_in(self, token: str = OPERATOR, name: str = "mara") -> None:
        answer = await self.send("/login", token=token, name=name)
        assert answer.status_code == 303, answer.text

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(path, **options)

    async def text(self, path: str) -> str:
        answer = await self.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.text

    async def send(self, path: str, **fields: object) -> httpx.Response:
        """Post a form with what a page of ours puts into it."""
        if "holdfast_csrf" not in self.client.cookies:
            await self.get("/login")
        form = {"csrf": self.client.cookies.get("holdfast_csrf", ""), **fields}
        return await self.client.post(path, data=form, headers=SAME)

    async def note(self) -> str:
        """What the page says of the last act."""
        found = re.search(r'id="note">([^<]*)<', await self.text("/more"))
        return found[1] if found else ""


@asynccontextmanager
async def opened(database: Database, **options: Any) -> AsyncIterator[Browser]:
    """The page of a database with a client that is not signed in."""
    given: dict[str, Any] = {"auth": Tokens(OPERATOR, VIEWER), **options}
    async with Holdfast.connect(database.dsn) as hf:
        web = app(hf, **given)
        transport = httpx.ASGITransport(app=web)
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
            yield Browser(client, web, hf)
        await web.aclose()
