"""Reads the parameters and the result of a task's function from its annotations."""

from __future__ import annotations

import inspect
import sys
import typing
from dataclasses import dataclass
from typing import Any

from holdfast.errors import InvalidTask
from holdfast.models import Context, Job
from holdfast.task import is_context, underlying

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY
_VARIADIC = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter whose value is in the payload."""

    name: str
    annotation: Any
    required: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters that a task's payload holds, and whether the function takes a Context."""

    parameters: tuple[Parameter, ...]
    returns: Any
    context: str | None
    """The name of the parameter that gets the Context."""
    shown: inspect.Signature

    def __str__(self) -> str:
        return str(self.shown)

    @property
    def positional(self) -> tuple[str, ...]:
        """The names of what may be passed by position, in order."""
        kind = inspect.Parameter.KEYWORD_ONLY
        return tuple(each.name for each in self.shown.parameters.values() if each.kind is not kind)

    def misfit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return why a call with these arguments is refused, in Python's words."""
        try:
            self.shown.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        return "pass the parameters after * by their names"


def read_signature(name: str, func: Callable[..., Any], names: Mapping[str, Any]) -> Signature:
    """Read a function's annotations; `names` are the local ones where it was defined.

    NameError when an annotation names something that is not defined yet.
    """
    inner = underlying(func)
    shown = inspect.signature(func)
    hints = _hints(inner, names)
    faults: list[str] = []
    parameters: list[Parameter] = []
    context: str | None = None
    for place, (key, each) in enumerate(shown.parameters.items()):
        hint = hints.get(key, each.annotation)
        is_the_context = each.kind not in _VARIADIC and is_context(hint, inner)
        if is_the_context and place:
            faults.append(f"{key!r} is the Context; make it the first parameter")
        elif is_the_context:
            context = key
        elif fault := _fault(each, hint):
            faults.append(fault)
        else:
            parameters.append(Parameter(key, hint, each.default is each.empty))
    if faults:
        raise InvalidTask(f"task {name!r}: " + "; ".join(faults))
    returns = hints.get("return", Any)
    rest = [each for each in shown.parameters.values() if each.name != context]
    return Signature(tuple(parameters), returns, context, shown.replace(parameters=rest))


def _fault(parameter: inspect.Parameter, hint: Any) -> str | None:
    """Why a payload cannot hold the parameter."""
    key, kind = parameter.name, parameter.kind
    if kind in _VARIADIC:
        return f"{_VARIADIC[kind]}{key} has no names to store; name each parameter"
    if kind is _POSITIONAL_ONLY:
        return f"{key!r} is positional-only; take the / out"
    if hint is Job:
        return f"{key!r} is the Job; take a Context first, and read its `job`"
    if hint is parameter.empty:
        return f"{key!r} has no annotation; write its type"
    return None


def _hints(inner: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    closed = inspect.getclosurevars(inner).nonlocals if inspect.isfunction(inner) else {}
    module = getattr(inner, "__globals__", {})
    # Context is often imported for type checking only.
    known = {"Context": Context, **module, **names, **closed}
    return typing.get_type_hints(inner, known, include_extras=True)


def default_name(func: Callable[..., Any]) -> str:
    """`module.function`, the same whether its module is run or imported."""
    inner = underlying(func)
    module = inner.__module__
    if module == "__main__":
        module = _name_of_main() or module
    return f"{module}.{inner.__name__}"


def _name_of_main() -> str | None:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return None if file is None else inspect.getmodulename(file)
