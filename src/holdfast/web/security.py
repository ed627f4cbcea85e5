"""What every response carries and every request must pass, before any page is asked."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CSRF_COOKIE = "holdfast_csrf"
CSRF_FIELD = "csrf"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_STORED = "cache-control"


class SecurityHeaders:
    """Adds the headers to every response, also to errors."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if _STORED not in headers:
                    headers[_STORED] = "no-store"
            await send(message)

        await self._inner(scope, receive, sending if scope["type"] == "http" else send)


def host_allowed(connection: HTTPConnection, hosts: Collection[str] | None) -> bool:
    """Whether the Host header names this server. A stranger may point a name of theirs here."""
    if hosts is None:
        return True
    given = connection.headers.get("host", "")
    try:
        name = urlsplit(f"//{given}").hostname
    except ValueError:
        return False
    return name in hosts


def same_origin(connection: HTTPConnection) -> bool:
    """Whether the browser says that a page of this server sent the form. Nothing said means no."""
    site = connection.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = connection.headers.get("origin")
    if origin is None:
        return site is not None
    if origin == "null":
        # A sandboxed or redirected form. Only the header above can still vouch for it.
        return site is not None
    return urlsplit(origin).netloc == connection.headers.get("host", "")


def new_csrf() -> str:
    return secrets.token_urlsafe(32)


def csrf_matches(cookie: str | None, field: str | None) -> bool:
    if not cookie or not field:
        return False
    return hmac.compare_digest(cookie.encode("utf-8", "replace"), field.encode("utf-8", "replace"))
