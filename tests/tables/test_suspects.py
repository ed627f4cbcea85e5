"""Which rows a death makes suspects, which worker claims them, and when one is retired."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.lifecycle import RETIRE_LAST_RETRY, STALE_ERROR
from holdfast.models import Change, ClaimRule
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.tables.fit import fit
from holdfast.stores.postgres.tables.inspect import inspect
from holdfast.stores.postgres.tables.render import DEATH_ERROR
from holdfast.worker.sources import SharedClaims
from tests.tables.test_settle import is_free, writes
from tests.tables.three_tables import (
    COMPLETE,
    HOLD,
    KINDS,
    LEASE,
    RELEASE,
    RETRY,
    SECOND,
    SNOOZES,
    Bench,
    bench,
    held,
)

if TYPE_CHECKING:
    from tests.servers import Database
    from tests.tables.conftest import Link


async def die(table: Bench) -> None:
    """Every worker dies, and a sweep finds out."""
    table.clock.advance(LEASE)
    await table.recover()


async def test_a_recovered_row_is_not_for_the_ordinary_claim(snoozes: Bench) -> None:
    await snoozes.add(1, 2)
    await snoozes.claim(1)
    await die(snoozes)
    assert snoozes.numbers(await snoozes.claim()) == [2]
    assert await snoozes.claim_recovered() == []
    [job] = await snoozes.claim_suspects()
    assert (snoozes.numbers([job]), job.recoveries, job.max_recoveries) == ([1], 1, 2)


async def test_a_row_that_dies_alone_is_retired_and_says_so(snoozes: Bench) -> None:
    await snoozes.add(1, attempts=2)
    await snoozes.claim()
    await die(snoozes)
    await snoozes.claim_suspects()
    snoozes.clock.advance(LEASE)
    recovery = await snoozes.recover()
    assert (recovery.recovered, recovery.retired) == ((), (1,))
    row = await snoozes.row(1)
    assert (row["inactive"], row["attempts"]) == (True, 2)
    assert is_free(row)
    assert row["last_error"] == f"{DEATH_ERROR}; before that: {STALE_ERROR}"
    assert row["last_error_at"] == snoozes.clock.now()


async def test_a_recoveries_column_counts_deaths_as_for_jobs(place: Database, link: Link) -> None:
    async with bench(KINDS["outbox"], place.dsn, link.driver) as outbox:
        await outbox.add(1)
        assert [job.recoveries for job in await outbox.claim()] == [0]
        await die(outbox)
        assert await outbox.claim() == await outbox.claim_suspects() == []
        assert [job.recoveries for job in await outbox.claim_recovered()] == [1]
        await die(outbox)
        assert await outbox.claim() == await outbox.claim_recovered() == []
        assert [job.recoveries for job in await outbox.claim_suspects()] == [2]
        await die(outbox)
        row = await outbox.row(1)
        assert (row["inactive"], row["recoveries"], row["attempts"]) == (True, 3, 0)
        assert writes(row, "outcome", "failed")


@pytest.mark.parametrize("cap", [1, 2])
async def test_with_a_cap_of_one_a_first_death_retires_no_row(
    place: Database, link: Link, cap: int
) -> None:
    kind = KINDS["outbox"]
    kind = replace(kind, queue=replace(kind.queue, max_recoveries=cap))
    async with bench(kind, place.dsn, link.driver) as outbox:
        await outbox.add(1)
        await outbox.claim()
        await die(outbox)
        assert (await outbox.row(1))["inactive"] is False
        assert len(await outbox.claim_suspects()) == 1
        await die(outbox)
        assert (await outbox.row(1))["inactive"] is True


async def test_suspects_of_a_counting_table_come_one_at_a_time(place: Database, link: Link) -> None:
    async with bench(KINDS["outbox"], place.dsn, link.driver) as outbox:
        await outbox.add(*range(5), recoveries=2)
        for _ in range(3):
            [job] = await outbox.claim_suspects()
            await outbox.change(COMPLETE, held(job))


async def test_suspects_come_in_groups_that_double(snoozes: Bench) -> None:
    await snoozes.add(*range(1, 31))
    await snoozes.claim()
    await die(snoozes)
    sizes = []
    while jobs := await snoozes.claim_suspects():
        sizes.append(len(jobs))
        assert len({job.claim_token for job in jobs}) == 1
        await snoozes.change(COMPLETE, *map(held, jobs))
    assert sizes == [1, 2, 4, 8, 15]
    # A new process, and one that has seen a death, begin with one.
    await snoozes.add(*range(31, 36))
    await snoozes.claim()
    await die(snoozes)
    assert len(await snoozes.claim_suspects()) == 1
    assert len(await snoozes.using().claim_recovered([], limit=9, worker="w", suspects=True)) == 1


async def test_a_group_is_no_larger_than_asked(snoozes: Bench) -> None:
    await snoozes.add(*range(1, 21))
    await snoozes.claim()
    await die(snoozes)
    sizes = [len(await snoozes.claim_suspects(limit=3)) for _ in range(4)]
    assert sizes == [1, 2, 3, 3]


async def test_the_death_of_a_group_retires_none_of_it(snoozes: Bench) -> None:
    await snoozes.add(1, 2, 3)
    await snoozes.claim()
    await die(snoozes)
    [first] = await snoozes.claim_suspects()
    await snoozes.change(COMPLETE, held(first))
    assert len(await snoozes.claim_suspects()) == 2
    snoozes.clock.advance(LEASE)
    recovery = await snoozes.recover()
    assert (set(recovery.recovered), recovery.retired) == ({2, 3}, ())


@pytest.mark.parametrize("absent", ["locked", "paused", "beyond the limit", "recovered"])
async def test_a_group_whose_rows_are_recovered_one_by_one_is_not_retired(
    snoozes: Bench, absent: str
) -> None:
    """The last row of the group is alone under its token then, and was not when it died."""
    await snoozes.add(1, 2, 3)
    await snoozes.claim()
    await die(snoozes)
    await snoozes.change(COMPLETE, held((await snoozes.claim_suspects())[0]))
    await snoozes.claim_suspects()
    snoozes.clock.advance(LEASE)
    if absent == "locked":
        async with snoozes.witness.transaction():
            await snoozes.lock(2)
            assert (await snoozes.recover()).recovered == (3,)
    elif absent == "paused":
        await snoozes.witness.execute("update email_snoozes set inactive = true where id = 2")
        assert (await snoozes.recover()).recovered == (3,)
        await snoozes.witness.execute("update email_snoozes set inactive = false where id = 2")
    else:
        assert len((await snoozes.recover(limit=1)).recovered) == 1
    assert len((await snoozes.recover()).recovered) == 1
    assert [(await snoozes.row(number))["inactive"] for number in (2, 3)] == [False, False]


async def test_a_claim_of_another_program_retires_no_row(snoozes: Bench) -> None:
    """The article's claim gives every row a token of its own, whatever was claimed with it."""
    await snoozes.add(1, 2)
    for _ in range(4):
        await snoozes.witness.execute(
            "update email_snoozes set claimed_at = $1, claimed_by = 'theirs',"
            " claim_token = gen_random_uuid()",
            snoozes.clock.now(),
        )
        await die(snoozes)
    assert [(await snoozes.row(number))["inactive"] for number in (1, 2)] == [False, False]


@pytest.mark.parametrize("delay", [None, 0 * SECOND, SECOND])
async def test_a_failure_of_its_own_clears_a_suspect(snoozes: Bench, delay: Any) -> None:
    await snoozes.add(1)
    await snoozes.claim()
    await die(snoozes)
    [job] = await snoozes.claim_suspects()
    await snoozes.change(RETRY, held(job), delay=delay, error="no luck")
    snoozes.clock.advance(SECOND)
    assert await snoozes.claim_suspects() == []
    assert snoozes.numbers(await snoozes.claim()) == [1]


async def test_a_release_leaves_a_suspect_one(snoozes: Bench) -> None:
    await snoozes.add(1)
    await snoozes.claim()
    await die(snoozes)
    await snoozes.change(RELEASE, held((await snoozes.claim_suspects())[0]))
    assert await snoozes.claim() == []
    assert len(await snoozes.claim_suspects()) == 1


@pytest.mark.parametrize("ending", [HOLD, RETIRE_LAST_RETRY], ids=lambda row: row.name)
async def test_a_row_that_failed_is_no_suspect_when_a_person_reactivates_it(
    snoozes: Bench, ending: Any
) -> None:
    await snoozes.add(1, attempts=4)
    mine = await snoozes.claim_one()
    snoozes.clock.advance(SECOND)
    await snoozes.change(ending, mine, error="no luck")
    await snoozes.witness.execute("update email_snoozes set inactive = false, attempts = 0")
    assert snoozes.numbers(await snoozes.claim()) == [1]


@pytest.mark.parametrize(
    "update",
    [
        "last_error = null",
        "last_error = null, last_error_at = null",
        "last_error_at = null",
        "remind_at = last_error_at",
    ],
)
async def test_a_person_can_clear_a_suspect(snoozes: Bench, update: str) -> None:
    await snoozes.add(1)
    await snoozes.claim()
    await die(snoozes)
    await snoozes.witness.execute(f"update email_snoozes set {update}")
    assert await snoozes.claim_suspects() == []
    assert snoozes.numbers(await snoozes.claim()) == [1]


async def test_a_row_retired_by_deaths_can_be_reactivated_and_is_described_once(
    snoozes: Bench,
) -> None:
    await snoozes.add(1, last_error="no luck")
    await snoozes.claim()
    for _ in range(2):
        await die(snoozes)
        await snoozes.claim_suspects()
        await die(snoozes)
        row = await snoozes.row(1)
        assert (row["inactive"], row["last_error"]) == (
            True,
            f"{DEATH_ERROR}; before that: no luck",
        )
        await snoozes.witness.execute("update email_snoozes set inactive = false")
    [job] = await snoozes.claim_suspects()
    snoozes.clock.advance(SECOND)
    await snoozes.change(COMPLETE, held(job))
    assert (await snoozes.row(1))["inactive"] is True
    counts, _ = await inspect(snoozes.driver, snoozes.kind.queue, 10)
    assert (counts.done, counts.retired) == (1, 0)


async def test_attempts_and_the_due_time_apply_to_suspects_too(snoozes: Bench) -> None:
    await snoozes.add(1, 2, 3)
    await snoozes.claim()
    await die(snoozes)
    await snoozes.witness.execute("update email_snoozes set attempts = 5 where id = 1")
    await snoozes.witness.execute(
        "update email_snoozes set remind_at = $1, last_error_at = $2 where id = 2",
        snoozes.clock.now() + SECOND,
        snoozes.clock.now() + 2 * SECOND,
    )
    assert snoozes.numbers(await snoozes.claim_suspects()) == [3]


async def test_suspects_are_claimed_in_the_order_of_the_queue(snoozes: Bench) -> None:
    for number in (3, 1, 2):
        await snoozes.add(number, due=snoozes.clock.now() - number * SECOND)
    await snoozes.claim()
    await die(snoozes)
    order = [*await snoozes.claim_suspects(), *await snoozes.claim_suspects()]
    assert snoozes.numbers(order) == [3, 2, 1]


async def test_a_row_retired_by_deaths_counts_as_retired_and_a_recovered_one_as_done(
    place: Database, link: Link
) -> None:
    for missing in ("", "updated_at"):
        async with bench(SNOOZES, place.dsn, link.driver) as table:
            if missing:
                await table.witness.execute(f"alter table email_snoozes drop {missing}")
            await table.add(1, 2, 3)
            await table.claim()
            await die(table)
            await table.claim_suspects()
            await die(table)
            await table.change(COMPLETE, held((await table.claim_suspects())[0]))
            counts, cases = await inspect(table.driver, table.kind.queue, 10)
            assert (counts.retired, counts.done, counts.claimed) == (1, 1, 0)
            assert {(case.key, case.state) for case in cases} == {
                ("1", "retired"),
                ("3", "suspect"),
            }
            await table.witness.execute("drop table email_snoozes")


async def test_a_table_that_cannot_know_of_deaths_recovers_without_end(
    place: Database, link: Link
) -> None:
    async with bench(KINDS["chores"], place.dsn, link.driver) as chores:
        await chores.add(1, attempts=4)
        for _ in range(8):
            assert len(await chores.claim()) == 1
            await die(chores)
        assert await chores.claim_suspects() == await chores.claim_recovered() == []
        row = await chores.row(1)
        assert (row["inactive"], row["attempts"]) == (False, 4)


async def test_only_a_table_that_cannot_know_of_deaths_is_warned_of(
    place: Database, link: Link
) -> None:
    for kind in KINDS.values():
        async with bench(kind, place.dsn, link.driver) as table:
            found = (await fit(table.driver, kind.queue)).faults
            assert not any(fault.required for fault in found)
            warned = [fault for fault in found if "worker died" in fault.message]
            assert bool(warned) is (kind.name == "chores")
            for fault in warned:
                assert fault.ddl is not None
                await table.witness.execute(fault.ddl)
                assert (await fit(table.driver, kind.queue)).faults == ()


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("email_snoozes", "drop last_error", None),
        ("chores", "add last_error_at timestamptz", DEATH_ERROR[:30]),
        ("outbox", "drop crashes, add last_error_at timestamptz", None),
    ],
)
async def test_last_error_at_alone_tells_deaths_whatever_the_key(
    place: Database, link: Link, name: str, change: str, told: str | None
) -> None:
    kind = replace(KINDS[name], queue=replace(KINDS[name].queue, recoveries=None))
    async with bench(kind, place.dsn, link.driver) as table:
        await table.witness.execute(f"alter table {name} {change}")
        await table.add(1, 2, 3)
        assert len(await table.claim()) == 3
        await die(table)
        assert await table.claim() == []
        [first] = await table.claim_suspects()
        await die(table)
        rows = await table.rows()
        assert [key for key, row in rows.items() if row["inactive"]] == [first.id]
        assert rows[first.id].get("last_error") == told
        for _ in range(2):
            [job] = await table.claim_suspects(limit=1)
            await table.change(COMPLETE, held(job))
        assert await table.claim_suspects() == []


async def test_two_queues_on_one_table_have_suspects_of_their_own(snoozes: Bench) -> None:
    await snoozes.add(1, subject="slow")
    await snoozes.add(2, subject="quick")
    slow = snoozes.using(where="subject = 'slow'", name="slow")
    quick = snoozes.using(where="subject = 'quick'", name="quick")
    for queue in (slow, quick):
        await queue.claim([], limit=1, worker="w")
    snoozes.clock.advance(LEASE)
    await slow.recover([])
    assert await quick.claim_recovered([], limit=1, worker="w", suspects=True) == []
    [job] = await slow.claim_recovered([], limit=1, worker="w", suspects=True)
    assert job.id == 1


async def test_a_group_of_suspects_is_of_one_table(place: Database, link: Link) -> None:
    async with (
        bench(SNOOZES, place.dsn, link.driver) as snoozes,
        bench(KINDS["outbox"], place.dsn, link.driver) as outbox,
    ):
        outbox.clock.set(snoozes.clock.now())
        await snoozes.add(*range(1, 8))
        await snoozes.claim()
        await die(snoozes)
        await outbox.add(*range(3), recoveries=2)
        parties = {"email_snoozes": snoozes.leases, "outbox": outbox.leases}
        both = SharedClaims(parties)
        rules = [ClaimRule(name, LEASE) for name in parties]
        groups = []
        while jobs := await both.claim_recovered(
            rules, limit=both.suspect_group, worker="w", suspects=True
        ):
            assert len({job.entrypoint for job in jobs}) == 1
            groups.append((jobs[0].entrypoint, len(jobs)))
            table = parties[jobs[0].entrypoint]
            await table.change(COMPLETE, [Change(held(job)) for job in jobs])
        assert sorted(groups) == [
            *[("email_snoozes", size) for size in (1, 2, 4)],
            *[("outbox", 1)] * 3,
        ]


def test_suspects_among_jobs_come_one_at_a_time() -> None:
    assert MemoryStore().leases.suspect_group == 1


async def test_a_lone_suspect_that_is_unreadable_is_retired_and_the_next_one_is_alone(
    snoozes: Bench,
) -> None:
    """The claim that found it held nothing else, and neither does the one after it."""
    await snoozes.add(1, 2)
    await snoozes.claim()
    await die(snoozes)
    await snoozes.witness.execute(
        "alter table email_snoozes add note jsonb;"
        " update email_snoozes set note = to_jsonb(repeat('9', 5000)::numeric) where id = 1"
    )
    fresh = snoozes.using()
    [job] = await fresh.claim_recovered([], limit=10, worker="w", suspects=True)
    assert job.id == 2
    assert (await snoozes.row(1))["inactive"] is True
    snoozes.clock.advance(LEASE)
    assert (await fresh.recover([])).retired == (2,)
