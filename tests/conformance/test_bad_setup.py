"""Handlers, schedules, names and addresses that can never work, refused before anything runs."""

from __future__ import annotations

import re
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pytest

from holdfast import Holdfast
from holdfast.errors import ConnectionFailed, HoldfastError, InvalidInput, ScheduleError
from holdfast.stores.memory import InMemoryDriver
from holdfast.stores.postgres.drivers import connect
from holdfast.stores.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from holdfast.models import Job
    from tests.conformance.stores import QueueUnderTest


async def handler(job: Job) -> None:
    """Never runs."""


def plain(job: Job) -> None:
    """Never runs either."""


async def no_parameter() -> None:
    """Nor does this."""


def application(queue: QueueUnderTest, **options: Any) -> Holdfast:
    if isinstance(queue.store, PostgresStore):
        return Holdfast(queue.store.driver, **options)
    return Holdfast(InMemoryDriver(queue.clock), **options)


def twice(app: Holdfast) -> None:
    app.entrypoint("mail")(handler)
    app.entrypoint("mail")(handler)


SETUPS: Mapping[str, tuple[Callable[[Holdfast], object], type[HoldfastError], str]] = {
    "unknown on_failure": (
        lambda app: app.entrypoint("mail", on_failure="retry")(handler),  # type: ignore[arg-type]
        InvalidInput,
        "on_failure must be 'delete' or 'hold', got 'retry'",
    ),
    "two handlers with one name": (twice, InvalidInput, "'mail' has two handlers"),
    "handler that is not async": (
        lambda app: app.entrypoint("mail")(plain),
        InvalidInput,
        "is a plain def; make it `async def`",
    ),
    "async handler in a thread": (
        lambda app: app.entrypoint("mail", executor="thread")(handler),
        InvalidInput,
        "is an async def",
    ),
    "unknown executor": (
        lambda app: app.entrypoint("mail", executor="fiber")(handler),  # type: ignore[arg-type]
        InvalidInput,
        "executor must be .* got 'fiber'",
    ),
    "blank name": (lambda app: app.entrypoint(" ")(handler), InvalidInput, "the name is blank"),
    "negative limit": (
        lambda app: app.entrypoint("mail", concurrency_limit=-1)(handler),
        InvalidInput,
        "concurrency_limit must be .* got -1",
    ),
    "negative timeout": (
        lambda app: app.entrypoint("mail", timeout=timedelta(-1))(handler),
        InvalidInput,
        "timeout must be a timedelta above zero",
    ),
    "lease too short": (
        lambda app: app.entrypoint("mail", retry_timer=timedelta(microseconds=1))(handler),
        InvalidInput,
        "retry_timer must be a timedelta of at least",
    ),
    "no attempts": (
        lambda app: app.entrypoint("mail", max_attempts=0)(handler),
        InvalidInput,
        "max_attempts must be .* got 0",
    ),
    "bad cron expression": (
        lambda app: app.schedule("report", "61 * * * *")(handler),
        ScheduleError,
        "61",
    ),
    "unknown time zone": (
        lambda app: app.schedule("report", "@daily", timezone="Mars/Olympus")(handler),
        ScheduleError,
        "Mars/Olympus",
    ),
    "unknown misfire": (
        lambda app: app.schedule("report", "@daily", misfire="twice")(handler),  # type: ignore[arg-type]
        ScheduleError,
        "misfire must be .* got 'twice'",
    ),
    "unknown overlap": (
        lambda app: app.schedule("report", "@daily", overlap="queue")(handler),  # type: ignore[arg-type]
        ScheduleError,
        "overlap must be .* got 'queue'",
    ),
    "schedule with a plain def": (
        lambda app: app.schedule("report", "@daily")(plain),
        InvalidInput,
        "is a plain def; make it `async def`",
    ),
    "schedule with an async def in a thread": (
        lambda app: app.schedule("report", "@daily", executor="thread")(handler),
        InvalidInput,
        "is an async def; make it a plain `def`",
    ),
    "schedule without a parameter": (
        lambda app: app.schedule("report", "@daily")(no_parameter),
        InvalidInput,
        "is called with .job., but takes",
    ),
    "schedule in another process": (
        lambda app: app.schedule("report", "@daily", executor="process")(plain),
        InvalidInput,
        "is not for schedules; let the handler enqueue",
    ),
}


@pytest.mark.parametrize("case", SETUPS)
async def test_a_handler_or_schedule_that_can_never_work_is_refused(
    queue: QueueUnderTest, case: str
) -> None:
    setup, kind, message = SETUPS[case]
    with pytest.raises(HoldfastError, match=message) as caught:
        setup(application(queue))
    assert type(caught.value) is kind
    with pytest.raises(kind) as elsewhere:
        setup(Holdfast.in_memory())
    assert str(caught.value) == str(elsewhere.value)


@pytest.mark.parametrize("what", ["prefix", "schema"])
async def test_a_name_that_would_need_quoting_is_refused(queue: QueueUnderTest, what: str) -> None:
    for name in ('hold"fast', "Holdfast", "", "1st", "x" * 32, "a;drop"):
        with pytest.raises(InvalidInput, match=re.escape(f"{what} {name!r} must be")):
            application(queue, **{what: name})


async def test_a_schedule_that_does_not_exist_is_named(queue: QueueUnderTest) -> None:
    before = await queue.rows()
    schedules = application(queue, **placed(queue)).schedules
    for verb in (schedules.pause, schedules.resume, schedules.run_now, schedules.remove):
        with pytest.raises(ScheduleError, match="there is no schedule 'report'"):
            await verb("report")
    assert await queue.rows() == before


def placed(queue: QueueUnderTest) -> dict[str, Any]:
    """Where the tables of the queue are."""
    return {"schema": queue.store.names.schema} if isinstance(queue.store, PostgresStore) else {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "forever"}, 'mode must be "continuous" or "drain", got \'forever\''),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"heartbeat_timeout": timedelta(0)}, "heartbeat_timeout must be a timedelta of at least"),
        ({"drain_timeout": 5}, "drain_timeout must be a timedelta"),
    ],
)
async def test_a_worker_does_not_start_with_bad_settings(
    queue: QueueUnderTest, options: dict[str, Any], message: str
) -> None:
    await queue.add()
    before = await queue.rows()
    app = application(queue, **placed(queue))
    with pytest.raises(InvalidInput, match=message):
        await app.run(**options)
    assert await queue.rows() == before


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Where connections are accepted and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("port", ["silent_port", "closed_port"])
async def test_an_address_that_does_not_answer_is_named_without_its_password(
    request: pytest.FixtureRequest, library: Literal["asyncpg", "psycopg"], port: str
) -> None:
    number = request.getfixturevalue(port)
    dsn = f"postgresql://ann:secret@127.0.0.1:{number}/orders"
    driver = connect(dsn, driver=library, connect_timeout=1)
    with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{number}, database orders") as caught:
        await PostgresStore(driver).jobs.now()
    assert "secret" not in str(caught.value)
    await driver.close()


@pytest.mark.parametrize("dsn", ["mysql://localhost/x", "no address", "postgresql://a:b:c/x"])
async def test_an_address_that_cannot_be_read_is_refused(dsn: str) -> None:
    with pytest.raises(InvalidInput, match="dsn"):
        Holdfast.connect(dsn)
