"""Where a DSN points to: in words for messages (never a password), in parts for a client."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from holdfast.errors import InvalidInput
from holdfast.redact import MASK, redact

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_PASSWORD = re.compile(r"://[^\s/?#@]*:\S*@|(?:^|[\s?&])password\s*=", re.IGNORECASE)
_SECRETS = ("password", "sslpassword")
_SHORTEST_SECRET = 4
"""Characters. To mask shorter words would leave no message legible."""
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_SCHEMES = ("postgresql", "postgres")
_POOLER, _ATTRIBUTES = "pgbouncer", "target_session_attrs"
_PAIR = re.compile(r"\s*(\w+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:[^\s'\\]|\\.)*))(?=\s|$)")
# libpq reads these itself. asyncpg would send them to the server, which refuses the connection.
_LIBPQ_ONLY = {
    *("application_name", "channel_binding", "client_encoding", "connect_timeout"),
    *(
        "fallback_application_name",
        "gssencmode",
        "load_balance_hosts",
        "requirepeer",
        "sslcompression",
    ),
    *(
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "sslsni",
        "tcp_user_timeout",
    ),
}


@dataclass(frozen=True, slots=True)
class Target:
    """The servers of a DSN; its text is fit for messages and logs."""

    dsn: str = field(repr=False)
    hosts: tuple[str, ...]
    ports: tuple[int | None, ...]
    database: str
    given: frozenset[str] = frozenset()
    """The options that it names."""
    pooled: bool = False
    """It says itself, with pgbouncer=true, that there is a pooler in between."""

    def hide(self, text: str) -> str:
        """Mask the passwords of the DSN, and their parts, in a message of a client library."""
        parts = urlsplit(self.dsn)
        options = parse_qsl(parts.query)
        found = [parts.netloc.rpartition("@")[0].partition(":")[2]]
        found += [value for name, value in options if name in _SECRETS]
        words = {word for secret in found for word in _words_of(secret)}
        for word in sorted(words, key=len, reverse=True):
            text = text.replace(word, MASK)
        return redact(text)

    def __str__(self) -> str:
        places = (
            f"{host or 'the default host'}{'' if port is None else f':{port}'}"
            for host, port in zip(self.hosts, self.ports, strict=True)
        )
        return f"{', '.join(places)}, database {self.database or 'of the user name'}"


def _words_of(secret: str) -> list[str]:
    """The secret as it is written and as it is meant, and what a client may cut out of either."""
    whole = [secret, unquote(secret)]
    cut = [part for text in whole for part in re.split(r"[@:/?#,\s]+", text)]
    return [word for word in (*whole, *cut) if len(word) >= _SHORTEST_SECRET]


def shows_password(dsn: str) -> bool:
    """Whether whoever sees the text sees a password."""
    return _PASSWORD.search(dsn) is not None


def parse(dsn: str) -> Target:
    """Read `postgresql://…` or libpq's `host=… dbname=…`, of one host or several."""
    # A password of the keyword form may hold what looks like the mark of a URL.
    if found := _SCHEME.match(dsn):
        return _parse_url(dsn, found[1])
    # Keyword form becomes a URL, the only one that every client understands.
    query = urlencode(_pairs(dsn), quote_via=quote)
    return _parse_url(f"postgresql:///?{query}", "postgresql")


def _parse_url(dsn: str, scheme: str) -> Target:
    if scheme not in _SCHEMES:
        raise InvalidInput(
            f"dsn has the scheme {scheme!r}; write postgresql://user@host:5432/database"
        )
    try:
        parts = urlsplit(dsn)
        if "@" in parts.path + parts.fragment or (parts.netloc and "@" in parts.query):
            raise ValueError("a password with / ? or # in it has cut the address short")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        places = parts.netloc.rpartition("@")[2] or options.get("host", "")
        hosts, inline = zip(*map(_split_port, unquote(places).split(",")), strict=True)
        ports = tuple(map(_number, options["port"].split(","))) if "port" in options else inline
        ports = ports * len(hosts) if len(ports) == 1 else ports
        if len(ports) != len(hosts):
            raise ValueError("hosts and ports differ in number")
    except ValueError:
        # The text may be a password in the wrong place, so the message quotes nothing of it.
        raise InvalidInput(
            "dsn names hosts or ports that cannot be read; "
            "write postgresql://user@host:5432/database with %-escapes in the password"
        ) from None
    database = unquote(parts.path.removeprefix("/")) or options.get("dbname", "")
    pooled = options.get(_POOLER, "").lower() in ("true", "1", "yes", "on")
    plain = _spelled(parts, several=len(hosts) > 1)
    return Target(plain, hosts, ports, database, frozenset(options), pooled)


def _spelled(parts: SplitResult, *, several: bool) -> str:
    """For the client libraries, which know nothing of poolers.

    Of several servers the one that takes changes is meant, whichever that is now. The other
    options stay as they were written: libpq has its own idea of how to escape a space.
    """
    pairs = [pair for pair in parts.query.split("&") if pair]
    names = [pair.partition("=")[0] for pair in pairs]
    if several and _ATTRIBUTES not in names:
        pairs.append(f"{_ATTRIBUTES}=read-write")
    kept = [pair for pair in pairs if pair.partition("=")[0] != _POOLER]
    # libpq takes the first @ for the end of the password, and would look up the rest as a host.
    user, at, place = parts.netloc.rpartition("@")
    # Not geturl(), which writes "postgresql:/db" where there is no host.
    address = f"{parts.scheme}://{user.replace('@', '%40')}{at}{place}{parts.path}"
    query = f"?{'&'.join(kept)}" if kept else ""
    return f"{address}{query}{'#' if parts.fragment else ''}{parts.fragment}"


def for_asyncpg(target: Target) -> list[dict[str, Any]]:
    """Arguments of `asyncpg.connect`, one set a host.

    asyncpg's connect timeout spans all hosts, so a first one that swallows packets would use it
    up and the second never be tried.
    """
    parts = urlsplit(target.dsn)
    query = [(key, value) for key, value in parse_qsl(parts.query) if key not in _LIBPQ_ONLY]
    dsn = parts._replace(query=urlencode(query)).geturl()
    if len(target.hosts) == 1:
        return [{"dsn": dsn}]
    places = zip(target.hosts, target.ports, strict=True)
    return [{"dsn": dsn, "host": host, "port": port or 5432} for host, port in places]


def _split_port(place: str) -> tuple[str, int | None]:
    if place.startswith(("/", "@")):
        return place, None
    host, _, port = place.rpartition(":") if not place.endswith("]") else (place, "", "")
    return (host, _number(port)) if host else (place, None)


def _number(port: str) -> int | None:
    return int(port) if port else None


def _pairs(dsn: str) -> dict[str, str]:
    found: dict[str, str] = {}
    position, text = 0, dsn.strip()
    while position < len(text):
        if (pair := _PAIR.match(text, position)) is None:
            raise InvalidInput(
                "dsn is neither a URL nor 'key=value' pairs; "
                "write postgresql://user@host:5432/database or host=… dbname=…"
            )
        quoted, plain = pair.group(2), pair.group(3)
        found[pair.group(1)] = re.sub(r"\\(.)", r"\1", plain if quoted is None else quoted)
        position = pair.end()
    return found
