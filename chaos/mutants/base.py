"""How a bug is planted: the installed package is changed inside a process of the harness."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

from holdfast.lifecycle import Guard, Transition
from holdfast.stores.postgres import render
from holdfast.stores.postgres.tables import render as table_render

if TYPE_CHECKING:
    from holdfast.stores.postgres.binding import Binding

K = TypeVar("K")
V = TypeVar("V")

Patch = Callable[[], None]

COULD_NOT = 86
"""The exit code of a process in which the bug could not be planted."""

skew = 0.0
"""Seconds by which the clock of this process is wrong."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug, and the scenario that must find it."""

    name: str
    what: str
    scenario: str
    patch: Patch
    ddl: str = ""
    """What the bug's author would have had in the schema."""


MUTANTS: dict[str, Mutant] = {}


def mutant(name: str, scenario: str, *, ddl: str = "") -> Callable[[Patch], Patch]:
    """Registers a patch; its docstring says what is wrong."""

    def register(patch: Patch) -> Patch:
        MUTANTS[name] = Mutant(name, (patch.__doc__ or "").strip(), scenario, patch, ddl)
        return patch

    return register


def plant(name: str, seconds: float) -> None:
    """Change the package in this process; a bug that no longer fits the code is an error."""
    global skew
    skew = seconds
    try:
        MUTANTS[name].patch()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(COULD_NOT)


def patch(owner: object, name: str, instead: object) -> None:
    """Replace a function of a module or class, which must be there."""
    if not hasattr(owner, name):
        raise LookupError(f"{owner} has no {name!r} any more")
    setattr(owner, name, instead)


def rewrite(file: str, old: str, new: str) -> None:
    """Replace a part of one SQL template."""
    original = render.template
    if old not in original(file):
        raise LookupError(f"{file}.sql has no {old!r} any more")

    def template(asked: str) -> str:
        text = original(asked)
        return text.replace(old, new) if asked == file else text

    patch(render, "template", template)
    patch(table_render, "template", template)


def unguard(*names: str, instead: str = "true") -> None:
    """Drop the token from the conditions of these transitions, and that the job is leased."""
    original = render.guards

    def guards(transition: Transition, binding: Binding) -> str:
        text = original(transition, binding)
        if transition.name not in names:
            return text
        owned = render.GUARDS[Guard.OWNED]
        if owned not in text:
            raise LookupError(f"{transition.name} has no token to drop")
        return text.replace(f" and {render.leased(binding)}", "").replace(owned, instead)

    patch(render, "guards", guards)


def entries(table: Mapping[K, V]) -> dict[K, V]:
    """A table that the package calls a Mapping, to be written to."""
    return cast("dict[K, V]", table)
