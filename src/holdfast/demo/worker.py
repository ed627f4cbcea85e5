"""One worker process of the demo: `python -m holdfast.demo.worker DIR NUMBER`."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.demo import handlers
from holdfast.events import Event, Lost
from holdfast.models import Abandoned, JobId

if TYPE_CHECKING:
    from collections.abc import Iterator

REFUSALS = "refused.jsonl"
_CONCURRENCY = 40


@dataclass(frozen=True, slots=True)
class Refusal:
    """A write that changed nothing, because another worker had the job by then."""

    worker: int
    job: JobId
    entrypoint: str
    outcome: str


class Witness:
    """Writes down each late write that was refused. Only the worker that made it can know."""

    def __init__(self, directory: Path, number: int) -> None:
        self._file = directory / REFUSALS
        self._number = number

    def notify(self, event: Event) -> None:
        match event:
            case Lost(outcome=Abandoned()):
                return  # its handler was stopped in time: there was nothing to write
            case Lost(job=job, outcome=outcome):
                line = {
                    "worker": self._number,
                    "job": job.id,
                    "entrypoint": job.entrypoint,
                    "outcome": type(outcome).__name__.lower(),
                }
                with self._file.open("a") as file:
                    file.write(json.dumps(line) + "\n")


def refusals(directory: Path) -> list[Refusal]:
    """The lines that the witnesses wrote."""
    return list(_read(directory / REFUSALS))


def _read(file: Path) -> Iterator[Refusal]:
    if not file.exists():
        return
    for line in file.read_text().splitlines():
        try:
            yield Refusal(**json.loads(line))
        except ValueError:
            continue  # a worker was killed while it wrote the line


async def work(directory: Path, number: int) -> None:
    """Until stopped, or until the demo that started it is gone."""
    async with await handlers.main(str(directory)) as hf:
        hf.observe(Witness(directory, number))
        # Standard input is a pipe that nobody writes to: it ends with the demo.
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), hf.shutdown.set)
        await hf.run(
            heartbeat_timeout=handlers.LEASE,
            concurrency=_CONCURRENCY,
            batch_size=_CONCURRENCY,
            drain_timeout=timedelta(seconds=5),
        )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2])))
