"""Values as people read them: numbers, times, states. All times are in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from holdfast.lifecycle import SPOKEN, Status
from holdfast.models import LogEntry
from holdfast.shell import shell_word

NOTHING = "\u2013"
"""A dash, where there is no value."""

CAP = 10_000
"""Counts end here; what is more is estimated or says so."""

_LONGEST_NAME = 24
_LONGEST_ERROR = 300
"""Characters of an error in a sentence. The whole of it stands elsewhere on the page."""

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def number(value: float) -> str:
    return f"{round(value):,}"


def about(value: int, cap: int = CAP) -> str:
    """A count that was cut off at a cap, or estimated above it."""
    if value <= cap:
        return f"{value:,}"
    return f"about {rounded(value):,}"


def rounded(value: int) -> int:
    """An estimate, to the three digits that it may have."""
    return value if value <= CAP else round(value, 3 - len(str(value)))


def cut(name: str, longest: int = _LONGEST_NAME) -> str:
    """A name as a sentence can hold it."""
    return name if len(name) <= longest else f"{name[: longest - 1].rstrip()}…"


def cut_error(text: str) -> str:
    return cut(text, _LONGEST_ERROR)


def stopped(text: str) -> str:
    """A sentence with its full stop."""
    return text if text.endswith(("…", ".")) else f"{text}."


def compact(value: int) -> str:
    """A figure with room for seven characters: 57,300, 1.02 M."""
    for unit, name in ((1_000_000_000, "G"), (1_000_000, "M")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:,}"


def capped(value: int, cap: int = CAP) -> str:
    return f"{value:,}" if value <= cap else f"{cap:,}+"


def span(value: timedelta | float | None) -> str:
    """A length of time with its unit: 340 ms, 8 s, 4 min, 2 h, 3 d."""
    if value is None:
        return NOTHING
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    seconds = abs(seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds // _MINUTE:.0f} min"
    if seconds < 2 * _DAY:
        return f"{seconds // _HOUR:.0f} h"
    return f"{seconds // _DAY:,.0f} d"


def coarse(value: timedelta | float) -> str:
    """As `span`, in whole seconds."""
    seconds = abs(value.total_seconds() if isinstance(value, timedelta) else value)
    return span(float(int(seconds))) if seconds >= 1 else "0 s"


def size(count: int) -> str:
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return (
                f"{value:.0f} {unit}" if unit == "bytes" or value >= 10 else f"{value:.1f} {unit}"
            )
        value /= 1000
    return f"{value:.1f} TB"


def full(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"


def clock(at: datetime, now: datetime) -> str:
    """The time of day, with the date if it is another day's."""
    here = at.astimezone(UTC)
    if here.date() == now.astimezone(UTC).date():
        return f"{here:%H:%M:%S}"
    return (
        f"{here.day} {here:%b, %H:%M}"
        if abs(now - at) < timedelta(days=300)
        else f"{here:%Y-%m-%d}"
    )


def relative(at: datetime, now: datetime) -> str:
    away = at - now
    if away > timedelta(0):
        return f"in {coarse(away)}"
    return f"{coarse(away)} ago"


def _time(at: datetime, text: str, kind: str) -> Markup:
    moment = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{}"{}>{}</time>').format(
        moment, full(at), Markup(' data-time="{}"').format(kind) if kind else "", text
    )


@pass_context
def ago(context: Context, at: datetime | None) -> Markup | str:
    """An instant as the time from now, which ticks; the instant itself on hover."""
    return NOTHING if at is None else _time(at, relative(at, context["now"]), "ago")


@pass_context
def since(context: Context, at: datetime | None) -> Markup | str:
    """The same without `ago`, for a column that says so."""
    return NOTHING if at is None else _time(at, coarse(context["now"] - at), "since")


@pass_context
def at(context: Context, moment: datetime | None) -> Markup | str:
    """An instant as the time of day; the date on hover."""
    return NOTHING if moment is None else _time(moment, clock(moment, context["now"]), "")


def shape(status: Status) -> str:
    """The name of a state's shape and colour."""
    return "held" if status is Status.FAILED else str(status)


def word(status: Status) -> str:
    return SPOKEN[status]


def said(status: Status) -> str:
    """What the source documents call a state, where people read another word."""
    return "" if SPOKEN[status] == status else f"status {status}"


_RECOVERED = ("lease_expired", "outage")


def outcome(entry: LogEntry) -> tuple[str, str]:
    """The shape and the verb of a log row: how a lease ended, or what a person did."""
    if entry.status is Status.FAILED:
        return ("edit", "edited") if entry.actor else ("held", "held")
    if entry.status is not Status.QUEUED:
        return shape(entry.status), SPOKEN[entry.status]
    if entry.actor:
        return "release", "queued again"
    if entry.reason in _RECOVERED:
        return "recover", "recovered"
    if entry.traceback is not None:
        return "retry", "retried"
    return "release", "released"


def error_line(entry: LogEntry) -> str:
    """The exception of a log row in one line; else its reason."""
    record: Mapping[str, Any] = entry.traceback or {}
    told = (record.get("exception_type"), record.get("exception_message"))
    return ": ".join(str(part) for part in told if part) or entry.reason or ""


FILTERS = {
    "number": number,
    "about": about,
    "compact": compact,
    "capped": capped,
    "span": span,
    "size": size,
    "ago": ago,
    "since": since,
    "at": at,
    "full": full,
    "shape": shape,
    "word": word,
    "said": said,
    "outcome": outcome,
    "error_line": error_line,
    "shell": shell_word,
}
