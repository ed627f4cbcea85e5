"""A name in a command stays a name, whatever it holds."""

from __future__ import annotations

import subprocess

import pytest

from holdfast.shell import shell_word

NAMES = [
    *("send_email", "two words", "", "it's", 'say "x"', "a\\b", "$HOME", "$(touch /tmp/x)", "`id`"),
    *("; rm -rf ~", "x && y", "*", "~", "#", "!1", "a\nb", "\x1b[31mred", "\u202eabc", "größe"),
    *("שליחת_דואר", "a\tb'c\\", "\x7f"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_reads_the_name_as_it_is(name: str) -> None:
    command = f"printf %s {shell_word(name)}"
    found = subprocess.run(["/bin/bash", "-c", command], capture_output=True, check=True)
    assert found.stdout.decode() == name
    assert shell_word(name).isprintable()


@pytest.mark.parametrize("name", ["--all", "-x"])
def test_a_name_is_no_option(name: str) -> None:
    assert shell_word(name, positional=True) == f"-- {name}"
    assert shell_word(name) == name
