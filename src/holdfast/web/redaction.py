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
from holdfast.redact import REDACTED_HEADER, masked, redact
from holdfast.web.auth import Identity

MASK = "[redacted]"
_LONGEST = 64 * 1024
"""Characters of a payload that a page shows."""
_HEX_BYTES = 512

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


class Redaction:
    """Which fields are hidden from every role, and what a viewer sees."""

    def __init__(self, fields: Iterable[str] = (), *, viewers_see_values: bool = False) -> None:
        names = {*FIELDS, *fields}
        self._hidden = re.compile(
            "|".join(rf"(?:.*[_\W])?{re.escape(_plain(name))}" for name in sorted(names)), re.I
        )
        self._viewers_see_values = viewers_see_values

    def hides(self, name: str) -> bool:
        return self._hidden.fullmatch(_plain(name)) is not None

    def payload(self, job: Job, who: Identity, form: str = "") -> Shown:
        """`form` is json, text or hex; by default the first that fits."""
        data = job.payload
        if data is None:
            return Shown("", Markup(""), 0, masked=False)
        found = _parsed(data)
        sees = who.acts or self._viewers_see_values
        if found is not None:
            value, hidden = self._without_secrets(found[0], job, sees)
            # As text a masked field would be in plain sight, so the text is that of the mask.
            return Shown("json", _pretty(value), len(data), hidden)
        text = _text(data)
        if text is not None and form != "hex":
            words = redact(text) if sees else MASK
            return Shown(
                "text", escape(words[:_LONGEST]), len(data), words != text, len(words) > _LONGEST
            )
        dump = _dump(data[:_HEX_BYTES]) if sees else MASK
        return Shown("hex", escape(dump), len(data), not sees, len(data) > _HEX_BYTES)

    def result(self, text: str, who: Identity) -> Shown:
        """What a job returned, as JSON."""
        found = json.loads(text)
        value, hidden = self._mask(found, who.acts or self._viewers_see_values)
        return Shown("json", _pretty(value), len(text.encode()), hidden, len(text) > _LONGEST)

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
        """The payload as an operator edits it, masked fields as masks; None for what is no text."""
        data = job.payload
        if data is None:
            return ""
        found = _parsed(data)
        if found is not None and isinstance(found[0], dict | list):
            value, hidden = self._without_secrets(found[0], job, sees=True)
            return json.dumps(value, indent=2, ensure_ascii=False) if hidden else _text(data)
        return _text(data)

    def restored(self, text: str, before: bytes | None) -> bytes:
        """What an operator sent, with the value of before in place of each mask."""
        if MASK not in text or before is None:
            return text.encode()
        found, new = _parsed(before), _parsed(text.encode())
        if found is None or new is None:
            raise InvalidInput(
                f"the payload holds {MASK} but is not JSON any more; the masked values cannot be "
                f"put back, so write the whole payload"
            )
        return json.dumps(_restore(new[0], found[0]), ensure_ascii=False).encode()

    def _without_secrets(self, value: Any, job: Job, sees: bool) -> tuple[Any, bool]:
        """Mask what the job's task marked as secret, and what is hidden by its name or for viewers.

        Return whether anything was masked as well.
        """
        shown = value
        for path in (job.headers or {}).get(REDACTED_HEADER) or ():
            shown = masked(shown, [str(step) for step in path], MASK)
        shown, hidden = self._mask(shown, sees)
        return shown, hidden or shown != value

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


def _parsed(data: bytes) -> tuple[Any] | None:
    """JSON in a tuple of one, since null is JSON too."""
    if len(data) > 4 * _LONGEST or data[:1] not in (b"{", b"["):
        return None
    try:
        return (json.loads(data),)
    except (ValueError, RecursionError):
        return None


def _text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if re.search(r"[\x00-\x08\x0e-\x1f]", text) else text


_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|([^"]+)')


def _pretty(value: Any) -> Markup:
    text = json.dumps(value, indent=2, ensure_ascii=False)[:_LONGEST]
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
