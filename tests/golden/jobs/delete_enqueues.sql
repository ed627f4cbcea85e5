-- delete_enqueues($1 now, $2 holder)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) - interval '1 hour' as past,
           set_config('synchronous_commit', 'off', true)
)
delete from "holdfast_enqueues" e
where e.key = any(array(
    select o.key
    from "holdfast_enqueues" o
    where o.key < (
              select rpad(
                  lpad(to_hex((extract(epoch from past) * 1000)::bigint), 12, '0'), 32, '0'
              )::uuid
              from clock
          )
      and o.created < (select past from clock)
      and ($2::uuid is null or exists (select from "holdfast_upkeep" duty where duty.token = $2::uuid and duty.expires > coalesce($1::timestamptz, clock_timestamp())))
    order by o.key
    limit 100000
))
