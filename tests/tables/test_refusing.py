"""What cannot work is refused before the first claim, and the fault is named."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Holdfast, InvalidInput, TableQueue, exponential, linear
from tests.tables.three_tables import SNOOZES, session

if TYPE_CHECKING:
    from tests.servers import Database
    from tests.tables.conftest import Link

GOOD: dict[str, Any] = {}

CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "no such table": ("drop table email_snoozes", GOOD, ("'email_snoozes'", "schema.table")),
    "no such schema": ("", {"table": "nowhere.email_snoozes"}, ("'nowhere.email_snoozes'",)),
    "no key": ("alter table email_snoozes drop id", GOOD, ("'id' (key) is missing",)),
    "a key of a strange type": (
        "alter table email_snoozes drop id, add id date unique",
        GOOD,
        ("key 'id' is date",),
    ),
    "a key that is not unique": (
        "alter table email_snoozes drop constraint email_snoozes_pkey",
        GOOD,
        ("key 'id' has no unique index",),
    ),
    "a key that is unique only with something else": (
        "alter table email_snoozes drop constraint email_snoozes_pkey;"
        "create unique index on email_snoozes (id, lower(subject))",
        GOOD,
        ("key 'id' has no unique index",),
    ),
    "a key that is unique only among some": (
        "alter table email_snoozes drop constraint email_snoozes_pkey;"
        "create unique index on email_snoozes (id) where not inactive",
        GOOD,
        ("key 'id' has no unique index",),
    ),
    "a due column without a zone": (
        "alter table email_snoozes alter remind_at type timestamp",
        GOOD,
        ("'remind_at' (due) is timestamp without time zone", "timestamp with time zone"),
    ),
    "a due column that is a date": (
        "alter table email_snoozes alter remind_at type date",
        GOOD,
        ("'remind_at' (due) is date",),
    ),
    "a token that is text": (
        "alter table email_snoozes alter claim_token type text",
        GOOD,
        ("'claim_token' (claim_token) is text", "uuid"),
    ),
    "no place for the attempts": (
        "alter table email_snoozes drop attempts",
        GOOD,
        ("'attempts' (attempts) is missing",),
    ),
    "no cap": ("alter table email_snoozes drop max_attempts", GOOD, ("'max_attempts'",)),
    "a missing column": ("", {"due": "send_at"}, ("'send_at' (due) is missing",)),
    "a missing optional column that was named": (
        "",
        {"recoveries": "crashes"},
        ("'crashes' (recoveries) is missing",),
    ),
    "an optional column of another meaning": (
        "alter table email_snoozes add outcome integer",
        GOOD,
        ("'outcome' (outcome) is integer", "outcome=None"),
    ),
    "an order by nothing": ("", {"order": ("priority desc",)}, ("'priority' (order) is missing",)),
    "a condition that does not parse": ("", {"where": "subject ="}, ("where 'subject ='",)),
    "a condition on a missing column": ("", {"where": "nothing > 1"}, ("nothing",)),
    "a condition that is none": ("", {"where": "subject"}, ("where 'subject'",)),
    "several faults at once": (
        "alter table email_snoozes drop claimed_at",
        {"due": "send_at"},
        ("'claimed_at'", "'send_at'"),
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_table_that_cannot_be_the_queue_is_refused_at_the_start(
    place: Database, link: Link, name: str
) -> None:
    change, options, words = CASES[name]
    async with session(place.dsn) as connection:
        await connection.execute(SNOOZES.ddl + change)
    async with Holdfast.connect(place.dsn, driver=link.driver) as hf:

        @hf.table(TableQueue(**{"table": "email_snoozes"} | options))
        async def remind(row: dict[str, Any]) -> None:
            raise AssertionError("it ran")

        with pytest.raises(InvalidInput) as refusal:
            await hf.run(mode="drain", signals=False)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "options", "words", "ddl"),
    [
        (
            "drop index idx_email_snoozes_due",
            {},
            "no index has the order column 'remind_at'",
            '("remind_at", "id") where "inactive" = false and "claimed_at" is null;',
        ),
        (
            "",
            {"order": ("snooze_duration_hours desc nulls last", "remind_at")},
            "no index has the order column 'snooze_duration_hours'",
            '("snooze_duration_hours" desc nulls last, "remind_at", "id") where',
        ),
        (
            "drop index idx_email_snoozes_claimed",
            {},
            "no index starts with 'claimed_at'",
            '("claimed_at") where "claimed_at" is not null;',
        ),
        (
            "alter table email_snoozes alter inactive drop not null",
            {},
            "'inactive' (inactive) may be null",
            "set not null;",
        ),
    ],
)
async def test_what_is_slow_or_risky_is_warned_of_once_with_its_ddl(
    place: Database,
    link: Link,
    caplog: pytest.LogCaptureFixture,
    change: str,
    options: dict[str, Any],
    words: str,
    ddl: str,
) -> None:
    ran: list[int] = []
    async with session(place.dsn) as connection:
        await connection.execute(SNOOZES.ddl + change)
        await connection.execute(
            "insert into email_snoozes (user_email, message_id, remind_at) values ('a', 'b', now())"
        )
    async with Holdfast.connect(place.dsn, driver=link.driver) as hf:

        @hf.table(TableQueue("email_snoozes", **options))
        async def remind(row: dict[str, Any]) -> None:
            ran.append(row["id"])

        for _ in range(2):
            await hf.run(mode="drain", signals=False)
    assert ran == [1]
    told = [record for record in caplog.records if words in record.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING]
    assert ddl in told[0].getMessage()


async def test_the_ddl_of_a_warning_mends_it(
    place: Database, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    async with session(place.dsn) as connection:
        await connection.execute(SNOOZES.ddl)
        await connection.execute(
            "drop index idx_email_snoozes_due; drop index idx_email_snoozes_claimed"
        )
        async with Holdfast.connect(place.dsn, driver=link.driver) as hf:
            hf.table("email_snoozes")(_nothing)
            await hf.run(mode="drain", signals=False)
        warnings = [text for text in caplog.messages if "create index" in text]
        assert len(warnings) == 2
        for warning in warnings:
            await connection.execute(warning[warning.index("create index") :])
        caplog.clear()
        async with Holdfast.connect(place.dsn, driver=link.driver) as hf:
            hf.table("email_snoozes")(_nothing)
            await hf.run(mode="drain", signals=False)
    assert "index" not in caplog.text


async def _nothing(row: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": ""}, "must be a table"),
        ({"table": "a.b.c"}, "must be a table"),
        ({"table": 'a"; drop table b'}, "must be a table"),
        ({"key": None}, "key must name a column"),
        ({"due": 'x"'}, "is not a column name"),
        ({"claimed_by": "a b"}, "is not a column name"),
        ({"claimed_by": "é"}, "is not a column name"),
        ({"order": ("priority; drop table x",)}, "order 'priority; drop"),
        ({"order": "priority desc"}, 'a tuple such as ("priority desc",)'),
        ({"heartbeat": "claimed_at"}, "cannot be claimed_at and heartbeat at once"),
        ({"lease": timedelta(0)}, "lease must be"),
        ({"lease": 30}, "lease must be"),
        ({"max_attempts": 0}, "max_attempts must be at least 1"),
        ({"backoff": 30}, "backoff must be"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_when_it_is_made(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        TableQueue(**{"table": "email_snoozes"} | options)
    assert words in str(refusal.value)


def test_all_faults_of_a_declaration_are_told_together() -> None:
    with pytest.raises(InvalidInput) as refusal:
        TableQueue("a b", due="c d", lease=timedelta(0))
    for word in ("'a b'", "'c d'", "lease"):
        assert word in str(refusal.value)


@pytest.mark.parametrize("backoff", [linear, exponential])
@pytest.mark.parametrize(("step", "limit"), [(0, 10), (-1, 10), (11, 10)])
def test_a_backoff_that_cannot_work_is_refused(backoff: Any, step: int, limit: int) -> None:
    with pytest.raises(InvalidInput, match="0 < step <= limit"):
        backoff(timedelta(seconds=step), timedelta(seconds=limit))


@pytest.mark.parametrize("attempts", [0, 1, 5, 1_000_000])
def test_no_backoff_is_longer_than_its_limit(attempts: int) -> None:
    limit = timedelta(minutes=10)
    for backoff in (
        linear(timedelta(seconds=30), limit),
        exponential(timedelta(seconds=10), limit),
        exponential(timedelta(seconds=10), limit, jitter=True),
    ):
        assert timedelta(0) <= backoff(attempts, ValueError()) <= limit


async def test_two_queues_of_one_name_are_refused() -> None:
    hf = Holdfast.in_memory()
    hf.table("email_snoozes")(_nothing)
    with pytest.raises(InvalidInput, match="has two handlers"):
        hf.table(TableQueue("email_snoozes", where="id = 1"))(_nothing)
