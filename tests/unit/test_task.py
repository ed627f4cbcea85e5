"""Handlers are checked where they are defined, and one name has one handler."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from holdfast import Holdfast, models
from holdfast.errors import InvalidInput
from holdfast.models import ClaimRule, Context, Job
from holdfast.task import Entrypoint, EntrypointExecutorParameters, Registry, define, takes_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from holdfast.models import Context as OnlyForTypes


class Recorded:
    """An executor that only remembers what it was built from."""

    capacity = 0
    limits_time = False
    written_retries: int | None = None

    def __init__(self, parameters: EntrypointExecutorParameters) -> None:
        self.parameters = parameters

    async def execute(self, job: Job, context: Context) -> None:
        raise NotImplementedError


async def handler(job: Job) -> None:
    pass


async def other(job: Job) -> None:
    pass


async def with_context(job: Job, context: Context) -> None:
    pass


def blocking(job: Job) -> None:
    pass


def defined(name: Any = "mail", func: Any = handler, **options: Any) -> Entrypoint:
    return define(name, func, build=Recorded, **options)


def refusal(name: Any = "mail", func: Any = handler, **options: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        defined(name, func, **options)
    return str(caught.value)


def line(func: Any) -> str:
    return f"{func.__module__}:{func.__code__.co_firstlineno}"


def test_a_handler_without_options_gets_the_documented_defaults() -> None:
    entrypoint = defined()
    assert entrypoint.name == "mail"
    assert entrypoint.func is handler
    assert entrypoint.concurrency_limit == 0
    assert entrypoint.retry_timer == timedelta(0)
    assert entrypoint.on_failure == "delete"
    assert entrypoint.timeout is None
    assert entrypoint.max_attempts == 25
    assert entrypoint.max_recoveries == 3
    assert entrypoint.accepts_context is False


def test_the_executor_is_built_from_what_the_decorator_was_told() -> None:
    entrypoint = defined(
        func=blocking,
        executor="thread",
        concurrency_limit=4,
        on_failure="hold",
        timeout=timedelta(seconds=9),
    )
    assert isinstance(entrypoint.executor, Recorded)
    assert entrypoint.executor.parameters == EntrypointExecutorParameters(
        func=blocking,
        accepts_context=False,
        concurrency_limit=4,
        on_failure="hold",
        name="mail",
        timeout=timedelta(seconds=9),
        kind="thread",
    )


def test_nothing_is_built_for_a_handler_that_is_refused() -> None:
    def build(parameters: EntrypointExecutorParameters) -> Recorded:
        raise AssertionError("built all the same")

    with pytest.raises(InvalidInput):
        define("mail", handler, build=build, max_attempts=0)


def test_a_serialized_handler_is_one_with_a_limit_of_one() -> None:
    entrypoint = defined(serialized_dispatch=True)
    assert entrypoint.concurrency_limit == 1
    assert defined(serialized_dispatch=True, concurrency_limit=1).concurrency_limit == 1


def test_a_serialized_handler_with_a_higher_limit_is_a_contradiction() -> None:
    assert "concurrency_limit is 2; leave one" in refusal(
        serialized_dispatch=True, concurrency_limit=2
    )


def test_the_lease_of_a_want_is_the_retry_timer_or_else_the_workers() -> None:
    thirty = timedelta(seconds=30)
    assert defined().rule(thirty) == ClaimRule("mail", thirty, 25, 3, 0)
    own = defined(
        retry_timer=timedelta(minutes=5), max_attempts=None, max_recoveries=7, concurrency_limit=2
    )
    assert own.rule(thirty) == ClaimRule("mail", timedelta(minutes=5), None, 7, 2)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "the name is blank"),
        ("  ", "the name is blank"),
        (None, "the name must be a str, got None"),
        (b"mail", "the name must be a str, got b'mail'"),
        ("a\x00b", "NUL"),
        ("a\ud800", "surrogate"),
        ("x" * 201, "201 characters, more than the 200 allowed"),
    ],
)
def test_a_name_that_cannot_be_stored_is_refused(name: Any, said: str) -> None:
    assert said in refusal(name)


def test_a_name_of_two_hundred_characters_is_allowed() -> None:
    assert defined("x" * 200).name == "x" * 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency_limit": -1}, "concurrency_limit must be an integer from 0"),
        ({"concurrency_limit": 2.0}, "got 2.0"),
        ({"concurrency_limit": True}, "got True"),
        ({"concurrency_limit": 2**31}, "got 2147483648"),
        ({"serialized_dispatch": "yes"}, "serialized_dispatch must be True or False, got 'yes'"),
        ({"retry_timer": timedelta(seconds=-1)}, "retry_timer must be a timedelta of at least"),
        ({"retry_timer": timedelta(milliseconds=1)}, "retry_timer must be a timedelta of at least"),
        ({"retry_timer": 30}, "got 30"),
        ({"timeout": timedelta(0)}, "timeout must be a timedelta above zero"),
        ({"timeout": timedelta(seconds=-1)}, "timeout must be a timedelta above zero"),
        ({"timeout": 5}, "timeout must be a timedelta above zero, or None, got 5"),
        ({"on_failure": "keep"}, "on_failure must be 'delete' or 'hold', got 'keep'"),
        ({"on_failure": ["hold"]}, "got ['hold']"),
        ({"max_attempts": 0}, "max_attempts must be an integer from 1"),
        ({"max_recoveries": 0}, "max_recoveries must be an integer from 1"),
        ({"max_recoveries": None}, "max_recoveries must be an integer from 1"),
        ({"accepts_context": "yes"}, "accepts_context must be True, False or None, got 'yes'"),
        ({"executor": "fork"}, "executor must be 'async' or 'thread' or 'process', got 'fork'"),
    ],
)
def test_an_option_that_can_never_work_is_refused_by_name_and_value(
    options: dict[str, Any], said: str
) -> None:
    assert said in refusal(**options)


def test_all_faults_are_reported_together() -> None:
    said = refusal(max_attempts=0, on_failure="keep", func=blocking)
    assert "max_attempts" in said
    assert "on_failure" in said
    assert "plain def" in said


def test_a_plain_def_is_refused_with_the_ways_out() -> None:
    assert (
        f"handler 'mail' ({line(blocking)}) is a plain def; make it `async def`, "
        f'or say executor="thread" or executor="process"'
    ) in refusal(func=blocking)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_an_async_def_outside_the_event_loop_is_refused(kind: str) -> None:
    said = refusal(executor=kind)
    assert f"({line(handler)}) is an async def" in said
    assert f'leave out executor="{kind}"' in said


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_plain_def_is_welcome_in_a_thread_or_a_process(kind: str) -> None:
    assert defined(func=blocking, executor=kind).func is blocking


def test_a_handler_that_yields_is_refused() -> None:
    async def asynchronous(job: Job) -> AsyncIterator[int]:
        yield 1

    def synchronous(job: Job) -> Iterator[int]:
        yield 1

    assert "contains `yield`" in refusal(func=asynchronous)
    assert "contains `yield`" in refusal(func=synchronous, executor="thread")


def test_a_handler_that_is_not_callable_is_refused() -> None:
    assert "must be a function, got 42" in refusal(func=42)


def test_a_handler_without_parameters_is_refused() -> None:
    async def nothing() -> None:
        pass

    assert f"({line(nothing)}) is called with (job), but takes ()" in refusal(func=nothing)


def test_a_handler_that_needs_more_than_it_gets_is_refused() -> None:
    async def greedy(job: Job, context: Context, database: object) -> None:
        pass

    async def by_keyword(job: Job, *, database: object) -> None:
        pass

    assert "is called with (job), but takes (job: 'Job', context:" in refusal(func=greedy)
    assert "is called with (job, context)" in refusal(func=greedy, accepts_context=True)
    assert "is called with (job), but takes" in refusal(func=by_keyword)


def test_an_unannotated_second_parameter_is_refused_with_the_fix() -> None:
    async def second(job, context):  # type: ignore[no-untyped-def]
        pass

    assert "annotate the second parameter with `Context`" in refusal(func=second)
    assert defined(func=second, accepts_context=True).accepts_context is True


def test_accepts_context_needs_a_second_parameter() -> None:
    assert "is called with (job, context), but takes" in refusal(accepts_context=True)


def test_a_handler_in_another_process_cannot_have_a_context() -> None:
    def plain(job: Job, context: Context) -> None:
        pass

    assert "cannot have a Context in another process" in refusal(func=plain, executor="process")


def test_a_context_that_the_handler_can_do_without_is_left_out_when_told_so() -> None:
    async def optional(job: Job, context: Context | None = None) -> None:
        pass

    assert defined(func=optional).accepts_context is True
    assert defined(func=optional, accepts_context=False).accepts_context is False


def real_annotation() -> Callable[..., Any]:
    async def func(job: Job, context: Any) -> None:
        pass

    func.__annotations__["context"] = Context
    return func


def annotated() -> Callable[..., Any]:
    func = real_annotation()
    func.__annotations__["context"] = Annotated[Context, "documented"]
    return func


async def dotted(job: Job, context: models.Context) -> None:
    pass


async def only_for_types(job: Job, context: OnlyForTypes) -> None:
    pass


async def unresolvable(job: Job, context: holdfast.Context) -> None:  # type: ignore[name-defined]  # noqa: F821
    pass


class Callables:
    async def method(self, job: Job, context: Context) -> None:
        pass

    async def __call__(self, job: Job, context: Context) -> None:
        pass

    @staticmethod
    async def static(job: Job, context: Context) -> None:
        pass


async def with_database(database: object, job: Job, context: Context) -> None:
    pass


def passing_on(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    async def wrapper(*args: Any, **kwargs: Any) -> None:
        await func(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    "func",
    [
        with_context,
        real_annotation(),
        annotated(),
        dotted,
        unresolvable,
        Callables().method,
        Callables.static,
        Callables(),
        functools.partial(with_database, object()),
        functools.partial(Callables().method),
        passing_on(with_context),
    ],
)
def test_a_second_parameter_annotated_context_is_given_one(func: Any) -> None:
    assert defined(func=func).accepts_context is True


def test_another_class_named_context_is_not_ours() -> None:
    async def foreign(job: Job, context: contextvars.Context | None = None) -> None:
        pass

    assert contextvars.Context.__module__ != models.Context.__module__
    assert takes_context(foreign) is False


def test_a_name_known_to_type_checkers_only_counts_when_it_is_context() -> None:
    assert takes_context(only_for_types) is False
    assert takes_context(unresolvable) is True


def test_a_decorator_that_hands_over_a_resource_is_judged_by_its_own_parameters() -> None:
    @functools.wraps(with_database)
    async def wrapper(job: Job) -> None:
        await with_database(object(), job, Context(job, {}))

    assert defined(func=wrapper).accepts_context is False


def test_partials_methods_and_callable_objects_are_told_from_plain_functions() -> None:
    class Plain:
        def __call__(self, job: Job) -> None:
            pass

    assert "is a plain def" in refusal(func=Plain())
    assert "is a plain def" in refusal(func=functools.partial(blocking))
    assert "is an async def" in refusal(func=functools.partial(handler), executor="thread")
    assert "is an async def" in refusal(func=Callables(), executor="thread")


def test_the_place_of_a_decorated_handler_is_where_it_was_written() -> None:
    @functools.wraps(blocking)
    def wrapper(job: Job) -> None:
        pass

    assert f"({line(blocking)})" in refusal(func=wrapper)


def test_a_callable_without_a_signature_is_taken_at_its_word() -> None:
    assert defined(func=asyncio.Queue.get, accepts_context=False).func is asyncio.Queue.get
    assert "is a plain def" in refusal(func=min)


def test_a_registry_knows_its_entrypoints_in_order() -> None:
    registry = Registry()
    mail, bill = defined("mail"), defined("bill", other)
    registry.add(mail)
    registry.add(bill)
    assert registry.names == ("mail", "bill")
    assert list(registry) == [mail, bill]
    assert len(registry) == 2
    assert registry.get("bill") is bill
    assert registry.get("unknown") is None
    assert "bill" in registry
    lease = timedelta(seconds=30)
    assert registry.rules(lease) == (mail.rule(lease), bill.rule(lease))


def test_a_second_handler_of_one_name_is_refused_and_both_are_named() -> None:
    registry = Registry()
    registry.add(defined("mail", handler))
    with pytest.raises(InvalidInput) as caught:
        registry.add(defined("mail", other))
    assert f"handler ({line(handler)})" in str(caught.value)
    assert f"other ({line(other)})" in str(caught.value)
    first = registry.get("mail")
    assert first is not None
    assert first.func is handler


def test_a_worker_may_serve_some_entrypoints_only() -> None:
    hf = Holdfast.in_memory()
    for name in ("mail", "ship", "bill"):
        hf.entrypoint(name)(_nothing)
    hf.serve(only=["mail", "ship"], without=["ship"])
    assert hf.served == ("mail",)
    with pytest.raises(InvalidInput, match=r"no entrypoint 'mial'; did you mean mail\?"):
        hf.serve(only=["mial"])
    with pytest.raises(InvalidInput, match="no entrypoint 'x'; registered are bill, mail, ship"):
        hf.serve(without=["x"])
    with pytest.raises(InvalidInput, match="left to serve: of mail all are excepted"):
        hf.serve(only=["mail"], without=["mail"])


async def _nothing(job: Job) -> None: ...
