"""Errors of one kind share a mark."""

from __future__ import annotations

import pytest

from holdfast.fingerprint import fingerprint

TRACE = """Traceback (most recent call last):
  File "/srv/app/lib/runner.py", line {line}, in run
    await handler()
  File "{folder}/mail.py", line {line}, in {function}
    raise ValueError
ValueError: no
"""


def trace(line: int = 7, folder: str = "/srv/app", function: str = "send") -> str:
    return TRACE.format(line=line, folder=folder, function=function)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("timeout after 5 s", "timeout after 3000 s"),
        ("KeyError: 'ann'", "KeyError: 'ben'"),
        (
            "no row 1b4e28ba-2fa1-11d2-883f-0016d3cca427",
            "no row 1B4E28BA-2fa1-11d2-883f-aaaaaaaaaaaa",
        ),
        ("object at 0x7f3a", "object at 0xffff00"),
        ("commit 4f2a9c1e77 failed", "commit 0a1b2c3d4e failed"),
    ],
)
def test_values_in_a_message_do_not_count(one: str, other: str) -> None:
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("ValueError: no", "TypeError: no"), ("refused", "timeout"), ("a decade", "a facade")],
)
def test_other_words_are_another_kind(one: str, other: str) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_the_innermost_function_counts_and_its_line_and_folder_do_not() -> None:
    mark = fingerprint("ValueError: no", trace())
    assert fingerprint("ValueError: no", trace(line=80, folder="/new")) == mark
    assert fingerprint("ValueError: no", trace(function="receive")) != mark


def test_any_text_has_a_mark() -> None:
    assert len(fingerprint("\udcff\x00")) == 12
    assert fingerprint("", "no frames here") == fingerprint("")
