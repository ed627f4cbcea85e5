"""Reads values that people type: durations, instants, headers, payloads."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from holdfast.errors import InvalidInput
from holdfast.models import JobId

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")
_STDIN = "-"


def parse_duration(text: str, option: str) -> timedelta:
    """`500ms`, `30s`, `5m`, `1h30m`, `2d`, `1w`; a bare number is seconds."""
    words = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", words):
        words += "s"
    parts = _PART.findall(words)
    try:
        if not parts or _PART.sub("", words):
            raise ValueError
        return sum((float(amount) * _UNITS[unit] for amount, unit in parts), timedelta(0))
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{option} {text!r} is not a duration; write 500ms, 30s, 5m, 1h30m or 2d"
        ) from None


def parse_id(text: str) -> JobId:
    """A job id as it is typed; the range is checked where all ids are."""
    if not re.fullmatch(r"[0-9]{1,19}", text.strip()):
        raise InvalidInput(f"job id {text!r} is not an integer; `holdfast failed` lists ids")
    return JobId(int(text))


def parse_instant(text: str, option: str) -> datetime:
    """ISO 8601 with its offset: an instant without one would mean another moment elsewhere."""
    example = "2030-01-31T09:00:00Z"
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(f"{option} {text!r} is not an ISO time; write {example}") from None
    if instant.utcoffset() is None:
        raise InvalidInput(
            f"{option} {text!r} has no time zone; write {example} or {example[:-1]}+01:00"
        )
    return instant


def parse_headers(pairs: Sequence[str]) -> dict[str, str] | None:
    """`--header key=value`, any number of times."""
    headers: dict[str, str] = {}
    for pair in pairs:
        key, mark, value = pair.partition("=")
        if not mark or not key:
            raise InvalidInput(f"--header {pair!r} is not key=value; write --header tenant=7")
        headers[key] = value
    return headers or None


def read_payload(argument: str | None, file: Path | None) -> bytes | None:
    """From the argument, from a file, or from standard input where either is `-`."""
    if argument is not None and file is not None:
        raise InvalidInput("PAYLOAD and --payload-file are two payloads; pass one of them")
    if is_stdin(argument, file):
        return sys.stdin.buffer.read()
    if file is not None:
        try:
            return file.read_bytes()
        except OSError as error:
            reason = error.strerror or error
            raise InvalidInput(f"--payload-file {str(file)!r} cannot be read: {reason}") from None
    # Bytes that are no UTF-8 came through the command line as surrogates.
    return None if argument is None else os.fsencode(argument)


def is_stdin(argument: str | None, file: Path | None) -> bool:
    return argument == _STDIN or (file is not None and str(file) == _STDIN)
