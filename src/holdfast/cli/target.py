"""`module:attribute` -> a Holdfast: finds it, calls a factory, says why one is unusable."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from holdfast.app import Holdfast
from holdfast.cli.output import shorten
from holdfast.errors import HoldfastError, InvalidInput

_ACCEPTED = (
    "a Holdfast object, an async function that returns one, or an async context manager that "
    "yields one"
)


@dataclass(frozen=True, slots=True)
class AppReference:
    """The target as the command line names it."""

    module: str
    attribute: str
    arguments: tuple[str, ...] = ()
    """The arguments of the factory: all that follows `--`."""

    @classmethod
    def parse(cls, text: str, arguments: Sequence[str] = ()) -> AppReference:
        module, mark, attribute = text.partition(":")
        words = [*module.split("."), *attribute.split(".")]
        if not mark or not all(word.isidentifier() for word in words):
            raise InvalidInput(
                f"target {text!r} is not module:attribute; write for example myapp:main"
            )
        return cls(module, attribute, tuple(arguments))

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"


@asynccontextmanager
async def opened(target: AppReference) -> AsyncIterator[Holdfast]:
    """Load the target and keep its queue open."""
    found = load(target)
    async with AsyncExitStack() as stack:
        made = await _make(found, target)
        if isinstance(made, Holdfast):
            await stack.enter_async_context(made)
            yield made
            return
        if not hasattr(type(made), "__aenter__"):
            raise InvalidInput(_wrong(target, made, found))
        inner = await _raised_by(target, stack.enter_async_context(made))
        if not isinstance(inner, Holdfast):
            raise InvalidInput(f"target {target} yields {_kind(inner)}; let it yield a Holdfast")
        # Started where the context manager has not done so, and left for it to close: what
        # follows its yield may still use the queue.
        await inner.__aenter__()
        yield inner


def load(target: AppReference) -> object:
    """The object that the target names."""
    found: object = _import(target.module)
    for name in target.attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise InvalidInput(_missing(target, found, name)) from None
    return found


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(_after_standard_library(), here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise InvalidInput(
                f"there is no module {error.name!r} in {here} or among the installed packages; "
                f"start in the folder that holds it, or correct the name in {name!r}"
            ) from None
        raise _broken_import(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken_import(name, error) from error


def _after_standard_library() -> int:
    """The place in sys.path before the installed packages.

    Before the standard library, a file such as secrets.py would be run in place of its module.
    """
    packages = ("site-packages", "dist-packages")
    places = [at for at, path in enumerate(sys.path) if os.path.basename(path) in packages]
    return min(places, default=len(sys.path))


def _broken_import(name: str, error: BaseException) -> InvalidInput:
    return InvalidInput(
        f"module {name!r} cannot be imported: {_in_words(error)}; add --debug to see where"
    )


def _missing(target: AppReference, owner: object, name: str) -> str:
    public = [each for each in dir(owner) if not each.startswith("_")]
    where = f"module {target.module!r}" if isinstance(owner, ModuleType) else f"target {target}"
    queues = [each for each in public if isinstance(getattr(owner, each, None), Holdfast)]
    near = difflib.get_close_matches(name, public, n=3) or queues[:3]
    advice = f"did you mean {' or '.join(near)}?" if near else f"name {_ACCEPTED}"
    return f"{where} has no attribute {name!r}; {advice}"


async def _make(found: object, target: AppReference) -> Any:
    """The Holdfast or context manager that a factory returns; anything else as it is."""
    if isinstance(found, Holdfast) or hasattr(type(found), "__aenter__"):
        if target.arguments:
            raise InvalidInput(
                f"target {target} is {_kind(found)}, which takes no arguments; "
                f"remove what follows --, or name a function"
            )
        return found
    if not callable(found) or inspect.isclass(found) or inspect.isasyncgenfunction(found):
        raise InvalidInput(_wrong(target, found, found))
    _check_arguments(found, target)
    return await _raised_by(target, _call(found, target.arguments))


async def _call(factory: Any, arguments: Sequence[str]) -> object:
    made = factory(*arguments)
    return await made if inspect.isawaitable(made) else made


async def _raised_by(target: AppReference, step: Any) -> Any:
    """Await a step of the target's own code, whose exceptions are not ours."""
    try:
        return await step
    except HoldfastError:
        raise
    except Exception as error:
        raise HoldfastError(
            f"target {target} failed: {_in_words(error)}; add --debug to see where"
        ) from error


def _check_arguments(factory: Any, target: AppReference) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*target.arguments)
    except TypeError as error:
        raise InvalidInput(
            f"target {target}{signature} cannot be called with {len(target.arguments)} arguments "
            f"({error}); arguments follow --, as in: holdfast run {target} -- ARGUMENT"
        ) from None


def _wrong(target: AppReference, found: object, named: object) -> str:
    if inspect.isasyncgenfunction(found):
        return f"target {target} is an async generator; decorate it with @asynccontextmanager"
    verb = "is" if found is named else "returned"
    return f"target {target} {verb} {_kind(found)}; expected {_ACCEPTED}"


def _kind(value: object) -> str:
    """The type alone: a value may hold secrets."""
    if value is None:
        return "None"
    if isinstance(value, ModuleType):
        return "a module"
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    return f"an object of type {type(value).__name__}"


def _in_words(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    return shorten(f"{type(error).__name__}: {error}")
