"""Writes names into commands that a person may paste into a shell. Pure."""

from __future__ import annotations

from shlex import quote


def shell_word(name: str, *, positional: bool = False) -> str:
    """The name as one word of a shell, whatever it holds.

    Whoever may enqueue chooses names, and must not choose what another person's shell runs.
    A positional one that begins with a dash is no option.
    """
    # A terminal would take a control character for a command of its own.
    word = quote(name) if name.isprintable() else f"$'{''.join(map(_escaped, name))}'"
    return f"-- {word}" if positional and name.startswith("-") else word


def _escaped(character: str) -> str:
    if character in ("\\", "'"):
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
