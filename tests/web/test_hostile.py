"""What an attacker, or a broken client, may send: no page breaks, and no secret is shown."""

from __future__ import annotations

import asyncio
import re
from html import unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import httpx
import pytest

from holdfast import NewJob
from holdfast.web import form
from holdfast.web.live import Stream, Topic
from holdfast.web.visit import Address
from tests.web import story
from tests.web.conftest import OPERATOR, ORIGIN, SAME, VIEWER, Browser, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.web.conftest import Told


@pytest.fixture
async def browser(told: Told) -> AsyncIterator[Browser]:
    async with opened(told.database) as found:
        yield found


ODD = {
    # The names of what a method is called with.
    "names": "path=x&self=1&changes=2&query=3",
    # Digits that int() does not read, and too many of those it does.
    "digits": f"id=²&id={'9' * 5000}&before=²",
    "places": f"before=1-{'9' * 24}&status=successful",
    "instants": "before=1e300-1&status=failed",
    "early": "before=-62135596800-1&status=failed",
    "nul": "entrypoint=%00&error=%00&key=%00&header=%00=%00&worker=%00",
    "broken": "%ED%A0%80=%ff&entrypoint=%ED%A0%80&=&&&?",
    "unknown": "status=nobody&since=ever&range=all&as=pdf&kind=none&who=all&do=drop",
    "many": "&".join(f"a{n}=1" for n in range(3000)),
    "long": f"entrypoint={'é' * 5000}&error={'%' * 500}",
}
PATHS = ("/", "/jobs", "/jobs/1", "/failures", "/entrypoints", "/log", "/system", "/tables")


@pytest.mark.parametrize("query", ODD.values(), ids=ODD)
async def test_no_query_breaks_a_page(browser: Browser, query: str) -> None:
    await browser.sign_in()
    for path in PATHS:
        answer = await browser.get(f"{path}?{query}")
        assert answer.status_code in (200, 404), path


@pytest.mark.parametrize("path", ["/static/", "/static/%2e%2e/auth.py", "/static/x", "/nothing/x"])
async def test_what_is_not_there_is_not_found(browser: Browser, path: str) -> None:
    for _ in range(2):
        answer = await browser.get(path)
        assert answer.status_code == (404 if path.startswith("/static") or _ else 303)
        assert "content-security-policy" in answer.headers
        await browser.sign_in()


async def test_a_file_is_only_read(browser: Browser) -> None:
    await browser.sign_in()
    assert (await browser.send("/static/holdfast.css")).status_code == 405


async def test_a_slash_too_many_stays_on_this_server(browser: Browser) -> None:
    await browser.sign_in()
    answer = await browser.get("/jobs/?status=held", headers={"host": "evil.test"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?status=held")


@pytest.mark.parametrize("note", ["a&b=c", "&&&", "%ff", "%00", "=", "x" * 5000, "é;"])
async def test_no_cookie_breaks_a_page(browser: Browser, note: str) -> None:
    await browser.sign_in()
    session = browser.client.cookies["holdfast_session"]
    cookies = f"holdfast_session={session}; holdfast_note={note}".encode()
    assert (await browser.get("/more", headers={"cookie": cookies})).status_code == 200


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/act/requeue", {"cap": "²²"}),
        ("/act/requeue", {"id": "²"}),
        ("/act/edit", {"payload": "[" * 5000 + '"[redacted]"' + "]" * 5000}),
        ("/act/edit", {"payload": '{"a": "[redacted]", "token": "\\ud800"}'}),
        ("/act/pause", {"name": "a\0b", "reason": "x"}),
        ("/act/enqueue", {"entrypoint": "\0"}),
        ("/act/cancel", {"all": "1", "query": f"?path=1&entrypoint=nobody&id={'9' * 5000}"}),
        ("/act/stop", {"number": "²"}),
    ],
)
async def test_no_form_breaks_an_act(
    browser: Browser, told: Told, path: str, fields: dict[str, str]
) -> None:
    await browser.sign_in()
    answer = await browser.send(path, **{"id": 0, **fields})
    assert answer.status_code == 303
    assert await browser.note()


async def test_a_stranger_may_not_send_much(browser: Browser) -> None:
    answer = await browser.client.post("/login", content=b"a=1&" * 50_000, headers=SAME)
    assert answer.status_code == 413
    await browser.sign_in()
    answer = await browser.client.post("/act/stop", content=b"x" * 3_000_000, headers=SAME)
    assert answer.status_code == 413


async def test_a_stranger_learns_no_name_of_a_database(told: Told) -> None:
    async with opened(told.database, name="orders-db", environment="staging") as browser:
        for answer in (
            await browser.get("/login"),
            await browser.get("/loginx"),
            await browser.client.post("/login", content=b"token=x", headers=SAME),
        ):
            assert "orders-db" not in answer.text
        await browser.sign_in()
        assert "orders-db" in await browser.text("/")


async def test_a_form_that_never_ends_is_given_up(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form, "_SECONDS", 0.01)

    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def silent() -> dict[str, Any]:
        return await asyncio.get_running_loop().create_future()

    scope = {
        "type": "http", "method": "POST", "path": "/login", "query_string": b"",
        "headers": [(b"sec-fetch-site", b"same-origin")], "client": ("192.0.2.1", 1),
    }  # fmt: skip
    await browser.web(scope, silent, send)
    assert sent[0]["status"] == 408


async def test_a_fault_of_ours_is_told_without_its_text(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await browser.sign_in()

    async def broken(_: object) -> None:
        raise KeyError("s3cret-of-the-traceback")

    monkeypatch.setattr(browser.web.site, "nav", broken)
    transport = httpx.ASGITransport(app=browser.web, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
        client.cookies = browser.client.cookies
        answer = await client.get("/jobs")
    assert answer.status_code == 500
    assert "s3cret" not in answer.text
    assert "<h1>Error</h1>" in answer.text
    assert "content-security-policy" in answer.headers


CARD = "4111111111111111"
HIDING: dict[str, bytes] = {
    "large": b'{"card_number": "%s", "rest": "%s"}' % (CARD.encode(), b"y" * 300_000),
    "indented": b' \n{"card_number": "%s"}' % CARD.encode(),
    "deep": b'{"card_number": "%s", "rest": %s}' % (CARD.encode(), b"[" * 600 + b"]" * 600),
    "text": f"order=7, cardNumber: {CARD}, card_number={CARD}".encode(),
    "surrogate": b'{"card_number": "%s", "rest": "\\ud800"}' % CARD.encode(),
}


@pytest.mark.parametrize("payload", HIDING.values(), ids=HIDING)
@pytest.mark.parametrize("token", [OPERATOR, VIEWER])
async def test_no_way_of_showing_a_payload_shows_its_secrets(
    browser: Browser, payload: bytes, token: str
) -> None:
    [job_id] = await browser.hf.queries.enqueue_many([NewJob("nobody", payload)])
    await browser.sign_in(token)
    try:
        for query in ("", "?as=text", "?as=hex", "?do=edit"):
            page = await browser.text(f"/jobs/{job_id}{query}")
            assert CARD not in page, query
            # Sixteen bytes a line, as a dump has them.
            assert CARD[:8] not in page, query
    finally:
        await browser.hf.queries.delete_jobs([job_id])  # type: ignore[list-item]


async def test_a_session_that_has_ended_gets_no_more_of_the_stream(browser: Browser) -> None:
    await browser.sign_in()
    live, login = browser.web.live, browser.web.site.login
    assert login is not None
    who = login.identity(browser.client.cookies["holdfast_session"])
    assert who is not None
    stream = Stream(Topic(Address("", "Workers"), who), who.session)
    events = live._events(stream)
    assert await anext(events) == "retry: 2000\n\n"
    stream.tell({"live-nav": "first"}, "now")
    assert "first" in await anext(events)
    await browser.send("/logout")
    stream.tell({"live-nav": "second"}, "now")
    with pytest.raises(StopAsyncIteration):
        await anext(events)


def _from(browser: Browser, address: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=browser.web, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url=ORIGIN)


async def _try(client: httpx.AsyncClient, token: str) -> int:
    if "holdfast_csrf" not in client.cookies:
        await client.get("/login")
    form = {"csrf": client.cookies["holdfast_csrf"], "token": token}
    return (await client.post("/login", data=form, headers=SAME)).status_code


async def test_wrong_tokens_of_one_address_lock_out_no_other(browser: Browser) -> None:
    async with _from(browser, "192.0.2.1") as stranger, _from(browser, "192.0.2.2") as other:
        for _ in range(10):
            await _try(stranger, "not the token")
        assert await _try(stranger, OPERATOR) == 429
        assert await _try(other, OPERATOR) == 303


async def test_a_picture_on_another_page_cannot_use_up_the_tries(browser: Browser) -> None:
    """A page of a stranger can have a browser ask for addresses, but not navigate unseen."""
    headers: dict[str, Any] = {"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"}
    for _ in range(12):
        answer = await browser.get(f"/?{urlencode({'token': 'wrong'})}", headers=headers)
        assert answer.status_code == 401
    document = {"sec-fetch-dest": "document"}
    assert (await browser.get(f"/?token={OPERATOR}", headers=document)).status_code == 303
    assert (await browser.get("/")).status_code == 200


@pytest.mark.parametrize("name", ["\x1b[31mmara", "ma\0ra", "\u202emara", "mara\r\nroot: x"])
async def test_a_name_for_the_log_is_plain_text(browser: Browser, name: str) -> None:
    await browser.sign_in(name=name)
    page = await browser.text("/more")
    assert "mara" in page
    assert not any(each in page for each in ("\x1b", "\0", "\u202e", "\r"))


async def test_a_command_to_copy_runs_nothing_that_a_name_holds(
    browser: Browser, told: Told
) -> None:
    name, quoted = "x; $(touch here)", "'x; $(touch here)'"
    job_id = story.hold(told.database, name)
    [waiting] = await browser.hf.queries.enqueue_many([NewJob(name)])
    await browser.hf.queries.pause(name, reason="test", actor="test")
    await browser.sign_in()
    try:
        found = await browser.hf.explain(waiting)
        assert found.command == f"holdfast resume {quoted}"
        page = unescape(await browser.text("/failures"))
        [key] = re.findall(r"group=(\w+)&do=requeue", page[page.index(name) :])[:1]
        sheet = unescape(await browser.text(f"/failures?group={key}&do=requeue"))
        assert f"holdfast requeue --entrypoint {quoted} " in sheet
    finally:
        await browser.hf.queries.resume(name, actor="test")
        await browser.hf.queries.delete_jobs([job_id, waiting])  # type: ignore[list-item]
