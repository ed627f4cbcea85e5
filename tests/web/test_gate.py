"""Nothing of the page is open: every route takes a sign-in, every change a form of our own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from starlette.routing import Mount, Route

from holdfast import Holdfast, InvalidInput
from holdfast.cli.web import prepare
from holdfast.web import Identity, Role, Tokens, app
from holdfast.web.application import PUBLIC, safe_path
from holdfast.web.auth import SESSION_SECONDS, Login
from tests.web.conftest import OPERATOR, SAME, VIEWER, Browser, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import HTTPConnection

    from holdfast.web import WebApp
    from tests.web.conftest import Told


@pytest.fixture
async def browser(told: Told) -> AsyncIterator[Browser]:
    async with opened(told.database) as found:
        yield found


def routes(web: WebApp) -> list[tuple[str, str]]:
    """Every method and path that the router knows."""
    found = []
    for route in web.routes:
        assert isinstance(route, Route | Mount)
        path = re.sub(r"\{[^}]*\}", "1", route.path)
        if isinstance(route, Mount):
            assert path.startswith(PUBLIC) or f"{path}/".startswith(PUBLIC)
            continue
        found += [(method, path) for method in sorted(route.methods or ()) if method != "HEAD"]
    return found


async def test_no_route_answers_a_stranger(browser: Browser) -> None:
    walked = 0
    for method, path in [*routes(browser.web), ("GET", "/nothing"), ("POST", "/nothing")]:
        answer = await browser.client.request(method, path, headers=SAME)
        walked += 1
        if path == "/login":
            continue
        assert answer.status_code in (303, 401, 403), (method, path, answer.status_code)
        assert "charge_card" not in answer.text
        if answer.status_code == 303:
            assert answer.headers["location"].startswith("/login?next=")
    assert walked > 20


async def test_a_viewer_sees_every_page_and_changes_nothing(browser: Browser, told: Told) -> None:
    await browser.sign_in(VIEWER)
    for method, path in routes(browser.web):
        if method == "GET" and path not in ("/live", "/login", "/jobs/1"):
            assert (await browser.get(path, follow_redirects=True)).status_code == 200, path
        if method == "POST" and path.startswith("/act/"):
            answer = await browser.send(path, id=told.job, name="stripe", reason="x", all="1")
            assert answer.status_code == 403, path
            assert "operator" in answer.text
    [job] = await browser.hf.queries.get_jobs([told.job])  # type: ignore[list-item]
    assert job.held_at is not None


@pytest.mark.parametrize(
    ("headers", "csrf"),
    [
        ({}, "right"),
        ({"sec-fetch-site": "cross-site"}, "right"),
        ({"sec-fetch-site": "same-site"}, "right"),
        ({"sec-fetch-site": "none"}, "right"),
        ({"origin": "http://evil.test"}, "right"),
        ({"origin": "null"}, "right"),
        ({**SAME, "origin": "http://evil.test"}, "right"),
        (SAME, "wrong"),
        (SAME, ""),
    ],
)
async def test_a_form_of_another_page_is_refused(
    browser: Browser, told: Told, headers: dict[str, str], csrf: str
) -> None:
    await browser.sign_in()
    token = browser.client.cookies["holdfast_csrf"] if csrf == "right" else csrf
    answer = await browser.client.post(
        "/act/delete", data={"csrf": token, "id": told.job}, headers=headers
    )
    assert answer.status_code == 403
    assert await browser.hf.queries.get_jobs([told.job])  # type: ignore[list-item]


async def test_an_origin_of_our_own_is_enough_where_the_browser_says_no_more(
    browser: Browser,
) -> None:
    await browser.sign_in()
    form = {"csrf": browser.client.cookies["holdfast_csrf"], "number": "1"}
    answer = await browser.client.post(
        "/act/stop", data=form, headers={"origin": "http://queue.test"}
    )
    assert answer.status_code == 303


async def test_nothing_changes_by_get(browser: Browser, told: Told) -> None:
    await browser.sign_in()
    for path in ("/act/delete", "/act/requeue", "/logout"):
        assert (await browser.get(f"{path}?id={told.job}")).status_code == 405


async def test_every_answer_carries_the_policy(browser: Browser) -> None:
    paths = [
        "/login",
        "/static/holdfast.css",
        "/static/holdfast.js",
        "/static/../auth.py",
        "/",
        "/x",
    ]
    for signed_in in (False, True):
        for path in paths:
            headers = (await browser.get(path)).headers
            assert headers["content-security-policy"] == (
                "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
                "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
            )
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store" or path.startswith("/static/")
            assert "access-control-allow-origin" not in headers
        if not signed_in:
            await browser.sign_in()


async def test_the_session_cookie_is_ours_alone(browser: Browser) -> None:
    await browser.get("/login")
    answer = await browser.send("/login", token=OPERATOR, next="/jobs?status=held")
    assert answer.headers["location"] == "/jobs?status=held"
    [cookie] = [c for c in answer.headers.get_list("set-cookie") if "session" in c]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert OPERATOR not in cookie


async def test_a_cookie_that_was_changed_opens_nothing(browser: Browser) -> None:
    await browser.sign_in(VIEWER)
    body, _, mark = browser.client.cookies["holdfast_session"].partition(".")
    for forged in (f"{body}x.{mark}", f"{body}.{'0' * 64}", body, "", ".", "é.ü"):
        browser.client.cookies.clear()
        headers = {"cookie": f"holdfast_session={forged}".encode()}
        assert (await browser.get("/", headers=headers)).status_code == 303


async def test_signing_out_ends_the_session_on_the_server(browser: Browser) -> None:
    await browser.sign_in()
    kept = browser.client.cookies["holdfast_session"]
    assert (await browser.send("/logout")).status_code == 303
    browser.client.cookies.set("holdfast_session", kept, domain="queue.test")
    assert (await browser.get("/")).status_code == 303


async def test_the_printed_address_signs_in_and_leaves_no_token_behind(browser: Browser) -> None:
    answer = await browser.get(f"/?token={OPERATOR}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert (await browser.get("/")).status_code == 200
    again = await browser.get(f"/jobs?token={OPERATOR}")
    assert (again.status_code, again.headers["location"]) == (303, "/jobs")


async def test_wrong_tokens_are_refused_and_soon_not_even_looked_at(browser: Browser) -> None:
    fields = {"token": "not the token"}
    for _ in range(9):
        assert (await browser.send("/login", **fields)).status_code == 401
    assert (await browser.send("/login", **fields)).status_code == 429
    assert (await browser.send("/login", token=OPERATOR)).status_code == 429


def test_a_session_ends_after_its_time() -> None:
    now = [1_000_000.0]
    login = Login(Tokens(OPERATOR), now=lambda: now[0])
    cookie = login.sign_in(OPERATOR)
    assert login.identity(cookie) is not None
    now[0] += SESSION_SECONDS + 1
    assert login.identity(cookie) is None


async def test_a_strange_host_name_is_refused(told: Told) -> None:
    async with opened(told.database, hosts=["queue.test", "::1"]) as browser:
        assert (await browser.get("/login")).status_code == 200
        assert (await browser.get("/login", headers={"host": "[::1]:8642"})).status_code == 200
        for host in ("evil.test", "queue.test.evil.test", "", "[", "queue.test@evil.test"):
            assert (await browser.get("/login", headers={"host": host})).status_code == 421


@pytest.mark.parametrize(
    "path", ["//evil.test", "https://evil.test", "/\\evil.test", "evil", "", "/a\r\nb: c", "/\x00"]
)
def test_no_redirect_leaves_the_server(path: str) -> None:
    assert safe_path(path) == "/"


@pytest.mark.parametrize("auth", [None, "", 0])
def test_a_page_without_a_login_cannot_be_made(auth: Any) -> None:
    with pytest.raises(InvalidInput, match="never open to all"):
        app(Holdfast.in_memory(), auth=auth)


def test_a_short_token_is_refused() -> None:
    with pytest.raises(InvalidInput, match="16 characters"):
        app(Holdfast.in_memory(), auth="secret")


def test_an_address_beyond_this_machine_takes_a_chosen_token() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.7", "queue.example.com"):  # noqa: S104 - refused
        with pytest.raises(InvalidInput, match="HOLDFAST_WEB_TOKEN"):
            prepare(host, 1, None, "", "", {})
        assert prepare(host, 1, None, "", "", {"HOLDFAST_WEB_TOKEN": OPERATOR}).hosts is None
    for host in ("127.0.0.1", "::1", "localhost", "127.8.9.1"):
        made = prepare(host, 1, None, "", "", {})
        assert len(made.token) > 24
        assert made.hosts == ("localhost", "127.0.0.1", "::1")


async def test_the_host_application_signs_people_in(told: Told) -> None:
    def auth(connection: HTTPConnection) -> tuple[str, str] | None:
        user = connection.headers.get("x-user")
        return (user, "operator" if user == "mara" else "viewer") if user else None

    async with opened(told.database, auth=auth) as browser:
        assert (await browser.get("/")).status_code == 403
        page = (await browser.get("/", headers={"x-user": "jon"})).text
        assert "jon, viewer" in page
        assert "Sign out" not in page
        assert "mara, operator" in (await browser.get("/", headers={"x-user": "mara"})).text


async def test_an_asynchronous_login_may_return_an_identity(told: Told) -> None:
    async def auth(_: HTTPConnection) -> Identity:
        return Identity("mara", Role.OPERATOR)

    async with opened(told.database, auth=auth) as browser:
        assert "mara, operator" in await browser.text("/")
