"""Checks whether a value is an integer, a number or a string that can be stored. A check returns
the fault in words, or None; the caller says where it was found."""

from __future__ import annotations

import re

INT4_LIMIT = 2**31
"""Above every priority and counter: they are integers of four bytes in the database."""
INT8_LIMIT = 2**63

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def integer_fault(
    name: str, value: object, least: int, most: int | None = INT4_LIMIT - 1
) -> str | None:
    """True and False are no integers."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    # Only an integer can be compared with the bounds.
    if whole and least <= value and (most is None or value <= most):  # type: ignore[operator]
        return None
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    return f"{name} must be an integer {bounds}, got {value!r:.80}"


def is_integer(value: object, least: int, most: int | None = None) -> bool:
    return integer_fault("", value, least, most) is None


def unstorable_fault(what: str, text: str) -> str | None:
    if _UNSTORABLE.search(text):
        return f"{what} holds a NUL or a lone surrogate, which PostgreSQL cannot store"
    return None


def faults(*found: str | None) -> list[str]:
    """Return the faults that the checks found."""
    return [fault for fault in found if fault]
