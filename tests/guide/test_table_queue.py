"""A table as a queue, as its owner uses it: the owner's table, the owner's SQL, our workers."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pytest

from holdfast import BreakerPolicy, BreakerState, Holdfast, TableQueue, exponential, linear
from tests.tables import article
from tests.worker.workers import Watch, ends, eventually, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import Database

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def at_once(attempts: int, error: BaseException) -> timedelta:
    return timedelta(0)


INSERT = """
insert into email_snoozes (user_email, message_id, subject, remind_at, max_attempts)
values ('ann@example.org', $1, $1, now() - $2::interval, $3) returning id
"""

QUESTIONS = {
    "what is stuck": "select id from email_snoozes where claimed_at < now() - interval '5 minutes'",
    "who claimed it": "select claimed_by from email_snoozes where id = $1",
    "for how long": "select now() - claimed_at from email_snoozes where id = $1",
    "how often did it fail": "select attempts from email_snoozes where id = $1",
    "why": "select last_error from email_snoozes where id = $1",
    "when may it run again": "select remind_at from email_snoozes where id = $1",
}


@pytest.fixture
async def sql(pg: Database) -> AsyncIterator[Any]:
    """The owner's own connection to a database that has this table and nothing of Holdfast's."""
    connection = await asyncpg.connect(pg.dsn)
    await connection.execute(article.statement("table"))
    yield connection
    await connection.close()


@pytest.fixture
async def worker(pg: Database, sql: Any) -> AsyncIterator[Holdfast]:
    async with Holdfast.connect(pg.dsn) as made:
        yield made


async def add(sql: Any, subject: str, ago: timedelta = MINUTE, cap: int = 5) -> int:
    return int(await sql.fetchval(INSERT, subject, ago, cap))


async def row(sql: Any, number: int) -> Any:
    return await sql.fetchrow("select * from email_snoozes where id = $1", number)


def reminds(hf: Holdfast, queue: TableQueue | None = None, **options: Any) -> list[str]:
    """A handler that notes what it sends; a subject that begins with "bad" cannot be sent."""
    sent: list[str] = []

    @hf.table(queue or TableQueue("email_snoozes"), **options)
    async def remind(row: dict[str, Any]) -> None:
        if row["subject"].startswith("bad"):
            raise ConnectionError("the mail server is down")
        sent.append(row["subject"])

    return sent


class TestOwnership:
    async def test_workers_and_the_owners_own_claims_never_share_a_row(
        self, worker: Holdfast, sql: Any
    ) -> None:
        for n in range(20):
            await add(sql, f"mail {n}")
        by_hand = await sql.fetch(article.statement("claim"), 5, "by hand")
        sent = reminds(worker)
        await worker.run(mode="drain")
        assert len({found["id"] for found in by_hand}) == 5
        assert len(sent) == len(set(sent)) == 15
        assert not {found["subject"] for found in by_hand} & set(sent)

    async def test_a_locked_row_is_skipped_and_not_waited_for(
        self, worker: Holdfast, sql: Any
    ) -> None:
        locked = await add(sql, "locked")
        await add(sql, "free")
        sent = reminds(worker)
        async with sql.transaction():
            await sql.execute("select from email_snoozes where id = $1 for update", locked)
            await ends(worker.run(mode="drain"))
            assert sent == ["free"]

    async def test_a_claim_is_stamped_in_the_row(self, worker: Holdfast, sql: Any) -> None:
        number, seen = await add(sql, "mail"), []

        @worker.table("email_snoozes")
        async def remind(found: dict[str, Any]) -> None:
            seen.append((found, await row(sql, number)))

        await worker.run(mode="drain")
        [(given, stored)] = seen
        assert stored["claimed_by"] == worker.queue_manager.id
        assert None not in (stored["claimed_at"], stored["claim_token"])
        for name in ("id", "user_email", "message_id", "subject", "remind_at", "max_attempts"):
            assert given[name] == stored[name]


class TestTheStateMachine:
    async def test_success_retires_the_row_and_clears_the_claim(
        self, worker: Holdfast, sql: Any
    ) -> None:
        number = await add(sql, "mail")
        reminds(worker)
        await worker.run(mode="drain")
        found = await row(sql, number)
        assert found["inactive"]
        assert (found["claimed_at"], found["claimed_by"], found["claim_token"]) == (None,) * 3
        assert (found["attempts"], found["last_error"]) == (0, None)

    async def test_failure_unclaims_counts_and_says_why(self, worker: Holdfast, sql: Any) -> None:
        number = await add(sql, "bad")
        reminds(worker, TableQueue("email_snoozes", backoff=linear(MINUTE)))
        await worker.run(mode="drain")
        found = await row(sql, number)
        assert (found["inactive"], found["attempts"]) == (False, 1)
        assert (found["claimed_at"], found["claimed_by"], found["claim_token"]) == (None,) * 3
        assert found["last_error"] == "ConnectionError: the mail server is down"
        assert found["remind_at"] - found["last_error_at"] == MINUTE

    async def test_a_row_that_was_put_off_further_is_not_brought_forward(
        self, worker: Holdfast, sql: Any
    ) -> None:
        number = await add(sql, "bad")

        @worker.table(TableQueue("email_snoozes", backoff=linear(MINUTE)))
        async def remind(found: dict[str, Any]) -> None:
            await sql.execute("update email_snoozes set remind_at = now() + interval '1 day'")
            raise ValueError

        await worker.run(mode="drain")
        left = (await row(sql, number))["remind_at"] - (await row(sql, number))["last_error_at"]
        assert left > timedelta(hours=23)

    async def test_a_stale_claim_is_recovered_and_finished(
        self, worker: Holdfast, sql: Any
    ) -> None:
        number = await add(sql, "mail")
        await sql.fetch(article.statement("claim"), 1, "died")
        await sql.execute("update email_snoozes set claimed_at = now() - interval '6 minutes'")
        sent = reminds(worker)

        async def done() -> bool:
            return bool(sent)

        async with working(worker, heartbeat_timeout=timedelta(seconds=1)):
            await eventually(done)
        assert (await row(sql, number))["last_error"] == "stale claim recovered"

    async def test_a_claim_within_the_threshold_is_left_alone(
        self, worker: Holdfast, sql: Any
    ) -> None:
        await add(sql, "mail")
        await sql.fetch(article.statement("claim"), 1, "lives")
        sent = reminds(worker)
        await worker.run(mode="drain")
        assert sent == []

    async def test_the_threshold_belongs_to_the_queue(self, worker: Holdfast, sql: Any) -> None:
        await add(sql, "mail")
        await sql.fetch(article.statement("claim"), 1, "died")
        await sql.execute("update email_snoozes set claimed_at = now() - interval '2 seconds'")
        sent = reminds(worker, TableQueue("email_snoozes", lease=timedelta(seconds=1)))

        async def done() -> bool:
            return bool(sent)

        async with working(worker):
            await eventually(done)

    async def test_at_the_cap_of_its_own_a_row_becomes_a_case_file(
        self, worker: Holdfast, sql: Any
    ) -> None:
        tough, weak = await add(sql, "bad 1", cap=3), await add(sql, "bad 2", cap=1)
        reminds(worker, TableQueue("email_snoozes", backoff=at_once))
        await worker.run(mode="drain")
        for number, cap in ((tough, 3), (weak, 1)):
            found = await row(sql, number)
            assert (found["inactive"], found["attempts"]) == (True, cap)
            assert None not in (found["last_error"], found["last_error_at"], found["message_id"])

    async def test_what_the_owner_says_of_a_spent_row_holds(
        self, worker: Holdfast, sql: Any
    ) -> None:
        number = await add(sql, "mail", cap=2)
        await sql.execute("update email_snoozes set attempts = 2")
        sent = reminds(worker)
        await worker.run(mode="drain")
        await sql.execute(article.statement("retire"))
        assert (sent, (await row(sql, number))["inactive"]) == ([], True)


class TestTheToken:
    async def test_who_lost_the_row_cannot_finish_it(self, worker: Holdfast, sql: Any) -> None:
        number = await add(sql, "mail")
        [mine] = await sql.fetch(article.statement("claim"), 1, "slow")
        await sql.execute("update email_snoozes set claimed_at = now() - interval '1 hour'")
        await sql.execute(article.statement("recover"))
        reminds(worker)
        await worker.run(mode="drain")
        before = await row(sql, number)
        await sql.execute(article.statement("finalise"), number, mine["claim_token"])
        assert await row(sql, number) == before

    async def test_a_late_worker_of_ours_changes_nothing_and_says_so(
        self, worker: Holdfast, sql: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        number, started, go = await add(sql, "mail"), asyncio.Event(), asyncio.Event()

        @worker.table("email_snoozes")
        async def remind(found: dict[str, Any]) -> None:
            started.set()
            await go.wait()

        watch = Watch(worker)
        with caplog.at_level(logging.INFO, logger="holdfast.worker"):
            async with working(worker):
                await ends(started.wait())
                await sql.execute(
                    "update email_snoozes set claim_token = $1, claimed_by = 'other'", uuid4()
                )
                go.set()
                await watch.until_lost()
        assert (await row(sql, number))["claimed_by"] == "other"
        [said] = [one for one in caplog.records if "lease lost" in one.getMessage()]
        assert said.levelno == logging.INFO


class TestTheOrder:
    async def test_is_that_of_the_schedule(self, worker: Holdfast, sql: Any) -> None:
        for subject, ago in (("second", 2), ("third", 1), ("first", 3)):
            await add(sql, subject, ago * MINUTE)
        sent = reminds(worker)
        await worker.run(mode="drain", concurrency=1)
        assert sent == ["first", "second", "third"]

    async def test_is_declared_with_the_queue(self, worker: Holdfast, sql: Any) -> None:
        for subject in ("b", "a", "c"):
            await add(sql, subject)
        sent = reminds(worker, TableQueue("email_snoozes", order=("subject desc",)))
        await worker.run(mode="drain", concurrency=1)
        assert sent == ["c", "b", "a"]


class TestByHand:
    @pytest.mark.parametrize(
        "change",
        [
            "inactive = true",
            "claimed_at = now(), claimed_by = 'me', claim_token = gen_random_uuid()",
            "remind_at = now() + interval '1 hour'",
            "attempts = max_attempts",
        ],
        ids=["inactive", "claimed", "not due", "spent"],
    )
    async def test_pending_is_one_condition(self, worker: Holdfast, sql: Any, change: str) -> None:
        number = await add(sql, "out")
        await add(sql, "in")
        await sql.execute(f"update email_snoozes set {change} where id = $1", number)
        sent = reminds(worker)
        await worker.run(mode="drain")
        assert sent == ["in"]

    async def test_a_class_of_rows_is_paused_and_resumed(self, worker: Holdfast, sql: Any) -> None:
        for subject in ("news 1", "bill", "news 2"):
            await add(sql, subject)
        sent = reminds(worker)
        await sql.execute("update email_snoozes set inactive = true where subject like 'news%'")
        await worker.run(mode="drain")
        assert sent == ["bill"]
        await sql.execute("update email_snoozes set inactive = false where subject like 'news%'")
        await worker.run(mode="drain")
        assert sorted(sent) == ["bill", "news 1", "news 2"]

    async def test_a_case_file_is_activated_again(self, worker: Holdfast, sql: Any) -> None:
        number = await add(sql, "bad", cap=1)
        sent = reminds(worker)
        await worker.run(mode="drain")
        assert (await row(sql, number))["inactive"]
        await sql.execute(
            "update email_snoozes set subject = 'mended', attempts = 0, last_error = null,"
            " last_error_at = null, inactive = false, remind_at = now() where id = $1",
            number,
        )
        await worker.run(mode="drain")
        assert sent == ["mended"]

    async def test_a_subset_may_have_more_attempts(self, worker: Holdfast, sql: Any) -> None:
        number = await add(sql, "bad", cap=1)
        reminds(worker, TableQueue("email_snoozes", backoff=at_once))
        await worker.run(mode="drain")
        await sql.execute("update email_snoozes set max_attempts = 3, inactive = false")
        await worker.run(mode="drain")
        found = await row(sql, number)
        assert (found["inactive"], found["attempts"]) == (True, 3)

    async def test_six_questions_are_each_one_select(self, worker: Holdfast, sql: Any) -> None:
        failed = await add(sql, "bad")
        reminds(worker, TableQueue("email_snoozes", backoff=linear(MINUTE)))
        await worker.run(mode="drain")
        stuck = await add(sql, "mail")
        await sql.fetch(article.statement("claim"), 1, "died")
        await sql.execute(
            "update email_snoozes set claimed_at = now() - interval '6 minutes' where id = $1",
            stuck,
        )
        assert [found["id"] for found in await sql.fetch(QUESTIONS["what is stuck"])] == [stuck]
        assert await sql.fetchval(QUESTIONS["who claimed it"], stuck) == "died"
        assert await sql.fetchval(QUESTIONS["for how long"], stuck) > 5 * MINUTE
        assert await sql.fetchval(QUESTIONS["how often did it fail"], failed) == 1
        assert "mail server" in await sql.fetchval(QUESTIONS["why"], failed)
        now = await sql.fetchval("select now()")
        assert await sql.fetchval(QUESTIONS["when may it run again"], failed) > now


class TestTheBackoff:
    @pytest.mark.parametrize(
        ("backoff", "delays"),
        [
            (linear(MINUTE), [1, 2, 3]),
            (exponential(MINUTE), [1, 2, 4]),
            (lambda attempts, error: 5 * MINUTE, [5, 5, 5]),
        ],
        ids=["linear", "exponential", "by dependency"],
    )
    async def test_is_a_column_and_not_a_sleep(
        self, worker: Holdfast, sql: Any, backoff: Any, delays: list[int]
    ) -> None:
        number = await add(sql, "bad")
        reminds(worker, TableQueue("email_snoozes", backoff=backoff))
        found = []
        for _ in delays:
            await ends(worker.run(mode="drain"))
            failed = await row(sql, number)
            found.append((failed["remind_at"] - failed["last_error_at"]) / MINUTE)
            await sql.execute("update email_snoozes set remind_at = now()")
        assert found == delays


class TestABatch:
    async def test_of_fifty_that_a_dead_worker_leaves_comes_back_whole(
        self, worker: Holdfast, sql: Any
    ) -> None:
        for n in range(50):
            await add(sql, f"mail {n}")
        assert len(await sql.fetch(article.statement("claim"), 50, "died")) == 50
        await sql.execute("update email_snoozes set claimed_at = now() - interval '1 hour'")
        sent = reminds(worker)

        async def done() -> bool:
            return len(sent) == 50

        async with working(worker, heartbeat_timeout=timedelta(seconds=1)):
            await eventually(done)
        assert len(set(sent)) == 50

    async def test_is_no_larger_than_asked(self, worker: Holdfast, sql: Any) -> None:
        for n in range(12):
            await add(sql, f"mail {n}")
        reminds(worker)
        watch = Watch(worker)
        await worker.run(mode="drain", batch_size=5)
        assert max(len(claim.jobs) for claim in watch.claims) <= 5


class TestALongJob:
    async def test_keeps_its_claim_by_a_heartbeat(self, worker: Holdfast, sql: Any) -> None:
        number, started, go = await add(sql, "mail"), asyncio.Event(), asyncio.Event()

        @worker.table(TableQueue("email_snoozes", lease=timedelta(seconds=1)))
        async def remind(found: dict[str, Any]) -> None:
            started.set()
            await go.wait()

        async with working(worker):
            await ends(started.wait())
            first = await row(sql, number)

            async def beats() -> bool:
                return (await row(sql, number))["claimed_at"] > first["claimed_at"]

            await eventually(beats)
            assert (await row(sql, number))["claim_token"] == first["claim_token"]
            go.set()


class TestTheBreaker:
    async def test_stops_the_claims_of_all_workers_and_survives_them(
        self, pg: Database, sql: Any
    ) -> None:
        for n in range(6):
            await add(sql, f"bad {n}")
        policy = BreakerPolicy("mail", threshold=2, cooldown=HOUR, max_cooldown=HOUR)
        queue = TableQueue("email_snoozes", backoff=at_once)
        async with Holdfast.connect(pg.dsn) as first:
            await first.install(only="breakers")
            reminds(first, queue, breaker=policy)
            async with working(first, concurrency=1):

                async def opened() -> bool:
                    states = [one.state for one in await first.queries.list_breakers()]
                    return states == [BreakerState.OPEN]

                await eventually(opened)
        spent = await sql.fetchval("select sum(attempts) from email_snoozes")
        async with Holdfast.connect(pg.dsn) as second:
            reminds(second, queue, breaker=policy)
            await second.run(mode="drain")
            [breaker] = await second.queries.list_breakers()
        assert breaker.state is BreakerState.OPEN
        assert await sql.fetchval("select sum(attempts) from email_snoozes") == spent
        assert await sql.fetchval("select state from holdfast_breakers") == "open"

    async def test_lets_a_test_through_after_the_cooldown(self, pg: Database, sql: Any) -> None:
        for n in range(4):
            await add(sql, f"mail {n}")
        down, calls = True, 0
        policy = BreakerPolicy("mail", threshold=1, cooldown=timedelta(milliseconds=200))
        async with Holdfast.connect(pg.dsn) as hf:
            await hf.install(only="breakers")

            @hf.table(TableQueue("email_snoozes", backoff=at_once), breaker=policy)
            async def remind(found: dict[str, Any]) -> None:
                nonlocal down, calls
                calls += 1
                if down:
                    down = False
                    raise ConnectionError

            async def done() -> bool:
                return bool(
                    await sql.fetchval("select count(*) = 0 from email_snoozes where not inactive")
                )

            async with working(hf, concurrency=1):
                await eventually(done)
            [breaker] = await hf.queries.list_breakers()
        assert (calls, breaker.state) == (5, BreakerState.CLOSED)


class TestIdempotentEffects:
    async def test_a_unique_record_makes_one_mail_of_two_runs(
        self, worker: Holdfast, sql: Any
    ) -> None:
        await sql.execute(
            "create table sent (user_email text, message_id text, remind_at timestamptz,"
            " unique (user_email, message_id, remind_at))"
        )
        number, mails = await add(sql, "mail"), []

        @worker.table(TableQueue("email_snoozes", backoff=at_once))
        async def remind(found: dict[str, Any]) -> None:
            new = await sql.fetchval(
                "insert into sent values ($1, $2, $3) on conflict do nothing returning true",
                *(found["user_email"], found["message_id"], found["created_at"]),
            )
            if new:
                mails.append(found["id"])
            if not found["attempts"]:
                raise ConnectionError("after the mail was sent")

        await worker.run(mode="drain")
        assert mails == [number]

    async def test_a_status_that_moves_forward_only_refuses_to_go_back(
        self, worker: Holdfast, sql: Any
    ) -> None:
        await sql.execute(
            "create table delivery (message_id text primary key, step int not null default 0)"
        )
        await add(sql, "mail")
        await sql.execute("insert into delivery values ('mail', 2)")

        @worker.table("email_snoozes")
        async def remind(found: dict[str, Any]) -> None:
            await sql.execute(
                "update delivery set step = 1 where message_id = $1 and step < 1",
                found["message_id"],
            )

        await worker.run(mode="drain")
        assert await sql.fetchval("select step from delivery") == 2

    async def test_an_outbox_is_written_once_and_sent_by_another_queue(
        self, worker: Holdfast, sql: Any
    ) -> None:
        await sql.execute(
            "create table outbox (id bigserial primary key, message_id text unique,"
            " remind_at timestamptz not null default now(), claim_token uuid,"
            " claimed_at timestamptz, attempts int not null default 0,"
            " inactive boolean not null default false)"
        )
        await add(sql, "mail")
        sent: list[str] = []

        @worker.table(TableQueue("email_snoozes", backoff=at_once))
        async def remind(found: dict[str, Any]) -> None:
            await sql.execute(
                "insert into outbox (message_id) values ($1) on conflict do nothing",
                found["message_id"],
            )
            if not found["attempts"]:
                raise ConnectionError("after the intent was written")

        @worker.table(TableQueue("outbox", max_attempts=3))
        async def send(found: dict[str, Any]) -> None:
            sent.append(found["message_id"])

        await worker.run(mode="drain")
        assert sent == ["mail"]
