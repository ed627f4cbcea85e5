-- Some are due, one later today, one tomorrow; one was leased to a worker that died.
INSERT INTO email_snoozes (user_email, message_id, subject, remind_at, max_attempts) VALUES
    ('ann@example.org', '<1@example.org>', 'Renew the passport', NOW() - INTERVAL '2 hours', 5),
    ('bob@example.org', '<2@example.org>', 'Answer the landlord', NOW() - INTERVAL '1 hour', 5),
    ('busy@example.org', '<3@example.org>', 'Invoice 4711', NOW(), 5),
    ('gone@example.org', '<4@example.org>', 'Reunion', NOW(), 3),
    ('eve@example.org', '<5@example.org>', 'Call back', NOW() + INTERVAL '1 second', 5),
    ('ann@example.org', '<6@example.org>', 'Water the plants', NOW() + INTERVAL '1 day', 5);

INSERT INTO email_snoozes
    (user_email, message_id, subject, remind_at, claimed_at, claimed_by, claim_token)
VALUES
    ('dan@example.org', '<7@example.org>', 'Sign the lease', NOW() - INTERVAL '1 hour',
     NOW() - INTERVAL '1 hour', 'worker-that-died', gen_random_uuid());
