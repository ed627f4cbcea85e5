"""The article's table and statements: out of its text where that is at hand, else the same here."""

from __future__ import annotations

from typing import NamedTuple

from tests.guide import seeds

NUMBER = 4


class Place(NamedTuple):
    """Where a statement stands in the text: its first line, its last, and which of several."""

    first: str
    last: str
    nth: int = 1


PLACES = {
    "table": Place("CREATE TABLE email_snoozes", "WHERE claimed_at IS NOT NULL;"),
    "claim": Place("WITH due_reminders AS (", "email_snoozes.max_attempts;"),
    "unclaim": Place("UPDATE email_snoozes", "WHERE id = $1;", 2),
    "finalise": Place("UPDATE email_snoozes", "AND claim_token = $2;", 3),
    "recover": Place("UPDATE email_snoozes", "INTERVAL '5 minutes';", 4),
    "retire": Place("UPDATE email_snoozes", "AND attempts >= max_attempts;", 5),
}

WRITTEN = {
    "table": """
        CREATE TABLE email_snoozes (
            id BIGSERIAL PRIMARY KEY,
            user_email TEXT NOT NULL,
            message_id TEXT NOT NULL,
            subject TEXT,
            sender_email TEXT,
            remind_at TIMESTAMPTZ NOT NULL,
            snooze_duration_hours INT,
            claimed_at TIMESTAMPTZ,
            claimed_by TEXT,
            claim_token UUID,
            attempts INT NOT NULL DEFAULT 0,
            max_attempts INT NOT NULL DEFAULT 5,
            inactive BOOLEAN NOT NULL DEFAULT FALSE,
            last_error TEXT,
            last_error_at TIMESTAMPTZ,
            created_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
            updated_at TIMESTAMPTZ NOT NULL DEFAULT NOW()
        );
        CREATE INDEX idx_email_snoozes_due
            ON email_snoozes (inactive, claimed_at, remind_at);
        CREATE INDEX idx_email_snoozes_claimed
            ON email_snoozes (claimed_at)
            WHERE claimed_at IS NOT NULL;
    """,
    "claim": """
        WITH due_reminders AS (
            SELECT id
            FROM email_snoozes
            WHERE inactive = FALSE
            AND claimed_at IS NULL
            AND remind_at <= CURRENT_TIMESTAMP
            AND attempts < max_attempts
            ORDER BY remind_at ASC
            LIMIT $1
            FOR UPDATE SKIP LOCKED
        )
        UPDATE email_snoozes
        SET claimed_at = CURRENT_TIMESTAMP,
            claimed_by = $2,
            claim_token = gen_random_uuid(),
            updated_at = CURRENT_TIMESTAMP
        FROM due_reminders
        WHERE email_snoozes.id = due_reminders.id
        RETURNING
            email_snoozes.id,
            email_snoozes.user_email,
            email_snoozes.message_id,
            email_snoozes.subject,
            email_snoozes.sender_email,
            email_snoozes.remind_at,
            email_snoozes.claimed_at,
            email_snoozes.claimed_by,
            email_snoozes.claim_token,
            email_snoozes.attempts,
            email_snoozes.max_attempts;
    """,
    "unclaim": """
        UPDATE email_snoozes
        SET claimed_at = NULL,
            claimed_by = NULL,
            claim_token = NULL,
            attempts = attempts + 1,
            last_error = $2,
            last_error_at = CURRENT_TIMESTAMP,
            remind_at = GREATEST(remind_at, CURRENT_TIMESTAMP + ($3::int || ' seconds')::interval),
            updated_at = CURRENT_TIMESTAMP
        WHERE id = $1;
    """,
    "finalise": """
        UPDATE email_snoozes
        SET inactive = TRUE,
            claimed_at = NULL,
            claimed_by = NULL,
            claim_token = NULL,
            updated_at = CURRENT_TIMESTAMP
        WHERE id = $1
        AND claim_token = $2;
    """,
    "recover": """
        UPDATE email_snoozes
        SET claimed_at = NULL,
            claimed_by = NULL,
            claim_token = NULL,
            last_error = COALESCE(last_error, 'stale claim recovered'),
            last_error_at = CURRENT_TIMESTAMP,
            updated_at = CURRENT_TIMESTAMP
        WHERE inactive = FALSE
        AND claimed_at IS NOT NULL
        AND claimed_at < CURRENT_TIMESTAMP - INTERVAL '5 minutes';
    """,
    "retire": """
        UPDATE email_snoozes
        SET inactive = TRUE,
            updated_at = CURRENT_TIMESTAMP
        WHERE inactive = FALSE
        AND attempts >= max_attempts;
    """,
}


def statement(name: str) -> str:
    """As it is printed."""
    if not seeds.DIRECTORY.is_dir():
        return WRITTEN[name]
    first, last, nth = PLACES[name]
    return seeds.block(NUMBER, first, last, nth=nth)


def words(sql: str) -> list[str]:
    """What a server reads, whatever the indentation."""
    return sql.split()
