"""Tables that are too wide for their terminal: what gives way, and what never does."""

from __future__ import annotations

import asyncio
import contextlib
import io
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from holdfast import Holdfast, Job, Schedule
from holdfast.cli.output import fit, table
from holdfast.models import WorkerInfo
from holdfast.stores.postgres.drivers import connect
from tests import servers
from tests.cli.terminal import columns_of, on_a_terminal, terminal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.servers import Database, SharedServers

NAME = "charge_card_through_stripe_eu1"
TIMER = "nightly_report_for_all_tenants"
WORKER = "host-7f9c8d:12345:deadbeef"
KEY = UUID("0b8f6c1e-51a4-4b7e-9c1d-2f3e4d5c6b7a")
ERROR = "SMTPRecipientsRefused: 550 no such mailbox here"

NARROW = """\
key                state    claimed by  failed  last error
──────────────────────────────────────────────────────────
0b8f6c1e-51a4-4b7  claimed  host-7f9c8      12  SMTPRecipi
e-9c1d-2f3e4d5c6b           d:12345:de          entsRefuse
7a                          adbeef              d: 550 no
                                                such
                                                mailbox
                                                here
"""


def printed(columns: int) -> list[str]:
    with terminal(columns) as screen:
        table(
            ("key", "state", "claimed by", "failed", "last error"),
            [(str(KEY), "claimed", WORKER, "12", ERROR)],
            right=("failed",),
        )
    return screen.lines


def test_a_narrow_table_folds_what_is_long_and_loses_nothing() -> None:
    assert printed(58) == NARROW.splitlines()


@pytest.mark.parametrize("columns", [58, 80, 100, 129])
def test_no_line_of_a_table_is_longer_than_the_terminal(columns: int) -> None:
    lines = printed(columns)
    assert max(map(len, lines)) <= columns
    assert columns_of(lines) == {
        "key": str(KEY),
        "state": "claimed",
        "claimed by": WORKER,
        "failed": "12",
        "last error": ERROR.replace(" ", ""),
    }


def test_the_last_columns_give_way_before_the_name_of_a_row() -> None:
    assert printed(80)[2].startswith(f"{KEY}  claimed  ")


def test_the_biggest_gives_first_and_nothing_gives_all() -> None:
    assert fit([30, 9, 40], [1, 1, 1], 79) == [30, 9, 40]
    assert fit([30, 9, 40], [1, 1, 1], 69) == [30, 9, 30]
    assert fit([30, 9, 40], [1, 1, 1], 59) == [25, 9, 25]
    assert fit([30, 9, 40], [30, 9, 10], 59) == [30, 9, 20]
    assert fit([30, 9, 40], [30, 9, 10], 39) == [20, 9, 10]
    assert fit([30, 0, 40], [1, 1, 1], 0) == [1, 0, 1]


def test_a_table_without_rows_is_its_headings() -> None:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        table(("name", "state"), [])
    assert out.getvalue().split() == ["name", "state"]


def on_an_installed(dsn: str, work: Callable[[Holdfast], Awaitable[None]]) -> str:
    async def opened() -> None:
        async with Holdfast.connect(dsn) as hf, asyncio.timeout(30):
            await hf.install()
            await work(hf)

    asyncio.run(opened())
    return dsn


@pytest.fixture(scope="module")
def filled(pg_servers: SharedServers) -> Iterator[str]:
    """The DSN of a database with one of everything, under a long name; only to be read."""
    with pg_servers.schema(servers.EMBEDDED) as database:
        yield on_an_installed(database.dsn, fill)


async def fill(hf: Holdfast) -> None:
    @hf.entrypoint(NAME, on_failure="hold")
    async def charge(job: Job) -> None:
        raise ValueError(ERROR)

    @hf.schedule(TIMER, "*/15 9-17 * * 1-5", timezone="America/Argentina/Buenos_Aires")
    async def scheduled(schedule: Schedule) -> None:
        pass

    await hf.queries.enqueue(NAME, b"x" * 900)
    await hf.run(mode="drain")
    names = [f"{NAME}_{number}" for number in range(3)]
    now = await hf.queries.now()
    assert hf.store.reports is not None
    await hf.store.reports.report(
        WorkerInfo(WORKER, "host-7f9c8d", 12345, "0.1.0", names, 500, 171, "running", now, now)
    )


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("failed", {"id": "1", "entrypoint": NAME, "payload": "900B"}),
        ("log", {"job": "1", "entrypoint": NAME, "status": "held(failed)"}),
        ("workers", {"worker": WORKER, "state": "running", "running": "171/500"}),
        ("schedules", {"name": TIMER, "time zone": "America/Argentina/Buenos_Aires"}),
    ],
)
def test_long_names_can_be_read_in_full_on_80_columns(
    filled: str, command: str, expected: dict[str, str]
) -> None:
    lines = on_a_terminal(command, "--dsn", filled)
    assert expected.items() <= columns_of(lines).items(), "\n".join(lines)


ORDERS = f"""
create table orders (
    id uuid primary key, remind_at timestamptz not null, claimed_at timestamptz, claimed_by text,
    claim_token uuid, attempts integer not null, max_attempts integer not null default 5,
    inactive boolean not null default false, last_error text, last_error_at timestamptz
);
insert into orders (id, remind_at, claimed_at, claimed_by, claim_token, attempts, last_error)
values ('{KEY}', now() + interval '1530 minutes', now() - interval '26 hours', '{WORKER}', '{KEY}',
    12, '{ERROR}');
"""


def test_a_stuck_row_can_be_read_in_full_on_80_columns(pg18: Database) -> None:
    async def work(hf: Holdfast) -> None:
        driver = connect(pg18.dsn)
        await driver.script(ORDERS)
        await driver.close()

    on_an_installed(pg18.dsn, work)
    counts, *lines = on_a_terminal("table", "inspect", "orders", "--dsn", pg18.dsn)
    assert "claimed 1" in counts
    assert columns_of(lines) == {
        "key": str(KEY),
        "state": "stuck",
        "claimed by": WORKER,
        "for": "1d2h",
        "failed": "12",
        "next": "in1d1h",
        "last error": ERROR.replace(" ", ""),
    }
