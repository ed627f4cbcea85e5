"""Reads the form of a request, within bounds that keep the page free for others."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl

from starlette.requests import Request

_MOST_BYTES = 2 * 1024 * 1024
_MOST_OF_A_STRANGER = 64 * 1024
"""Who is not signed in sends a token and a name."""
_MOST_FIELDS = 20_000
_SECONDS = 30.0
"""For a form to arrive."""


class FormTooLarge(Exception):
    """A form has more bytes or fields than any of ours."""


async def read_form(request: Request, *, known: bool) -> dict[str, str]:
    """Return the fields of a form; those of one name as lines of one value.

    Raise TimeoutError where it comes too slowly.
    """
    most = _MOST_BYTES if known else _MOST_OF_A_STRANGER
    body = bytearray()
    async with asyncio.timeout(_SECONDS):
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise FormTooLarge
    try:
        text = body.decode("utf-8")
    except ValueError:
        return {}
    if text.count("&") >= _MOST_FIELDS:
        raise FormTooLarge
    fields: dict[str, list[str]] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        fields.setdefault(name, []).append(value)
    return {name: "\n".join(values) for name, values in fields.items()}
