"""Takes secrets out of texts that are about to be stored or shown: errors and tracebacks. Pure.

It knows shapes, not values: what looks like a credential goes, whoever it belongs to. A secret
without any such shape stays, so an exception's text is still no place for one.
"""

from __future__ import annotations

import re

MASK = "***"

_NAMES = (
    r"pass(?:word|wd|phrase)?|pwd|secret(?:[_-]?key)?|client[_-]?secret|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|(?:auth|access|refresh|id|session|bearer|csrf)[_-]?token|token|credentials?"
)
_CAMEL = r"(?-i:(?<=[a-z])(?:Password|Passphrase|Secret|ApiKey|AccessKey|PrivateKey|Token))"
_QUOTE = r"(?:[bru]{0,2}\\{0,3}['\"])"
"""Of a text, of bytes, or in JSON that is a text in JSON."""
_VALUE = (
    r"(?:[bru]{0,2}'(?:[^'\\\r\n]|\\.)*'?|[bru]{0,2}\"(?:[^\"\\\r\n]|\\.)*\"?"
    r"|\\{1,3}['\"][^'\"\r\n]*['\"]?|[^\s,;&)\]}'\"]+)"
)

_KEY = re.compile(
    r"-----BEGIN ([A-Z0-9 ]{0,40}PRIVATE KEY)-----(?:.{0,8000}?-----END \1-----|.{0,8000})", re.S
)

# Every repetition has a bound: a text that was made to be slow to read is an attack of its own.
# The words before a pattern, in small letters, say which lines are worth trying.
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


def redact(text: str) -> str:
    """The text with every credential that it shows replaced by ***."""
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
