"""The ASGI application: its routes, and the gate that every request passes first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote_plus, unquote_plus, urlencode

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from holdfast.app import Holdfast
from holdfast.errors import (
    ConnectionFailed,
    ConnectionLost,
    HoldfastError,
    InvalidInput,
    JobNotFound,
    PrivilegeMissing,
)
from holdfast.redact import redact
from holdfast.web.acts import ACTS, Act, Asked
from holdfast.web.auth import SESSION_COOKIE, SESSION_SECONDS, HostAuth, Identity, Login, Tokens
from holdfast.web.form import FormTooLarge, read_form
from holdfast.web.live import Live
from holdfast.web.pages import PAGES
from holdfast.web.redaction import Redaction
from holdfast.web.security import (
    CSRF_COOKIE,
    CSRF_FIELD,
    SecurityHeaders,
    csrf_matches,
    host_allowed,
    new_csrf,
    same_origin,
)
from holdfast.web.site import Site
from holdfast.web.visit import Address, Page

PUBLIC = ("/login", "/static/")
"""Paths that need no sign-in."""
_FREE = ("/login", "/logout")
"""What a viewer may send as well."""

NOTE_COOKIE = "holdfast_note"
_NOTE_SECONDS = 30
_LONGEST_NOTE = 2000

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

_WORDS = {
    404: "There is no such page.",
    405: "This address cannot be used so.",
    500: "This page has a fault. The log of its server tells more.",
}

Endpoint = Callable[[Request], Awaitable[Response]]


def app(
    hf: Holdfast,
    *,
    auth: HostAuth | Tokens | str,
    name: str = "",
    environment: str = "",
    hidden_fields: Collection[str] = (),
    viewers_see_payloads: bool = False,
    hosts: Collection[str] | None = None,
) -> WebApp:
    """Return the web page of a queue as an ASGI application, to be served or mounted.

    `auth` is a token, or a callable that gets the request and returns (actor, role) of the person
    whom the host application has signed in, or None. `hidden_fields` names more fields of payloads
    that are masked. `hosts` are the names that a Host header may have; None allows any.
    """
    if not auth:
        raise InvalidInput(
            "the web page is never open to all: pass auth=TOKEN, or a callable that returns "
            "(actor, role) of the person your application has signed in"
        )
    tokens = Tokens(auth) if isinstance(auth, str) else auth
    site = Site(
        hf,
        PAGES,
        name=name,
        environment=environment,
        login=Login(tokens) if isinstance(tokens, Tokens) else None,
        auth=None if isinstance(tokens, Tokens) else tokens,
        hosts=None if hosts is None else frozenset(hosts),
        redaction=Redaction(hidden_fields, viewers_see_values=viewers_see_payloads),
    )
    return WebApp(site)


class WebApp:
    """The application. `aclose()` closes what it opened, where nothing runs its lifespan."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.live = Live(site)
        self.routes = [
            *(Route(page.path, self._page(page), name=page.name) for page in site.pages),
            *(Route(act.path, self._act(act), methods=["POST"]) for act in ACTS),
            Route("/find", self._find),
            Route("/live", self.live.stream),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Mount("/static", StaticFiles(packages=[("holdfast.web", "static")])),
        ]
        self._router = Router(
            # Its redirect would name the host that the request names.
            self.routes,
            redirect_slashes=False,
            default=self._missing,
            lifespan=self._lifespan,
        )
        self._outside = SecurityHeaders(self._gate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._outside(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        await self.live.close()
        await self.site.close()

    async def _gate(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Deny by default: a path that is not named in PUBLIC takes an identity."""
        if scope["type"] == "lifespan":
            await self._router(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request, begun = Request(scope, receive), False
        with_csrf = _with_csrf(request, send)

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await with_csrf(message)

        try:
            answer = await self._refusal(request) or self._routed
            await answer(scope, receive, sending)
        except ClientDisconnect:
            return
        except Exception:
            if not begun:
                await self._error(request, 500)(scope, receive, sending)
            # Whoever serves the application logs it.
            raise

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._router(scope, receive, send)
        except HTTPException as refused:
            request = Request(scope, receive)
            await self._error(request, refused.status_code)(scope, receive, send)

    async def _refusal(self, request: Request) -> Response | None:
        site, path = self.site, _path(request)
        if not host_allowed(request, site.hosts):
            return PlainTextResponse("This host name is not served here.", 421)
        who = await site.identify(request)
        request.scope["holdfast.who"] = who
        request.scope["holdfast.csrf"] = request.cookies.get(CSRF_COOKIE) or new_csrf()
        if who is None and not path.startswith(PUBLIC):
            return self._unknown(request)
        if request.method in ("GET", "HEAD"):
            return None
        return await self._refused_form(request, who)

    async def _refused_form(self, request: Request, who: Identity | None) -> Response | None:
        """A change takes a form of our own, and beyond the sign-in the role operator."""
        if not same_origin(request):
            return self._error(request, 403, "This form did not come from this page.")
        try:
            form = await read_form(request, known=who is not None)
        except FormTooLarge:
            return self._error(request, 413, "This form is too large.")
        except TimeoutError:
            return self._error(request, 408, "This form came too slowly.")
        request.scope["holdfast.form"] = form
        if not csrf_matches(request.cookies.get(CSRF_COOKIE), form.get(CSRF_FIELD)):
            return self._error(request, 403, "The form is too old. Go back, reload and try again.")
        if _path(request) not in _FREE and not (who and who.acts):
            return self._error(request, 403, "This takes the role operator.")
        return None

    def _unknown(self, request: Request) -> Response:
        if self.site.login is None:
            return self._error(request, 403, "Your account has no access to this page.")
        # A picture or a frame on a page of others may name any token, and must not count as a try.
        shown = request.headers.get("sec-fetch-dest", "document") == "document"
        if request.method != "GET" or _path(request) == "/live" or not shown:
            return PlainTextResponse("Sign in first.", 401)
        token = request.query_params.get("token")
        if token is not None:
            return self._signed_in(request, token, "", _path(request)) or self._refused(request)
        query = f"?{request.url.query}" if request.url.query else ""
        target = urlencode({"next": f"{_path(request)}{query}"})
        return RedirectResponse(f"{_base(request)}/login?{target}", 303)

    def _page(self, page: Page) -> Endpoint:
        async def show(request: Request) -> Response:
            if "token" in request.query_params:
                # Signed in already: the token must not stay in the address.
                return RedirectResponse(f"{_base(request)}{_path(request)}", 303)
            site, who, address = self.site, _who(request), _address(request, page)
            try:
                if page.examined:
                    await site.checkup.seen()
                async with site.visit(who, address) as visit:
                    found = await page.load(visit)
            except HoldfastError as error:
                return self._failed(request, error)
            if "redirect" in found:
                return RedirectResponse(found["redirect"], 303)
            context = {**site.context(visit, found), **_forms(request)}
            response = HTMLResponse(site.templates.get_template(page.template).render(context))
            if NOTE_COOKIE in request.cookies:
                response.delete_cookie(NOTE_COOKIE, path=_cookie_path(request))
            return response

        return show

    def _act(self, act: Act) -> Endpoint:
        async def do(request: Request) -> Response:
            form = _values(request)
            asked = Asked(self.site, _who(request), form)
            try:
                note = await act.do(asked)
            except HoldfastError as error:
                note = f"Not done: {redact(str(error))}"
            target = f"{_base(request)}{safe_path(form.get('back', ''))}"
            response = RedirectResponse(target, 303)
            kept = quote_plus(note)[:_LONGEST_NOTE]
            _set(response, request, NOTE_COOKIE, kept, _NOTE_SECONDS)
            return response

        return do

    async def _find(self, request: Request) -> Response:
        """What was typed into the search field: an id, a dedupe key, or a header."""
        words = request.query_params.get("q", "").strip().replace("\0", "")[:400]
        address = _address(request, None)
        digits = words.replace(",", "").replace("#", "")
        if digits.isascii() and digits.isdigit() and len(digits) <= 18:
            return RedirectResponse(address.url(f"/jobs/{int(digits)}"), 303)
        name, mark, value = words.partition("=")
        if mark and name:
            return RedirectResponse(address.url("/jobs", header=f"{name}={value}"), 303)
        try:
            async with self.site.reader.open() as look:
                found = await look.run("page_key", key=words)
        except HoldfastError as error:
            return self._failed(request, error)
        path = address.url(f"/jobs/{found[0][0]}") if found else address.url("/jobs", key=words)
        return RedirectResponse(path, 303)

    async def _login(self, request: Request) -> Response:
        if self.site.login is None:
            return RedirectResponse(f"{_base(request)}/", 303)
        if request.method == "GET":
            return self._door(request)
        form = _values(request)
        name, token = form.get("name", ""), form.get("token", "")
        target = safe_path(form.get("next", ""))
        return self._signed_in(request, token, name, target) or self._refused(request)

    def _signed_in(self, request: Request, token: str, name: str, target: str) -> Response | None:
        assert self.site.login is not None  # noqa: S101 - only called where there is one
        cookie = self.site.login.sign_in(token, name, _from(request))
        if cookie is None:
            return None
        response = RedirectResponse(f"{_base(request)}{safe_path(target)}", 303)
        _set(response, request, SESSION_COOKIE, cookie, SESSION_SECONDS)
        return response

    def _refused(self, request: Request) -> Response:
        assert self.site.login is not None  # noqa: S101 - only called where there is one
        if self.site.login.refuses(_from(request)):
            return self._door(request, 429, "Too many wrong tokens. Try again in a minute.")
        return self._door(request, 401, "That is not a token of this page.")

    def _door(self, request: Request, status: int = 200, fault: str = "") -> Response:
        target = safe_path(request.query_params.get("next", "") or _values(request).get("next", ""))
        return self._render(request, "login.html", status, fault=fault, next=target)

    async def _logout(self, request: Request) -> Response:
        who = request.scope["holdfast.who"]
        if self.site.login is not None and who is not None:
            self.site.login.sign_out(who)
            self.live.end(who.session)
        response = RedirectResponse(f"{_base(request)}/login", 303)
        response.delete_cookie(SESSION_COOKIE, path=_cookie_path(request))
        return response

    async def _missing(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path = _path(request)
        if path.endswith("/") and request.method == "GET":
            query = f"?{request.url.query}" if request.url.query else ""
            found: Response = RedirectResponse(
                f"{_base(request)}{safe_path(path.rstrip('/'))}{query}", 303
            )
        else:
            found = self._error(request, 404)
        await found(scope, receive, send)

    def _error(self, request: Request, status: int, words: str = "") -> Response:
        words = words or _WORDS.get(status, _WORDS[500])
        return self._render(request, "error.html", status, words=redact(words), status=status)

    def _failed(self, request: Request, error: HoldfastError) -> Response:
        match error:
            case ConnectionFailed() | ConnectionLost():
                words = redact(str(error))
                return self._render(request, "unreachable.html", 503, words=words)
            case JobNotFound():
                status = 404
            case PrivilegeMissing():
                status = 403
            case _:
                status = 500
        return self._error(request, status, str(error))

    def _render(self, request: Request, template: str, code: int, **values: object) -> Response:
        frame = self.site.frame(_address(request, None), request.scope.get("holdfast.who"))
        context = {**frame, **_forms(request), "nav": None, **values}
        return HTMLResponse(self.site.templates.get_template(template).render(context), code)


def _path(request: HTTPConnection) -> str:
    """The path below the place where the application is mounted."""
    path: str = request.scope["path"]
    base = _base(request)
    return (path.removeprefix(base) if base else path) or "/"


def _base(request: HTTPConnection) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _address(request: Request, page: Page | None) -> Address:
    item = tuple(request.path_params.items())
    path = _path(request)
    return Address(_base(request), page.name if page else "", path, request.url.query, item)


def safe_path(path: str) -> str:
    """A path of this application, never of another server."""
    fits = path.startswith("/") and not path.startswith("//") and "\\" not in path
    return path if fits and path.isprintable() else "/"


def _who(request: Request) -> Identity:
    who = request.scope["holdfast.who"]
    assert isinstance(who, Identity)  # noqa: S101 - the gate lets no other request through
    return who


def _values(request: Request) -> dict[str, str]:
    return request.scope.get("holdfast.form") or {}


def _forms(request: Request) -> dict[str, Any]:
    """What templates need for their forms, and the note that an act left."""
    note = unquote_plus(request.cookies.get(NOTE_COOKIE, ""))[:_LONGEST_NOTE]
    return {
        "csrf": request.scope.get("holdfast.csrf", ""),
        "csrf_field": CSRF_FIELD,
        "note": note,
        "back": f"{_path(request)}{f'?{request.url.query}' if request.url.query else ''}",
    }


def _from(request: Request) -> str:
    """The network address of a client, as the server tells it."""
    return request.client.host if request.client else ""


def _cookie_path(request: Request) -> str:
    return _base(request) or "/"


def _set(response: Response, request: Request, name: str, value: str, seconds: int | None) -> None:
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=_cookie_path(request),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )


def _with_csrf(request: Request, send: Send) -> Send:
    """Gives a browser that has none the cookie that its forms are compared with."""
    if CSRF_COOKIE in request.cookies or _path(request).startswith("/static/"):
        return send

    async def sending(message: Message) -> None:
        new = request.scope.get("holdfast.csrf")
        if new is not None and message["type"] == "http.response.start":
            carrier = Response()
            _set(carrier, request, CSRF_COOKIE, new, None)
            MutableHeaders(scope=message).append("set-cookie", carrier.headers["set-cookie"])
        await send(message)

    return sending
