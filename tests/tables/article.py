"""The table of a queue as its owner would make it, and what its owner does to it by hand.

The names of the columns, the indexes and the conditions are a contract: a queue that was made with
these statements by their owner works under Holdfast, and goes on working under them.
"""

from __future__ import annotations

TABLE = """
create table email_snoozes (
    id bigserial primary key,
    user_email text not null, message_id text not null, subject text, sender_email text,
    remind_at timestamptz not null, snooze_duration_hours int,
    claimed_at timestamptz, claimed_by text, claim_token uuid,
    attempts int not null default 0, max_attempts int not null default 5,
    inactive boolean not null default false,
    last_error text, last_error_at timestamptz,
    created_at timestamptz not null default now(), updated_at timestamptz not null default now()
);
create index idx_email_snoozes_due on email_snoozes (inactive, claimed_at, remind_at);
create index idx_email_snoozes_claimed on email_snoozes (claimed_at) where claimed_at is not null;
"""

UNCLAIMED = "claimed_at = null, claimed_by = null, claim_token = null, updated_at = now()"

CLAIM = """
with due as (
    select id from email_snoozes
    where not inactive and claimed_at is null and remind_at <= now() and attempts < max_attempts
    order by remind_at limit $1 for update skip locked
)
update email_snoozes s
set claimed_at = now(), claimed_by = $2, claim_token = gen_random_uuid(), updated_at = now()
from due where s.id = due.id
returning s.id, s.user_email, s.message_id, s.subject, s.sender_email, s.remind_at,
          s.claimed_at, s.claimed_by, s.claim_token, s.attempts, s.max_attempts
"""

STATEMENTS = {
    "table": TABLE,
    "claim": CLAIM,
    "unclaim": f"update email_snoozes set {UNCLAIMED}, attempts = attempts + 1, last_error = $2,"
    " last_error_at = now(),"
    " remind_at = greatest(remind_at, now() + make_interval(secs => $3::int)) where id = $1",
    "finalise": f"update email_snoozes set {UNCLAIMED}, inactive = true"
    " where id = $1 and claim_token = $2",
    "recover": f"update email_snoozes set {UNCLAIMED}, last_error_at = now(),"
    " last_error = coalesce(last_error, 'stale claim recovered')"
    " where not inactive and claimed_at < now() - interval '5 minutes'",
    "retire": "update email_snoozes set inactive = true, updated_at = now()"
    " where not inactive and attempts >= max_attempts",
}


def statement(name: str) -> str:
    return STATEMENTS[name]


def words(sql: str) -> list[str]:
    """What a server reads, whatever the indentation and the case."""
    for mark in "(),;":
        sql = sql.replace(mark, f" {mark} ")
    return sql.lower().split()
