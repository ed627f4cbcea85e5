"""Masks secrets in text that is about to be stored or shown: errors and tracebacks. Pure.

It knows shapes, not values: anything that looks like a credential is masked. A secret without any
such shape stays, so an exception's text is still no place for one.
"""

from __future__ import annotations

import json
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MASK = "***"

REDACTED_HEADER = "holdfast.redacted"
"""A header with the paths of a payload's secrets, each a list of keys; `*` is any key or index."""

ANY_KEY = "*"

SECRET_KEYWORD = "writeOnly"  # noqa: S105 - a word of JSON Schema
"""Marks a value that is written and never shown."""

_LEAST_HIDDEN = 4
"""A shorter secret would mask words that have nothing to do with it."""

_hidden: ContextVar[set[str] | None] = ContextVar("holdfast_hidden", default=None)

_NAMES = (
    r"pass(?:word|wd|phrase)?|pwd|secret(?:[_-]?key)?|client[_-]?secret|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|(?:auth|access|refresh|id|session|bearer|csrf)[_-]?token|token|credentials?"
)
_CAMEL = r"(?-i:(?<=[a-z])(?:Password|Passphrase|Secret|ApiKey|AccessKey|PrivateKey|Token))"
_QUOTE = r"(?:[bru]{0,2}\\{0,3}['\"])"
"""Patterns for text, for bytes, and for JSON inside a JSON string."""
_VALUE = (
    r"(?:[bru]{0,2}'(?:[^'\\\r\n]|\\.)*'?|[bru]{0,2}\"(?:[^\"\\\r\n]|\\.)*\"?"
    r"|\\{1,3}['\"][^'\"\r\n]*['\"]?|[^\s,;&)\]}'\"]+)"
)

_KEY = re.compile(
    r"-----BEGIN ([A-Z0-9 ]{0,40}PRIVATE KEY)-----(?:.{0,8000}?-----END \1-----|.{0,8000})", re.S
)

# Every repetition has a bound, because a text may be made to be slow to read. The words before a
# pattern, in small letters, say which lines are worth trying.
_PATTERNS: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (
        ("://",),
        # A password may hold an @ of its own, so up to the last one before the host.
        re.compile(r"(?<=://)([^\s/?#'\"<>:@]{0,200}):[^\s'\"<>]{0,400}@"),
        rf"\1:{MASK}@",
    ),
    (
        ("authorization",),
        re.compile(
            rf"(?i)\b(authorization(?:{_QUOTE}\s{{0,3}}[:=,]|\s{{0,3}}[:=])\s{{0,3}}{_QUOTE}?)"
            r"[^\r\n'\"]{1,4000}"
        ),
        rf"\1{MASK}",
    ),
    (
        ("cookie",),
        re.compile(
            rf"(?i)\b(cookie(?:{_QUOTE}\s{{0,3}}[:,]|\s{{0,3}}:)\s{{0,3}}{_QUOTE}?)"
            r"[^\r\n'\"]{1,8000}"
        ),
        rf"\1{MASK}",
    ),
    (("bearer",), re.compile(r"(?i)\b(bearer\s{1,3})[\w.~+/=-]{8,4000}"), rf"\1{MASK}"),
    (("eyj",), re.compile(r"\beyJ[\w-]{5,2000}\.[\w-]{5,8000}\.[\w-]{0,2000}"), MASK),
    (("akia", "asia"), re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
    (
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "xox", "sk_live"),
        re.compile(r"\b(?:gh[pousr]_\w{20,255}|xox[abeprs]-[\w-]{10,255}|sk_live_\w{10,255})"),
        MASK,
    ),
    (
        ("pass", "pwd", "secret", "key", "token", "credential"),
        re.compile(
            rf"(?i)((?:(?<![a-z0-9])(?:{_NAMES})|{_CAMEL})\\{{0,3}}['\"]?\s{{0,3}}(?:=>|[:=])\s{{0,3}}){_VALUE}"
        ),
        rf"\1{MASK}",
    ),
)
_HINTS = tuple(hint for hints, _, _ in _PATTERNS for hint in hints)


def values_of(names: Iterable[str]) -> re.Pattern[str]:
    """Matches `name: value` in text, with the names of the caller; group 1 is what may stay."""
    found = "|".join(re.escape(name).replace("_", "[_-]?") for name in sorted(names))
    return re.compile(
        rf"(?i)((?<![a-z0-9])(?:{found})\\{{0,3}}['\"]?\s{{0,3}}(?:=>|[:=])\s{{0,3}}){_VALUE}"
    )


class Redacted:
    """Marks a value of a task that must not be shown: `card: Annotated[str, Redacted]`.

    The handler gets the value. Logs, traces, `holdfast show` and dashboards show ***.
    """

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        return {**handler(schema), SECRET_KEYWORD: True}


def start_hiding() -> set[str]:
    """Return the set of secrets that `redact` masks from now on in the current context."""
    hidden: set[str] = set()
    _hidden.set(hidden)
    return hidden


def values_at(value: Any, path: Sequence[str]) -> Iterable[Any]:
    """The values at a path of parsed JSON."""
    if not path:
        return [value]
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        inner = list(value.values()) if step == ANY_KEY else [value[step]] if step in value else []
    elif isinstance(value, list) and step == ANY_KEY:
        inner = value
    else:
        inner = []
    return [found for each in inner for found in values_at(each, rest)]


def secrets_in(value: Any, paths: Iterable[Sequence[str]]) -> set[str]:
    """Return the secret strings and numbers in parsed JSON that are long enough to search for."""
    found: set[str] = set()
    pending = [each for path in paths for each in values_at(value, path)]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            pending += each.values()
        elif isinstance(each, list):
            pending += each
        elif isinstance(each, str | int | float) and not isinstance(each, bool):
            found.add(str(each))
    return {text for text in found if len(text) >= _LEAST_HIDDEN}


def masked(value: Any, path: Sequence[str], mask: str = MASK) -> Any:
    """Return parsed JSON with the mask in place of the value at the path."""
    if not path:
        return value if value is None else mask
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {
            key: masked(each, rest, mask) if step in (ANY_KEY, key) else each
            for key, each in value.items()
        }
    if isinstance(value, list) and step == ANY_KEY:
        return [masked(each, rest, mask) for each in value]
    return value


def shown_payload(payload: bytes | None, headers: Mapping[str, Any] | None) -> bytes | None:
    """The payload as a person may see it: the secrets that its headers name are masked."""
    paths = (headers or {}).get(REDACTED_HEADER)
    if payload is None or not paths:
        return payload
    try:
        value = json.loads(payload)
        for path in paths:
            value = masked(value, [str(step) for step in path])
    except (ValueError, TypeError, RecursionError):
        return MASK.encode()
    return json.dumps(value, ensure_ascii=False).encode()


def redact(text: str) -> str:
    """The text with every credential that it shows replaced by ***."""
    # The longest first: one secret may be a part of another.
    for secret in sorted(_hidden.get() or (), key=len, reverse=True):
        text = text.replace(secret, MASK)
    if "PRIVATE KEY" in text:
        text = _KEY.sub(MASK, text)
    if not _hinted(text.lower(), _HINTS):
        return text
    return "".join(map(_line, text.splitlines(keepends=True)))


def _line(line: str) -> str:
    lowered = line.lower()
    for hints, pattern, replacement in _PATTERNS:
        if _hinted(lowered, hints):
            line = pattern.sub(replacement, line)
    return line


def _hinted(lowered: str, hints: tuple[str, ...]) -> bool:
    return any(hint in lowered for hint in hints)
