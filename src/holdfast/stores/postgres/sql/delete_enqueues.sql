-- role: worker
-- Deletes the keys of enqueues whose statement can no longer be on its way. Index: primary key, whose
-- first digits are the milliseconds of the client's clock; `created` is the server's.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) - interval '1 hour' as past,
           set_config('synchronous_commit', 'off', true)
)
delete from {enqueues} e
where e.key = any(array(
    select o.key
    from {enqueues} o
    where o.key < (
              select rpad(
                  lpad(to_hex((extract(epoch from past) * 1000)::bigint), 12, '0'), 32, '0'
              )::uuid
              from clock
          )
      and o.created < (select past from clock)
      and {on_duty}
    order by o.key
    limit 100000
))
