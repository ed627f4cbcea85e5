-- record_act($1 now, $2 act, $3 subject, $4 actor, $5 reason)
insert into "holdfast_acts" (created, act, subject, actor, reason)
values (
    coalesce($1::timestamptz, clock_timestamp()), $2::text, $3::text, $4::text,
    $5::text
)
