"""Who may see the page and who may act: tokens of our own, or the host application's login."""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import inspect
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from starlette.requests import Request

from holdfast.errors import InvalidInput

SESSION_COOKIE = "holdfast_session"
SESSION_SECONDS = 12 * 3600
LEAST_TOKEN = 16
"""Characters of a token: a shorter one could be guessed."""

_MOST_FAILURES = 10
"""Of one network address. Another address is not refused, so that nobody locks all others out."""
_MOST_FAILURES_OF_ALL = 1000
_FAILURE_SECONDS = 60.0
"""Failed sign-ins within this time are counted together."""


class Role(enum.StrEnum):
    """A viewer sees everything but the values in payloads; an operator sees and acts."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Identity:
    """The person behind a request; `actor` is written to the log with everything they do."""

    actor: str
    role: Role
    session: str = ""
    """The id of our own session; empty where the host application signed them in."""

    @property
    def acts(self) -> bool:
        return self.role is Role.OPERATOR


Found: TypeAlias = Identity | tuple[str, str] | None
HostAuth: TypeAlias = Callable[[Request], Found | Awaitable[Found]]


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that open the page. Whoever signs in with one has its role."""

    operator: str = field(repr=False)
    viewer: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, token in (("operator", self.operator), ("viewer", self.viewer)):
            if token is not None and not (isinstance(token, str) and len(token) >= LEAST_TOKEN):
                raise InvalidInput(
                    f"the {name} token of the web page must have at least {LEAST_TOKEN} "
                    f"characters; make one with: python -c 'import secrets; "
                    f"print(secrets.token_urlsafe())'"
                )

    def role_of(self, given: str) -> Role | None:
        """Compare with both in constant time."""
        found: Role | None = None
        for role, token in ((Role.VIEWER, self.viewer), (Role.OPERATOR, self.operator)):
            if token is not None and hmac.compare_digest(_hash(token), _hash(given)):
                found = role
        return found


class Login:
    """Sessions in a signed cookie. Their key comes from the tokens: a new token ends them all."""

    def __init__(self, tokens: Tokens, now: Callable[[], float] = time.time) -> None:
        self._tokens = tokens
        self._now = now
        self._key = _hash(f"holdfast session {tokens.operator} {tokens.viewer}")
        self._ended: dict[str, float] = {}
        self._failures: list[tuple[float, str]] = []

    def sign_in(self, token: str, name: str = "", address: str = "") -> str | None:
        """Return the cookie of a new session; None for a wrong token, or after too many of them."""
        if self.refuses(address):
            return None
        role = self._tokens.role_of(token)
        if role is None:
            self._failures.append((self._now(), address))
            return None
        fields = {
            "actor": _plain(name) or "token",
            "role": str(role),
            "id": secrets.token_hex(16),
            "until": int(self._now()) + SESSION_SECONDS,
        }
        body = base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")
        return f"{body}.{self._sign(body)}"

    def refuses(self, address: str = "") -> bool:
        """Whether there were too many wrong tokens from there in the last minute."""
        since = self._now() - _FAILURE_SECONDS
        self._failures = [each for each in self._failures if each[0] > since]
        there = sum(who == address for _, who in self._failures)
        return there >= _MOST_FAILURES or len(self._failures) >= _MOST_FAILURES_OF_ALL

    def identity(self, cookie: str | None) -> Identity | None:
        """Return who a cookie belongs to, if it is ours and has not expired."""
        body, _, mark = (cookie or "").partition(".")
        if not hmac.compare_digest(mark.encode("utf-8", "replace"), self._sign(body).encode()):
            return None
        fields = _decoded(body)
        if fields is None or fields["until"] < self._now() or fields["id"] in self._ended:
            return None
        return Identity(fields["actor"], Role(fields["role"]), fields["id"])

    def sign_out(self, identity: Identity) -> None:
        now = self._now()
        self._ended = {session: until for session, until in self._ended.items() if until > now}
        self._ended[identity.session] = now + SESSION_SECONDS

    def _sign(self, body: str) -> str:
        return hmac.new(self._key, body.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _decoded(body: str) -> dict[str, Any] | None:
    try:
        fields = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def _plain(name: str) -> str:
    """A name without what would change how a log reads: line ends, escapes, reversed writing."""
    return "".join(each for each in " ".join(name.split()) if each.isprintable())[:60]


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


async def host_identity(auth: HostAuth, connection: Request) -> Identity | None:
    """Ask the host application; what it returns must be an identity, or (actor, role), or None."""
    found = auth(connection)
    if inspect.isawaitable(found):
        found = await found
    if found is None or isinstance(found, Identity):
        return found
    try:
        actor, role = found
        return Identity(str(actor), Role(role))
    except (TypeError, ValueError):
        roles = " or ".join(repr(str(role)) for role in Role)
        raise InvalidInput(
            f"auth must return None or (actor, role) with a role of {roles}, "
            f"got a {type(found).__name__}"
        ) from None
