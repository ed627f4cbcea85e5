-- role: operator
-- Logs what a person did that concerns no single job.
insert into {acts} (created, act, subject, actor, reason)
values (
    coalesce(:now::timestamptz, clock_timestamp()), :act::text, :subject::text, :actor::text,
    :reason::text
)
