"""Payloads as people may see them: secret fields are masked for all, values for viewers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from holdfast.errors import InvalidInput
from holdfast.models import Job
from holdfast.redact import REDACTED_HEADER, masked, redact, values_of
from holdfast.web.auth import Identity

MASK = "[redacted]"
_UNREADABLE = "It is too large, or nested too deeply, to find what must be masked."
_LONGEST = 64 * 1024
"""Characters of a payload that a page shows."""
_HEX_BYTES = 512
_INDENTED = 1024
"""Bytes in which a payload of JSON begins."""

FIELDS = (
    *("password", "passwd", "passphrase", "secret", "token", "authorization", "cookie"),
    *("api_key", "apikey", "access_key", "private_key", "credential", "credentials"),
    *("card", "card_number", "cvc", "cvv", "iban", "ssn", "pin"),
)
"""Names of fields that are masked wherever they stand."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A payload or headers, ready to be shown."""

    kind: str
    """json, text or hex; empty where there is nothing."""
    html: Markup
    size: int
    masked: bool
    cut: bool = False
    choice: bool = False
    """Whether it is shown as text or in hex, as one asks."""


class Redaction:
    """Which fields are hidden from every role, and what a viewer sees."""

    def __init__(self, fields: Iterable[str] = (), *, viewers_see_values: bool = False) -> None:
        names = {*FIELDS, *fields}
        self._hidden = re.compile(
            "|".join(rf"(?:.*[_\W])?{re.escape(_plain(name))}" for name in sorted(names)), re.I
        )
        self._in_text = values_of(_plain(name) for name in names)
        self._viewers_see_values = viewers_see_values

    def hides(self, name: str) -> bool:
        return self._hidden.fullmatch(_plain(name)) is not None

    def payload(self, job: Job, who: Identity, form: str = "") -> Shown:
        """`form` is json, text or hex; by default the first that fits."""
        data = job.payload
        if data is None:
            return Shown("", Markup(""), 0, masked=False)
        sees = who.acts or self._viewers_see_values
        try:
            found = _parsed(data)
            if found is not None:
                value, hidden = self._without_secrets(found[0], job, sees)
                # As text a masked field would be in plain sight, so the text is that of the mask.
                return Shown("json", _pretty(value), len(data), hidden)
            text = self._text(data, job) if sees else None
        except _Unreadable:
            return Shown("json", escape(_UNREADABLE), len(data), masked=True)
        if not sees:
            kind = "hex" if form == "hex" or _text(data) is None else "text"
            return Shown(kind, escape(MASK), len(data), masked=True)
        if text is not None and form != "hex":
            hidden = text != _text(data)
            cut = len(text) > _LONGEST
            return Shown("text", escape(text[:_LONGEST]), len(data), hidden, cut, choice=True)
        # A dump of the bytes themselves would show what the text masks.
        shown = data if text is None else text.encode()
        dump = _dump(shown[:_HEX_BYTES])
        cut = len(shown) > _HEX_BYTES
        return Shown("hex", escape(dump), len(data), shown != data, cut, choice=text is not None)

    def _text(self, data: bytes, job: Job) -> str | None:
        """Text without what looks like a secret; None where the bytes are no text."""
        text = _text(data)
        if text is None:
            return None
        if (job.headers or {}).get(REDACTED_HEADER):
            # What the task marked as secret cannot be found in what is not JSON.
            return MASK
        return self._in_text.sub(rf"\1{MASK}", redact(text))

    def result(self, text: str, who: Identity) -> Shown:
        """What a job returned, as JSON."""
        size = len(text.encode())
        try:
            found = json.loads(text)
            value, hidden = self._mask(found, who.acts or self._viewers_see_values)
            return Shown("json", _pretty(value), size, hidden, len(text) > _LONGEST)
        except RecursionError:
            return Shown("json", escape(_UNREADABLE), size, masked=True)

    def headers(
        self, found: Mapping[str, Any] | None, who: Identity
    ) -> list[tuple[str, str, bool]]:
        """Name, text and whether the text is a mask."""
        value, _ = self._mask(dict(found or {}), who.acts or self._viewers_see_values)
        return [
            (name, each if isinstance(each, str) else json.dumps(each), each == MASK)
            for name, each in value.items()
        ]

    def editable(self, job: Job) -> str | None:
        """The payload as an operator edits it, masked fields as masks.

        None for what is no text, and for text whose secrets could not be put back.
        """
        data = job.payload
        if data is None:
            return ""
        try:
            found = _parsed(data)
            if found is not None:
                value, hidden = self._without_secrets(found[0], job, sees=True)
                return _json(value, indent=2) if hidden else _text(data)
            text = _text(data)
            return text if text == self._text(data, job) else None
        except _Unreadable:
            return None

    def restored(self, text: str, before: bytes | None) -> bytes:
        """What an operator sent, with the value of before in place of each mask."""
        if MASK not in text or before is None:
            return text.encode()
        try:
            found, new = _parsed(before), _parsed(text.encode())
            if found is not None and new is not None:
                return _json(_restore(new[0], found[0])).encode()
        except (_Unreadable, RecursionError):
            pass
        raise InvalidInput(
            f"the payload holds {MASK} but is not JSON any more; the masked values cannot be "
            f"put back, so write the whole payload"
        )

    def _without_secrets(self, value: Any, job: Job, sees: bool) -> tuple[Any, bool]:
        """Mask what the job's task marked as secret, and what is hidden by its name or for viewers.

        Return whether anything was masked as well.
        """
        shown = value
        try:
            for path in (job.headers or {}).get(REDACTED_HEADER) or ():
                shown = masked(shown, [str(step) for step in path], MASK)
            shown, hidden = self._mask(shown, sees)
            return shown, hidden or shown != value
        except (RecursionError, TypeError):
            raise _Unreadable from None

    def _mask(self, value: Any, sees: bool) -> tuple[Any, bool]:
        match value:
            case dict():
                pairs = {
                    name: (MASK, True) if self.hides(str(name)) else self._mask(each, sees)
                    for name, each in value.items()
                }
                return {name: each for name, (each, _) in pairs.items()}, any(
                    masked for _, masked in pairs.values()
                )
            case list():
                items = [self._mask(each, sees) for each in value]
                return [each for each, _ in items], any(masked for _, masked in items)
            case None | bool():
                return value, False
            case str() if sees:
                clean = redact(value)
                return clean, clean != value
            case _:
                return (value, False) if sees else (MASK, True)


def _plain(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()


def _restore(new: Any, before: Any, path: str = "payload") -> Any:
    if new == MASK:
        if before is None:
            raise InvalidInput(f"{path} is {MASK}, but there was no value before; write one")
        return before
    if isinstance(new, dict):
        old = before if isinstance(before, dict) else {}
        return {name: _restore(each, old.get(name), f"{path}.{name}") for name, each in new.items()}
    if isinstance(new, list):
        items = (
            before if isinstance(before, list) and len(before) == len(new) else [None] * len(new)
        )
        return [_restore(each, items[n], f"{path}[{n}]") for n, each in enumerate(new)]
    return new


class _Unreadable(Exception):
    """What looks like JSON and cannot be searched for what must be masked."""


def _parsed(data: bytes) -> tuple[Any] | None:
    """A JSON object or list, in a tuple of one; None for what is neither."""
    if data[:_INDENTED].lstrip(b" \t\r\n")[:1] not in (b"{", b"["):
        return None
    if len(data) > 4 * _LONGEST:
        raise _Unreadable
    try:
        found = json.loads(data)
        # Whoever shows it goes through it by recursion as well.
        json.dumps(found, indent=0)
    except ValueError:
        return None
    except RecursionError:
        raise _Unreadable from None
    return (found,)


def _json(value: Any, indent: int | None = None) -> str:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, which no encoding has: as an escape, as it came.
        return json.dumps(value, indent=indent)
    return text


def _text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if re.search(r"[\x00-\x08\x0e-\x1f]", text) else text


_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|([^"]+)')


def _pretty(value: Any) -> Markup:
    text = _json(value, indent=2)[:_LONGEST]
    out: list[Markup] = []
    for match in _TOKEN.finditer(text):
        string, colon, rest = match.groups()
        if string is None:
            out.append(escape(rest))
        elif string == f'"{MASK}"':
            out.append(Markup('<span class="redacted">redacted</span>'))
        elif colon:
            out.append(Markup('<span class="k">{}</span>{}').format(string, colon))
        else:
            out.append(escape(string))
    return Markup("").join(out)


def _dump(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), 16):
        some = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        lines.append(f"{start:06x}  {some.hex(' '):47}  {text}")
    return "\n".join(lines)
