"""A handler and its rules, checked where it is defined, and the registry of all handlers."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from types import FunctionType, MethodType
from typing import Any, Literal, TypedDict, get_args

from holdfast.breaker import BreakerPolicy, policy_of
from holdfast.checks import faults, integer_fault, unstorable_fault
from holdfast.errors import InvalidInput
from holdfast.models import Capacity, ClaimRule, Context, Executor, OnFailure

Handler = Callable[..., Any]
Kind = Literal["async", "thread", "process"]

MAX_NAME = 200
MAX_COUNT = 2**31 - 1
"""The counters and their caps are integers of four bytes in the database."""

SHORTEST_LEASE = timedelta(milliseconds=100)
"""A lease has to outlive a few renewals."""


class DefaultCap(int):
    """The default cap. An explicit number wins over it."""


class ExecutorCap(int):
    """The cap one above the retries that an executor was given in writing."""


class TaskCap(int):
    """The cap of a task, which is written as `retry`."""


MAX_ATTEMPTS = DefaultCap(25)


@dataclass(frozen=True, slots=True)
class EntrypointExecutorParameters:
    """The arguments of an executor's constructor."""

    func: Handler
    accepts_context: bool
    concurrency_limit: int = 0
    on_failure: OnFailure = "delete"
    name: str = ""
    timeout: timedelta | None = None
    kind: Kind = "async"
    max_attempts: int | None = MAX_ATTEMPTS
    """The entrypoint's cap, for an executor that has one of its own."""


class EntrypointOptions(TypedDict, total=False):
    """The options of an entrypoint."""

    concurrency_limit: int
    """How many of its jobs run at once in the whole fleet. 0 means unlimited."""
    serialized_dispatch: bool
    """The same as concurrency_limit=1."""
    retry_timer: timedelta
    """The lease of its jobs. Zero means the worker's heartbeat_timeout."""
    accepts_context: bool | None
    """Whether the handler takes a Context. None reads its annotations."""
    on_failure: OnFailure
    executor_factory: Callable[[EntrypointExecutorParameters], Executor] | None
    """Makes an executor of your own."""
    timeout: timedelta | None
    max_attempts: int | None
    max_recoveries: int
    executor: Kind
    breaker: str | BreakerPolicy | None
    """The circuit breaker of a dependency, by name or as a policy."""


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """A handler under the name that producers enqueue, and the rules its jobs live by."""

    name: str
    func: Handler
    executor: Executor
    accepts_context: bool
    concurrency_limit: int = 0
    """How many of its jobs run at once in the whole fleet. 0 means unlimited."""
    retry_timer: timedelta = timedelta(0)
    """The lease of its jobs. Zero means the worker's heartbeat_timeout."""
    on_failure: OnFailure = "delete"
    timeout: timedelta | None = None
    max_attempts: int | None = MAX_ATTEMPTS
    max_recoveries: int = 3
    breaker: BreakerPolicy | None = None

    def rule(self, default_lease: timedelta) -> ClaimRule:
        """The rules a worker claims its jobs under."""
        capacity = self.executor.capacity
        return ClaimRule(
            entrypoint=self.name,
            lease=self.retry_timer or default_lease,
            max_attempts=self.max_attempts,
            max_recoveries=self.max_recoveries,
            concurrency_limit=self.concurrency_limit,
            capacity=Capacity(capacity) if capacity else None,
        )


class Registry:
    """The handlers of one application, by name."""

    def __init__(self) -> None:
        self._entrypoints: dict[str, Entrypoint] = {}

    def add(self, entrypoint: Entrypoint) -> None:
        self.add_all([entrypoint])

    def add_all(self, entrypoints: Sequence[Entrypoint]) -> None:
        """Add all of them or, where one is refused, none."""
        before = dict(self._entrypoints)
        try:
            for entrypoint in entrypoints:
                self._check_breaker(entrypoint)
                self._check_name(entrypoint)
                self._entrypoints[entrypoint.name] = entrypoint
        except InvalidInput:
            self._entrypoints = before
            raise

    def _check_name(self, entrypoint: Entrypoint) -> None:
        first = self._entrypoints.get(entrypoint.name)
        if first is not None and first is not entrypoint:
            raise InvalidInput(
                f"entrypoint {entrypoint.name!r} has two handlers, {_named(first.func)} and "
                f"{_named(entrypoint.func)}; give one of them another name"
            )

    def _check_breaker(self, entrypoint: Entrypoint) -> None:
        ours = entrypoint.breaker
        for other in self:
            theirs = other.breaker
            if ours and theirs and ours.name == theirs.name and ours != theirs:
                raise InvalidInput(
                    f"entrypoints {other.name!r} and {entrypoint.name!r} share the breaker "
                    f"{ours.name!r} under two policies, {theirs} and {ours}; make one "
                    f"BreakerPolicy and give it to both"
                )

    @property
    def breakers(self) -> dict[str, BreakerPolicy]:
        """By the name of the entrypoint that is behind it."""
        return {one.name: one.breaker for one in self if one.breaker is not None}

    def wrapped(self, wrap: Callable[[Executor], Executor]) -> Registry:
        """The same handlers, each run through `wrap`."""
        new = Registry()
        for entrypoint in self:
            new.add(replace(entrypoint, executor=wrap(entrypoint.executor)))
        return new

    def narrowed(self, only: Collection[str], without: Collection[str]) -> Registry:
        """Those named by `only`, or all, less those of `without`."""
        if not only and not without:
            return self
        for name in (*only, *without):
            if name not in self:
                near = difflib.get_close_matches(name, self.names, n=3)
                advice = (
                    f"did you mean {' or '.join(near)}?"
                    if near
                    else f"registered are {', '.join(sorted(self.names)) or 'none'}"
                )
                raise InvalidInput(f"there is no entrypoint {name!r}; {advice}")
        left = [one for one in self if (not only or one.name in only) and one.name not in without]
        if not left:
            raise InvalidInput(
                f"no entrypoint is left to serve: of {', '.join(sorted(only or self.names))} "
                f"all are excepted; name fewer in without (`--except`)"
            )
        new = Registry()
        new.add_all(left)
        return new

    def get(self, name: str) -> Entrypoint | None:
        return self._entrypoints.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entrypoints)

    def rules(self, default_lease: timedelta) -> tuple[ClaimRule, ...]:
        return tuple(entrypoint.rule(default_lease) for entrypoint in self)

    def __iter__(self) -> Iterator[Entrypoint]:
        return iter(self._entrypoints.values())

    def __len__(self) -> int:
        return len(self._entrypoints)

    def __contains__(self, name: object) -> bool:
        return name in self._entrypoints


def define(
    name: str,
    func: Handler,
    *,
    build: Callable[[EntrypointExecutorParameters], Executor],
    concurrency_limit: int = 0,
    serialized_dispatch: bool = False,
    retry_timer: timedelta = timedelta(0),
    accepts_context: bool | None = None,
    on_failure: OnFailure = "delete",
    timeout: timedelta | None = None,
    max_attempts: int | None = MAX_ATTEMPTS,
    max_recoveries: int = 3,
    executor: Kind = "async",
    breaker: str | BreakerPolicy | None = None,
    takes_job: bool = True,
) -> Entrypoint:
    """Check everything, report all faults together, and only then build the executor.

    takes_job=False is for a function that its executor calls with something else.
    """
    found = [
        *_name_faults(name),
        *_limit_faults(concurrency_limit, serialized_dispatch),
        *_duration_faults(retry_timer, timeout),
        *_choice_faults("on_failure", on_failure, get_args(OnFailure)),
        *_choice_faults("executor", executor, get_args(Kind)),
        *_cap_faults(max_attempts, max_recoveries),
        *(_handler_faults(name, func, accepts_context, executor) if takes_job else ()),
        *(() if takes_job else _colour_faults(f"task {name!r:.80}", func, executor)),
        *_breaker_faults(breaker),
    ]
    if found:
        raise InvalidInput(f"entrypoint {name!r:.80}: " + "; ".join(found))
    limit = 1 if serialized_dispatch else concurrency_limit
    with_context = takes_context(func) if accepts_context is None else bool(accepts_context)
    parameters = EntrypointExecutorParameters(
        func=func,
        accepts_context=with_context,
        concurrency_limit=limit,
        on_failure=on_failure,
        name=name,
        timeout=timeout,
        kind=executor,
        max_attempts=max_attempts,
    )
    built = build(parameters)
    return Entrypoint(
        name=name,
        func=func,
        executor=built,
        accepts_context=with_context,
        concurrency_limit=limit,
        retry_timer=retry_timer,
        on_failure=on_failure,
        timeout=timeout,
        max_attempts=_above_retries(max_attempts, built),
        max_recoveries=max_recoveries,
        breaker=None if breaker is None else policy_of(breaker),
    )


def _above_retries(cap: int | None, executor: Executor) -> int | None:
    """The cap, raised where it would end a job before the executor has used up its retries."""
    retries = executor.written_retries
    if cap is None or retries is None or retries < cap:
        return cap
    return ExecutorCap(retries + 1)


def takes_context(func: Handler) -> bool:
    """The second parameter is annotated with `Context`, as a class or as a string."""
    if not _accepts(func, 2):
        return False
    try:
        parameters = list(inspect.signature(func).parameters.values())
    except (TypeError, ValueError):
        return False
    return len(parameters) > 1 and is_context(parameters[1].annotation, underlying(func))


def underlying(func: Any) -> Any:
    """The function behind partials, bound methods, callable objects and well-made decorators."""
    while not isinstance(func, FunctionType):
        if isinstance(func, functools.partial):
            func = func.func
        elif isinstance(func, (MethodType, staticmethod)):
            func = func.__func__
        elif isinstance(type(func).__call__, FunctionType):
            func = type(func).__call__
        else:
            return func
    return inspect.unwrap(func)


def where(func: Handler) -> str:
    """`module:line`, as far as it can be known."""
    inner = underlying(func)
    module = getattr(inner, "__module__", None) or type(inner).__module__
    code = getattr(inner, "__code__", None)
    return f"{module}:{code.co_firstlineno}" if code else str(module)


def _named(func: Handler) -> str:
    inner = underlying(func)
    return f"{getattr(inner, '__qualname__', type(inner).__qualname__)} ({where(func)})"


def _name_faults(name: object) -> list[str]:
    if not isinstance(name, str):
        return [f"the name must be a str, got {name!r}"]
    if not name.strip():
        return ["the name is blank; give the name that producers enqueue"]
    if len(name) > MAX_NAME:
        return [f"the name has {len(name)} characters, more than the {MAX_NAME} allowed"]
    return faults(unstorable_fault("the name", name))


def _limit_faults(concurrency_limit: object, serialized_dispatch: object) -> list[str]:
    found = faults(integer_fault("concurrency_limit", concurrency_limit, 0))
    if not isinstance(serialized_dispatch, bool):
        return [*found, f"serialized_dispatch must be True or False, got {serialized_dispatch!r}"]
    if serialized_dispatch and not found and concurrency_limit not in (0, 1):
        return [
            f"serialized_dispatch=True means concurrency_limit=1, but concurrency_limit is "
            f"{concurrency_limit!r}; leave one of the two out"
        ]
    return found


def _duration_faults(retry_timer: object, timeout: object) -> list[str]:
    faults = []
    if not isinstance(retry_timer, timedelta) or (retry_timer and retry_timer < SHORTEST_LEASE):
        faults.append(
            f"retry_timer must be a timedelta of at least {SHORTEST_LEASE}, or zero for the "
            f"worker's heartbeat_timeout, got {retry_timer!r}"
        )
    if timeout is not None and not (isinstance(timeout, timedelta) and timeout > timedelta(0)):
        faults.append(f"timeout must be a timedelta above zero, or None, got {timeout!r}")
    return faults


def _breaker_faults(breaker: str | BreakerPolicy | None) -> list[str]:
    try:
        if breaker is not None:
            policy_of(breaker)
    except InvalidInput as error:
        return [str(error)]
    return []


def _choice_faults(what: str, value: object, allowed: tuple[str, ...]) -> list[str]:
    if value in allowed:
        return []
    return [f"{what} must be {' or '.join(map(repr, allowed))}, got {value!r}"]


def _cap_faults(max_attempts: object, max_recoveries: object) -> list[str]:
    return faults(
        None if max_attempts is None else integer_fault("max_attempts", max_attempts, 1),
        integer_fault("max_recoveries", max_recoveries, 1),
    )


def _handler_faults(name: object, func: Any, accepts_context: object, kind: object) -> list[str]:
    if not callable(func):
        return [f"the handler must be a function, got {func!r}"]
    subject = f"handler {name!r:.80} ({where(func)})"
    if accepts_context not in (None, True, False):
        return [f"accepts_context must be True, False or None, got {accepts_context!r}"]
    with_context = takes_context(func) if accepts_context is None else bool(accepts_context)
    faults = _colour_faults(subject, func, kind)
    if with_context and kind == "process":
        faults.append(f"{subject} cannot have a Context in another process; take the job alone")
    elif not _accepts(func, 1 + with_context):
        faults.append(_arity_fault(subject, func, with_context))
    return faults


def _colour_faults(subject: str, func: Handler, kind: object) -> list[str]:
    if _is(inspect.isasyncgenfunction, func) or _is(inspect.isgeneratorfunction, func):
        return [f"{subject} contains `yield`, so calling it would run nothing; take it out"]
    is_async = _is(inspect.iscoroutinefunction, func)
    if kind == "async" and not is_async:
        return [
            f"{subject} is a plain def; make it `async def`, "
            f'or say executor="thread" or executor="process"'
        ]
    if kind in ("thread", "process") and is_async:
        return [f'{subject} is an async def; make it a plain `def`, or leave out executor="{kind}"']
    return []


def _arity_fault(subject: str, func: Handler, with_context: bool) -> str:
    given = "(job, context)" if with_context else "(job)"
    advice = (
        "; annotate the second parameter with `Context`, or pass accepts_context=True"
        if not with_context and _accepts(func, 2)
        else ""
    )
    return f"{subject} is called with {given}, but takes {_signature(func)}{advice}"


def _is(test: Callable[[Any], bool], func: Any) -> bool:
    while isinstance(func, (functools.partial, staticmethod)):
        func = func.func if isinstance(func, functools.partial) else func.__func__
    return test(func) or test(type(func).__call__)


def _signature(func: Handler) -> inspect.Signature | None:
    """Return the parameters of the callable itself, because a decorator may add or remove
    arguments."""
    try:
        return inspect.signature(func, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


def _accepts(func: Handler, count: int) -> bool:
    signature = _signature(func)
    if signature is None:
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def is_context(annotation: Any, func: Handler) -> bool:
    """A string that cannot be resolved counts by its name: `Context` is often imported for
    type checking only."""
    if not isinstance(annotation, str):
        return any(part is Context for part in (annotation, *get_args(annotation)))
    names: dict[str, Any] = getattr(func, "__globals__", {})
    for path in re.findall(r"[\w.]+", annotation):
        first, *rest = path.split(".")
        if first not in names:
            if path.split(".")[-1] == Context.__name__:
                return True
        elif (
            functools.reduce(lambda at, step: getattr(at, step, None), rest, names[first])
            is Context
        ):
            return True
    return False
