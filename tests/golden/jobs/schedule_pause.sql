-- schedule_pause($1 paused, $2 next_run, $3 now, $4 name)
update "holdfast_schedules" s
set paused = $1::boolean,
    next_run = coalesce($2::timestamptz, s.next_run),
    updated = coalesce($3::timestamptz, clock_timestamp())
where s.name = $4::text
returning s.id
