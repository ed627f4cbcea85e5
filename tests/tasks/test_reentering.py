"""A queue at module level is used by one event loop after another, and says when by two."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import ConnectionFailed, Holdfast, InvalidInput, WrongEventLoop

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import Database

PATIENCE = 60.0

on_each_driver = pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])


@on_each_driver
def test_a_queue_can_be_entered_again_and_in_another_event_loop(
    pg18: Database, driver: Any
) -> None:
    hf = Holdfast.connect(pg18.dsn, driver=driver)
    seen: list[int] = []

    @hf.task(store_result=True)
    async def double(number: int) -> int:
        seen.append(number)
        return 2 * number

    async def once(number: int) -> int:
        async with hf:
            await hf.install()
            handle = await double.enqueue(number)
            await hf.run(mode="drain", signals=False)
            return await handle.result(PATIENCE)

    async def twice() -> None:
        assert await once(1) == 2
        with pytest.raises(ConnectionFailed, match="async with"):
            await double.enqueue(1)
        assert await once(2) == 4

    asyncio.run(twice())
    asyncio.run(twice())
    assert seen == [1, 2, 1, 2]


# The connection of the first loop was not closed.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@on_each_driver
def test_a_queue_that_was_never_entered_follows_the_event_loop(pg18: Database, driver: Any) -> None:
    hf = Holdfast.connect(pg18.dsn, driver=driver)

    @hf.task(name="mail")
    async def mail(to: str) -> None: ...

    async def enqueue() -> None:
        await hf.install()
        await mail.enqueue("x")

    async def leave() -> int:
        async with hf:
            return sum(size.count for size in await hf.queries.queue_size())

    asyncio.run(enqueue())
    asyncio.run(enqueue())
    assert asyncio.run(leave()) == 2
    # Now, while the warnings about that connection are ignored.
    gc.collect()


async def test_a_run_that_was_stopped_can_follow_another() -> None:
    hf = Holdfast.in_memory()
    seen: list[int] = []

    @hf.task
    async def note(number: int) -> None:
        seen.append(number)
        hf.shutdown.set()

    for number in range(2):
        async with hf, asyncio.timeout(PATIENCE):
            await note.enqueue(number)
            await hf.run(signals=False)
    assert seen == [0, 1]


@pytest.mark.parametrize("kind", ["asyncpg", "embedded"])
async def test_blocks_around_and_beside_each_other_share_it(
    pg18: Database, server_directory: Path, kind: str
) -> None:
    hf = Holdfast.connect(pg18.dsn if kind == "asyncpg" else f"embedded:{server_directory}")

    @hf.task(name="mail")
    async def mail(to: str) -> None: ...

    async def beside(left: asyncio.Event, leave: asyncio.Event) -> None:
        async with hf:
            await leave.wait()
            await mail.enqueue("x")
        left.set()

    first, second, last = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with hf, asyncio.TaskGroup() as group:
        await hf.install()
        group.create_task(beside(second, first))
        group.create_task(beside(last, second))
        async with hf:
            await mail.enqueue("x")
        first.set()
        await last.wait()
        assert [size.count for size in await hf.queries.queue_size()] == [3]
    with pytest.raises(ConnectionFailed, match="async with"):
        await mail.enqueue("x")


_FORKING = """
import asyncio, os, sys
from holdfast import Holdfast

hf = Holdfast.connect(sys.argv[1], driver=sys.argv[2])

@hf.task(name="mail")
async def mail(to: str) -> None: ...

asyncio.run(hf.queries.install())
hf = Holdfast.connect(sys.argv[1], driver=sys.argv[2])
hf.task(name="mail")(mail.func).enqueue_sync("parent")
children = []
for number in range(2):
    if (child := os.fork()) == 0:
        hf.tasks["mail"].enqueue_sync("child")
        os._exit(0)
    children.append(child)
codes = [os.waitpid(child, 0)[1] for child in children]
assert codes == [0, 0], codes
print(hf.tasks["mail"].enqueue_sync("parent").id)
os._exit(0)
"""


@on_each_driver
def test_a_forked_process_enqueues_on_a_connection_of_its_own(pg18: Database, driver: str) -> None:
    script = f"import signal; signal.alarm(60)\n{_FORKING}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, pg18.dsn, driver],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("4\n", 0), done.stderr


async def test_use_in_two_event_loops_at_once_is_an_error_that_names_it(pg18: Database) -> None:
    errors: list[BaseException] = []

    def elsewhere(work: Any) -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            errors.append(error)

    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()

        async def enter() -> None:
            async with hf:
                pass

        for work in (hf.queries.queue_size, enter):
            thread = threading.Thread(target=elsewhere, args=[work])
            thread.start()
            await asyncio.to_thread(thread.join)
        assert await hf.queries.queue_size() == []
    assert [type(error) for error in errors] == [WrongEventLoop, WrongEventLoop]


@on_each_driver
async def test_threads_enqueue_beside_an_event_loop(pg18: Database, driver: Any) -> None:
    async with Holdfast.connect(pg18.dsn, driver=driver) as hf:
        await hf.install()

        @hf.task(name="mail")
        async def mail(to: str) -> None: ...

        handles = await asyncio.gather(
            *(asyncio.to_thread(mail.enqueue_sync, f"{number}") for number in range(5))
        )
        assert len({handle.id for handle in handles}) == 5
        with pytest.raises(InvalidInput, match="await enqueue"):
            mail.enqueue_sync("x")
        assert len(await hf.queries.browse_queue()) == 5
