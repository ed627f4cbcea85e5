-- What is stuck?
SELECT id, subject FROM email_snoozes
WHERE claimed_at < NOW() - INTERVAL '5 minutes' ORDER BY id;

-- Who claimed it?
SELECT id, claimed_by FROM email_snoozes WHERE claimed_at IS NOT NULL ORDER BY id;

-- How long has it been claimed?
SELECT id, DATE_TRUNC('minute', NOW() - claimed_at)::TEXT FROM email_snoozes
WHERE claimed_at IS NOT NULL ORDER BY id;

-- How many times did it fail?
SELECT id, attempts || ' of ' || max_attempts FROM email_snoozes WHERE attempts > 0 ORDER BY id;

-- What was the last failure reason?
SELECT id, last_error FROM email_snoozes WHERE last_error IS NOT NULL ORDER BY id;

-- When is it eligible to run again?
SELECT id, CASE WHEN inactive THEN 'never: it is a case file'
                ELSE TO_CHAR(remind_at, 'YYYY-MM-DD HH24:MI') END
FROM email_snoozes WHERE NOT inactive OR attempts >= max_attempts ORDER BY id;
