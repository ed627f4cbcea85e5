-- role: operator
-- Pauses or resumes a schedule; a resumed one may start from a new tick.
update {schedules} s
set paused = :paused::boolean,
    next_run = coalesce(:next_run::timestamptz, s.next_run),
    updated = coalesce(:now::timestamptz, clock_timestamp())
where s.name = :name::text
returning s.id
