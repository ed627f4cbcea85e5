"""Turns a failure into an Outcome, and its text into text that every database can store. Pure."""

from __future__ import annotations

import re
import traceback
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import HoldfastError, InvalidPayload, RetryRequested
from holdfast.models import Failed, Held, Job, OnFailure, Outcome, Retried, TracebackRecord
from holdfast.redact import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MESSAGE_LIMIT = 2_000
TRACEBACK_LIMIT = 32_000
LONGEST_DELAY = timedelta(days=36_525)
"""A century. Beyond the year 9999 an instant could be stored but not be read back."""

_READ = 4
"""Credentials are looked for in this many times the length of the text that is kept."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class Rules(Protocol):
    """The options of an entrypoint that decide about a failure."""

    @property
    def name(self) -> str: ...
    @property
    def on_failure(self) -> OnFailure: ...


class RemoteError(HoldfastError):
    """A handler raised in another process: its exception as text, for no object came back."""

    def __init__(self, exception_type: str, exception_message: str, traceback: str) -> None:
        self.exception_type = exception_type
        self.exception_message = exception_message
        self.traceback = traceback
        super().__init__(f"{exception_type}: {exception_message}")
        self.add_note(f"\nIn the handler's process:\n{traceback}")


def sanitise(text: str, limit: int) -> str:
    """Text that PostgreSQL can store, of at most `limit` characters: head and tail are kept.

    Credentials are masked first: cut in two, one would no longer look like one.
    """
    text = str.__str__(text)
    size, read = len(text), limit * _READ
    # A very long text is read at its ends alone.
    head, tail = redact(text[:read]), redact(text[-read:]) if size > read else ""
    if size > read or len(head) > limit:
        text = _shorten(head, tail or head, max(size, len(head)), limit)
    else:
        text = head
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\0", "\N{SYMBOL FOR NULL}"))


def message_of(error: BaseException) -> str:
    """Return `str(error)`, also when that raises."""
    if isinstance(error, RemoteError):
        return sanitise(error.exception_message, MESSAGE_LIMIT)
    unprintable = f"<unprintable {_type_name(error)}>"
    return sanitise(_guarded(lambda: str(error), unprintable), MESSAGE_LIMIT)


def requested(error: BaseException) -> RetryRequested | None:
    """The request for a retry in what a handler raised, or None.

    A group, as an asyncio.TaskGroup raises it, asks for a retry if any exception in it does: a
    retry loses nothing, and a cap ends it. Of several requests the one with the longest delay
    counts.
    """
    if isinstance(error, RetryRequested):
        return error
    if not isinstance(error, ExceptionGroup):
        return None
    requests = [each for each in leaves(error) if isinstance(each, RetryRequested)]
    return max(requests, key=delay_of, default=None)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group and in the groups within it, or the exception itself."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for each in error.exceptions:
        yield from leaves(each)


def blamed(error: BaseException) -> BaseException:
    """Return the exception that a failure or a retry is named after.

    For a request for a retry it is the exception that it was raised from, if there is one. For a
    group with such a request it is the first exception that is none.
    """
    request = requested(error)
    if request is None:
        return error
    others = (each for each in leaves(error) if not isinstance(each, RetryRequested))
    return next(others, request.__cause__ or request)


def describe(error: BaseException, *, context: Mapping[str, Any] | None = None) -> TracebackRecord:
    """The exception as it is logged. Frames come without their locals. It never raises.

    A RetryRequested that was raised `from` another exception goes by that one's type and message,
    which say more; the traceback shows both.
    """
    cause = blamed(error)
    return TracebackRecord(
        exception_type=_type_name(cause),
        exception_message=message_of(cause),
        traceback=sanitise(_traceback(error), TRACEBACK_LIMIT),
        additional_context=None if context is None else _clean(context),
    )


def outcome_of(error: BaseException, job: Job, entrypoint: Rules) -> Outcome:
    """Return the outcome of a job whose handler raised `error`, an Exception or not.

    Only RetryRequested means another run, alone or in a group. A retry's `reason` is the
    RetryRequested's own, also where the log names the exception behind it (see `describe`).
    """
    context: dict[str, Any] = {"entrypoint": entrypoint.name, "attempt": job.attempts}
    if request := requested(error):
        return _retried(request, error, job, context)
    record = replace(describe(error, context=context), job_id=job.id)
    if entrypoint.on_failure == "hold" or isinstance(error, InvalidPayload):
        return Held(_headline(record), record)
    return Failed(_headline(record), record)


def _retried(
    request: RetryRequested, error: BaseException, job: Job, context: dict[str, Any]
) -> Retried:
    delay, reason = delay_of(request), reason_of(request)
    context |= {"retry_delay": str(delay), "reason": reason}
    record = replace(describe(error, context=context), job_id=job.id)
    if record.exception_type == RetryRequested.__name__:
        return Retried(delay, record.exception_message or "retry requested", record, reason)
    return Retried(delay, _headline(record), record, reason)


def delay_of(error: RetryRequested) -> timedelta:
    """Return the delay in a form that can be added to the clock. A subclass may have skipped our
    __init__, and then there is no delay."""
    delay = getattr(error, "delay", None)
    if not isinstance(delay, timedelta):
        return timedelta(0)
    # Other libraries subclass timedelta; a driver or a pickle should not meet theirs.
    exact = timedelta(delay.days, delay.seconds, delay.microseconds)
    return min(max(exact, timedelta(0)), LONGEST_DELAY)


def reason_of(error: RetryRequested) -> str | None:
    """Return the reason in a form that can be stored."""
    reason = getattr(error, "reason", None)
    if reason is None:
        return None
    return sanitise(_guarded(lambda: str(reason), "<unprintable reason>"), MESSAGE_LIMIT)


def _headline(record: TracebackRecord) -> str:
    message = record.exception_message
    text = f"{record.exception_type}: {message}" if message else record.exception_type
    return sanitise(text, MESSAGE_LIMIT)


def _type_name(error: BaseException) -> str:
    if isinstance(error, RemoteError):
        return sanitise(error.exception_type, MESSAGE_LIMIT)
    return sanitise(_guarded(lambda: type(error).__name__, "unnamed exception"), MESSAGE_LIMIT)


def _traceback(error: BaseException) -> str:
    if isinstance(error, RemoteError):
        return error.traceback
    return _guarded(
        lambda: "".join(traceback.format_exception(error)),
        f"{_type_name(error)}: {message_of(error)}\n",
    )


def _clean(context: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: sanitise(value, MESSAGE_LIMIT) if isinstance(value, str) else value
        for key, value in context.items()
    }


def _shorten(head: str, tail: str, size: int, limit: int) -> str:
    room = limit - len(_cut_note(size))
    if room <= 0:
        return head[:limit]
    first, last = room - room // 2, room // 2
    return head[:first] + _cut_note(size - room) + tail[len(tail) - last :]


def _cut_note(count: int) -> str:
    return f"\n… {count} characters cut …\n"


def _guarded(render: Callable[[], object], fallback: str) -> str:
    """A handler's own classes run here. Their errors must not keep its job from its next state."""
    try:
        text = render()
    except BaseException:
        return fallback
    return text if isinstance(text, str) else fallback
