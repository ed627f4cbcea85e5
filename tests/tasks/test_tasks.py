"""A typed function is enqueued by its arguments and called with them."""

from __future__ import annotations

import functools
import json
import math
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from holdfast import (
    Context,
    DuplicateJobError,
    Holdfast,
    InvalidArguments,
    InvalidInput,
    InvalidTask,
    Job,
    Retry,
    Status,
    TaskGroup,
    exponential,
)
from tests.tasks import forward

if TYPE_CHECKING:
    from holdfast.models import OnFailure

AT_ONCE = exponential(timedelta(microseconds=1), timedelta(microseconds=1))


class Colour(Enum):
    RED = "red"


class Order(BaseModel):
    id: int
    lines: list[str] = Field(default_factory=list)


@dataclass
class Address:
    street: str
    number: int = 1


class Size(TypedDict):
    width: float


async def drain(hf: Holdfast) -> None:
    await hf.run(mode="drain", signals=False)


async def test_every_kind_of_argument_arrives_as_it_was_given(hf: Holdfast) -> None:
    seen: list[Any] = []

    @hf.task(name="everything")
    async def everything(
        order: Order,
        address: Address,
        size: Size,
        colour: Colour,
        at: datetime,
        day: date,
        key: UUID,
        *,
        ratio: float = 0.5,
        tags: set[str] | None = None,
    ) -> None:
        seen.append((order, address, size, colour, at, day, key, ratio, tags))

    given = (
        Order(id=1, lines=["ä"]),
        Address("x", 2),
        Size(width=1.5),
        Colour.RED,
        datetime(2026, 1, 2, tzinfo=UTC),
        date(2026, 1, 2),
        uuid4(),
    )
    await everything.enqueue(*given, tags={"a"})
    await everything.enqueue(*given)
    await drain(hf)
    assert seen == [(*given, 0.5, {"a"}), (*given, 0.5, None)]


async def test_a_payload_is_a_json_object_by_parameter_name(hf: Holdfast) -> None:
    @hf.task(name="ship")
    async def ship(order: Order, express: bool = False) -> None: ...

    handle = await ship.enqueue(Order(id=7), express=True)
    [job] = await hf.queries.get_jobs([handle.id])
    assert json.loads(job.payload or b"") == {"order": {"id": 7, "lines": []}, "express": True}
    assert job.entrypoint == "ship"
    assert await handle.status() is Status.QUEUED


async def test_a_plain_function_runs_in_a_thread_and_may_take_the_context(hf: Holdfast) -> None:
    seen: list[Any] = []

    @hf.task
    def count(context: Context, upto: int) -> int:
        seen.append((context.job.entrypoint, upto, threading.current_thread()))
        return upto

    await count.enqueue(3)
    await drain(hf)
    [(name, upto, thread)] = seen
    assert (name, upto) == (f"{__name__}.count", 3)
    assert thread is not threading.main_thread()


async def test_a_plain_call_runs_the_function_here() -> None:
    tasks = TaskGroup()

    @tasks.task
    async def double(number: int) -> int:
        return 2 * number

    @tasks.task()
    def half(number: int) -> float:
        return number / 2

    assert await double(4) == 8
    assert half(4) == 2


async def test_options_reach_the_row(hf: Holdfast) -> None:
    @hf.task
    async def mail(to: str) -> None: ...

    later = datetime(2100, 1, 1, tzinfo=UTC)
    options = mail.options(priority=4, at=later, dedupe_key="k", headers={"a": 1})
    handle = await options.enqueue("x")
    [job] = await hf.queries.get_jobs([handle.id])
    assert (job.priority, job.execute_after, job.dedupe_key, job.headers) == (
        4,
        later,
        "k",
        {"a": 1},
    )
    with pytest.raises(DuplicateJobError):
        await options.enqueue("y")
    assert (await mail.options(dedupe_key="k", on_conflict="update_priority").enqueue("z")).id == (
        handle.id
    )
    with pytest.raises(InvalidInput, match="two times"):
        mail.options(delay=timedelta(1), at=later)


async def test_many_calls_are_enqueued_together(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.task
    async def add(number: int) -> None:
        seen.append(number)

    handles = await add.enqueue_many([add.job(1), (2,), {"number": 3}])
    assert len({handle.id for handle in handles}) == 3
    await drain(hf)
    assert sorted(seen) == [1, 2, 3]
    with pytest.raises(InvalidArguments):
        await add.enqueue_many([(1,), ("two",)])
    assert await hf.queries.queue_size() == []


async def test_an_alias_runs_jobs_of_the_old_name(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.task(name="new", aliases=("old",))
    async def renamed(number: int) -> None:
        seen.append(number)

    await hf.queries.enqueue("old", b'{"number": 1}')
    await renamed.enqueue(2)
    await drain(hf)
    assert sorted(seen) == [1, 2]


async def test_a_task_is_retried_and_then_held_with_its_payload(hf: Holdfast) -> None:
    runs: list[int] = []

    @hf.task(name="flaky", retry=Retry(attempts=3, backoff=AT_ONCE, jitter=False))
    async def flaky(context: Context, number: int) -> None:
        runs.append(context.job.attempts)
        raise TimeoutError("busy")

    handle = await flaky.enqueue(1)
    for _ in range(4):
        await drain(hf)
    assert runs == [0, 1, 2]
    [job] = await hf.queries.list_failed_jobs()
    assert (job.id, job.payload, job.last_error) == (
        handle.id,
        b'{"number":1}',
        "TimeoutError: busy",
    )


async def test_an_exception_that_is_given_up_on_is_held_at_once(hf: Holdfast) -> None:
    policy = Retry(backoff=AT_ONCE, on=(OSError, ValueError), give_up_on=(UnicodeError,))
    raised: dict[str, type[Exception]] = {
        "retried": ValueError,
        "given up on": UnicodeError,
        "not named": KeyError,
    }

    @hf.task(name="picky", retry=policy)
    async def picky(kind: str) -> None:
        raise raised[kind](kind)

    handles = {kind: await picky.enqueue(kind) for kind in raised}
    await drain(hf)
    attempts = {}
    for kind, handle in handles.items():
        [first, *_] = await hf.queries.job_history(handle.id)
        attempts[kind] = first.status
    assert attempts == {
        "retried": Status.QUEUED,
        "given up on": Status.FAILED,
        "not named": Status.FAILED,
    }


@pytest.mark.parametrize("on_failure", ["hold", "delete"])
async def test_a_payload_that_does_not_fit_is_held_without_an_attempt(
    hf: Holdfast, on_failure: OnFailure
) -> None:
    runs: list[int] = []

    @hf.task(name="ship", on_failure=on_failure)
    async def ship(order: Order) -> None:
        runs.append(order.id)

    bad = await hf.queries.enqueue(["ship"] * 3, [b'{"order": {"id": "x"}}', b"{", None])
    await hf.queries.enqueue("ship", b'{"order": {"id": 4, "new": true}, "unknown": 1}')
    await drain(hf)
    assert runs == [4]
    held = {job.id: job for job in await hf.queries.list_failed_jobs()}
    assert set(held) == set(bad)
    assert {job.attempts for job in held.values()} == {0}
    assert held[bad[0]].last_error == (
        "InvalidPayload: the payload does not fit task 'ship': order.id: Input should be a valid "
        "integer, unable to parse string as an integer"
    )


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        (("x",), {}, "order: Input should be"),
        ((), {}, "order: Field required"),
        ((Order(id=1), True), {}, "too many positional arguments"),
        ((Order(id=1),), {"order": Order(id=1)}, "multiple values"),
        ((Order(id=1),), {"expres": True}, "unexpected keyword argument 'expres'"),
        ((Order(id=1),), {"extra": object()}, "argument 'extra' of .* cannot be written as JSON"),
        ((Order(id=1),), {"extra": b"\xff"}, "'extra' .* base64"),
        ((Order(id=1),), {"extra": [None, math.nan]}, "'extra' .* no NaN"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_and_nothing_is_enqueued(
    hf: Holdfast, args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    @hf.task(name="ship")
    async def ship(order: Order, *, express: bool = False, extra: Any = None) -> None: ...

    with pytest.raises(InvalidArguments, match=words):
        await ship.enqueue(*args, **kwargs)
    assert await hf.queries.queue_size() == []


async def test_a_task_is_read_when_the_classes_it_names_exist() -> None:
    hf = Holdfast.in_memory()

    @hf.task
    async def fine(order: Order) -> None: ...

    tasks = TaskGroup()
    namespace: dict[str, Any] = {"tasks": tasks, "__name__": "late"}
    exec(  # noqa: S102 - a module whose class comes after its task
        "@tasks.task\n"
        "async def later(thing: 'Thing') -> None: ...\n"
        "class Thing:\n"
        "    __annotations__ = {'n': int}\n"
        "    def __init__(self, n): self.n = n\n"
        "import dataclasses; Thing = dataclasses.dataclass(Thing)\n",
        namespace,
    )
    hf.include(tasks)
    handle = await namespace["later"].enqueue(namespace["Thing"](3))
    [job] = await hf.queries.get_jobs([handle.id])
    assert job.payload == b'{"thing":{"n":3}}'


async def test_a_model_may_name_a_class_that_comes_after_the_task(hf: Holdfast) -> None:
    hf.include(forward.tasks)
    tree = forward.Tree(leaf=forward.Leaf(number=3))
    handle = await forward.grow.enqueue(tree)
    await hf.run(mode="drain", signals=False)
    assert await handle.result(timeout=10) == tree


async def test_a_model_that_names_no_class_at_all_is_refused() -> None:
    namespace: dict[str, Any] = {"tasks": TaskGroup(), "__name__": "incomplete"}
    exec(  # noqa: S102 - a module of its own
        "from pydantic import BaseModel\n"
        "class Tree(BaseModel):\n"
        "    leaf: 'Nowhere'\n"
        "@tasks.task\n"
        "async def grow(tree: Tree) -> None: ...\n",
        namespace,
    )
    words = "'incomplete.grow': an annotation cannot be resolved .*'Nowhere'.*above the task"
    with pytest.raises(InvalidTask, match=words):
        Holdfast.in_memory().include(namespace["tasks"])
    with pytest.raises(InvalidTask, match=words):
        await namespace["grow"].enqueue({})


class Written(BaseModel):
    name: str = Field(serialization_alias="Name")


class Excluded(BaseModel):
    name: str = Field(exclude=True)


class Typed(BaseModel):
    type: str = Field(alias="kind")


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (Written, Written(name="x"), "value.name: Field required"),
        (Excluded, Excluded(name="x"), "value.name: Field required"),
        (list[Written] | None, [Written(name="x")], r"value.0.name: Field required"),
        (dict[tuple[int, int], int], {(1, 2): 3}, "should be a valid"),
    ],
)
async def test_arguments_that_could_not_be_read_back_are_refused(
    annotation: Any, value: Any, words: str
) -> None:
    hf = Holdfast.in_memory()

    async def ship(value: Any) -> None: ...

    ship.__annotations__["value"] = annotation
    with pytest.raises(InvalidArguments, match=f"could not be read back .*{words}.*one alias"):
        await hf.task(name="ship")(ship).enqueue(value)
    assert await hf.queries.queue_size() == []


async def test_an_alias_and_a_validator_of_ones_own_are_read_back(hf: Holdfast) -> None:
    class Order(BaseModel):
        typed: Typed
        note: str = ""

        @field_validator("note")
        @classmethod
        def shout(cls, value: str) -> str:
            return value.upper()

    @hf.task(name="ship", store_result=True)
    async def ship(order: Order) -> Order:
        return order

    order = Order(typed=Typed(kind="x"), note="a")
    handle = await ship.enqueue(order)
    await hf.run(mode="drain", signals=False)
    assert await handle.result(timeout=10) == order


async def test_a_static_method_is_a_task_like_another(hf: Holdfast) -> None:
    class Shop:
        @hf.task(name="ship", store_result=True)
        @staticmethod
        async def ship(number: int) -> int:
            return 2 * number

    handle = await Shop.ship.enqueue(4)
    await hf.run(mode="drain", signals=False)
    assert await handle.result(timeout=10) == 8


@pytest.mark.parametrize("on_failure", ["hold", "delete"])
async def test_a_plain_function_that_returns_a_coroutine_does_not_count_as_run(
    hf: Holdfast, on_failure: OnFailure
) -> None:
    async def send(to: str) -> None: ...

    @hf.task(name="mail", on_failure=on_failure)
    @functools.wraps(send)
    def mail(to: str) -> Any:
        return send(to)

    handle = await mail.enqueue("x")
    await hf.run(mode="drain", signals=False)
    assert await handle.status() is (Status.FAILED if on_failure == "hold" else Status.EXCEPTION)
    record = await handle.error()
    assert record is not None
    assert "returned a coroutine" in record.exception_message
    assert "`async def`" in record.exception_message


def test_a_signature_that_cannot_be_read_is_refused() -> None:  # noqa: C901 - it defines functions
    hf = Holdfast.in_memory()

    async def starred(*numbers: int) -> None: ...
    async def keywords(**numbers: int) -> None: ...
    async def positional(number: int, /) -> None: ...
    async def bare(number) -> None: ...  # type: ignore[no-untyped-def]
    async def second(number: int, context: Context) -> None: ...
    async def unreadable(lock: threading.Thread) -> None: ...
    async def of_the_job(job: Job) -> None: ...
    async def yields(number: int) -> Any:
        yield number

    for func, words in (
        (starred, "no names to store"),
        (keywords, "no names to store"),
        (positional, "positional-only"),
        (bare, "no annotation"),
        (second, "first parameter"),
        (unreadable, "cannot be read"),
        (of_the_job, "'job' is the Job; take a Context first"),
        (yields, "contains `yield`"),
    ):
        with pytest.raises(InvalidTask if func is not yields else InvalidInput, match=words):
            hf.task(func)
    assert not hf.tasks
    assert not hf.queue_manager.entrypoints


def test_a_name_or_an_alias_that_is_taken_is_refused() -> None:
    hf = Holdfast.in_memory()

    @hf.task(name="ship")
    async def ship() -> None: ...

    with pytest.raises(InvalidInput, match="'ship' has two handlers"):

        @hf.task(name="ship")
        async def other() -> None: ...

    with pytest.raises(InvalidInput, match="'ship' has two handlers"):

        @hf.task(name="third", aliases=("ship",))
        async def third() -> None: ...

    with pytest.raises(InvalidTask, match="taken"):

        @hf.task(name="twice", aliases=("twice",))
        async def twice() -> None: ...

    assert set(hf.tasks) == {"ship"}
    assert [entrypoint.name for entrypoint in hf.queue_manager.entrypoints] == ["ship"]


async def test_a_group_may_be_included_again_and_in_another_queue() -> None:
    tasks, first, second = TaskGroup(), Holdfast.in_memory(), Holdfast.in_memory()

    @tasks.task(name="mail", aliases=("post",))
    async def mail() -> None: ...

    first.include(tasks, tasks)

    @tasks.task(name="call")
    async def call() -> None: ...

    first.include(tasks)
    assert set(first.tasks) == {"mail", "post", "call"}
    second.include(tasks)
    await mail.enqueue()
    assert [size.count for size in await second.queries.queue_size()] == [1]
    first.include(tasks)
    await mail.enqueue()
    assert [size.count for size in await first.queries.queue_size()] == [1]


def test_where_one_task_is_refused_none_of_its_group_is_registered() -> None:
    hf, tasks, others = Holdfast.in_memory(), TaskGroup(), TaskGroup()

    async def mail() -> None: ...

    tasks.task(name="first")(mail)
    tasks.task(name="second")(mail)
    others.task(name="third")(mail)
    others.task(name="fourth", aliases=("second",))(mail)
    with pytest.raises(InvalidInput, match="'second' has two handlers"):
        hf.include(tasks, others)
    with pytest.raises(InvalidTask, match="takes a TaskGroup"):
        hf.include(tasks, [others])  # type: ignore[arg-type]
    assert not hf.tasks
    assert not hf.queue_manager.entrypoints
    hf.include(tasks)
    assert set(hf.tasks) == {"first", "second"}


def test_a_task_is_no_handler_of_jobs_or_ticks() -> None:
    hf = Holdfast.in_memory()

    @hf.task(name="mail")
    async def mail(to: str = "all") -> None: ...

    for register in (hf.entrypoint("other"), hf.schedule("nightly", "0 3 * * *")):
        with pytest.raises(InvalidTask, match=r"is a task.*awaits mail\.enqueue"):
            register(mail)
    assert [entrypoint.name for entrypoint in hf.queue_manager.entrypoints] == ["mail"]


async def test_a_job_without_a_handle_cannot_be_asked_for() -> None:
    hf = Holdfast.in_memory()

    @hf.task
    async def mail() -> None: ...

    with pytest.raises(InvalidInput, match=r"'skip'.*has no handle"):
        mail.options(on_conflict="skip")  # type: ignore[arg-type]


async def test_a_task_of_no_queue_says_how_to_get_one() -> None:
    tasks = TaskGroup()

    @tasks.task
    async def alone() -> None: ...

    with pytest.raises(InvalidInput, match=r"hf\.include\(tasks\)"):
        await alone.enqueue()
    with pytest.raises(InvalidTask, match="takes a TaskGroup"):
        Holdfast.in_memory().include(alone)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attempts": 0}, "attempts must be"),
        ({"attempts": True}, "attempts must be"),
        ({"backoff": 3}, "backoff must be"),
        ({"on": (3,)}, "exception classes"),
        ({"give_up_on": ("x",)}, "exception classes"),
    ],
)
def test_a_retry_policy_that_cannot_work_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidTask, match=words):
        Retry(**options)


def test_a_group_goes_by_the_exceptions_in_it() -> None:
    policy = Retry(on=(TimeoutError, LookupError), give_up_on=(KeyError,))
    late, lost, broken = TimeoutError("late"), KeyError("lost"), ValueError("broken")
    assert policy.applies(ExceptionGroup("two", [broken, ExceptionGroup("one", [late])]))
    assert not policy.applies(ExceptionGroup("two", [late, lost]))
    assert not policy.applies(ExceptionGroup("one", [broken]))
    assert Retry().applies(ExceptionGroup("one", [broken]))


async def test_a_backoff_that_returns_no_timedelta_is_named_beside_the_error(
    hf: Holdfast,
) -> None:
    @hf.task(name="ship", retry=Retry(backoff=lambda attempts, error: 5))  # type: ignore[arg-type,return-value]
    async def ship() -> None:
        raise LookupError("no such order")

    handle = await ship.enqueue()
    await drain(hf)
    assert await handle.status() is Status.FAILED
    record = await handle.error()
    assert record is not None
    assert "must return a timedelta, got 5" in record.exception_message
    assert "no such order" in record.traceback


def test_jitter_stays_between_half_the_delay_and_all_of_it() -> None:
    policy = Retry(backoff=exponential(timedelta(seconds=10)))
    delays = [policy.delay(0, ValueError()) for _ in range(200)]
    assert all(timedelta(seconds=5) <= delay <= timedelta(seconds=10) for delay in delays)
    assert len(set(delays)) > 1


async def test_enqueue_sync_refuses_to_block_an_event_loop() -> None:
    hf = Holdfast.in_memory()

    @hf.task
    async def mail() -> None: ...

    with pytest.raises(InvalidInput, match="await enqueue"):
        mail.enqueue_sync()


def test_enqueue_sync_works_where_no_event_loop_runs() -> None:
    hf = Holdfast.in_memory()

    @hf.task
    async def mail(to: str) -> None: ...

    assert mail.enqueue_sync("x").id == 1
