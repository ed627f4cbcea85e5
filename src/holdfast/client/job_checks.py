"""Checks jobs before they are enqueued, so that a store only sees jobs that can be stored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import repeat
from typing import Any

from holdfast.checks import INT4_LIMIT, INT8_LIMIT, integer_fault, is_integer, unstorable_fault
from holdfast.errors import InvalidInput
from holdfast.models import JobId, NewJob

_LISTS = (list, tuple)
_SCALARS = frozenset({type(None), str, bytes, int, dict, timedelta, datetime})
_LONGEST_KEY = 2000
_LONGEST_NAME = 200
_FARTHEST = timedelta(days=365 * 1000)
_LONG_AGO = timedelta(days=365 * 100)
"""A delay may be negative: the job is due at once, and goes before those that became due later."""
_FIRST = datetime(2, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 1, 1, tzinfo=UTC)
_MOST_HEADERS = 64 * 1024
# Far below what a server or a client can parse, which differ.
_DEEPEST = 100
_UNSTORABLE_JSON = re.compile(r"(?<!\\)(?:\\\\)*\\u0000|[\ud800-\udfff]")


def new_jobs(**columns: Any) -> list[NewJob]:
    """One job from scalars, or one for each place of parallel lists; scalars are repeated."""
    # Most calls are of one job, and this is the quickest way to know.
    if _SCALARS.issuperset(map(type, columns.values())):
        return [NewJob(**columns)]
    lengths = {name: len(value) for name, value in columns.items() if isinstance(value, _LISTS)}
    if not lengths:
        return [NewJob(**columns)]
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise InvalidInput(f"parallel lists must have one length, got {found}")
    spread = [value if name in lengths else repeat(value) for name, value in columns.items()]
    return [NewJob(**dict(zip(columns, row, strict=True))) for row in zip(*spread, strict=False)]


def check_jobs(jobs: Iterable[NewJob], max_payload: int) -> list[NewJob]:
    """The jobs, or InvalidInput naming the first that can never be stored."""
    if isinstance(jobs, NewJob) or not isinstance(jobs, Iterable):
        raise InvalidInput(f"jobs must be a list of NewJob, got {_kind(jobs)}; write [NewJob(…)]")
    found = list(jobs)
    for place, job in enumerate(found):
        fault = _fault(job, max_payload)
        if fault:
            where = f"job {place} of {len(found)}: " if len(found) > 1 else ""
            raise InvalidInput(where + fault)
    return found


def check_keys_differ(jobs: Iterable[NewJob]) -> None:
    """InvalidInput where two of the jobs have one dedupe key."""
    seen: set[str] = set()
    for key in (job.dedupe_key for job in jobs if job.dedupe_key is not None):
        if key in seen:
            raise InvalidInput(
                f'dedupe_key {key!r} is there twice; on_conflict="update_priority" takes each key '
                f"at most once in a call"
            )
        seen.add(key)


def check_ids(ids: Iterable[JobId]) -> list[JobId]:
    """Return ids as the database can hold them."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InvalidInput(f"ids must be a list of job ids, got {ids!r}; write [{ids!r}]")
    found = list(ids)
    for job_id in found:
        if not is_integer(job_id, 1, INT8_LIMIT - 1):
            raise InvalidInput(f"a job id is an integer of at least 1, got {job_id!r}")
    return found


def check_text(name: str, text: str | None) -> str | None:
    """Return a string that the database can hold, or None."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidInput(f"{name} must be a string or None, got {text!r}")
    if fault := unstorable_fault(f"{name} {text!r}", text):
        raise InvalidInput(fault)
    return text


def check_entrypoint(name: str) -> str:
    """Return a name that a job can have."""
    if fault := _entrypoint_fault(name):
        raise InvalidInput(fault)
    return name


def check_payload(payload: bytes | None, max_payload: int) -> None:
    """InvalidInput unless the payload can be stored."""
    if payload is not None and (fault := _payload_fault(payload, max_payload)):
        raise InvalidInput(fault)


def _fault(job: NewJob, max_payload: int) -> str | None:
    if not isinstance(job, NewJob):
        return f"expected a NewJob, got {_kind(job)}"
    # Each part is checked only where there is one: bulks are large and most parts are empty.
    entrypoint, payload, priority, after, key, headers, attempts, recoveries = job
    return (
        _name_fault(entrypoint)
        or (payload is not None and _payload_fault(payload, max_payload))
        or integer_fault("priority", priority, -INT4_LIMIT)
        or (after is not None and _time_fault(after))
        or (key is not None and _key_fault(key))
        or (headers is not None and _headers_fault(headers))
        or (attempts is not None and integer_fault("max_attempts", attempts, 1))
        or (recoveries is not None and integer_fault("max_recoveries", recoveries, 1))
        or None
    )


def _name_fault(value: object) -> str | None:
    return _known_name_fault(value) if isinstance(value, str) else _entrypoint_fault(value)


def _entrypoint_fault(value: object) -> str | None:
    return _text_fault("entrypoint", value, _LONGEST_NAME)


# A program has few entrypoints and many jobs.
_known_name_fault = lru_cache(maxsize=1024)(_entrypoint_fault)


def _text_fault(name: str, value: object, longest: int) -> str | None:
    if not isinstance(value, str) or not value.strip():
        return f"{name} must be a string that is not blank, got {value!r}"
    if len(value) > longest:
        return f"{name} has {len(value)} characters, more than the {longest} allowed"
    return unstorable_fault(f"{name} {value!r}", value)


def _key_fault(key: object) -> str | None:
    fault = _text_fault("dedupe_key", key, _LONGEST_KEY)
    # An index entry is measured in bytes.
    if fault is None and (size := len(str(key).encode())) > _LONGEST_KEY:
        fault = f"dedupe_key has {size} bytes in UTF-8, more than the {_LONGEST_KEY} allowed"
    return fault


def _payload_fault(payload: object, max_payload: int) -> str | None:
    if not isinstance(payload, bytes):
        return (
            f"payload must be bytes or None, got {type(payload).__name__}; "
            f"encode it, for example json.dumps(value).encode()"
        )
    if len(payload) > max_payload:
        return (
            f"payload has {len(payload)} bytes, more than the {max_payload} allowed; "
            f"store it elsewhere and enqueue a pointer, or raise max_payload"
        )
    return None


def _time_fault(value: object) -> str | None:
    if isinstance(value, timedelta):
        if -_LONG_AGO <= value <= _FARTHEST:
            return None
        return f"execute_after must be a delay from {-_LONG_AGO} to {_FARTHEST}, got {value}"
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            return (
                f"execute_after {value.isoformat()} has no time zone; "
                f"use datetime.now(UTC) or .replace(tzinfo=…)"
            )
        return _range_fault(value)
    return f"execute_after must be a timedelta or an aware datetime, got {value!r}"


def _range_fault(value: datetime) -> str | None:
    # At the very ends a zone leaves the calendar, and asyncpg takes datetime.max for infinity.
    if _FIRST <= value < _LAST:
        return None
    return f"execute_after must lie in the years 2 to 9998 in UTC, got {value.isoformat()}"


def _headers_fault(headers: object) -> str | None:
    if not isinstance(headers, Mapping):
        return f"headers must be a mapping with string keys, got {_kind(headers)}"
    for name in headers:
        if not isinstance(name, str):
            return f"headers must be a mapping with string keys, got the key {name!r}"
    try:
        text = json.dumps(dict(headers), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"headers must be JSON: {error}"
    if _UNSTORABLE_JSON.search(text):
        return "headers hold a NUL or a lone surrogate, which PostgreSQL cannot store"
    if len(text) > _MOST_HEADERS:
        return f"headers have {len(text)} characters, more than the {_MOST_HEADERS} allowed"
    if text.count("[") + text.count("{") > _DEEPEST and _is_deeper(headers, _DEEPEST):
        return f"headers are nested more than {_DEEPEST} levels deep"
    return None


def _is_deeper(value: object, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        inner = [part for part in layer if isinstance(part, (Mapping, *_LISTS))]
        layer = [
            part
            for whole in inner
            for part in (whole.values() if isinstance(whole, Mapping) else whole)
        ]
        if not layer:
            return False
    return any(isinstance(part, (Mapping, *_LISTS)) for part in layer)


def _kind(value: object) -> str:
    """Name the type alone. Values may be secret, and errors are logged."""
    return f"a {type(value).__name__}"
