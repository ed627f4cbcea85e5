-- wake($1 channel, $2 entrypoints)
select pg_notify(coalesce((
    select 'worker_' || left(encode(sha256(convert_to($1::text || ' ' || w.id, 'UTF8')), 'hex'), 32)
    from (
        select w.id from "holdfast_workers" w
        where w.entrypoints && $2::text[]
        order by random() offset 0
    ) w
    where case when pg_try_advisory_lock(hashtextextended('listeners of ' || $1::text || ' ' || w.id, 0)) then not pg_advisory_unlock(hashtextextended('listeners of ' || $1::text || ' ' || w.id, 0)) else true end
    limit 1
), $1::text), '')
where case when $1::text in (select pg_listening_channels()) then true when pg_try_advisory_lock(hashtextextended('listeners of ' || $1::text, 0)) then not pg_advisory_unlock(hashtextextended('listeners of ' || $1::text, 0)) else true end
