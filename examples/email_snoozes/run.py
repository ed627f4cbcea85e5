"""The whole story on a PostgreSQL of its own: python examples/email_snoozes/run.py

With a DSN as its argument it runs on that database instead.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from holdfast import embedded

if TYPE_CHECKING:
    from holdfast import Holdfast

HERE = Path(__file__).parent
UNFINISHED = """
    select count(*) from email_snoozes
    where not inactive and remind_at < now() + interval '1 hour'
"""


def main(arguments: list[str]) -> None:
    if arguments:
        asyncio.run(story(arguments[0]))
        return
    with tempfile.TemporaryDirectory(prefix="email-snoozes-") as directory:
        print("Starting PostgreSQL …")
        with embedded.start(Path(directory)) as server:
            asyncio.run(story(server.dsn))


async def story(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(read("schema.sql"))
        await connection.execute(read("data.sql"))
        await ask(connection, "Before the worker starts")
        print("\nThe worker starts; Holdfast has no table of its own here.")
        await work_until_done(application(dsn), connection)
        await ask(connection, "After it has done what is due")
    finally:
        await connection.close()


def application(dsn: str) -> Holdfast:
    """The application finds its database in the environment, as under `holdfast run`."""
    os.environ["HOLDFAST_DSN"] = dsn
    sys.path.insert(0, str(HERE))
    hf: Holdfast = importlib.import_module("reminders").hf
    return hf


async def work_until_done(hf: Holdfast, connection: Any) -> None:
    async with hf:
        # A short heartbeat timeout makes it look for stale claims often; leases keep their length.
        worker = asyncio.create_task(hf.run(heartbeat_timeout=timedelta(seconds=1)))
        while not worker.done() and await connection.fetchval(UNFINISHED):
            await asyncio.wait([worker], timeout=0.05)
        hf.shutdown.set()
        await worker


async def ask(connection: Any, when: str) -> None:
    """Answer the six questions of an owner in SQL."""
    print(f"\n{when}:")
    for block in read("questions.sql").split("-- ")[1:]:
        question, statement = block.split("\n", 1)
        answers = await connection.fetch(statement)
        print(f"  {question}")
        for number, answer in answers:
            print(f"      {number}: {answer}")
        if not answers:
            print("      nothing")


def read(name: str) -> str:
    return (HERE / name).read_text("utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
