"""A failure becomes an outcome whose text every database can store."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import RetryException, RetryRequested
from holdfast.models import Failed, Held, Retried, TracebackRecord
from holdfast.retry import (
    LONGEST_DELAY,
    MESSAGE_LIMIT,
    TRACEBACK_LIMIT,
    RemoteError,
    describe,
    outcome_of,
    sanitise,
)
from tests.unit.running import make_job

if TYPE_CHECKING:
    from holdfast.models import OnFailure

ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.text("\x00\ud800\udfffa\n")


@dataclass(frozen=True)
class Entrypoint:
    name: str = "mail"
    on_failure: OnFailure = "delete"


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """The same exception with a traceback."""
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def is_storable(text: str) -> bool:
    text.encode()
    return "\x00" not in text


@given(ANY_TEXT, st.integers(1, 200))
def test_sanitised_text_can_be_stored_and_keeps_to_its_limit(text: str, limit: int) -> None:
    clean = sanitise(text, limit)
    assert is_storable(clean)
    assert len(clean) <= limit
    assert sanitise(clean, limit) == clean


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
def test_harmless_text_is_not_touched(text: str) -> None:
    assert sanitise(text, len(text) + 1) == text


def test_nul_and_surrogates_stay_visible_in_place() -> None:
    assert sanitise("a\x00b\ud800c", 10) == "a\u2400b\ufffdc"


def test_a_long_text_keeps_head_and_tail_and_says_how_much_was_cut() -> None:
    text = "".join(f"{number:05}" for number in range(10_000))
    short = sanitise(text, 1_000)
    found = re.fullmatch(r"(\d+)\n… (\d+) characters cut …\n(\d+)", short)
    assert found is not None
    head, cut, tail = found.groups()
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + int(cut) + len(tail) == len(text)
    assert min(len(head), len(tail)) > 450


def test_a_str_that_misbehaves_is_stored_by_its_value() -> None:
    class Odd(str):
        def replace(self, *args: Any) -> str:
            raise RuntimeError("odd")

    assert sanitise(Odd("a\x00"), 10) == "a\u2400"


def test_a_record_has_type_message_and_traceback() -> None:
    record = describe(raised(ValueError("boom")), context={"entrypoint": "mail"})
    assert record.exception_type == "ValueError"
    assert record.exception_message == "boom"
    assert record.traceback.startswith("Traceback (most recent call last):")
    assert "in raised" in record.traceback
    assert record.traceback.endswith("ValueError: boom\n")
    assert record.additional_context == {"entrypoint": "mail"}


def test_a_traceback_shows_the_causes() -> None:
    text = describe(raised(ValueError("late"), raised(KeyError("early")))).traceback
    assert "KeyError: 'early'" in text
    assert "direct cause" in text
    assert text.index("early") < text.index("ValueError: late")


def test_a_traceback_holds_no_locals() -> None:
    def log_in() -> None:
        password = "hunter" + str(2)
        raise ValueError(len(password))

    with pytest.raises(ValueError, match="7") as caught:
        log_in()
    assert "hunter2" not in describe(caught.value).traceback


class RaisesInStr(Exception):
    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__


class ExitsInStr(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class NotText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


@pytest.mark.parametrize("kind", [RaisesInStr, ExitsInStr, NotText, Endless])
def test_an_exception_that_cannot_be_printed_is_recorded_as_such(
    kind: type[Exception],
) -> None:
    record = describe(raised(kind()))
    assert record.exception_type == kind.__name__
    assert record.exception_message == f"<unprintable {kind.__name__}>"
    assert kind.__name__ in record.traceback


def test_an_endless_recursion_is_recorded() -> None:
    def down() -> None:
        down()

    with pytest.raises(RecursionError) as caught:
        down()
    record = describe(caught.value)
    assert record.exception_type == "RecursionError"
    assert len(record.traceback) <= TRACEBACK_LIMIT


def test_a_class_with_a_name_that_raises_is_recorded() -> None:
    class Meta(type):
        @property
        def __name__(cls) -> str:  # type: ignore[override]
            raise ValueError("no name")

    class Nameless(Exception, metaclass=Meta):
        pass

    assert describe(raised(Nameless("boom"))).exception_message == "boom"


def test_a_huge_exception_is_cut_to_what_the_log_takes() -> None:
    record = describe(raised(ValueError("x" * 5_000_000)))
    assert len(record.exception_message) <= MESSAGE_LIMIT
    assert len(record.traceback) <= TRACEBACK_LIMIT
    assert "characters cut" in record.exception_message
    assert record.traceback.startswith("Traceback")


@given(ANY_TEXT)
def test_any_message_can_be_stored(message: str) -> None:
    record = describe(raised(ValueError(message)), context={"reason": message})
    texts = (record.exception_type, record.exception_message, record.traceback)
    assert all(map(is_storable, texts))
    assert record.additional_context is not None
    assert is_storable(record.additional_context["reason"])


def test_a_failure_ends_the_job_or_parks_it_as_the_entrypoint_says() -> None:
    error = raised(ValueError("boom"))
    context = {"entrypoint": "mail", "attempt": 3}

    ended = outcome_of(error, make_job(attempts=3), Entrypoint())
    held = outcome_of(error, make_job(attempts=3), Entrypoint(on_failure="hold"))

    assert isinstance(ended, Failed)
    assert isinstance(held, Held)
    for outcome in (ended, held):
        assert outcome.error == "ValueError: boom"
        assert outcome.traceback is not None
        assert outcome.traceback.exception_type == "ValueError"
        assert outcome.traceback.additional_context == context
        assert outcome.traceback.job_id == 42


def test_an_exception_without_a_message_is_told_by_its_type() -> None:
    outcome = outcome_of(ValueError(), make_job(), Entrypoint())
    assert isinstance(outcome, Failed)
    assert outcome.error == "ValueError"


class Custom(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        GeneratorExit(),
        Custom("odd"),
        RetryException("only the root of retries"),
        ExceptionGroup("none asks", [ValueError("a"), KeyError("b")]),
        BaseExceptionGroup("an exit", [SystemExit(1), RetryRequested()]),
    ],
)
def test_whatever_is_no_request_for_a_retry_is_a_failure_of_its_own_type(
    error: BaseException,
) -> None:
    outcome = outcome_of(raised(error), make_job(), Entrypoint())
    assert isinstance(outcome, Failed)
    assert outcome.traceback is not None
    assert outcome.traceback.exception_type == type(error).__name__


def test_a_group_with_a_request_for_a_retry_is_one() -> None:
    group = ExceptionGroup("unhandled errors", [RetryRequested(timedelta(seconds=3), "busy")])
    outcome = outcome_of(raised(group), make_job(), Entrypoint())
    assert isinstance(outcome, Retried)
    assert (outcome.delay, outcome.reason, outcome.error) == (timedelta(seconds=3), "busy", "busy")
    assert outcome.traceback is not None
    assert outcome.traceback.exception_type == "RetryRequested"
    assert "unhandled errors" in outcome.traceback.traceback


def test_of_several_requests_in_nested_groups_the_longest_delay_counts() -> None:
    inner = ExceptionGroup("inner", [RetryRequested(timedelta(seconds=9), "late")])
    group = ExceptionGroup("outer", [RetryRequested(timedelta(seconds=3), "soon"), inner])
    outcome = outcome_of(raised(group), make_job(), Entrypoint())
    assert isinstance(outcome, Retried)
    assert (outcome.delay, outcome.reason) == (timedelta(seconds=9), "late")


def test_a_group_with_a_request_and_another_error_is_a_retry_that_goes_by_the_error() -> None:
    group = ExceptionGroup("two", [RetryRequested(reason="busy"), ValueError("a")])
    outcome = outcome_of(raised(group), make_job(), Entrypoint())
    assert isinstance(outcome, Retried)
    assert (outcome.reason, outcome.error) == ("busy", "ValueError: a")
    assert outcome.traceback is not None
    assert outcome.traceback.exception_type == "ValueError"
    assert "RetryRequested: busy" in outcome.traceback.traceback


@pytest.mark.parametrize("on_failure", ["delete", "hold"])
def test_a_request_for_a_retry_is_one_whatever_the_entrypoint_does_with_failures(
    on_failure: OnFailure,
) -> None:
    error = raised(RetryRequested(timedelta(seconds=30), "rate limited"))
    outcome = outcome_of(error, make_job(), Entrypoint("call_api", on_failure))
    assert isinstance(outcome, Retried)
    assert outcome.delay == timedelta(seconds=30)
    assert outcome.error == "rate limited"
    assert outcome.reason == "rate limited"
    assert outcome.traceback is not None
    assert outcome.traceback.exception_type == "RetryRequested"
    assert outcome.traceback.exception_message == "rate limited"
    assert outcome.traceback.job_id == 42
    assert outcome.traceback.additional_context == {
        "entrypoint": "call_api",
        "attempt": 0,
        "retry_delay": "0:00:30",
        "reason": "rate limited",
    }


def test_a_retry_without_a_reason_has_none() -> None:
    outcome = outcome_of(raised(RetryRequested()), make_job(attempts=2), Entrypoint())
    assert isinstance(outcome, Retried)
    assert outcome.reason is None
    assert outcome.error == "retry requested"
    assert outcome.traceback is not None
    assert outcome.traceback.additional_context == {
        "entrypoint": "mail",
        "attempt": 2,
        "retry_delay": "0:00:00",
        "reason": None,
    }


def test_a_retry_with_a_cause_is_logged_as_the_cause_with_its_own_reason() -> None:
    error = raised(RetryRequested(timedelta(seconds=1), "again"), raised(OSError("refused")))
    outcome = outcome_of(error, make_job(), Entrypoint())
    assert isinstance(outcome, Retried)
    assert outcome.error == "OSError: refused"
    assert outcome.reason == "again"
    record = outcome.traceback
    assert record is not None
    assert (record.exception_type, record.exception_message) == ("OSError", "refused")
    assert "OSError: refused" in record.traceback
    assert "RetryRequested: again" in record.traceback


def test_a_retry_from_a_class_that_skipped_our_constructor_is_still_a_retry() -> None:
    class Bare(RetryRequested):
        def __init__(self) -> None:
            pass

    outcome = outcome_of(raised(Bare()), make_job(), Entrypoint())
    assert isinstance(outcome, Retried)
    assert outcome.delay == timedelta(0)


@pytest.mark.parametrize(
    ("delay", "kept"),
    [
        (timedelta.max, LONGEST_DELAY),
        (timedelta(seconds=-5), timedelta(0)),
        ("soon", timedelta(0)),
    ],
)
def test_a_delay_that_no_clock_can_hold_is_brought_into_range(delay: Any, kept: timedelta) -> None:
    error = RetryRequested()
    error.delay = delay
    outcome = outcome_of(error, make_job(), Entrypoint())
    assert isinstance(outcome, Retried)
    assert outcome.delay == kept


def test_a_delay_of_another_librarys_kind_becomes_a_plain_one() -> None:
    class Fancy(timedelta):
        pass

    outcome = outcome_of(RetryRequested(Fancy(hours=30, microseconds=7)), make_job(), Entrypoint())
    assert isinstance(outcome, Retried)
    assert type(outcome.delay) is timedelta
    assert outcome.delay == timedelta(hours=30, microseconds=7)


@given(ANY_TEXT)
def test_the_reason_of_a_retry_can_be_stored(reason: str) -> None:
    outcome = outcome_of(raised(RetryRequested(reason=reason)), make_job(), Entrypoint())
    assert isinstance(outcome, Retried)
    assert is_storable(outcome.error)
    assert is_storable(outcome.reason or "")
    assert outcome.traceback is not None
    assert is_storable(json.dumps(outcome.traceback.additional_context, ensure_ascii=False))


def test_an_exception_of_another_process_is_recorded_under_its_own_name() -> None:
    record = describe(raised(RemoteError("KeyError", "'x\x00'", "Traceback …\nKeyError: 'x'\n")))
    assert record == TracebackRecord("KeyError", "'x\u2400'", "Traceback …\nKeyError: 'x'\n")


def test_a_retry_because_of_another_process_shows_what_happened_there() -> None:
    remote = raised(RemoteError("KeyError", "'x'", "Traceback …\nin the child\n"))
    record = describe(raised(RetryRequested(reason="again"), remote))
    assert (record.exception_type, record.exception_message) == ("KeyError", "'x'")
    assert "in the child" in record.traceback
