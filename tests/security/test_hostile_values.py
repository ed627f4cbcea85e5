"""Names and texts that would be SQL, a template or a pattern anywhere but in a parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest

from holdfast import BreakerPolicy, HeldFilter, Holdfast, InvalidInput, Job, Schedule, Status
from holdfast.settings import Names
from holdfast.stores.postgres import migrate
from tests.worker.workers import ends

if TYPE_CHECKING:
    from tests.servers import Database

HOSTILE = (
    "'; drop table holdfast; --",
    '"',
    "\\",
    "\\'",
    "%s %(x)s %",
    ":now::text",
    "$1",
    "{table}",
    "a\nb\tc",
    "/* where */",
    "_%",
    "\u202e\u0007\x1b[2J",
    "é 日本 🦀",
)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_hostile_texts_come_back_as_they_went_in(
    pg: Database, driver: Literal["asyncpg", "psycopg"]
) -> None:
    async with Holdfast.connect(pg.dsn, driver=driver) as hf:
        await hf.install()
        for text in HOSTILE:
            # Behind a limit the name is also part of a lock's, behind a breaker of a row's.
            hf.entrypoint(text, on_failure="hold", concurrency_limit=1, breaker=_policy(text))(
                _raising(text)
            )
        payloads = [text.encode() for text in HOSTILE]
        headers = [{text: text} for text in HOSTILE]
        keys = [f"key {text}" for text in HOSTILE]
        ids = await hf.queries.enqueue(list(HOSTILE), payloads, headers=headers, dedupe_key=keys)
        await ends(hf.run(mode="drain"))

        jobs = await hf.queries.get_jobs(ids)
        assert [job.entrypoint for job in jobs] == list(HOSTILE)
        assert [job.payload for job in jobs] == payloads
        assert [job.headers for job in jobs] == headers
        assert [job.dedupe_key for job in jobs] == keys
        assert [job.last_error for job in jobs] == [f"ValueError: {text}|" for text in HOSTILE]
        for job, text in zip(jobs, HOSTILE, strict=True):
            await _search(hf, job, text)
        for job, text in zip(jobs, HOSTILE, strict=True):
            await hf.queries.delete_jobs([job.id], actor=text, reason=text)
            last = (await hf.queries.job_history(job.id))[-1]
            assert (last.status, last.actor, last.reason) == (Status.DELETED, text, text)
        known = {breaker.name for breaker in await hf.queries.list_breakers()}
        assert known == set(HOSTILE)


def _policy(name: str) -> BreakerPolicy:
    return BreakerPolicy(name, threshold=1000)


def _raising(text: str) -> Any:
    async def handler(job: Job) -> None:
        raise ValueError(f"{text}|")

    return handler


async def _search(hf: Holdfast, job: Job, text: str) -> None:
    """Filters compare, they do not match: a wildcard finds itself and nothing else."""
    by_error = await hf.queries.list_failed_jobs(100, among=HeldFilter(error=f": {text}|"))
    assert [found.id for found in by_error] == [job.id]
    by_name = await hf.queries.browse_queue(entrypoint=text)
    assert [found.id for found in by_name] == [job.id]


async def test_a_schedule_may_have_a_hostile_name(pg18: Database) -> None:
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()
        for name in HOSTILE:

            @hf.schedule(name, "0 3 * * *")
            async def tick(schedule: Schedule) -> None: ...

        await ends(hf.run(mode="drain"))
        for name in HOSTILE:
            await hf.schedules.pause(name)
        assert {schedule.name for schedule in await hf.schedules.list() if schedule.paused} == set(
            HOSTILE
        )


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_bytes_and_numbers_come_back_to_the_last_digit(
    pg: Database, driver: Literal["asyncpg", "psycopg"]
) -> None:
    deep: Any = "end"
    for _ in range(98):
        deep = [deep]
    headers = {"large": 2**53 + 1, "larger": -(10**40), "small": 0.1, "deep": deep, "none": None}
    payload = bytes(range(256)) * 16
    async with Holdfast.connect(pg.dsn, driver=driver) as hf:
        await hf.install()
        ids = await hf.queries.enqueue("any", payload, headers=headers)
        [job] = await hf.queries.get_jobs(ids)
    assert (job.payload, job.headers) == (payload, headers)


@pytest.mark.parametrize("part", ["prefix", "schema"])
@pytest.mark.parametrize(
    "name",
    [*HOSTILE, "", "A", "1a", "a-b", "a.b", "a b", "a\0", "ä", "x" * 32, "x" * 64, "a\n", "pg;"],
)
def test_a_name_of_tables_that_needs_quoting_is_refused(part: str, name: str) -> None:
    with pytest.raises(InvalidInput, match=part):
        Names(**{part: name})


def test_no_name_made_from_the_longest_prefix_is_cut_short() -> None:
    longest = Names("p" * 31, "s" * 31)
    words = migrate.install_sql(longest).replace('"', " ").replace(".", " ").split()
    assert max(len(word) for word in words if word.startswith("ppp")) <= 63
