"""What makes two errors the same: their class, and the message without its variable parts."""

from __future__ import annotations

import re

_VARIABLE = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.I), "id"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.I), "address"),
    (re.compile(r"'[^']{1,200}'|\"[^\"]{1,200}\""), "text"),
    (re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64})+\b"), "address"),
    (re.compile(r"\b\d+(?:[.,:]\d+)*"), "n"),
)
_CLASS = re.compile(r"([A-Za-z_][\w.]{0,200}?):\s*(.*)", re.S)
MARK = "\ue000"
"""Surrounds the names of variable parts in a pattern; no error contains it."""


def pattern(message: str) -> str:
    """The message with each variable part replaced by its kind between two marks."""
    text = message.replace(MARK, "").strip().splitlines()[0][:300] if message.strip() else ""
    for kind, name in _VARIABLE:
        text = kind.sub(f"{MARK}{name}{MARK}", text)
    return text


def split(error: str | None) -> tuple[str, str]:
    """The class of an error as `last_error` has it, and its message."""
    if not error:
        return "", ""
    match = _CLASS.match(error)
    if match is None:
        return error.splitlines()[0][:200], ""
    return match[1].rpartition(".")[2], match[2]
