-- enqueue_close($1 key, $2 now)
insert into "holdfast_enqueues" (key, created)
values ($1::uuid, coalesce($2::timestamptz, clock_timestamp()))
on conflict do nothing
