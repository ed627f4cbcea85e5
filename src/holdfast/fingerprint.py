"""A mark that errors of one kind share, so that failures can be grouped. Pure."""

from __future__ import annotations

import re
from hashlib import blake2b

_BYTES = 6
"""Two of ten thousand kinds of errors share a mark with a chance of 1 in 5 million."""

_LONGEST_MESSAGE = 400
"""Characters. Errors differ near the beginning, and a long message is slow to read."""

# Values that differ between two failures of one kind. Quoted values come first, because they may
# contain the others.
_VARYING = re.compile(
    r"'[^'\n]*'|\"[^\"\n]*\""
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b0x[0-9a-f]+\b|\b(?=[a-f]*[0-9])[0-9a-f]{8,}\b|\d+",
    re.IGNORECASE,
)
_FRAME = re.compile(r'^  File "([^"\n]*)", line \d+, in (.+)$', re.MULTILINE)


def fingerprint(message: str, traceback: str | None = None) -> str:
    """Return the mark of an error: of its message without the values in it, and of the innermost
    function of its traceback. Line numbers are left out, so a new release keeps the mark."""
    plain = _VARYING.sub("#", message[:_LONGEST_MESSAGE])
    place = _innermost(traceback) if traceback else ""
    return blake2b(f"{plain}\n{place}".encode("utf-8", "replace"), digest_size=_BYTES).hexdigest()


def _innermost(traceback: str) -> str:
    frames = _FRAME.findall(traceback)
    if not frames:
        return ""
    path, function = frames[-1]
    file = re.split(r"[/\\]", path)[-1]
    return f"{file} {function}"
