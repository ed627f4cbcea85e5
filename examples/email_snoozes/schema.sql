-- The whole contract between the application and its workers: a row is a reminder to be sent.
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
